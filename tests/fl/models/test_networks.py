"""Networks in PyTorch and compiled ones: against plain autograd, bounds that hold, rows that do not meet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cepam.fl import Dataset, Model, build
from cepam.fl.models.compiled import CompiledNetwork
from cepam.fl.models.mapped import Mapped
from cepam.fl.models.network import TorchNetwork
from cepam.fl.models.passes import Layered
from tests.fl.models.plain import clipped_sum

ENGINES = ("cpu", "cpu-torch")


class Skip(nn.Module):
    """A module that is no sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(784, 16), nn.Linear(784 + 16, 10)

    def forward(self, x):
        flat = x.flatten(1)
        wide = nn.functional.pad(self.first(flat), (0, 784))
        return self.last(nn.functional.gelu(wide) + nn.functional.pad(flat, (16, 0)))


def nets() -> dict[str, nn.Module]:
    return {
        "strided and padded": nn.Sequential(
            nn.Conv2d(1, 3, 5, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(3, 2),
            nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 10, bias=False),
        ),
        "pooled and padded": nn.Sequential(
            nn.Conv2d(1, 3, (4, 3), padding=(2, 1)), nn.MaxPool2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(243, 10)
        ),
        "odd pooling": nn.Sequential(
            nn.MaxPool2d(2, 1), nn.Conv2d(1, 2, 4, stride=3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 10)
        ),
        "average and gelu": nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.Linear(288, 10)
        ),
        "mapped": Skip(),
    }  # fmt: skip


NAMES = (*nets(), "cnn relu", "cnn tanh", "cnn-private tanh", "mlp relu", "linear relu")


def model_of(name: str, data: Dataset) -> Model:
    if name in nets():
        return Model(lambda: nets()[name], name)
    kind, activation = name.split()
    return build(kind, data, activation)


@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_sums_are_those_of_plain_autograd(small: Dataset, name: str, device: str) -> None:
    model = model_of(name, small)
    network = model.on(small, device)
    weights = np.stack([model.initial(seed) for seed in range(2)])
    draw = np.random.default_rng(0)
    index, of = draw.integers(0, 600, (6, 20)), np.array([0, 1, 1, 0, 1, 0])
    count = np.array([7, 3, 0, 1, 20, 12])
    for bounds in (None, np.full(6, 0.3, dtype=np.float32), np.linspace(0.1, 2, 6).astype(np.float32)):
        sums, losses = network.summed_gradients(weights, of, index, count, bounds)
        for row in range(6):
            bound = np.inf if bounds is None else float(bounds[row])
            plain, lost = clipped_sum(model.module, small, weights[of[row]], index[row, : count[row]], bound)
            np.testing.assert_allclose(sums[row], plain, atol=4e-5)
            np.testing.assert_allclose(losses[row], lost, rtol=1e-5)
    for where in (None, np.arange(50, 250)):
        mine, other = (model.on(small, each).evaluate(weights, where) for each in ENGINES)
        np.testing.assert_allclose(mine.loss, other.loss, rtol=1e-5)
        np.testing.assert_array_equal(mine.accuracy, other.accuracy)


@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("name", ["cnn tanh", "linear relu", "mapped", "pooled and padded"])
def test_clipped_examples_stay_within_their_bound(small: Dataset, name: str, device: str) -> None:
    """Alone in a row, and one of many that are not numbers, so that the sum is one example's clipped gradient."""
    model = model_of(name, small)
    bad = np.full((600, 784), np.inf, dtype=np.float32)
    bad[:40] = small.train_inputs[:40]
    data = replace(small, train_inputs=bad)
    weights, of = model.initial(0)[None], np.zeros(40, np.int64)
    many = np.full((40, 12), 99)
    many[np.arange(40), np.arange(40) % 12] = np.arange(40)
    for bound in (1e-6, 0.01, 0.3):
        bounds, lone = np.full(40, bound, dtype=np.float32), np.arange(40)[:, None]
        for index in (lone, many):
            sums, losses = model.on(data, device).summed_gradients(
                weights, of, index, np.full(40, index.shape[1]), bounds
            )
            norms = np.linalg.norm(sums.astype(np.float64), axis=1)
            assert norms.max() <= np.float64(np.float32(bound))
            assert norms.min() > 0
            assert np.isfinite(losses).all()


@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("name", ["cnn relu", "linear relu", "mapped"])
def test_what_is_not_a_number_adds_nothing(small: Dataset, name: str, device: str) -> None:
    """With a bound an example that overflows is left out, gradient and loss; without one its row shows it."""
    model = model_of(name, small)
    inputs = small.train_inputs.astype(np.float32)
    inputs[5], inputs[6, 3] = np.nan, np.inf
    network, sound = (
        model.on(replace(small, train_inputs=x), device) for x in (inputs, small.train_inputs.astype("f4"))
    )
    weights, of = model.initial(0)[None], np.zeros(3, np.int64)
    for size in (4, 12):
        index = np.arange(3 * size).reshape(3, size) + 3
        good = [[i for i in row if i not in (5, 6)] for row in index]
        bounds = np.full(3, 0.5, np.float32)
        sums, losses = network.summed_gradients(weights, of, index, np.full(3, size), bounds)
        for row in range(3):
            picked = np.array([good[row]])
            alone, lost = sound.summed_gradients(weights, of[:1], picked, np.array([picked.size]), bounds[:1])
            np.testing.assert_allclose(sums[row], alone[0], atol=1e-6)
            np.testing.assert_allclose(losses[row], lost[0], rtol=1e-5)
        free, _ = network.summed_gradients(weights, of, index, np.full(3, size))
        assert not np.isfinite(free[0]).all()
        assert np.isfinite(free[2]).all()


@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("name", ["cnn relu", "mlp relu", "linear relu"])
def test_a_row_s_sum_does_not_depend_on_the_other_rows(small: Dataset, name: str, device: str) -> None:
    model = model_of(name, small)
    network = model.on(small, device)
    weights = np.stack([model.initial(seed) for seed in range(20)])
    draw = np.random.default_rng(2)
    index, of, count = draw.integers(0, 600, (20, 20)), np.arange(20), np.array([1, 2, 7, 8, 20] * 4)
    for bounds in (None, np.full(20, 0.3, np.float32)):
        whole, losses = network.summed_gradients(weights, of, index, count, bounds)
        for rows in (np.arange(19, -1, -1), np.array([3]), np.array([11, 0, 7, 2])):
            own = None if bounds is None else bounds[rows]
            part, lost = network.summed_gradients(weights, of[rows], index[rows], count[rows], own)
            np.testing.assert_array_equal(part, whole[rows])
            np.testing.assert_array_equal(lost, losses[rows])
    np.testing.assert_raises(AssertionError, np.testing.assert_array_equal, whole[0], np.nextafter(whole[0], 1))


def test_which_way_a_module_goes(small: Dataset) -> None:
    """Layers where examples may meet, and those that write over their input, go one example at a time."""

    def way(*layers: nn.Module) -> type:
        return type(TorchNetwork(nn.Sequential(*layers, nn.Flatten(), nn.Linear(784, 10)), small, "cpu").passes)

    assert way(nn.Tanh()) is Layered
    assert way(nn.BatchNorm2d(1, affine=False, track_running_stats=False)) is Mapped
    assert way(nn.ReLU(inplace=True)) is Mapped
    assert isinstance(Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))).on(small, "cpu"), CompiledNetwork)


def test_inputs_and_weights_with_gaps_are_read_right(small: Dataset) -> None:
    gaps = replace(small, train_inputs=np.repeat(small.train_inputs, 2, axis=1)[:, ::2].astype(np.float64))
    model = build("linear", small)
    weights = np.stack([model.initial(seed) for seed in range(4)])
    of, index, count = np.arange(2), np.arange(40).reshape(2, 20), np.array([20, 3])
    for device in ENGINES:
        plain, _ = model.on(small, device).summed_gradients(weights[::2].copy(), of, index, count)
        gapped, _ = model.on(gaps, device).summed_gradients(weights[::2], of, index, count)
        np.testing.assert_array_equal(plain, gapped)


def test_tensors_give_tensors(small: Dataset) -> None:
    model = build("linear", small)
    of, index, count = np.zeros(2, np.int64), np.arange(40).reshape(2, 20), np.array([20, 3])
    network = model.on(small, "cpu-torch")
    sums, losses = network.summed_gradients(torch.from_numpy(model.initial(0)[None]), of, index, count)
    assert isinstance(sums, torch.Tensor)
    assert isinstance(losses, torch.Tensor)
