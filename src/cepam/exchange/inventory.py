"""What a model holds: which of its arrays lie on the public grid, in which order, and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.exchange.vectors import Array, Arrays, Vector, is_batch_statistic, travels


@dataclass(frozen=True)
class Inventory:
    """Which arrays a model has, in order: the shapes of those on the grid, None for those that travel beside it."""

    entries: tuple[tuple[str, tuple[int, ...] | None], ...]

    @classmethod
    def of(cls, arrays: Arrays) -> Inventory:
        """The inventory of these arrays; ValueError where none can lie on the grid."""
        made = cls(
            tuple((name, tuple(array.shape) if on_grid(name, array) else None) for name, array in arrays.items())
        )
        if not made.size:
            raise ValueError("downlink='grid' needs float32 arrays in the model, which has none")
        return made

    def fit(self, arrays: Arrays) -> bool:
        """Whether arrays have these names and shapes; strategies make float64 of float32, which the grid rounds."""
        return [name for name, _ in self.entries] == list(arrays) and all(
            shape is None or (arrays[name].shape == shape and travels(name, arrays[name]))
            for name, shape in self.entries
        )

    @cached_property
    def size(self) -> int:
        """How many coordinates lie on the grid."""
        return sum(math.prod(shape) for _, shape in self.entries if shape is not None)

    @property
    def beside(self) -> list[str]:
        """The names of the arrays that travel beside the broadcast."""
        return [name for name, shape in self.entries if shape is None]

    def vector(self, arrays: Arrays) -> npt.NDArray[np.floating]:
        """The arrays on the grid as one vector, in their own precision."""
        return np.concatenate([arrays[name].ravel() for name, shape in self.entries if shape is not None])

    def arrays(self, vector: Vector, beside: Arrays) -> dict[str, Array]:
        """All arrays: those on the grid from the vector, as arrays of their own, and the others."""
        made: dict[str, Array] = {}
        at = 0
        for name, shape in self.entries:
            if shape is None:
                made[name] = beside[name]
                continue
            size = math.prod(shape)
            made[name] = vector[at : at + size].reshape(shape).copy()
            at += size
        return made

    def to_text(self) -> str:
        """The inventory as text."""
        return json.dumps(self.entries, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Inventory:
        """The inventory that `to_text` wrote; ValueError for anything else."""
        try:
            entries = tuple((str(name), None if shape is None else _shape(shape)) for name, shape in json.loads(text))
        except (TypeError, ValueError) as unreadable:
            raise ValueError(f"the inventory of the broadcast cannot be read: {unreadable}") from unreadable
        return cls(entries)


def _shape(read: Any) -> tuple[int, ...]:
    if any(isinstance(side, bool) or not isinstance(side, int) or side < 0 for side in read):
        raise ValueError(f"{read!r} is not a shape")
    return tuple(read)


def on_grid(name: str, array: Array) -> bool:
    """Whether an array of this name is part of the broadcast: float32 arrays that travel are, batch statistics not."""
    return array.dtype == np.float32 and travels(name, array) and not is_batch_statistic(name)
