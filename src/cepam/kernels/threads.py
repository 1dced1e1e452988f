"""The dispatcher of the CPU backends: blocks of a message over the threads of this machine."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal

import numpy as np

from cepam.kernels.format.plan import Backend, CodingTask, Values

BackendName = Literal["auto", "numba", "numpy"]
_PATIENCE_SECONDS = 5.0
_SEEN: set[str] = set()
_SAID: set[str] = set()


def cores() -> int:
    """How many cores this process may use: fewer than the machine has where it was told so (taskset, containers)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_spans(name: BackendName, threads: int | None, task: CodingTask, values: Values) -> list[bytes]:
    """The blocks of an update."""
    waiting = _saying_what_takes_long(name, f"encode {task.coder} {task.plan.n > 1}")
    with _backend(name, task, len(values)) as backend, waiting:
        step = task.plan.n * task.per_block * _span_blocks(backend, task)
        spans = [values[start : start + step] for start in range(0, len(values), step)]
        firsts = [start // task.plan.n for start in range(0, len(values), step)]
        parts = side_by_side(threads, lambda v, f: backend.encode_span(task, v, f), spans, firsts)
    return [block for part in parts for block in part]


def decode_spans(name: BackendName, threads: int | None, task: CodingTask, blocks: Any, out: Values) -> None:
    """Fills out with the values of a message's blocks."""
    waiting = _saying_what_takes_long(name, f"decode {task.coder} {task.plan.n > 1}")
    with _backend(name, task, len(out)) as backend, waiting, np.errstate(over="ignore"):
        together = _span_blocks(backend, task)
        step = task.plan.n * task.per_block * together
        starts = range(0, len(out), step)
        spans = [blocks[i : i + together] for i in range(0, len(blocks), together)]
        side_by_side(
            threads,
            lambda b, s: backend.decode_span(task, list(b), s // task.plan.n, out[s : s + step]),
            spans,
            list(starts),
        )


def _span_blocks(backend: Backend, task: CodingTask) -> int:
    """So many blocks go to a backend in one call: a segment of the search coder is as long as a span by itself."""
    return 1 if task.coder == "search" else backend.span_blocks


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


def _backend(name: BackendName, task: CodingTask, count: int) -> AbstractContextManager[Backend]:
    """The backend of this name; `auto` codes a small update with NumPy while kernels are compiled beside it."""
    if name == "auto":
        chosen: AbstractContextManager[Backend] = _first_backend()(task, count)
        return chosen
    return nullcontext(_named_backend(name))


@cache
def _first_backend() -> Callable[[CodingTask, int], Any]:
    """`background.backend_for`, imported when it is first needed: Numba takes a while."""
    from cepam.kernels.background import backend_for

    return backend_for


@cache
def _named_backend(name: BackendName) -> Backend:
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
