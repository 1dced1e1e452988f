"""Models as vectors: a module, the number m of its weights, and where the weights start.

A network (below) is a model lowered onto a data set: it turns rows of weights into sums of gradients and into
accuracies. On the CPU sequential networks run compiled; everything else, and CUDA, runs stacked in PyTorch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from cepam.fl.data.dataset import Dataset
from cepam.fl.models import compiled
from cepam.fl.models.lowering import Program, lower
from cepam.fl.models.tile import LANES, vectors

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
PIECES = 16
MANY = LANES // 2
"""From so many examples on a row fills blocks by itself; below, several rows share one."""
NAMES = ("cnn", "cnn-private", "mlp", "linear")
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}

WORTH_A_GPU = 100_000


@dataclass(frozen=True)
class Scores:
    """How each row of weights does on a set of examples: share of right answers and mean loss."""

    accuracy: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]


class Network(Protocol):
    """A model lowered onto a data set; one that runs in PyTorch takes and gives tensors too."""

    def summed_gradients(
        self, weights: Any, of: Index, index: Index, count: Index, bounds: Floats | None = None
    ) -> tuple[Any, Any]:
        """Row r: the sum of the gradients of training examples index[r, :count[r]] at weights[of[r]], and of losses.

        With `bounds` each example's gradient is first scaled down to the l2 norm bounds[r].
        """

    def evaluate(self, weights: Any, index: Index | None = None) -> Scores:
        """The scores of each row of weights on the test examples, or on these training examples."""


class Model:
    """A module seen as a function of one vector of m weights.

    `make` builds the module; what it draws from torch's generator comes from the seed alone.
    """

    def __init__(self, make: Callable[[], nn.Module], name: str = "own") -> None:
        self.make = make
        self.name = name
        self.module = self._seeded(0)
        if any(True for _ in self.module.buffers()):
            raise ValueError("a model must have no buffers (batch norm and its like keep data outside the weights)")
        self.size = sum(p.numel() for p in self.module.parameters())
        if self.size == 0:
            raise ValueError("a model must have at least one weight")

    def _seeded(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    def initial(self, seed: int) -> Floats:
        """The starting weights of this seed."""
        parameters = self._seeded(seed).parameters()
        vector = torch.nn.utils.parameters_to_vector([p.detach() for p in parameters])
        return vector.to(torch.float32).numpy().copy()

    def state_dict(self, weights: Floats) -> dict[str, torch.Tensor]:
        """The weights as PyTorch keeps them, to load into the module outside."""
        module = self._seeded(0)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), module.parameters())
        return {name: value.detach().clone() for name, value in module.state_dict().items()}

    def on(self, data: Dataset, device: str = "auto") -> Network:
        """The network of this model on a data set; `device` is auto, cpu, cpu-torch or cuda."""
        from cepam.fl.models.stacked import StackedNetwork

        chosen = resolved(device)
        program = lower(self.module, data.shape) if chosen == "cpu" else None
        if program is not None and program.size == self.size:
            return CompiledNetwork(program, data)
        return StackedNetwork(self.module, data, "cuda" if chosen == "cuda" else "cpu")


def resolved(device: str, coordinates: int | None = None) -> str:
    """The device that a setting stands for, one of cpu, cpu-torch and cuda.

    `auto` takes a GPU where there is one and where it pays: `coordinates` counts weights times clients for each of a
    round's steps that follow one another (docs/training.md has the times behind the rule).
    """
    if device not in ("auto", "cpu", "cpu-torch", "cuda"):
        raise ValueError(f"device must be one of auto, cpu, cpu-torch, cuda, got {device!r}")
    if device == "auto":
        pays = coordinates is None or coordinates >= WORTH_A_GPU
        return "cuda" if pays and torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but PyTorch sees no CUDA device")
    return device


class CompiledNetwork:
    """A sequential network on the CPU: compiled passes over rows, dealt out to one thread a core.

    Threads that sleep, not a spinning parallel region: on a busy machine the latter is ten times slower.
    """

    def __init__(self, program: Program, data: Dataset) -> None:
        self.program = program
        self.data = replace(data, train_inputs=_gapless(data.train_inputs), test_inputs=_gapless(data.test_inputs))
        self.threads = os.cpu_count() or 1
        self.pool = ThreadPoolExecutor(self.threads)
        self.held = threading.local()

    @property
    def _block(self) -> Floats:
        """This thread's room, kept: fresh memory for every call would cost a third of a pass in page faults."""
        if not hasattr(self.held, "block"):
            self.held.block = vectors(self.program.vectors)
        return cast(Floats, self.held.block)

    def _share(self, jobs: int, work: Callable[[int, int], None]) -> None:
        """Runs work(first, last) over pieces of the jobs, side by side."""
        piece = max(1, -(-jobs // (self.threads * PIECES)))
        list(self.pool.map(lambda first: work(first, min(first + piece, jobs)), range(0, jobs, piece)))

    def summed_gradients(
        self, weights: Floats, of: Index, index: Index, count: Index, bounds: Floats | None = None
    ) -> tuple[Floats, Floats]:
        out = np.empty((len(of), self.program.size), dtype=np.float32)
        losses = np.empty(len(of), dtype=np.float32)
        data, made = self.data, self.program
        limits = np.full(len(of), np.inf, dtype=np.float32) if bounds is None else bounds
        weights = np.ascontiguousarray(weights, dtype=np.float32)
        rest = (
            weights, of, data.train_inputs, data.train_labels, index, count, data.scale, data.shift, limits,
        )  # fmt: skip
        # A row is dealt by its own count alone, so that its sum does not depend on the other rows.
        many, few = np.flatnonzero(count >= MANY), np.flatnonzero(count < MANY)

        def one_by_one(first: int, last: int) -> None:
            compiled.by_example(made.table, made.room, self._block, *rest, many[first:last], out, losses)

        blocks = [few[first : first + LANES] for first in range(0, len(few), LANES)]

        def side_by_side(first: int, last: int) -> None:
            for block in blocks[first:last]:
                compiled.by_row(made.table, made.room, self._block, *rest, block, out, losses)

        self._share(len(many), one_by_one)
        self._share(len(blocks), side_by_side)
        return out, losses

    def evaluate(self, weights: Floats, index: Index | None = None) -> Scores:
        data, made = self.data, self.program
        inputs, labels = data.test_inputs, data.test_labels
        if index is not None:
            inputs, labels = data.train_inputs[index], data.train_labels[index]
        weights = np.ascontiguousarray(weights, dtype=np.float32)
        chunks = -(-len(labels) // compiled.CHUNK)
        correct = np.empty(len(weights) * chunks, dtype=np.int64)
        losses = np.empty(len(weights) * chunks, dtype=np.float64)

        def work(first: int, last: int) -> None:
            compiled.evaluate(
                made.table, made.room, self._block, weights, inputs, labels, data.scale, data.shift, first,
                correct[first:last], losses[first:last],
            )  # fmt: skip

        self._share(len(correct), work)
        right, total = correct.reshape(len(weights), -1).sum(1), losses.reshape(len(weights), -1).sum(1)
        return Scores(right / len(labels), total / len(labels))


def _gapless(inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The inputs as the compiled passes read them: rows of bytes or of floats, one behind the other."""
    return np.ascontiguousarray(inputs, dtype=np.uint8 if inputs.dtype == np.uint8 else np.float32)


def _convolutions(
    data: Dataset, first: int, second: int, hidden: int | None, act: type[nn.Module]
) -> Callable[[], nn.Module]:
    if len(data.shape) != 3 or min(data.shape[1:]) < 16:
        raise ValueError(f"a cnn needs images of 16 by 16 or more, got examples of shape {data.shape}")
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in data.shape[1:])
    features = second * rows * columns

    def make() -> nn.Module:
        head = [nn.Linear(features, data.classes)] if hidden is None else [
            nn.Linear(features, hidden), act(), nn.Linear(hidden, data.classes)
        ]  # fmt: skip
        return nn.Sequential(
            nn.Conv2d(data.shape[0], first, 5), nn.MaxPool2d(2), act(),
            nn.Conv2d(first, second, 5), nn.MaxPool2d(2), act(), nn.Flatten(), *head,
        )  # fmt: skip

    return make


def build(name: str, data: Dataset, activation: str = "relu") -> Model:
    """The named model for a data set.

    Paper: Section V-A, `cnn`: two convolutions and two fully connected layers with max pooling, 6,422 weights on
    MNIST. Pooling before a monotone activation is the same function as after it, at a quarter of the cost.
    `cnn-private` has wider convolutions and no hidden layer (11,386 weights): under noise, fewer layers learn more.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    act = ACTIVATIONS[activation]
    pixels = int(np.prod(data.shape))
    if name == "cnn":
        return Model(_convolutions(data, 6, 6, 50, act), name)
    if name == "cnn-private":
        return Model(_convolutions(data, 12, 24, None, act), name)
    if name == "mlp":
        return Model(
            lambda: nn.Sequential(
                nn.Flatten(), nn.Linear(pixels, 32), act(), nn.Linear(32, 16), act(), nn.Linear(16, data.classes)
            ),
            name,
        )
    if name == "linear":
        return Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(pixels, data.classes)), name)
    raise ValueError(f"model must be one of {', '.join(NAMES)}, got {name!r}")
