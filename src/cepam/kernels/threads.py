"""Spans of blocks side by side: threads of this machine, each with some blocks of a message."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from cepam.kernels.model.task import Backend, CodingTask, Values

BackendName = Literal["auto", "numba", "numpy"]


def encode_spans(name: BackendName, threads: int | None, task: CodingTask, values: Values) -> list[bytes]:
    """The blocks of an update."""
    backend = _backend(name)
    step = task.plan.n * task.per_block * backend.span_blocks
    spans = [values[start : start + step] for start in range(0, len(values), step)]
    firsts = [start // task.plan.n for start in range(0, len(values), step)]
    parts = _side_by_side(threads, lambda v, f: backend.encode_span(task, v, f), spans, firsts)
    return [block for part in parts for block in part]


def decode_spans(name: BackendName, threads: int | None, task: CodingTask, blocks: Any, out: Values) -> None:
    """Fills out with the values of a message's blocks."""
    backend = _backend(name)
    step = task.plan.n * task.per_block * backend.span_blocks
    starts = range(0, len(out), step)
    spans = [blocks[i : i + backend.span_blocks] for i in range(0, len(blocks), backend.span_blocks)]
    with np.errstate(over="ignore"):
        _side_by_side(
            threads,
            lambda b, s: backend.decode_span(task, list(b), s // task.plan.n, out[s : s + step]),
            spans,
            list(starts),
        )


def _backend(name: BackendName) -> Backend:
    if name == "numpy":
        from cepam.kernels.numpy.backend import NumpyBackend

        return NumpyBackend()
    from cepam.kernels.numba.backend import NumbaBackend

    return NumbaBackend()


def _side_by_side(threads: int | None, work: Any, *parts: Any) -> list[Any]:
    count = min(threads or os.cpu_count() or 1, len(parts[0]))
    if count <= 1:
        return [work(*items) for items in zip(*parts)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, *parts))
