"""One suite that every network engine inherits: plain autograd's sums, bounds that hold, rows that do not meet.

A new engine is one subclass with `on` and the `names` of the models that it takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from cepam.fl import Dataset, Model, build
from cepam.fl.models.interface import Network
from tests.fl.models.plain import clipped_sum


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
    model = build(kind, data, activation)
    model.name = name
    return model


def plain_scores(
    module: nn.Module, data: Dataset, weights: np.ndarray, index: np.ndarray | None
) -> tuple[list[float], list[float]]:
    """Loss and accuracy of each row of weights on test examples, or on these training examples, by PyTorch itself."""
    inputs, labels = (data.test_inputs, data.test_labels) if index is None else (
        data.train_inputs[index], data.train_labels[index]
    )  # fmt: skip
    x = (torch.from_numpy(inputs).float() * data.scale + data.shift).reshape(-1, *data.shape)
    losses, right = [], []
    for row in weights:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(row.copy()), module.parameters())
        with torch.no_grad():
            answers = module(x)
        losses.append(float(nn.functional.cross_entropy(answers, torch.from_numpy(labels))))
        right.append(float((answers.argmax(1).numpy() == labels).mean()))
    return losses, right


class NetworkSuite:
    """What the rounds of a run ask of a network."""

    names: ClassVar[tuple[str, ...]] = NAMES

    def on(self, model: Model, data: Dataset) -> Network | None:
        """The engine's network of the model."""
        raise NotImplementedError

    def lowered(self, model: Model, data: Dataset) -> Network:
        network = self.on(model, data)
        if model.name not in self.names:
            assert network is None
            pytest.skip("not a model of this engine")
        assert network is not None
        return network

    @pytest.mark.parametrize("name", NAMES)
    def test_sums_are_those_of_plain_autograd(self, small: Dataset, name: str) -> None:
        model = model_of(name, small)
        network = self.lowered(model, small)
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
            scores = network.evaluate(weights, where)
            loss, accuracy = plain_scores(model.module, small, weights, where)
            np.testing.assert_allclose(scores.loss, loss, rtol=1e-5)
            np.testing.assert_allclose(scores.accuracy, accuracy, rtol=1e-12)

    @pytest.mark.parametrize("name", ["cnn tanh", "linear relu", "mapped", "pooled and padded"])
    def test_clipped_examples_stay_within_their_bound(self, small: Dataset, name: str) -> None:
        """Alone in a row, and one of many that are not numbers, so that the sum is one example's clipped gradient."""
        model = model_of(name, small)
        bad = np.full((600, 784), np.inf, dtype=np.float32)
        bad[:40] = small.train_inputs[:40]
        network = self.lowered(model, replace(small, train_inputs=bad))
        weights, of = model.initial(0)[None], np.zeros(40, np.int64)
        many = np.full((40, 12), 99)
        many[np.arange(40), np.arange(40) % 12] = np.arange(40)
        for bound in (1e-6, 0.01, 0.3):
            bounds, lone = np.full(40, bound, dtype=np.float32), np.arange(40)[:, None]
            for index in (lone, many):
                count = np.full(40, index.shape[1])
                sums, losses = network.summed_gradients(weights, of, index, count, bounds)
                norms = np.linalg.norm(sums.astype(np.float64), axis=1)
                assert norms.max() <= np.float64(np.float32(bound))
                assert norms.min() > 0
                assert np.isfinite(losses).all()

    @pytest.mark.parametrize("name", ["cnn relu", "linear relu", "mapped"])
    def test_what_is_not_a_number_adds_nothing(self, small: Dataset, name: str) -> None:
        """With a bound an example that overflows is left out, gradient and loss; without one its row shows it."""
        model = model_of(name, small)
        inputs = small.train_inputs.astype(np.float32)
        inputs[5], inputs[6, 3] = np.nan, np.inf
        network, sound = (
            self.lowered(model, replace(small, train_inputs=x)) for x in (inputs, small.train_inputs.astype("f4"))
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

    @pytest.mark.parametrize("name", ["cnn relu", "mlp relu", "linear relu"])
    def test_a_row_s_sum_does_not_depend_on_the_other_rows(self, small: Dataset, name: str) -> None:
        model = model_of(name, small)
        network = self.lowered(model, small)
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

    def test_inputs_and_weights_with_gaps_are_read_right(self, small: Dataset) -> None:
        gaps = replace(small, train_inputs=np.repeat(small.train_inputs, 2, axis=1)[:, ::2].astype(np.float64))
        model = model_of("linear relu", small)
        weights = np.stack([model.initial(seed) for seed in range(4)])
        of, index, count = np.arange(2), np.arange(40).reshape(2, 20), np.array([20, 3])
        plain, _ = self.lowered(model, small).summed_gradients(weights[::2].copy(), of, index, count)
        gapped, _ = self.lowered(model, gaps).summed_gradients(weights[::2], of, index, count)
        np.testing.assert_array_equal(plain, gapped)
