"""Fixed features in front of a head: the head is trained, what lies before it is frozen and computed once."""

from __future__ import annotations

import copy
import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cepam._internal.files import cache_folder
from cepam.fl.data.dataset import Dataset
from cepam.fl.models.network import shared_out
from cepam.fl.models.scattering import Scattering


def looks_up(module: nn.Module) -> bool:
    """Whether a module looks whole numbers up in a table, and so wants them as they are."""
    return any(isinstance(each, nn.Embedding | nn.EmbeddingBag) for each in module.modules())


@dataclass(frozen=True, eq=False)
class Features:
    """A frozen module that turns every example into a row of numbers, by itself.

    `batch` examples go through it at once. `key` names the module's content, all of it, and lets the features be kept
    on disk between runs; without one they are computed in every run. `precision` is that of the numbers kept.

    Nothing is charged for features: each record's depend on that record alone, and on a module that was fixed before.
    That holds for modules trained on public data only. A module that was trained on the run's own records needs a
    guarantee of its own.
    """

    module: nn.Module
    batch: int = 64
    key: str | None = None
    precision: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch must be a whole number of at least 1, got {self.batch!r}")
        if self.precision not in ("float32", "float16"):
            raise ValueError(f"precision must be float32 or float16, got {self.precision!r}")
        object.__setattr__(self, "module", copy.deepcopy(self.module).eval().requires_grad_(False))

    def size(self, data: Dataset) -> int:
        """How many features an example of this data set has."""
        return int(self._checked(data, "cpu").shape[1])

    def of(self, data: Dataset, device: str = "cpu") -> Dataset:
        """The data set with features for inputs; computed on this device, or read from the cache."""
        size = self.size(data)
        made = [self._part(data, inputs, size, device) for inputs in (data.train_inputs, data.test_inputs)]
        return replace(data, shape=(size,), train_inputs=made[0], test_inputs=made[1], scale=1.0, shift=0.0)

    def _through(self, data: Dataset, inputs: npt.NDArray[Any], device: str) -> Tensor:
        held = torch.from_numpy(np.array(inputs)).to(device)
        images = held.long() if data.tokens and looks_up(self.module) else held.float() * data.scale + data.shift
        made: Tensor = self.module(images.reshape(-1, *data.shape))
        return made.flatten(1)

    @torch.no_grad()
    def _checked(self, data: Dataset, device: str) -> Tensor:
        """The first features; refuses a module whose features of an example depend on the others beside it."""
        self.module.to(device)
        few = data.train_inputs[:4]
        together = self._through(data, few, device)
        alone = torch.cat([self._through(data, few[i : i + 1], device) for i in range(len(few))])
        if together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ValueError("features must treat every example by itself: this module's depend on the batch")
        return together

    def _part(self, data: Dataset, inputs: npt.NDArray[Any], size: int, device: str) -> npt.NDArray[Any]:
        """The features of these inputs, mapped from the cache where there is one."""
        shape = (len(inputs), size)

        def fill(out: npt.NDArray[Any]) -> None:
            self._checked(data, device)  # not before: a GPU takes half a second to make convolutions ready

            def work(at: int) -> None:
                found = self._through(data, inputs[at : at + self.batch], device)
                if not bool(found.isfinite().all()):
                    raise ValueError(
                        f"features must be finite; those of examples {at} to {at + len(found) - 1} are not"
                    )
                out[at : at + self.batch] = found.cpu().numpy()

            shared_out(work, range(0, len(inputs), self.batch), device)

        if self.key is None:
            out = np.empty(shape, dtype=self.precision)
            fill(out)
            return out
        about = f"{self.key}\n{self.precision}\n{device}\n{data.scale!r} {data.shift!r} {data.shape} {inputs.dtype}"
        digest = hashlib.sha256(about.encode() + b"\0" + np.ascontiguousarray(inputs).tobytes()).hexdigest()
        return _kept(cache_folder() / "features" / f"{digest[:32]}.npy", shape, self.precision, fill)


def _kept(path: Path, shape: tuple[int, ...], kind: str, fill: Callable[[npt.NDArray[Any]], None]) -> npt.NDArray[Any]:
    """The array of this file, mapped; filled now if it is missing or of another shape. Never half a file."""
    try:
        held: npt.NDArray[Any] = np.load(path, mmap_mode="c")
        if held.shape == shape and held.dtype == kind:
            return held
    except (OSError, EOFError, ValueError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".npy", dir=path.parent)
    os.close(handle)
    try:
        out = np.lib.format.open_memmap(name, mode="w+", dtype=kind, shape=shape)
        fill(out)
        out.flush()
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    del out
    kept: npt.NDArray[Any] = np.load(path, mmap_mode="c")
    return kept


def scattering(shape: tuple[int, ...]) -> Features:
    """The scattering features of images of this shape, kept on disk in half precision (docs/training.md)."""
    module = Scattering(shape)
    return Features(module, batch=16, key=module.words, precision="float16")
