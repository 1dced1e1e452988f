"""Integer noise: the discrete Gaussian and the Skellam law, their masses and draws.

Papers: Kairouz, Liu, Steinke 2021 (distributed discrete Gaussian); Agarwal, Kairouz, Liu 2021 (Skellam). Draws come
from NumPy: good for comparing accuracy and size, not for protecting anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
TAIL = 12.0
"""Deviations beyond which no table goes: a chance under 1e-32."""


class IntegerLaw(Protocol):
    """Noise on the integers, symmetric about zero."""

    @property
    def variance(self) -> float:
        """Of one draw."""

    def mass(self, value: Ints) -> Floats:
        """The chance of each value."""

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """So many independent draws."""


@dataclass(frozen=True)
class DiscreteGaussian:
    """The chance of n is in proportion to exp(-n² / (2 scale²))."""

    scale: float

    @cached_property
    def _table(self) -> tuple[Ints, Floats]:
        last = int(np.ceil(TAIL * self.scale)) + 1
        values = np.arange(-last, last + 1)
        weights = np.exp(-0.5 * (values / self.scale) ** 2)
        return values, weights / weights.sum()

    @property
    def variance(self) -> float:
        values, masses = self._table
        return float(masses @ values.astype(np.float64) ** 2)

    def mass(self, value: Ints) -> Floats:
        values, masses = self._table
        inside = np.abs(value) <= values[-1]
        return np.where(inside, masses[np.clip(value + values[-1], 0, len(values) - 1)], 0.0)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        values, masses = self._table
        places = np.searchsorted(np.cumsum(masses), rng.random(count), side="right")
        return values[np.minimum(places, len(values) - 1)]


@dataclass(frozen=True)
class Skellam:
    """The difference of two Poisson variables of mean `mean` each; sums of them are Skellam again."""

    mean: float

    @property
    def variance(self) -> float:
        return 2.0 * self.mean

    def mass(self, value: Ints) -> Floats:
        found: Floats = special.ive(np.abs(value), 2.0 * self.mean)
        return found

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        made: Ints = rng.poisson(self.mean, count) - rng.poisson(self.mean, count)
        return made


def excess(law: IntegerLaw, clients: int, coordinates: int, norm: float, order: float = 4.0) -> float:
    """How much more Rényi divergence a sum of this noise has than a Gaussian of its variance, relative.

    `norm` is the integer sensitivity in l2. From the papers' theorems: for Skellam the second-order term; for discrete
    Gaussians the distance of their sum from one of them, over all coordinates.
    """
    total = clients * law.variance
    gaussian = order * norm**2 / (2.0 * total)
    if isinstance(law, Skellam):
        across = np.sqrt(coordinates) * norm
        second = ((2.0 * order - 1.0) * norm**2 + 6.0 * across) / (4.0 * total**2)
        return float(min(second, 3.0 * across / (2.0 * total)) / gaussian)
    scale = np.sqrt(law.variance)
    apart = 10.0 * sum(np.exp(-2.0 * np.pi**2 * scale**2 * k / (k + 1.0)) for k in range(1, clients))
    return float(apart * coordinates / gaussian)
