"""Any module: per-example gradients of recurrent nets, transformers and dropout, losses of one's own, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cepam.fl import Dataset, Model, from_arrays
from cepam.fl.models.network import Layered, TorchNetwork
from cepam.torch.mapped import Mapped

WORDS, LENGTH = 11, 6


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.table, self.cells, self.head = nn.Embedding(WORDS, 5), kind(5, 7, batch_first=True), nn.Linear(7, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.cells(self.table(x))[0])
        return made


class Attentive(nn.Module):
    """A transformer encoder that looks backwards only, with its positions in a buffer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.encoder(self.table(x), mask=self.mask))
        return made


class Normalised(nn.Module):
    """Convolutions with group normalisation, which keeps examples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Unflatten(1, (1, LENGTH)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(4 * (LENGTH - 2), WORDS),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.net(x)
        return made


def next_token(answers: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(answers[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def text() -> Dataset:
    tokens = np.random.default_rng(0).integers(0, WORDS, (40, LENGTH))
    return from_arrays((tokens, tokens), (tokens[:9], tokens[:9]), classes=0)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "gru": lambda: Recurrent(nn.GRU), "lstm": lambda: Recurrent(nn.LSTM), "transformer": Attentive,
}  # fmt: skip


def plain_sum(model: Model, weights: np.ndarray, data: Dataset, rows: np.ndarray, bound: float) -> np.ndarray:
    """The clipped sum by autograd, a module and an example at a time."""
    module = model.make()
    nn.utils.vector_to_parameters(torch.from_numpy(weights), list(module.parameters()))
    total = np.zeros(len(weights))
    for row in rows:
        x, y = (torch.from_numpy(each[row][None]) for each in (data.train_inputs, data.train_labels))
        loss = model.objective.losses(module(x.reshape(1, *data.shape)), y)[0]
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]).numpy()
        total += slope * min(1.0, bound / float(np.linalg.norm(slope)))
    return total


@pytest.mark.parametrize("name", MODULES)
def test_sums_are_those_of_plain_autograd(name: str) -> None:
    data, model = text(), Model(MODULES[name], loss=next_token)
    network, weights = model.on(data, "cpu"), np.stack([model.initial(seed) for seed in range(2)])
    index, of, count = np.arange(36).reshape(3, 12), np.array([0, 1, 1]), np.array([12, 3, 0])
    sums, _ = network.summed_gradients(weights, of, index, count, np.full(3, 0.2, np.float32))
    for row in range(3):
        wanted = plain_sum(model, weights[of[row]], data, index[row, : count[row]], 0.2)
        np.testing.assert_allclose(sums[row], wanted, atol=1e-5)
    assert not network.draws
    assert isinstance(network, TorchNetwork)
    assert isinstance(network.passes, Mapped)
    assert network.passes.recorded  # no example's gradient is written down, recurrent layers included


def test_group_normalisation_is_taken() -> None:
    draw = np.random.default_rng(1)
    data = from_arrays((draw.normal(size=(30, LENGTH)), np.arange(30) % WORDS), (np.ones((5, LENGTH)), np.arange(5)))
    model = Model(Normalised)
    sums, _ = model.on(data).summed_gradients(
        model.initial(0)[None], np.zeros(1, np.int64), np.arange(20)[None], np.array([20]), np.full(1, 0.1, np.float32)
    )
    np.testing.assert_allclose(sums[0], plain_sum(model, model.initial(0), data, np.arange(20), 0.1), atol=1e-5)


def test_dropout_draws_from_the_row_s_seed_and_each_example_by_itself() -> None:
    data, model = text(), Model(lambda: Attentive(0.5), loss=next_token)
    network, weights = model.on(data, "cpu"), model.initial(0)[None]
    assert network.draws
    index, of, count = np.full((2, 9), 4), np.zeros(2, np.int64), np.full(2, 9)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, _ = network.summed_gradients(weights, of, index, count, None, np.array([1, 2]))
    again, _ = network.summed_gradients(weights, of[:1], index[1:], count[1:], None, np.array([2]))
    np.testing.assert_array_equal(first[1], again[0])
    assert np.abs(first[0] - first[1]).max() > 1e-3
    assert torch.equal(before, torch.get_rng_state())
    one, _ = network.summed_gradients(weights, of[:1], index[:1], np.array([1]), None, np.array([1]))
    assert np.abs(first[0] - 9 * one[0]).max() > 1e-3  # the same record nine times, with nine masks
    np.testing.assert_array_equal(network.evaluate(weights).loss, network.evaluate(weights).loss)


def test_regression_by_known_layers_with_metrics() -> None:
    draw = np.random.default_rng(2)
    x = draw.normal(size=(60, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5])).astype(np.float32)
    data = from_arrays((x, y), (x, y), classes=0)
    model = Model(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)),
        loss=lambda out, value: F.mse_loss(out[:, 0], value),
        metrics={"miss": lambda out, y: (out[:, 0] - y).abs().mean(), "slow": lambda out, y: float(out[0, 0] > y[0])},
    )  # fmt: skip
    network, weights = model.on(data, "cpu"), model.initial(0)
    assert isinstance(network, TorchNetwork)
    assert isinstance(network.passes, Layered)
    sums, _ = network.summed_gradients(
        weights[None], np.zeros(1, np.int64), np.arange(30)[None], np.array([30]), np.full(1, 0.3, np.float32)
    )
    np.testing.assert_allclose(sums[0], plain_sum(model, weights, data, np.arange(30), 0.3), atol=2e-5)
    scores = network.evaluate(weights[None])
    module = model.assembled(model.state_dict(weights))
    out = module(torch.from_numpy(x))[:, 0].detach().numpy()
    np.testing.assert_allclose(scores.loss[0], ((out - y) ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(scores.metrics["miss"][0], np.abs(out - y).mean(), rtol=1e-5)
    np.testing.assert_allclose(scores.metrics["slow"][0], (out > y).mean(), rtol=1e-5)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(LENGTH, WORDS)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum()
        made: Tensor = self.layer(x)
        return made


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), r"layer 1 is BatchNorm1d.*GroupNorm\(\w+, 8\)"),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.InstanceNorm1d(8, track_running_stats=True)), "track_running"),
        (Counting, "buffer seen changes as the model trains"),
        (lambda: nn.Sequential(nn.Linear(LENGTH + 1, WORDS), nn.ReLU(inplace=True)), "does not take an example"),
        (lambda: nn.LSTM(LENGTH, WORDS), "must give one tensor, got tuple"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused(make: Callable[[], nn.Module], words: str) -> None:
    data = from_arrays((np.ones((9, LENGTH)), np.arange(9)), (np.ones((5, LENGTH)), np.arange(5)), classes=WORDS)
    with pytest.raises(ValueError, match=words):
        Model(make).on(data, "cpu")


def test_values_need_a_loss() -> None:
    with pytest.raises(ValueError, match="give the model a loss"):
        Model(lambda: nn.Linear(LENGTH, 1)).on(text(), "cpu")
    with pytest.raises(ValueError, match="one number for a batch of one, got shape"):
        Model(lambda: Recurrent(nn.LSTM), loss=lambda answers, tokens: answers).on(text(), "cpu")
