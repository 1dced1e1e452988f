"""Which device and which backend codes an update, and over how many threads.

A `Device` measures, encodes and decodes batches of rows: the one place that asks whether a tensor lies on a GPU. Rows
are opaque to its caller: arrays on the CPU, a tensor on a GPU. Tasks of one batch differ in their keys only.

On the CPU blocks of a message go over threads. Until the kernels of a kind of task lie compiled on disk, the NumPy
backend codes small updates, whose bytes are the same, and a process of its own compiles them. PyTorch, Triton and Numba
are imported only where they are needed.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Gaussian
from cepam.kernels.format.broadcast_contexts import BroadcastLoop
from cepam.kernels.format.plan import Backend, CodingTask, Values, layered_plan
from cepam.kernels.format.search import SEGMENT
from cepam.lattices.lattice import Integer

BackendName = Literal["auto", "numba", "numpy"]
BACKENDS = get_args(BackendName)
COMPILING_SECONDS = 20.0
"""About how long the kernels compile: an update that NumPy would code for longer than what is left of it waits."""
PATIENCE_SECONDS = 5.0
"""How long a process codes with NumPy, all calls of a kind together, once the kernels should have been compiled."""
LONGEST_WAIT_SECONDS = 300.0
"""How long it then waits before it compiles them itself."""
_START_SECONDS = 1.5
_SECONDS_PER_COORDINATE = {1: 1.5e-6, 2: 5e-6}
_SLOWEST_SECONDS_PER_COORDINATE = 6e-5  # lattices of more dimensions
_SEARCH_SECONDS = 8e-6, 6.3e-3
"""Of the search coder, per coordinate, and times the mean square of the update in noise variances."""
_UNSEARCH_SECONDS = 1e-6, 3.5e-3
"""Of its decoder: per coordinate, and per byte."""
_LEAST_SECONDS = 4.0
"""What NumPy codes faster than this does not wait, however long kernels have been compiling, until patience ends."""
RUN, RUNS = 4096, 16
"""Of the sample that chooses a coder: coordinates of a run, and how many runs."""
LEAST_SEARCHED_ON_GPU = 1 << 22
"""Coordinates of a batch from which a GPU searches: its kernels compile for minutes, once per machine."""
_TRIALS = (8192, 0.03), (2048, 0.1), (1024, 0.2)
"""Coordinates, and their size over the noise, of the updates that a GPU's searches are tried on."""
_SILENT_SECONDS = 5.0
"""How long a call may compile before the log says so."""

_SEEN: set[str] = set()
_SAID: set[str] = set()
_READY: set[str] = set()
_COMPILERS: dict[str, subprocess.Popen[bytes] | None] = {}
_BEGUN: dict[str, float] = {}
_SPENT: dict[str, float] = {}
_LOCK = threading.Lock()

ANY_SHAPE = "cepam.encode_tree(codec, update, at, clip=…) takes any shape, and dicts and lists of arrays"
"""The remedy for whoever has more than a vector."""
Meanwhile = Callable[[], None] | None
Seconds = Callable[[], float]


class MeasuredRows(Protocol):
    """Rows of which is known what must be known before they are coded."""

    def ends(self) -> list[tuple[float, float]]:
        """The least and the largest value of each row, NaN if there is one, or bounds of them within the reach."""

    def encode(self, places: Sequence[int], meanwhile: Meanwhile = None) -> list[Any]:
        """The blocks of the rows at these places, which ascend, on the host, or the `ValueError` of a row's coder.

        While a GPU codes, `meanwhile` is done.
        """


class Device(Protocol):
    """What codes batches of rows."""

    @property
    def allocate(self) -> Callable[[int], npt.NDArray[np.uint8]] | None:
        """What gives memory in which a long message is opened, or None for any memory."""

    def split(self, items: Any) -> Sequence[Any]:
        """The batches of so many rows, their messages or their addresses: those that are coded together."""

    def check_one(self, update: Any) -> Any:
        """The rows of one update. Raises `ValueError` unless it is a vector of floats."""

    def check_rows(self, updates: Any) -> Any:
        """The rows of a batch of updates. Raises `ValueError` unless they are vectors of floats."""

    def sample(self, row: Any) -> npt.NDArray[Any]:
        """The coordinates of a row, on the host, that the choice of a coder looks at."""

    def measure(self, tasks: Sequence[CodingTask], rows: Any) -> MeasuredRows:
        """What must be known of rows before they are coded, whatever their values."""

    def decode(self, tasks: Sequence[CodingTask], blocks: Sequence[Sequence[bytes]], count: int, dtype: str) -> Any:
        """The decoded rows of so many values each. Raises `MalformedMessage` where some block makes no sense."""

    def stack(self, rows: Sequence[Any], count: int) -> Any:
        """Decoded rows as one array or tensor, also if there are none."""


def device_of(updates: Any, backend: BackendName, threads: int | None) -> Device:
    """The device that codes these updates: the GPU they lie on, else this CPU."""
    cpu = Cpu(backend, threads)
    return Gpu(str(updates.device), cpu) if on_gpu(updates) else cpu


def device_named(name: str | None, backend: BackendName, threads: int | None) -> Device:
    """The GPU of this name, or the CPU where none is given. Raises `ValueError` where the name is no GPU's."""
    cpu = Cpu(backend, threads)
    if name is None:
        return cpu
    _triton().check_device(name)
    return Gpu(name, cpu)


def on_gpu(values: Any) -> bool:
    """Whether these are a tensor on a GPU."""
    return bool(getattr(values, "is_cuda", False))


def gpu_of(values: Any) -> Any:
    """The backend of a tensor that lies on a GPU, else None."""
    return _triton() if on_gpu(values) else None


def as_held(values: Any) -> Any:
    """A tensor on a GPU as it is, all else as a contiguous array on the CPU."""
    return values if on_gpu(values) else np.asarray(values, order="C")


def gpu_masks_of(values: Any) -> Any:
    """The GPU's kernels of masked sums where these values are a tensor there, else None."""
    return gpu_masks() if on_gpu(values) else None


def gpu_masks() -> Any:
    """The GPU's kernels of masked sums."""
    from cepam.kernels.triton import masks

    return masks


def shared_gpu(arrays: Sequence[Any]) -> str | None:
    """The one GPU that all of these tensors lie on, else None."""
    places = {str(each.device) if on_gpu(each) else None for each in arrays}
    return places.pop() if len(places) == 1 else None


def sample_of(update: Any) -> Any:
    """What chooses the coder of an array or a tensor: all of a short update, else 16 runs of 4,096 coordinates, spread
    evenly; of a sample, all."""
    if len(update) <= RUN * RUNS:
        return update
    step = len(update) // RUNS
    return update[: RUNS * step].reshape(RUNS, step)[:, :RUN].reshape(-1)


def runs_of(update: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The same coordinates of an array in runs of at most 4,096, without a copy."""
    short = len(update) <= RUN * RUNS
    step = RUN if short else len(update) // RUNS
    return [update[i : i + RUN] for i in range(0, len(update) if short else RUNS * step, step)]


def expect_blocks(task: CodingTask, blocks: int, device: str) -> None:
    """Compile, beside what is done next, what codes and decodes so many blocks of such tasks on a GPU."""
    _triton().expect_blocks(task, blocks, device)


def picked(rows: Any, places: Sequence[int]) -> Any:
    """The rows of these places, which ascend; all of them as they are: a GPU would be sent their numbers."""
    if len(places) == len(rows):
        return rows
    return [rows[i] for i in places] if isinstance(rows, list) else rows[places]


def check_update(update: Any) -> npt.NDArray[Any]:
    """The update as a contiguous float32 or float64 array; half precision is widened, which is exact."""
    if isinstance(update, Mapping) or (isinstance(update, list | tuple) and any(hasattr(x, "dtype") for x in update)):
        raise ValueError(f"the update must be one array, got {type(update).__name__}: {ANY_SHAPE}")
    if not isinstance(update, np.ndarray) and str(getattr(update, "dtype", "")) == "torch.bfloat16":
        update = update.float()
    try:
        values = np.asarray(update)
    except (TypeError, ValueError, RuntimeError) as refused:
        raise ValueError(f"the update must be an array of floats on the CPU: {refused}") from refused
    if values.dtype not in (np.float32, np.float64):
        if values.dtype != np.float16 and values.dtype.name != "bfloat16":
            raise ValueError(f"the update must be float16, bfloat16, float32 or float64, got {values.dtype}")
        values = values.astype(np.float32)
    if values.ndim != 1:
        raise ValueError(f"the update must have one dimension, got shape {values.shape}: {ANY_SHAPE}")
    return np.ascontiguousarray(values)


@dataclass(frozen=True)
class Cpu:
    """This machine's cores: each row is a batch of its own, and rows are dealt to threads."""

    backend: BackendName
    threads: int | None
    allocate = None

    def split(self, items: Any) -> Sequence[Any]:
        return [[each] for each in items]

    def check_one(self, update: Any) -> Any:
        return [check_update(update)]

    def check_rows(self, updates: Any) -> Any:
        return [check_update(each) for each in updates]

    def sample(self, row: Any) -> npt.NDArray[Any]:
        return np.asarray(row)

    def measure(self, tasks: Sequence[CodingTask], rows: Any) -> MeasuredRows:
        return _CpuRows(self, tasks, rows)

    def decode(self, tasks: Sequence[CodingTask], blocks: Sequence[Sequence[bytes]], count: int, dtype: str) -> Any:
        made = []
        for task, each in zip(tasks, blocks):
            out = np.empty(count, dtype=np.float64 if dtype == "float64" else np.float32)
            decode_spans(self.backend, self.threads, task, each, out)
            made.append(out.astype(dtype, copy=False))
        return made

    def stack(self, rows: Sequence[Any], count: int) -> Any:
        return np.stack(rows) if rows else np.empty((0, count), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _CpuRows:
    cpu: Cpu
    tasks: Sequence[CodingTask]
    rows: Any

    def ends(self) -> list[tuple[float, float]]:
        return [(float(row.min()), float(row.max())) if len(row) else (0.0, 0.0) for row in self.rows]

    def encode(self, places: Sequence[int], meanwhile: Meanwhile = None) -> list[Any]:
        threads = self.cpu.threads if len(places) == 1 else 1

        def encode(place: int) -> list[bytes] | ValueError:
            try:
                return encode_spans(self.cpu.backend, threads, self.tasks[place], self.rows[place])
            except ValueError as refused:
                return refused

        return side_by_side(None, encode, places)


@dataclass(frozen=True)
class Gpu:
    """A GPU: all rows of a batch go through one launch of each stage. What has no kernels there goes to the CPU."""

    device: str
    cpu: Cpu

    @property
    def allocate(self) -> Callable[[int], npt.NDArray[np.uint8]]:
        found: Callable[[int], npt.NDArray[np.uint8]] = _triton().pinned
        return found

    def split(self, items: Any) -> Sequence[Any]:
        return [items]

    def check_one(self, update: Any) -> Any:
        return _triton().check_update(update)[None]

    def check_rows(self, updates: Any) -> Any:
        return _triton().check_update(updates, 2)

    def sample(self, row: Any) -> npt.NDArray[Any]:
        return np.asarray(sample_of(row).cpu().numpy())

    def measure(self, tasks: Sequence[CodingTask], rows: Any) -> MeasuredRows:
        if tasks[0].cpu_only:
            _warn_cpu(tasks[0].cpu_only)
            return self.cpu.measure(tasks, rows.cpu().numpy())
        small = tasks[0].coder == "search" and rows.numel() < LEAST_SEARCHED_ON_GPU
        if small or (tasks[0].coder == "search" and not searches_alike(self.device)):
            return self.cpu.measure(tasks, rows.cpu().numpy())
        return _GpuRows(tasks, rows, _triton().measure_rows(tasks, rows))

    def decode(self, tasks: Sequence[CodingTask], blocks: Sequence[Sequence[bytes]], count: int, dtype: str) -> Any:
        if not tasks[0].cpu_only:
            return _triton().decode_rows(tasks, blocks, count, dtype, self.device)
        _warn_cpu(tasks[0].cpu_only)
        rows = self.cpu.decode(tasks, blocks, count, "float64" if dtype == "float64" else "float32")
        return [_triton().put(row, dtype, self.device) for row in rows]

    def stack(self, rows: Sequence[Any], count: int) -> Any:
        import torch

        return torch.stack(list(rows)) if rows else torch.empty((0, count), device=self.device)


@dataclass(frozen=True, eq=False)
class _GpuRows:
    tasks: Sequence[CodingTask]
    rows: Any
    found: Any

    def ends(self) -> list[tuple[float, float]]:
        if self.found.largest <= self.tasks[0].plan.reach:
            return [(-self.found.largest, self.found.largest)] * len(self.rows)
        # Only where a value is out of range it matters whose it is.
        found: list[tuple[float, float]] = _triton().ends_of_rows(self.rows)
        return found

    def encode(self, places: Sequence[int], meanwhile: Meanwhile = None) -> list[Any]:
        found = self.found
        if len(places) < len(self.rows):
            found = _triton().measure_rows([self.tasks[i] for i in places], picked(self.rows, places))
        return list(_triton().encode_rows(found, meanwhile))


@cache
def searches_alike(device: str) -> bool:
    """Whether this device encodes small updates with the search coder to the reference's bytes; tried once per process.

    The encoder's kernels ran in Triton's interpreter and were compiled for GPUs, but have not run on one. Where they
    fail or differ, a warning says so and the CPU encodes.
    """
    plan, draw = layered_plan(Gaussian(1.0), Integer(1)), np.random.default_rng(36)
    task = CodingTask(plan, "search", bytes(32), SEGMENT)
    try:
        for size, level in _TRIALS:
            x = draw.normal(0.0, level, size).astype(np.float32)
            found = _triton().measure_rows([task], _triton().put(x, "float32", device)[None])
            if [list(each) for each in _triton().encode_rows(found)] != [encode_spans("numpy", 1, task, x)]:
                raise RuntimeError("its bytes differ from the reference's")
    except Exception as problem:  # a compiler's, a driver's or memory's: the CPU can do without
        warnings.warn(f"searching on {device} failed, so the CPU searches: {problem}", stacklevel=4)
        return False
    return True


@cache
def _warn_cpu(what: str) -> None:
    """Warn once that something is coded on the CPU though its vectors are on a GPU."""
    warnings.warn(f"{what} has no GPU form: coded on the CPU and moved between the two", stacklevel=3)


# Blocks of a message over the threads of this machine.


def cores() -> int:
    """How many cores this process may use: fewer than the machine has where it was told so (taskset, containers)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_spans(name: BackendName, threads: int | None, task: CodingTask, values: Values) -> list[bytes]:
    """The blocks of an update."""
    waiting = _saying_what_takes_long(name, f"encode {task.coder} {task.plan.n > 1}")
    with _backend(name, task, lambda: encoding_seconds(task, values)) as backend, waiting:
        step = task.plan.n * task.per_block * _span_blocks(backend, task)
        spans = [values[start : start + step] for start in range(0, len(values), step)]
        firsts = [start // task.plan.n for start in range(0, len(values), step)]
        parts = side_by_side(threads, lambda v, f: backend.encode_span(task, v, f), spans, firsts)
    return [block for part in parts for block in part]


def decode_spans(name: BackendName, threads: int | None, task: CodingTask, blocks: Any, out: Values) -> None:
    """Fills out with the values of a message's blocks."""
    waiting = _saying_what_takes_long(name, f"decode {task.coder} {task.plan.n > 1}")
    seconds: Seconds = lambda: decoding_seconds(task, sum(map(len, blocks)), len(out))  # noqa: E731
    with _backend(name, task, seconds) as backend, waiting, np.errstate(over="ignore"):
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
    timer = threading.Timer(_SILENT_SECONDS, _say_compiling, [kind])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # what it says, it says before the interpreter can end
        _SEEN.add(kind)


def _say_compiling(kind: str) -> None:
    if _numba().is_compiling() and kind not in _SAID:
        _SAID.add(kind)  # not by each of the threads that wait
        logging.getLogger("cepam").warning(
            "cepam: compiling the CPU's kernels, once per machine; takes some 10 seconds"
        )


def _backend(name: BackendName, task: CodingTask, seconds: Seconds) -> AbstractContextManager[Backend]:
    """The backend of this name; `auto` codes a small update with NumPy while kernels are compiled beside it."""
    return backend_for(task, seconds) if name == "auto" else nullcontext(_named_backend(name))


@cache
def _named_backend(name: BackendName) -> Backend:
    if name == "numpy":
        from cepam.kernels.numpy.backend import NumpyBackend

        return NumpyBackend()
    made: Backend = _numba().NumbaBackend()
    return made


def broadcast_loop(name: BackendName, key: bytes) -> BroadcastLoop:
    """The arithmetic of broadcasts by this backend. Raises `ValueError` where there is none of this name."""
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    if name == "numpy":
        from cepam.kernels.numpy.broadcast_coder import ReferenceLoop

        return ReferenceLoop(key)
    from cepam.kernels.numba.broadcast_coder import CompiledLoop

    return CompiledLoop(key)


def side_by_side(threads: int | None, work: Any, *parts: Any) -> list[Any]:
    """What work gives for each item, in threads: as many as asked for, or as this process may use cores."""
    count = min(threads or cores(), len(parts[0]))
    if count <= 1:
        return [work(*items) for items in zip(*parts)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, *parts))


# Which backend of the CPU codes while its kernels are being compiled.


def backend_for(task: CodingTask, seconds: Seconds) -> AbstractContextManager[Backend]:
    """The backend that codes first what NumPy takes so long for: NumPy while kernels are being compiled, else Numba."""
    kind = _numba().kind_of(task)
    if kind in _READY or _is_ready(task, kind, seconds):
        _READY.add(kind)
        return nullcontext(_named_backend("numba"))
    return _numpy_meanwhile(kind)


@contextmanager
def _numpy_meanwhile(kind: str) -> Iterator[Backend]:
    """The NumPy backend, its time counted."""
    begun = time.perf_counter()
    try:
        yield _named_backend("numpy")
    finally:
        _SPENT[kind] = _SPENT.get(kind, 0.0) + time.perf_counter() - begun


# Processor time of NumPy, measured on one core of a server (bench/first_call.py).


def encoding_seconds(task: CodingTask, values: Values) -> float:
    """About how long NumPy encodes these values. The search coder takes longer the more an update rises above noise."""
    if task.coder != "search":
        return _layered_seconds(task, len(values))
    level = float(np.dot(values, values)) / max(len(values), 1) / (task.plan.unit * task.plan.scale) ** 2
    least, rising = _SEARCH_SECONDS
    return len(values) * (least + rising * level)


def decoding_seconds(task: CodingTask, size: int, count: int) -> float:
    """About how long NumPy decodes so many values from so many bytes."""
    if task.coder != "search":
        return _layered_seconds(task, count)
    return _UNSEARCH_SECONDS[0] * count + _UNSEARCH_SECONDS[1] * size


def _layered_seconds(task: CodingTask, count: int) -> float:
    if task.plan.n > 2:
        return count * _SLOWEST_SECONDS_PER_COORDINATE
    return _START_SECONDS + count * _SECONDS_PER_COORDINATE[task.plan.n]


def _is_ready(task: CodingTask, kind: str, seconds: Seconds) -> bool:
    """Whether the compiled kernels are to be used: they are there, or the wait for them is shorter than NumPy."""
    if _numba().mark_of(kind).exists():
        return True
    estimate = seconds()
    with _LOCK:
        if kind not in _COMPILERS:
            if estimate > COMPILING_SECONDS:
                return True
            _COMPILERS[kind] = _start_compiler(task, estimate)
            _BEGUN[kind] = time.perf_counter()
    compiler = _COMPILERS[kind]
    if compiler is None or compiler.poll() is not None:  # none could be started, or it failed: compile here
        return True
    left = COMPILING_SECONDS - (time.perf_counter() - _BEGUN[kind])
    if estimate <= left or (estimate <= _LEAST_SECONDS and _SPENT.get(kind, 0.0) <= PATIENCE_SECONDS):
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
    call = [sys.executable, "-P", "-m", "cepam.kernels.numba.backend"]
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


@cache
def _numba() -> Any:
    from cepam.kernels.numba import backend

    return backend


def _triton() -> Any:
    from cepam.kernels.triton import backend

    return backend
