"""Noise distributions: what the error of a decoded vector is distributed as.

The superlevel sets of a density must be balls of one norm. Drawing the radius of a superlevel set (the *latent*) and
then a point uniform in that ball gives a draw of the distribution (Paper: Section II-B, the fundamental theorem of
simulation). The layered quantizer does the second half by rejection-sampled dithering.

Your own distribution: subclass `Law`, define its members, and pass it to `cepam.Codec`. `UniformBall` is the smallest
complete example; `docs/laws.md` explains it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

Norm = Literal["l1", "l2"]
Floats = npt.NDArray[np.float64]

SMALLEST_SCALE = 1e-30
LARGEST_SCALE = 1e30


def check_scale(name: str, value: float) -> None:
    """Raise ValueError when a scale is not a usable positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    if not (SMALLEST_SCALE <= value <= LARGEST_SCALE):
        raise ValueError(f"{name} must lie in [{SMALLEST_SCALE:g}, {LARGEST_SCALE:g}], got {value!r}")


class Law(ABC):
    """A noise distribution on R^n for every dimension n that it supports, given by its latent radius.

    Subclasses must be hashable, and two that compare equal and have the same `name` must be the same distribution.

    Attributes:
        name: Identifies the family in a codec's fingerprint.
        norm: The norm whose balls are the superlevel sets: `"l1"` or `"l2"`.
    """

    name: ClassVar[str]
    norm: ClassVar[Norm]

    @property
    @abstractmethod
    def scale(self) -> float:
        """The size of the noise (sigma, b, …), which fixes the public grid and the unit of the radius."""

    @abstractmethod
    def radius_below(self, p: Floats, n: int) -> Floats:
        """The radius, in units of `scale`, that the latent of an n-dimensional draw stays under with probability p.

        Args:
            p: Probabilities.
            n: Dimension of the draw.

        Returns:
            A radius per probability.
        """

    @abstractmethod
    def radius_above(self, q: Floats, n: int) -> Floats:
        """The radius, in units of `scale`, that the latent exceeds with probability q (accurate for tiny q).

        Args:
            q: Probabilities.
            n: Dimension of the draw.

        Returns:
            A radius per probability.
        """

    @abstractmethod
    def variance(self, n: int = 1) -> float:
        """The variance of one coordinate of an n-dimensional draw.

        Args:
            n: Dimension of the draw.

        Returns:
            The variance per coordinate.
        """

    @abstractmethod
    def coordinate_cdf(self, z: Floats, n: int = 1) -> Floats:
        """The distribution function of one coordinate of an n-dimensional draw.

        Args:
            z: Values of the coordinate.
            n: Dimension of the draw.

        Returns:
            A probability per value.
        """


@dataclass(frozen=True)
class Gaussian(Law):
    """Gaussian noise: independent N(0, sigma^2) coordinates, in any dimension.

    Args:
        sigma: The standard deviation per coordinate, from 1e-30 to 1e30, in the unit of the update.

    Raises:
        ValueError: `sigma` is out of range.

    Paper: Theorem 7; the latent radius is sigma times a chi variable with n + 2 degrees of freedom.
    """

    sigma: float
    name: ClassVar[str] = "gaussian"
    norm: ClassVar[Norm] = "l2"

    def __post_init__(self) -> None:
        check_scale("sigma", self.sigma)

    @property
    def scale(self) -> float:
        return float(self.sigma)

    def radius_below(self, p: Floats, n: int) -> Floats:
        from scipy import special

        return np.asarray(np.sqrt(2.0 * special.gammaincinv(n / 2 + 1, p)), dtype=np.float64)

    def radius_above(self, q: Floats, n: int) -> Floats:
        from scipy import special

        return np.asarray(np.sqrt(2.0 * special.gammainccinv(n / 2 + 1, q)), dtype=np.float64)

    def variance(self, n: int = 1) -> float:
        return self.scale**2

    def coordinate_cdf(self, z: Floats, n: int = 1) -> Floats:
        from scipy import special

        return np.asarray(special.ndtr(np.asarray(z) / self.scale), dtype=np.float64)


@dataclass(frozen=True)
class Laplace(Law):
    """Laplace noise: independent Laplace(b) coordinates, in any dimension.

    Args:
        b: The scale, from 1e-30 to 1e30, in the unit of the update; the standard deviation is sqrt(2) b.

    Raises:
        ValueError: `b` is out of range.

    Paper: Theorem 8 has n = 1 and Gamma(2, 1); for n coordinates the superlevel sets are l1 balls whose radius is b
    times a Gamma(n + 1, 1) variable.
    """

    b: float
    name: ClassVar[str] = "laplace"
    norm: ClassVar[Norm] = "l1"

    def __post_init__(self) -> None:
        check_scale("b", self.b)

    @property
    def scale(self) -> float:
        return float(self.b)

    def radius_below(self, p: Floats, n: int) -> Floats:
        from scipy import special

        return np.asarray(special.gammaincinv(n + 1, p), dtype=np.float64)

    def radius_above(self, q: Floats, n: int) -> Floats:
        from scipy import special

        return np.asarray(special.gammainccinv(n + 1, q), dtype=np.float64)

    def variance(self, n: int = 1) -> float:
        return 2.0 * self.scale**2

    def coordinate_cdf(self, z: Floats, n: int = 1) -> Floats:
        tail = 0.5 * np.exp(-np.abs(z) / self.scale)
        return np.where(np.asarray(z) < 0, tail, 1.0 - tail)


PRIVATE_LAWS: Mapping[str, type[Gaussian] | type[Laplace]] = {each.name: each for each in (Gaussian, Laplace)}
"""The distributions that the accountant knows, by name. Each is made from its scale."""


@dataclass(frozen=True)
class UniformBall(Law):
    """Uniform noise on the l2 ball of a given radius, without differential privacy: the noise is bounded.

    Args:
        radius: The radius of the ball in each sub-vector, from 1e-30 to 1e30.

    Raises:
        ValueError: `radius` is out of range.

    Departs: not in the paper. It has one layer only, as the paper's RSUQ with a ball for the set A, and is the example
    of a distribution of your own.
    """

    radius: float
    name: ClassVar[str] = "uniform-ball"
    norm: ClassVar[Norm] = "l2"

    def __post_init__(self) -> None:
        check_scale("radius", self.radius)

    @property
    def scale(self) -> float:
        return float(self.radius)

    def radius_below(self, p: Floats, n: int) -> Floats:
        return np.ones_like(np.asarray(p, dtype=np.float64))

    def radius_above(self, q: Floats, n: int) -> Floats:
        return np.ones_like(np.asarray(q, dtype=np.float64))

    def variance(self, n: int = 1) -> float:
        return self.scale**2 / (n + 2)

    def coordinate_cdf(self, z: Floats, n: int = 1) -> Floats:
        from scipy import special

        reach = np.clip(np.asarray(z, dtype=np.float64) / self.scale, -1.0, 1.0)
        return np.asarray(special.betainc((n + 1) / 2, (n + 1) / 2, (1.0 + reach) / 2), dtype=np.float64)
