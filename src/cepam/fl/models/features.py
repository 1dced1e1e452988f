"""Fixed features in front of a head: the head is trained, what lies before it is frozen and computed once."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cepam._internal.files import cache_folder, locked_file, write_atomically
from cepam.fl.data.dataset import Dataset
from cepam.fl.data.fetch import Report, quiet
from cepam.fl.models.llama import Llama
from cepam.fl.models.network import shared_out
from cepam.fl.models.scattering import MAPS, Scattering


def looks_up(module: nn.Module) -> bool:
    """Whether a module looks whole numbers up in a table, and so wants them as they are."""
    return any(isinstance(each, nn.Embedding | nn.EmbeddingBag | Llama) for each in module.modules())


class Normalized(nn.Module):
    """Each row by itself: signed square roots, less their mean, scaled to length 1."""

    def forward(self, rows: Tensor) -> Tensor:
        """The rows, normalized; one whose numbers are all alike becomes zeros."""
        flat = rows.flatten(1)
        roots = flat.sign() * flat.abs().sqrt()
        centred = roots - roots.mean(1, keepdim=True)
        made: Tensor = centred / torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp(min=1e-12)
        return made


def _normalized_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The rows normalized, in their precision, a few at a time."""
    out, normalize = np.empty_like(rows, subok=False), Normalized()
    for at in range(0, len(rows), 4096):
        out[at : at + 4096] = normalize(torch.from_numpy(np.array(rows[at : at + 4096])).float()).numpy()
    return out


@dataclass(frozen=True, eq=False)
class Features:
    """A frozen module that turns every example, by itself, into a row of numbers for a head that is trained.

    Args:
        module: The module; it is copied and frozen.
        batch: Examples that go through it at once.
        key: Names the module's content, all of it: features are then kept on disk between runs. Without one they are
            computed in every run.
        precision: Type of the numbers that are kept.
        outputs: How many numbers an example has; found by a trial where it is not given.
        gpu_batch: Examples that go through it at once on a GPU; by default as `batch`.
        block: Features are saved after every so many examples, and a stopped computation goes on there.
        portable: Features computed on another device serve too.
        normalized: Each row is normalized by itself; the cache keeps what the module gave.
        shape: Shape in which a head sees an example's features; by default one row.

    Raises:
        ValueError: A value is out of range.

    Guarantee: features cost no epsilon, since each record's depend on that record alone and on a module that was
    fixed before. Condition: the module was trained on public data. One that was trained on the run's own records
    needs a guarantee of its own.
    """

    module: nn.Module
    batch: int = 64
    key: str | None = None
    precision: Literal["float32", "float16"] = "float32"
    outputs: int | None = None
    gpu_batch: int | None = None
    block: int | None = None
    portable: bool = False
    normalized: bool = False
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch must be a whole number of at least 1, got {self.batch!r}")
        if self.precision not in ("float32", "float16"):
            raise ValueError(f"precision must be float32 or float16, got {self.precision!r}")
        object.__setattr__(self, "module", copy.deepcopy(self.module).eval().requires_grad_(False))

    @property
    def whole(self) -> nn.Module:
        """The module from raw examples to the numbers that the head reads."""
        made = nn.Sequential(self.module, Normalized()) if self.normalized else self.module
        return made if self.shape is None else nn.Sequential(made, nn.Flatten(), nn.Unflatten(1, self.shape))

    def size(self, data: Dataset) -> int:
        """How many features an example of this data set has.

        Args:
            data: The data set.

        Returns:
            The length of a row.
        """
        return self.outputs or int(self._checked(data, "cpu").shape[1])

    def of(self, data: Dataset, device: str = "cpu", report: Callable[[Report], None] = quiet) -> Dataset:
        """The data set with features for inputs; computed on this device, or read from the cache.

        Args:
            data: The data set.
            device: `cpu` or `cuda`.
            report: Hears how far the computation is.

        Returns:
            A data set with the same labels and clients.
        """
        size = self.size(data)
        parts = ((f"{data.name}: features, training", data.train_inputs), (f"{data.name}: test", data.test_inputs))
        made = [
            self._part(data, inputs, size, device, partial(_report_progress, report, text)) for text, inputs in parts
        ]
        if self.normalized:
            made = [_normalized_rows(rows) for rows in made]
        shape = self.shape or (size,)
        return replace(data, shape=shape, train_inputs=made[0], test_inputs=made[1], scale=1.0, shift=0.0)

    def _through(self, data: Dataset, inputs: npt.NDArray[Any], device: str) -> Tensor:
        held = torch.from_numpy(np.array(inputs)).to(device)
        images = held.long() if data.tokens and looks_up(self.module) else held.float() * data.scale + data.shift
        made: Tensor = self.module(images.reshape(-1, *data.shape))
        return made.flatten(1)

    def _checked(self, data: Dataset, device: str) -> Tensor:
        """The first features; refuses a module whose features of an example depend on the others beside it."""
        self.module.to(device)
        few, made = data.train_inputs[:4], {}

        def work(at: int | None) -> None:
            made[at] = self._through(data, few if at is None else few[at : at + 1], device)

        shared_out(work, [None, *range(len(few))], device)
        together, alone = made[None], torch.cat([made[at] for at in range(len(few))])
        if together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ValueError("features must treat every example by itself: this module's depend on the batch")
        return together

    def _part(
        self, data: Dataset, inputs: npt.NDArray[Any], size: int, device: str, done: Callable[[int, int], None]
    ) -> npt.NDArray[Any]:
        """The features of these inputs, mapped from the cache where there is one."""
        batch = self.batch if device == "cpu" else self.gpu_batch or self.batch

        def fill(out: npt.NDArray[Any], first: int) -> None:
            if first == 0:
                self._checked(data, device)  # not before: a GPU takes half a second to make convolutions ready
            self.module.to(device)

            def work(at: int) -> None:
                found = self._through(data, inputs[first + at : first + min(at + batch, len(out))], device)
                if not bool(found.isfinite().all()):
                    here, last = first + at, first + at + len(found) - 1
                    raise ValueError(f"features must be finite; those of examples {here} to {last} are not")
                out[at : at + len(found)] = found.cpu().numpy()

            shared_out(work, range(0, len(out), batch), device)

        shape = (len(inputs), size)
        if self.key is None:
            out = np.empty(shape, dtype=self.precision)
            fill(out, 0)
            return out
        where = "" if self.portable else f"{device}\n{data.scale!r} {data.shift!r} "
        about = f"{self.key}\n{self.precision}\n{where}{data.shape} {inputs.dtype}"
        digest = hashlib.sha256(about.encode() + b"\0" + np.ascontiguousarray(inputs).tobytes()).hexdigest()
        path = cache_folder() / "features" / f"{digest[:32]}.npy"
        return _kept(path, shape, self.precision, fill, self.block, done)


def _report_progress(report: Callable[[Report], None], text: str, done: int, total: int) -> None:
    report(Report(text, done, total, unit="examples"))


def _kept(
    path: Path, shape: tuple[int, ...], kind: str, fill: Callable[[npt.NDArray[Any], int], None], block: int | None,
    done: Callable[[int, int], None],
) -> npt.NDArray[Any]:  # fmt: skip
    """The array of this file, mapped; filled now if it is missing or of another shape. Never half a file.

    Of several processes one computes, and the others wait for it.
    """
    held = _mapped(path, shape, kind)
    if held is not None:
        return held
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    try:
        with locked_file(lock, wait=False):
            pass
    except BlockingIOError:
        print("cepam: another process computes these features; waiting for it", file=sys.stderr, flush=True)
    with locked_file(lock):
        held = _mapped(path, shape, kind)
        held = _computed(path, shape, kind, fill, block, done) if held is None else held
        with suppress(OSError):  # whoever makes the lock anew finds the file; Windows keeps what is open
            lock.unlink(missing_ok=True)
        return held


def _computed(
    path: Path, shape: tuple[int, ...], kind: str, fill: Callable[[npt.NDArray[Any], int], None], block: int | None,
    done: Callable[[int, int], None],
) -> npt.NDArray[Any]:  # fmt: skip
    """The array, computed in parts that a later process goes on from, then kept as one file."""
    parts, step = path.with_suffix(".parts"), block or shape[0]

    def part(at: int) -> npt.NDArray[Any]:
        """Rows from `at` on: of an earlier computation that was stopped, or computed and saved now."""
        rows, saved = (min(step, shape[0] - at), *shape[1:]), parts / f"{at}.npy"
        found = _mapped(saved, rows, kind)
        if found is None:
            parts.mkdir(exist_ok=True)
            found = np.empty(rows, dtype=kind)
            fill(found, at)
            content = io.BytesIO()
            np.save(content, found)
            write_atomically(saved, content.getvalue())
        done(at + rows[0], shape[0])
        return found

    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".npy", dir=path.parent)
    os.close(handle)
    try:
        out = np.lib.format.open_memmap(name, mode="w+", dtype=kind, shape=shape)
        if block is None:
            fill(out, 0)
        else:
            for at in range(0, shape[0], step):
                out[at : at + step] = part(at)
        out.flush()
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    del out
    shutil.rmtree(parts, ignore_errors=True)
    kept: npt.NDArray[Any] = np.load(path, mmap_mode="c")
    return kept


def _mapped(path: Path, shape: tuple[int, ...], kind: str) -> npt.NDArray[Any] | None:
    """The array of a file, mapped; None where there is none of this shape and kind."""
    try:
        held: npt.NDArray[Any] = np.load(path, mmap_mode="c")
    except (OSError, EOFError, ValueError):
        return None
    return held if held.shape == shape and held.dtype == kind else None


@dataclass(frozen=True, eq=False)
class Joined(Features):
    """Several frozen modules: an example's features are those of all of them, one after the other."""

    parts: tuple[Features, ...] = ()

    @classmethod
    def of_all(cls, parts: Sequence[Features]) -> Features:
        """Features of one module, or of several."""
        return parts[0] if len(parts) == 1 else cls(_Beside([each.whole for each in parts]), parts=tuple(parts))

    def size(self, data: Dataset) -> int:
        """How many features an example of this data set has."""
        return sum(each.size(data) for each in self.parts)

    def of(self, data: Dataset, device: str = "cpu", report: Callable[[Report], None] = quiet) -> Dataset:
        """The data set with features for inputs; each module's are computed, or read from the cache, by themselves."""
        made = [each.of(data, device, report) for each in self.parts]
        train, test = (np.concatenate([getattr(each, part) for each in made], axis=1) for part in _INPUTS)
        return replace(made[0], shape=(train.shape[1],), train_inputs=train, test_inputs=test)


_INPUTS = ("train_inputs", "test_inputs")


class _Beside(nn.Module):
    """Modules that see the same examples; their rows are put one after the other."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.each = nn.ModuleList(modules)

    def forward(self, examples: Tensor) -> Tensor:
        return torch.cat([module(examples).flatten(1) for module in self.each], 1)


def scattering(shape: tuple[int, ...], maps: bool = False) -> Features:
    """The scattering features of images of this shape, kept on disk in half precision; as maps, or in one row."""
    module = Scattering(shape)
    return Features(
        module, batch=16, key=module.words, precision="float16", outputs=module.size, block=5000,
        shape=(module.shape[0] * MAPS, shape[1] // 4, shape[2] // 4) if maps else None,
    )  # fmt: skip
