"""The quick start: a model of one's own in a ClientApp, record-level privacy that learns, in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp.strategy import FedAvgM  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import cepam  # noqa: E402
from cepam.flower import Accounting, Gradient, Private  # noqa: E402
from cepam.privacy import Sampling  # noqa: E402
from cepam.torch import PerExampleGradients, snapshot  # noqa: E402
from tests.flower.fakes import FakeGrid, Node  # noqa: E402

NODES, RECORDS, DRAWS, ROUNDS, CLASSES, PIXELS = 6, 800, 160, 25, 8, 24


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(PIXELS, 32), nn.Tanh(), nn.Linear(32, CLASSES))


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy pictures of eight figures."""
    draw, figures = np.random.default_rng(seed), np.random.default_rng(0).normal(size=(CLASSES, PIXELS))
    labels = draw.integers(0, CLASSES, count)
    made = figures[labels] + draw.normal(size=(count, PIXELS)) * 0.8
    return torch.from_numpy(made.astype(np.float32)), torch.from_numpy(labels)


def client(seed: int, model: nn.Module | None = None) -> Callable[[Message, Context], Message]:
    """A training function as the documentation has it."""
    mine, records = model or network(), images(RECORDS, seed)
    private = PerExampleGradients(mine, F.cross_entropy, cepam.L2(1.0))

    def train(message: Message, context: Context) -> Message:
        mine.load_state_dict(message.content["arrays"].to_torch_state_dict())
        gradient = private.gradient(records, expected_batch_size=DRAWS)
        metrics = MetricRecord({"num-examples": DRAWS})
        return Message(RecordDict({"arrays": ArrayRecord(gradient), "metrics": metrics}), reply_to=message)

    return train


def strategy(folder: Path, **changes: Any) -> Private:
    given: dict[str, Any] = {
        "clip": cepam.L2(1.0), "epsilon": 2.0, "update": Gradient(),
        "accounting": Accounting(
            records=RECORDS, record_sampling=Sampling("poisson", DRAWS), clipped="example", adjacency="add-remove",
            folder=folder,
        ),
    }  # fmt: skip
    inner = FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.9)
    return Private(inner, **(given | changes))


def accuracy(arrays: ArrayRecord) -> float:
    model, (x, y) = network(), images(2000, 99)
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def test_the_quick_start_learns_within_its_epsilon(tmp_path: Path) -> None:
    private = strategy(tmp_path)
    grid = FakeGrid([Node(k + 1, client(k)) for k in range(NODES)])
    start = ArrayRecord(snapshot(network()))
    result = private.start(grid, initial_arrays=start, num_rounds=ROUNDS)
    assert accuracy(start) < 0.3
    assert accuracy(result.arrays) > 0.9  # 0.96 without noise
    assert 1.9 < private.epsilon <= 2.0


def test_a_model_that_cannot_be_clipped_sends_nothing(tmp_path: Path) -> None:
    """A node whose model keeps data replies with a code; the others go on."""

    class Keeping(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x.detach().mean()
            return super().forward(x) + self.last

    keeping = Keeping(*network())
    nodes = [Node(1, client(0, keeping)), *(Node(k + 1, client(k)) for k in range(1, NODES))]
    grid, replies = FakeGrid(nodes), []
    grid.meddle = lambda node, reply: replies.append((node, reply)) or [reply]  # type: ignore[func-returns-value]
    private = strategy(tmp_path)
    private.start(grid, initial_arrays=ArrayRecord(snapshot(network())), num_rounds=1)
    failed = [(node, reply.error.reason) for node, reply in replies if reply.has_error()]
    assert failed == [(1, "cepam: training")]
