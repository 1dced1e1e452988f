"""Where updates are coded: the one place that asks whether a tensor lies on a GPU.

A `Device` measures, encodes and decodes batches of rows. Rows are opaque to its caller: arrays on the CPU, a tensor on
a GPU. Tasks of one batch differ in their keys only. PyTorch and Triton are imported only where a GPU is asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.plan import CodingTask
from cepam.kernels.format.search import sample_of
from cepam.kernels.threads import BackendName, decode_spans, encode_spans, side_by_side

ANY_SHAPE = "cepam.encode_tree(codec, update, at, clip=…) takes any shape, and dicts and lists of arrays"
"""The remedy for whoever has more than a vector."""
Meanwhile = Callable[[], None] | None


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


def shared_gpu(arrays: Sequence[Any]) -> str | None:
    """The one GPU that all of these tensors lie on, else None."""
    places = {str(each.device) if on_gpu(each) else None for each in arrays}
    return places.pop() if len(places) == 1 else None


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
        return _GpuRows(tasks, rows, _triton().measure_rows(tasks, rows))

    def decode(self, tasks: Sequence[CodingTask], blocks: Sequence[Sequence[bytes]], count: int, dtype: str) -> Any:
        if tasks[0].coder == "search" or not tasks[0].cpu_only:
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
        made: list[Any] = _triton().encode_rows(found, meanwhile)
        return made


@cache
def _warn_cpu(what: str) -> None:
    """Warn once that something is coded on the CPU though its vectors are on a GPU."""
    warnings.warn(f"{what} has no GPU form: coded on the CPU and moved between the two", stacklevel=3)


def _triton() -> Any:
    from cepam.kernels.triton import backend

    return backend
