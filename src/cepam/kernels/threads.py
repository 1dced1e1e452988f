"""The dispatcher of the CPU backends: blocks of a message over the threads of this machine."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal

import numpy as np

from cepam.kernels.format.task import Backend, CodingTask, Values

BackendName = Literal["auto", "numba", "numpy"]
_PATIENCE_SECONDS = 5.0
_SEEN: set[str] = set()
_SAID: set[str] = set()


def cores() -> int:
    """How many cores this process may use: fewer than the machine has where it was told so (taskset, containers)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_spans(name: BackendName, threads: int | None, task: CodingTask, values: Values) -> list[bytes]:
    """The blocks of an update."""
    backend = _backend(name)
    step = task.plan.n * task.per_block * backend.span_blocks
    spans = [values[start : start + step] for start in range(0, len(values), step)]
    firsts = [start // task.plan.n for start in range(0, len(values), step)]
    with _saying_what_takes_long(name, f"encode {task.coder} {task.plan.n > 1}"):
        parts = side_by_side(threads, lambda v, f: backend.encode_span(task, v, f), spans, firsts)
    return [block for part in parts for block in part]


def decode_spans(name: BackendName, threads: int | None, task: CodingTask, blocks: Any, out: Values) -> None:
    """Fills out with the values of a message's blocks."""
    backend = _backend(name)
    step = task.plan.n * task.per_block * backend.span_blocks
    starts = range(0, len(out), step)
    spans = [blocks[i : i + backend.span_blocks] for i in range(0, len(blocks), backend.span_blocks)]
    with np.errstate(over="ignore"), _saying_what_takes_long(name, f"decode {task.coder} {task.plan.n > 1}"):
        side_by_side(
            threads,
            lambda b, s: backend.decode_span(task, list(b), s // task.plan.n, out[s : s + step]),
            spans,
            list(starts),
        )


def _saying_what_takes_long(name: BackendName, kind: str) -> AbstractContextManager[None]:
    """Says on the log, which shows on stderr, when the first call of a kind still compiles after a while."""
    return nullcontext() if name == "numpy" or kind in _SEEN else _waiting_for(kind)


@contextmanager
def _waiting_for(kind: str) -> Iterator[None]:
    timer = threading.Timer(_PATIENCE_SECONDS, _say_compiling, [kind])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # what it says, it says before the interpreter can end
        _SEEN.add(kind)


def _say_compiling(kind: str) -> None:
    from cepam.kernels.numba.backend import is_compiling

    if is_compiling() and kind not in _SAID:
        _SAID.add(kind)  # not by each of the threads that wait
        logging.getLogger("cepam").warning("cepam: compiling the CPU's kernels, once a machine; takes some 10 seconds")


@cache
def _backend(name: BackendName) -> Backend:
    if name == "numpy":
        from cepam.kernels.numpy.backend import NumpyBackend

        return NumpyBackend()
    from cepam.kernels.numba.backend import NumbaBackend

    return NumbaBackend()


def side_by_side(threads: int | None, work: Any, *parts: Any) -> list[Any]:
    """What work gives for each item, in threads: as many as asked for, or as this process may use cores."""
    count = min(threads or cores(), len(parts[0]))
    if count <= 1:
        return [work(*items) for items in zip(*parts)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, *parts))
