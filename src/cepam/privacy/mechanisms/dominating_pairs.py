"""Dominating pairs of one round without sampling: two noise laws a shift apart.

A client sends one clipped vector whatever it did locally, so the only thing a record can change is where
the noise is centred, and by at most a *shift*. For log-concave noise the worst shift inside a convex set is
an extreme point (`docs/proofs/mechanisms-and-sampling.md`, "One dimension is enough"), so one dimension is enough: two
Gaussians `mu` standard deviations apart, or two Laplace laws `gap` scales apart.

Here P and Q are the two laws and the loss is log(dP/dQ). Both pairs are symmetric: swapping P and Q negates
the loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy import special

from cepam.distributions.laws import Floats

Masses = tuple[Floats, Floats]


def check_shift(name: str, value: float) -> None:
    """Raise ValueError when a shift is not a usable non-negative number."""
    if not (0.0 <= value < math.inf):
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")


class Shift(ABC):
    """Two noise laws, P and Q, that differ by a shift."""

    @property
    @abstractmethod
    def size(self) -> float:
        """The shift in units of the noise: zero means nothing is released about the record."""

    @property
    @abstractmethod
    def largest_loss(self) -> float:
        """The largest value that the loss can take: finite exactly when the release is pure DP."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """The standard deviation of dP/dQ under Q: how wide a sampled round's loss is, in units of the probability
        p."""

    @abstractmethod
    def scaled(self, factor: float) -> Shift:
        """The same noise under a shift `factor` times as large.

        Args:
            factor: What the shift is multiplied by.

        Returns:
            A new pair.
        """

    @abstractmethod
    def profile(self, epsilon: float) -> float:
        """The hockey-stick divergence of P from Q at e^epsilon: the smallest delta that goes with epsilon.

        Args:
            epsilon: Not negative.

        Returns:
            delta.
        """

    @abstractmethod
    def masses(self, edges: Floats) -> Masses:
        """The probability under P, and under Q, that the loss lies in each interval (edges[i], edges[i + 1]].

        Args:
            edges: Rising values of the loss.

        Returns:
            The probabilities under P, and those under Q.
        """

    @abstractmethod
    def loss_exceeded(self, tail: float) -> float:
        """A loss that P exceeds with probability at most `tail`.

        Args:
            tail: A probability, in (0, 1).

        Returns:
            The loss.
        """


@dataclass(frozen=True)
class GaussianShift(Shift):
    """A pair of unit Gaussians, P centered on `mu` and Q on 0.

    Args:
        mu: The distance between them.

    Guarantee: `profile` is the exact curve of the Gaussian mechanism (Balle and Wang 2018, Theorem 8), accurate in
    both tails; tests/privacy/test_dominating_pairs.py integrates it numerically.
    """

    mu: float

    def __post_init__(self) -> None:
        check_shift("mu", self.mu)

    @property
    def size(self) -> float:
        return float(self.mu)

    @property
    def largest_loss(self) -> float:
        return math.inf if self.mu > 0 else 0.0

    @property
    def spread(self) -> float:
        return math.sqrt(math.expm1(min(self.mu**2, 500.0)))

    def scaled(self, factor: float) -> GaussianShift:
        return GaussianShift(self.mu * factor)

    def profile(self, epsilon: float) -> float:
        if self.mu == 0:
            return -math.expm1(min(0.0, epsilon))
        above = float(special.log_ndtr(self.mu / 2 - epsilon / self.mu))
        below = epsilon + float(special.log_ndtr(-self.mu / 2 - epsilon / self.mu))
        return max(0.0, math.exp(above) * -math.expm1(min(0.0, below - above)))

    def masses(self, edges: Floats) -> Masses:
        place = edges / self.mu + self.mu / 2
        return _normal_masses(place - self.mu), _normal_masses(place)

    def loss_exceeded(self, tail: float) -> float:
        return self.mu * (self.mu / 2 - float(special.ndtri(tail)))


def _normal_masses(edges: Floats) -> Floats:
    """The probability of each interval under a unit Gaussian, taken on the side where nothing cancels."""
    left, right = edges[:-1], edges[1:]
    lower = special.ndtr(right) - special.ndtr(left)
    upper = special.ndtr(-left) - special.ndtr(-right)
    return np.asarray(np.where(left + right > 0, upper, lower), dtype=np.float64)


@dataclass(frozen=True)
class LaplaceShift(Shift):
    """A pair of unit Laplace laws, P centered on `gap` and Q on 0.

    Args:
        gap: The distance between them; the privacy loss lies in [-gap, gap].

    Guarantee: `profile` is 1 - e^((epsilon - gap)/2) inside that range; tests/privacy/test_dominating_pairs.py
    integrates it.
    """

    gap: float

    def __post_init__(self) -> None:
        check_shift("gap", self.gap)

    @property
    def size(self) -> float:
        return float(self.gap)

    @property
    def largest_loss(self) -> float:
        return float(self.gap)

    @property
    def spread(self) -> float:
        gap = min(self.gap, 500.0)
        return math.sqrt(max(0.0, 2.0 * math.expm1(gap) + math.expm1(-2.0 * gap)) / 3.0)

    def scaled(self, factor: float) -> LaplaceShift:
        return LaplaceShift(self.gap * factor)

    def profile(self, epsilon: float) -> float:
        if epsilon >= self.gap:
            return 0.0
        if epsilon <= -self.gap:
            return -math.expm1(epsilon)
        return -math.expm1((epsilon - self.gap) / 2)

    def masses(self, edges: Floats) -> Masses:
        under_p = _laplace_tail(edges, self.gap, (edges - self.gap) / 2)
        under_q = _laplace_tail(edges, self.gap, (edges + self.gap) / 2)
        return -np.diff(under_p), -np.diff(under_q)

    def loss_exceeded(self, tail: float) -> float:
        return self.gap


def _laplace_tail(loss: Floats, gap: float, place: Floats) -> Floats:
    """The probability that the loss exceeds `loss`: that a unit Laplace variable exceeds `place`."""
    tail = np.where(place < 0, 1.0 - 0.5 * np.exp(-np.abs(place)), 0.5 * np.exp(-np.abs(place)))
    return np.asarray(np.where(loss >= gap, 0.0, np.where(loss < -gap, 1.0, tail)), dtype=np.float64)
