from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from cepam.fl import Dataset, Model, build
from cepam.fl.models.model import CompiledNetwork


def nets() -> dict[str, nn.Module]:
    return {
        "strided and padded": nn.Sequential(
            nn.Conv2d(1, 3, 5, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(3, 2),
            nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 10, bias=False),
        ),
        "odd pooling": nn.Sequential(
            nn.MaxPool2d(2, 1), nn.Conv2d(1, 2, 4, stride=3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 10)
        ),
    }  # fmt: skip


def models(data: Dataset) -> dict[str, Model]:
    made = {name: Model(lambda net=net: net, name) for name, net in nets().items()}
    for words in ("cnn relu", "cnn tanh", "cnn-private tanh", "mlp relu", "linear relu"):
        name, activation = words.split()
        made[f"{name} {activation}"] = build(name, data, activation)
    return made


@pytest.mark.parametrize(
    "name", ["strided and padded", "odd pooling", "cnn relu", "cnn tanh", "cnn-private tanh", "mlp relu", "linear relu"]
)
def test_compiled_agrees_with_torch(small: Dataset, name: str) -> None:
    model = models(small)[name]
    compiled, stacked = model.on(small, "cpu"), model.on(small, "cpu-torch")
    assert isinstance(compiled, CompiledNetwork)
    weights = np.stack([model.initial(seed) for seed in range(2)])
    draw = np.random.default_rng(0)
    index, of, count = draw.integers(0, 600, (5, 7)), np.array([0, 1, 1, 0, 1]), np.array([7, 3, 0, 1, 7])
    for bounds in (None, np.full(5, 0.3, dtype=np.float32), np.linspace(0.1, 2, 5).astype(np.float32)):
        ours, our_losses = compiled.summed_gradients(weights, of, index, count, bounds)
        theirs, their_losses = stacked.summed_gradients(weights, of, index, count, bounds)
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
        np.testing.assert_allclose(our_losses, their_losses, rtol=1e-5)
    for where in (None, np.arange(50, 250)):
        ours_scored, theirs_scored = compiled.evaluate(weights, where), stacked.evaluate(weights, where)
        np.testing.assert_allclose(ours_scored.loss, theirs_scored.loss, rtol=1e-5)
        np.testing.assert_array_equal(ours_scored.accuracy, theirs_scored.accuracy)


def test_clipped_examples_stay_within_their_bound(small: Dataset) -> None:
    model = build("cnn", small, "tanh")
    network = model.on(small, "cpu")
    index = np.arange(40)[:, None]
    bounds = np.full(40, 0.01, dtype=np.float32)
    sums, _ = network.summed_gradients(
        model.initial(0)[None], np.zeros(40, np.int64), index, np.ones(40, np.int64), bounds
    )
    assert np.linalg.norm(sums.astype(np.float64), axis=1).max() <= 0.01


def test_other_modules_run_stacked(small: Dataset) -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(784, 16), nn.Linear(784 + 16, 10)

        def forward(self, x):
            flat = x.flatten(1)
            return self.last(
                nn.functional.gelu(nn.functional.pad(self.first(flat), (0, 784))) + nn.functional.pad(flat, (16, 0))
            )

    network = Model(Skip).on(small, "cpu")
    assert not isinstance(network, CompiledNetwork)
    scores = network.evaluate(Model(Skip).initial(0)[None])
    assert 0.0 <= scores.accuracy[0] <= 1.0


def shifted(array: np.ndarray, floats: int) -> np.ndarray:
    """The same numbers in memory of their own that starts so many floats after a whole cache line."""
    room = np.empty(array.size + 32, dtype=np.float32)
    start = (-room.ctypes.data // 4) % 16 + floats
    made = room[start : start + array.size].reshape(array.shape)
    made[:] = array
    return made


@pytest.mark.parametrize("name", ["cnn tanh", "odd pooling"])
def test_sums_are_the_same_bits_wherever_and_however_they_are_computed(small: Dataset, name: str) -> None:
    model = models(small)[name]
    network = model.on(small, "cpu")
    assert isinstance(network, CompiledNetwork)
    weights = np.stack([model.initial(seed) for seed in range(3)])
    draw = np.random.default_rng(1)
    index, of = draw.integers(0, 600, (40, 37)), draw.integers(0, 3, 40)
    count = draw.integers(0, 38, 40)
    count[::2] %= 4
    bounds = np.where(np.arange(40) % 3, 0.2, np.inf).astype(np.float32)
    first = network.summed_gradients(weights, of, index, count, bounds)
    scores = network.evaluate(weights)
    litter = []
    for attempt in range(30):
        litter.append(np.full(draw.integers(1, 200_000), np.nan, dtype=np.float32))
        if attempt % 3 == 2:
            litter.clear()
        network.threads = 1 + attempt % 5
        network.pool = ThreadPoolExecutor(network.threads)
        moved = shifted(weights, attempt % 16)
        again = network.summed_gradients(moved, of, index, count, bounds)
        for ours, theirs in zip(first, again):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(network.evaluate(moved).loss, scores.loss)
        network.pool.shutdown()
    np.testing.assert_raises(AssertionError, np.testing.assert_array_equal, first[0], np.nextafter(first[0], 1))


def test_a_row_s_sum_does_not_depend_on_the_other_rows(small: Dataset) -> None:
    model = build("cnn", small, "relu")
    network = model.on(small, "cpu")
    weights = np.stack([model.initial(seed) for seed in range(20)])
    draw = np.random.default_rng(2)
    index, of, count = draw.integers(0, 600, (20, 20)), np.arange(20), np.array([1, 2, 7, 8, 20] * 4)
    whole, losses = network.summed_gradients(weights, of, index, count)
    for rows in (np.arange(19, -1, -1), np.array([3]), np.array([11, 0, 7, 2])):
        part, lost = network.summed_gradients(weights, of[rows], index[rows], count[rows])
        np.testing.assert_array_equal(part, whole[rows])
        np.testing.assert_array_equal(lost, losses[rows])


def test_what_is_not_a_number_stays_in_its_row(small: Dataset) -> None:
    model = build("cnn", small, "relu")
    network = model.on(small, "cpu")
    weights = np.stack([model.initial(seed) for seed in range(3)])
    weights[1, 0] = np.nan
    index, of = np.arange(60).reshape(3, 20), np.arange(3)
    for count in (np.array([1, 1, 1]), np.array([20, 20, 20]), np.array([2, 20, 3])):
        sums, losses = network.summed_gradients(weights, of, index, count, np.full(3, 0.5, np.float32))
        assert np.isnan(losses[1])
        assert np.isnan(sums[1]).any()
        assert np.isfinite(sums[[0, 2]]).all()
        assert np.isfinite(losses[[0, 2]]).all()


def test_inputs_and_weights_with_gaps_are_read_right(small: Dataset) -> None:
    gaps = replace(small, train_inputs=np.repeat(small.train_inputs, 2, axis=1)[:, ::2].astype(np.float64))
    model = build("linear", small)
    weights = np.stack([model.initial(seed) for seed in range(4)])
    of, index, count = np.arange(2), np.arange(40).reshape(2, 20), np.array([20, 3])
    plain, _ = model.on(small, "cpu").summed_gradients(weights[::2].copy(), of, index, count)
    gapped, _ = model.on(gaps, "cpu").summed_gradients(weights[::2], of, index, count)
    np.testing.assert_array_equal(plain, gapped)
