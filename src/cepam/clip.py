"""Clips: a norm and its bound, applied to a whole update before it is encoded.

The same object goes to the client that clips and to the accountant that charges, so what is charged is what was sent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cepam.noise.laws import Norm, check_scale

Floating = npt.NDArray[np.floating]


class Clip(ABC):
    """A bound on one norm of a whole update."""

    norm: ClassVar[Norm]
    bound: float

    @abstractmethod
    def measure(self, update: Floating) -> float:
        """The update's norm, in float64."""

    def apply(self, update: Floating) -> Floating:
        """The update itself, or scaled down so that its norm is at most `bound`.

        Guarantee: `measure(apply(x)) <= bound` holds after rounding too; direction and dtype are kept.
        """
        size = self.measure(update)
        if not np.isfinite(size):
            raise ValueError(f"cannot clip an update whose {self.norm} norm is {size}")
        factor = self.bound / size if size > self.bound else 1.0
        clipped = update
        while self.measure(clipped) > self.bound:
            clipped = (update * np.float64(factor)).astype(update.dtype)
            factor *= 1.0 - 2.0**-24
        return clipped


def whole_over_part(norm: Norm, parts: int) -> float:
    """How many times one part's bound the whole norm can reach where each of the parts is clipped by itself."""
    return float(parts) if norm == "l1" else math.sqrt(parts)


@dataclass(frozen=True)
class L2(Clip):
    """The Euclidean norm of the whole update, at most `bound` (Paper: gamma)."""

    bound: float
    norm: ClassVar[Norm] = "l2"

    def __post_init__(self) -> None:
        check_scale("bound", self.bound)

    def measure(self, update: Floating) -> float:
        return float(np.linalg.norm(np.asarray(update, dtype=np.float64)))


@dataclass(frozen=True)
class L1(Clip):
    """The sum of absolute values of the whole update, at most `bound` (what pure-DP Laplace noise needs)."""

    bound: float
    norm: ClassVar[Norm] = "l1"

    def __post_init__(self) -> None:
        check_scale("bound", self.bound)

    def measure(self, update: Floating) -> float:
        return float(np.abs(np.asarray(update, dtype=np.float64)).sum())
