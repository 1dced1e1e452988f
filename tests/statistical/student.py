"""A law of one's own, written against the `Law` protocol: the multivariate Student-t (docs/laws.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import special

from cepam.distributions.laws import Floats, Law, Norm, check_scale


@dataclass(frozen=True)
class StudentT(Law):
    """Multivariate Student-t noise with `dof` degrees of freedom: Gaussian noise over a random common scale.

    The density falls with |z|, so its superlevel sets are l2 balls. With s = 1 the latent radius satisfies
    R^2 / dof ~ BetaPrime(n / 2 + 1, dof / 2), that is R^2 / (dof + R^2) ~ Beta(n / 2 + 1, dof / 2).
    """

    s: float
    dof: float = 16.0
    name: ClassVar[str] = "student-t"
    norm: ClassVar[Norm] = "l2"

    def __post_init__(self) -> None:
        check_scale("s", self.s)
        if not self.dof > 4:
            raise ValueError(f"dof must exceed 4, got {self.dof!r}")

    @property
    def scale(self) -> float:
        return float(self.s)

    def radius_below(self, p: Floats, n: int) -> Floats:
        share = special.betaincinv(n / 2 + 1, self.dof / 2, p)
        return np.sqrt(self.dof * share / (1.0 - share))

    def radius_above(self, q: Floats, n: int) -> Floats:
        rest = special.betaincinv(self.dof / 2, n / 2 + 1, q)
        return np.sqrt(self.dof * (1.0 - rest) / rest)

    def variance(self, n: int = 1) -> float:
        return self.scale**2 * self.dof / (self.dof - 2)

    def coordinate_cdf(self, z: Floats, n: int = 1) -> Floats:
        return np.asarray(special.stdtr(self.dof, np.asarray(z) / self.scale), dtype=np.float64)
