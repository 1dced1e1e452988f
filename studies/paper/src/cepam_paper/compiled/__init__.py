"""Small sequential networks on the CPU, compiled: hundreds of runs of one small CNN, in an hour or two.

`cepam` finds `compiled_network` by the entry point `cepam.networks`; `bench/networks.py` measures what it saves over
PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch import nn

from cepam.fl.data.dataset import Dataset
from cepam.fl.models.interface import Floats, Index, Scores
from cepam.kernels.dispatch import cores
from cepam_paper.compiled import kernels
from cepam_paper.compiled.program import Examples, Program, Rows, Workspace, lower
from cepam_paper.compiled.register_tiles import LANES, vectors

__all__ = ["CompiledNetwork", "compiled_network"]

PIECES = 16
MANY = LANES // 2
"""From so many examples on a row fills blocks by itself; below, several rows share one."""


class CompiledNetwork:
    """A sequential network on the CPU: compiled passes over rows, dealt out to one thread a core.

    Threads that sleep, not a spinning parallel region: on a busy machine the latter is ten times slower.
    """

    draws = False

    def __init__(self, program: Program, data: Dataset) -> None:
        self.program = program
        self.data = replace(data, train_inputs=_gapless(data.train_inputs), test_inputs=_gapless(data.test_inputs))
        self.threads = cores()
        self.pool = ThreadPoolExecutor(self.threads)
        self.held = threading.local()

    @property
    def _workspace(self) -> Workspace:
        """This thread's room, kept: fresh memory for every call would cost a third of a pass in page faults."""
        if not hasattr(self.held, "workspace"):
            made = self.program
            self.held.workspace = Workspace(made.table, made.room, vectors(made.vectors))
        return cast(Workspace, self.held.workspace)

    def _share(self, jobs: int, work: Callable[[int, int], None]) -> None:
        """Runs work(first, last) over pieces of the jobs, side by side."""
        piece = max(1, -(-jobs // (self.threads * PIECES)))
        list(self.pool.map(lambda first: work(first, min(first + piece, jobs)), range(0, jobs, piece)))

    def summed_gradients(
        self, weights: Floats, of: Index, index: Index, count: Index, bounds: Floats | None = None,
        seeds: Index | None = None,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        out = np.empty((len(of), self.program.size), dtype=np.float32)
        losses = np.empty(len(of), dtype=np.float32)
        data = self.data
        limits = np.full(len(of), np.inf, dtype=np.float32) if bounds is None else bounds
        weights = np.ascontiguousarray(weights, dtype=np.float32)
        asked = Rows(weights, of, index, count, limits)
        examples = Examples(data.train_inputs, data.train_labels, data.scale, data.shift)
        # A row is dealt by its own count alone, so that its sum does not depend on the other rows.
        many, few = np.flatnonzero(count >= MANY), np.flatnonzero(count < MANY)

        def one_by_one(first: int, last: int) -> None:
            kernels.by_example(self._workspace, asked, examples, many[first:last], out, losses)

        blocks = [few[first : first + LANES] for first in range(0, len(few), LANES)]

        def side_by_side(first: int, last: int) -> None:
            for block in blocks[first:last]:
                kernels.by_row(self._workspace, asked, examples, block, out, losses)

        self._share(len(many), one_by_one)
        self._share(len(blocks), side_by_side)
        return out, losses

    def evaluate(self, weights: Floats, index: Index | None = None, test: bool = False) -> Scores:
        data = self.data
        chosen = index is None or test
        inputs, labels = (data.test_inputs, data.test_labels) if chosen else (data.train_inputs, data.train_labels)
        if index is not None:
            inputs, labels = inputs[index], labels[index]
        weights = np.ascontiguousarray(weights, dtype=np.float32)
        examples = Examples(inputs, labels, data.scale, data.shift)
        chunks = -(-len(labels) // kernels.CHUNK)
        correct = np.empty(len(weights) * chunks, dtype=np.int64)
        losses = np.empty(len(weights) * chunks, dtype=np.float64)

        def work(first: int, last: int) -> None:
            kernels.evaluate(self._workspace, weights, examples, first, correct[first:last], losses[first:last])

        self._share(len(correct), work)
        right, total = correct.reshape(len(weights), -1).sum(1), losses.reshape(len(weights), -1).sum(1)
        return Scores(total / len(labels), {"accuracy": right / len(labels)})


def compiled_network(module: nn.Module, data: Dataset) -> CompiledNetwork | None:
    """The compiled network of a sequence of layers that are known and all trained; None for any other module."""
    program = lower(module, data.shape)
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return CompiledNetwork(program, data) if program is not None and program.size == trained else None


def _gapless(inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The inputs as the compiled passes read them: rows of bytes or of floats, one behind the other."""
    return np.ascontiguousarray(inputs, dtype=np.uint8 if inputs.dtype == np.uint8 else np.float32)
