"""Compile kernels in a process of its own, so that the first message of a fresh machine need not wait for them.

Until the kernels of a kind of task lie compiled on disk, the NumPy backend codes what it can in a few seconds, to the
same bytes. A process that has spent a few seconds so, or has a larger update, waits for the compiled kernels instead.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from cepam._internal.files import locked_file
from cepam.kernels.format.plan import CodingTask
from cepam.kernels.numba.backend import NumbaBackend
from cepam.kernels.numba.compiling import STAMP
from cepam.kernels.numba.scalar_coder import encode_block
from cepam.kernels.numpy.backend import NumpyBackend

LONGEST_IN_NUMPY_SECONDS = 4.0
"""An update that NumPy is estimated to code for longer waits for the compiled kernels, which take some 20 seconds."""
PATIENCE_SECONDS = 5.0
"""How long a process codes with NumPy, all calls of a kind together, before it waits for the compiled kernels."""
LONGEST_WAIT_SECONDS = 300.0
"""How long it then waits before it compiles them itself."""

_START_SECONDS = 1.5
_SECONDS_PER_COORDINATE = {1: 1.5e-6, 2: 5e-6}
_SLOWEST_SECONDS_PER_COORDINATE = 6e-5  # lattices of more dimensions, and the search coder

_READY: set[str] = set()
_COMPILERS: dict[str, subprocess.Popen[bytes] | None] = {}
_SPENT: dict[str, float] = {}
_LOCK = threading.Lock()
_NUMBA = nullcontext(NumbaBackend())


def kind_of(task: CodingTask) -> str:
    """What tasks have in common that need the same kernels."""
    return f"{task.coder}_{int(task.plan.search)}_{min(task.plan.n, 2)}"


def numpy_seconds(task: CodingTask, count: int) -> float:
    """About how long NumPy codes so many values: processor time, measured on one core of a server."""
    if task.coder == "search" or task.plan.n > 2:
        return count * _SLOWEST_SECONDS_PER_COORDINATE
    return _START_SECONDS + count * _SECONDS_PER_COORDINATE[task.plan.n]


def backend_for(task: CodingTask, count: int) -> AbstractContextManager[NumbaBackend | NumpyBackend]:
    """The backend that codes an update of so many values first: NumPy while kernels are being compiled, else Numba."""
    kind = kind_of(task)
    if kind in _READY or _is_ready(task, kind, count):
        _READY.add(kind)
        return _NUMBA
    return _numpy_meanwhile(kind)


@contextmanager
def _numpy_meanwhile(kind: str) -> Iterator[NumpyBackend]:
    """The NumPy backend, its time counted."""
    begun = time.perf_counter()
    try:
        yield NumpyBackend()
    finally:
        _SPENT[kind] = _SPENT.get(kind, 0.0) + time.perf_counter() - begun


def _is_ready(task: CodingTask, kind: str, count: int) -> bool:
    """Whether the compiled kernels are to be used: they are there, or it is time to wait for them or compile here."""
    if _mark(kind).exists():
        return True
    estimate = numpy_seconds(task, count)
    with _LOCK:
        if kind not in _COMPILERS:
            if estimate > LONGEST_IN_NUMPY_SECONDS:
                return True
            _COMPILERS[kind] = _start_compiler(task, estimate)
    compiler = _COMPILERS[kind]
    if compiler is None or compiler.poll() is not None:  # none could be started, or it failed: compile here
        return True
    if estimate <= LONGEST_IN_NUMPY_SECONDS and _SPENT.get(kind, 0.0) <= PATIENCE_SECONDS:
        return False
    _say("waiting for the CPU kernels, which take some 20 seconds to compile")
    with suppress(subprocess.TimeoutExpired):
        compiler.wait(LONGEST_WAIT_SECONDS)
    return True


def _say(progress: str) -> None:
    logging.getLogger("cepam").warning("cepam: %s", progress)


def _start_compiler(task: CodingTask, estimate: float = 0.0) -> subprocess.Popen[bytes] | None:
    """A process that compiles what the task needs, which outlives this one; None where none can be started."""
    # Modules come from where this process has its own: -P keeps out the folder that it stands in, which others may own.
    call = [sys.executable, "-P", "-m", "cepam.kernels.background"]
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    try:
        compiler = subprocess.Popen(
            call,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": places},
        )
        assert compiler.stdin is not None
        with compiler.stdin as given:
            given.write(pickle.dumps(replace(task, key=bytes(len(task.key)))))
    except OSError:
        return None
    about = f", this update in about {estimate:.0f} s" if estimate >= 1.0 else ""
    _say(f"compiling the CPU kernels in the background, once per machine; NumPy codes the same bytes until then{about}")
    return compiler


def _mark(kind: str) -> Path:
    """The file beside Numba's own that says that the kernels of a kind are compiled."""
    return Path(encode_block.stats.cache_path) / f"compiled_{kind}_{STAMP}.nbi"


def compile_for(task: CodingTask) -> None:
    """Compile what encodes and decodes such tasks, from float32 and from float64, unless it lies on disk."""
    mark = _mark(kind_of(task))
    mark.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(mark.with_suffix(".lock")):  # of several processes one compiles and the others wait
        if mark.exists():
            return
        backend = NumbaBackend()
        # A loud update takes the layered quantizer, whose kernels the search coder needs too.
        levels = (0.0, task.plan.unit * task.plan.scale) if task.coder == "search" else (0.0,)
        for level in levels:
            for dtype in (np.float32, np.float64):
                values = np.full(2 * task.plan.n, level, dtype=dtype)
                backend.decode_span(task, backend.encode_span(task, values, 0), 0, values)
        mark.touch()
    with suppress(OSError):
        mark.with_suffix(".lock").unlink()


if __name__ == "__main__":
    compile_for(pickle.load(sys.stdin.buffer))
