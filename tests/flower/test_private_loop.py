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
from flwr.serverapp.strategy import FedAdam, FedAvgM, Strategy  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import cepam  # noqa: E402
from cepam import fl  # noqa: E402
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


def client(seed: int, model: nn.Module | None = None, draws: int = DRAWS) -> Callable[[Message, Context], Message]:
    """A training function as the documentation has it."""
    mine, records = model or network(), images(RECORDS, seed)
    private = PerExampleGradients(mine, F.cross_entropy, cepam.L2(1.0))

    def train(message: Message, context: Context) -> Message:
        mine.load_state_dict(message.content["arrays"].to_torch_state_dict())
        gradient = private.gradient(records, expected_batch_size=draws)
        metrics = MetricRecord({"num-examples": draws})
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


MOMENTUM = {"training.server_optimizer": "momentum", "training.server_learning_rate": 0.5}
ADAM = {"training.server_optimizer": "adam", "training.server_learning_rate": 0.02}


def engine_weights(optimizer: dict[str, Any], rounds: int) -> np.ndarray:
    """The weights of the simulation engine: all records in every batch, next to no noise."""
    held = {str(k): tuple(each.numpy() for each in images(RECORDS, k)) for k in range(NODES)}
    settings = fl.Settings.of(
        {
            "training.update": "examples", "training.record_sampling": "poisson", "training.rounds": rounds,
            "training.local_steps": 1, "training.expected_batch_size": float(NODES * RECORDS),
            "training.server_momentum": 0.9, "privacy.clipping_norm": 1.0, "privacy.noise_scale": 1e-6,
            "privacy.adjacency": "add-remove", "run.simulate": True, "clients.count": NODES, **optimizer,
        }
    )  # fmt: skip
    test = tuple(each.numpy() for each in images(100, 99))
    simulation = fl.Simulation(settings, fl.from_clients(held, test=test), fl.Model(network))
    while not simulation.done:
        simulation.step()
    return np.asarray(simulation.state.weights[0])


def flower_weights(folder: Path, inner: Strategy, rounds: int) -> np.ndarray:
    """The weights of the quick start: the same records, start and noise."""
    sampling = Sampling("poisson", RECORDS)
    accounting = Accounting(
        records=RECORDS, record_sampling=sampling, clipped="example", adjacency="add-remove", folder=folder
    )
    private = Private(inner, clip=cepam.L2(1.0), noise=cepam.Gaussian(1e-6), update=Gradient(), accounting=accounting)
    grid = FakeGrid([Node(k + 1, client(k, draws=RECORDS)) for k in range(NODES)])
    result = private.start(grid, initial_arrays=ArrayRecord(snapshot(network())), num_rounds=rounds)
    return np.concatenate([array.ravel() for array in result.arrays.to_numpy_ndarrays()])


def test_flower_and_the_engine_take_the_same_steps(tmp_path: Path) -> None:
    """Clipping, averaging, sign, momentum and start are the engine's; what differs between runs is their randomness."""
    start = np.concatenate([value.numpy().ravel() for value in snapshot(network()).values()])
    inner = FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.9)
    found, expected = flower_weights(tmp_path, inner, 4), engine_weights(MOMENTUM, 4)
    assert np.linalg.norm(expected - start) > 1.0
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(found - engine_weights(MOMENTUM, 3)).max() > 1e-3  # one round less is not the same


def test_adam_differs_from_the_engines_by_the_round_that_flower_corrects_for(tmp_path: Path) -> None:
    """FedAdam corrects round t as Adam corrects t + 1, so its first step is 0.744 of Adam's."""
    start = np.concatenate([value.numpy().ravel() for value in snapshot(network()).values()])
    inner = FedAdam(fraction_evaluate=0.0, eta=0.02, beta_1=0.9, beta_2=0.999, tau=1e-8)
    found, expected = flower_weights(tmp_path, inner, 1) - start, engine_weights(ADAM, 1) - start
    short = np.sqrt((1 - 0.999**2) / (1 - 0.999)) * (1 - 0.9) / (1 - 0.9**2)
    assert short == pytest.approx(0.744, abs=1e-3)
    moved = np.abs(expected) > 0.019998  # where the gradient is far above tau
    assert moved.mean() > 0.9
    assert np.abs(found - short * expected)[moved].max() < 1e-4
