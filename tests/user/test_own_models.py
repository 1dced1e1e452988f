"""A user's own module, loss and metrics through a whole private run: a language model, and a regression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from cepam import fl  # noqa: E402

F = torch.nn.functional
PRIVATE = {
    "training.update": "examples",
    "training.record_sampling": "poisson",
    "training.expected_batch_size": 30.0,
    "clients.count": 3,
    "training.rounds": 3,
    "privacy.clipping_norm": 0.5,
    "privacy.noise_scale": 0.03,
    "training.server_learning_rate": 1.0,
    "run.evaluate_every": 3,
    "training.local_steps": 1,
    "privacy.adjacency": "add-remove",
}


class Letters(torch.nn.Module):  # type: ignore[misc]
    """A language model of 27 letters: embedding, dropout, GRU, head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(27, 8), torch.nn.Linear(16, 27)
        self.drop, self.cells = torch.nn.Dropout(0.1), torch.nn.GRU(8, 16, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(self.drop(self.table(x)))[0])


class Remembering(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(27, 8), torch.nn.Linear(8, 27)
        self.cells = torch.nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(self.table(x))[0])


class Attending(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(27, 8), torch.nn.Linear(8, 27)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(12))

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(self.table(x), mask=self.mask))


def next_letter(answers: Any, letters: Any) -> Any:
    return F.cross_entropy(answers[:, :-1].flatten(0, 1), letters[:, 1:].flatten())


def test_a_language_model_learns_and_says_so(tmp_path: Path) -> None:
    data = letters()
    model = fl.Model(Letters, loss=next_letter, metrics={"letter_bits": lambda out, x: next_letter(out, x) / np.log(2)})
    summary = fl.train(fl.Settings.of(PRIVATE), tmp_path / "run", data, model)
    assert summary["accuracy"] is None
    assert summary["epsilon"] > 0
    first, last = fl.Simulation(fl.Settings.of(PRIVATE), data, model), summary["metrics"]
    assert last["loss"]["mean"] < float(first.network.evaluate(first.state.weights).loss[0]) - 0.2
    np.testing.assert_allclose(last["letter_bits"]["mean"], last["loss"]["mean"] / np.log(2), rtol=1e-6)
    assert (tmp_path / "run" / "best.pt").exists()


def letters() -> Any:
    lines = np.tile(np.arange(12) % 4, (60, 1)) + np.arange(60)[:, None] % 3
    return fl.from_arrays((lines, lines), (lines[:6], lines[:6]), name="letters", classes=0)


@pytest.mark.parametrize("module", [Remembering, Attending])
def test_recurrent_nets_and_transformers_take_private_steps(module: Any) -> None:
    """LSTM and Transformer with dropout, as the GRU above: each example clipped by itself, and the loss goes down."""
    model = fl.Model(module, loss=next_letter)
    run = fl.Simulation(fl.Settings.of(PRIVATE), letters(), model)
    start = float(run.network.evaluate(run.state.weights).loss[0])
    while not run.done:
        (line,) = run.step()
    assert line["epsilon"] > 0
    assert line["loss"] < start


def test_convolutions_with_group_normalisation_take_private_steps() -> None:
    x = np.random.default_rng(0).normal(size=(90, 1, 6, 6)).astype(np.float32)
    data = fl.from_arrays((x, (x.mean((1, 2, 3)) > 0).astype(int)), (x[:9], np.arange(9) % 2))
    layers = (torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(), torch.nn.Dropout(0.1))
    model = fl.Model(lambda: torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64, 2)))
    run = fl.Simulation(fl.Settings.of({**PRIVATE, "training.rounds": 1, "run.evaluate_every": 1}), data, model)
    (line,) = run.step()
    assert line["epsilon"] > 0
    assert 0.0 <= line["accuracy"] <= 1.0


def test_a_regression_on_local_steps(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    y = x.sum(1)
    data = fl.from_arrays((x, y), (x, y), classes=0)
    model = fl.Model(lambda: torch.nn.Linear(4, 1), loss=lambda out, value: F.mse_loss(out[:, 0], value))
    settings = fl.Settings.of(
        {
            "clients.count": 3,
            "training.rounds": 5,
            "training.update": "difference",
            "training.server_learning_rate": 1.0,
            "training.local_learning_rate": 0.1,
            "training.local_steps": 5,
            "training.batch_size": 8,
            "privacy.noise_scale": 0.001,
            "privacy.clipping_norm": 5.0,
            "data.validation_records": 9,
        }
    )
    summary = fl.train(settings, tmp_path / "run", data, model)
    assert summary["metrics"]["loss"]["mean"] < 1.0
    assert fl.read_metrics(tmp_path / "run")[-1]["validation_loss"] < 1.0


def test_batch_normalisation_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"layer 1 is BatchNorm2d.*use nn.GroupNorm\(groups, 16\) instead"):
        fl.Model(lambda: torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.BatchNorm2d(16)))
