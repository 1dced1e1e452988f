"""One round of sampling and noise, as charged to one client: a shift, and the chance that a record is drawn.

With chance 1 - p the record is not drawn and nothing about it is released. The pair that dominates the
round is

- add-or-remove: ((1-p)Q + pP, Q) in one direction and its swap in the other;
- replace-one: the symmetric pair whose hockey-stick curve is that of ((1-p)Q + pP, Q) at a >= 1 and its
  mirror image 1 - a + a h(1/a) below (FINDINGS and `docs/privacy.md`: convex at a = 1, hence a pair, hence
  it composes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
from scipy import optimize

from cepam.clip import Adjacency
from cepam.noise.laws import Floats
from cepam.privacy.dominating import Masses, Shift

LARGEST_EXPONENT = 700.0


def check_chance(name: str, value: float) -> None:
    """Nothing, or a ValueError when a chance does not lie in (0, 1]."""
    if not (0.0 < value <= 1.0):
        raise ValueError(f"{name} must lie in (0, 1], got {value!r}")


def check_adjacency(value: str) -> None:
    """Nothing, or a ValueError when the adjacency is not one of the two that are accounted for."""
    if value not in get_args(Adjacency):
        raise ValueError(f"adjacency must be one of {', '.join(get_args(Adjacency))}, got {value!r}")


@dataclass(frozen=True)
class Charge:
    """What one round costs one client's record: `shift` if the record is drawn, and `chance` that it is.

    Guarantee: dominates the round for every pair of adjacent data sets and every history, so charges compose
    adaptively (Zhu, Dong and Wang 2022, Theorem 10); tests/privacy/test_sampled.py enumerates tiny cases.
    """

    shift: Shift
    chance: float = 1.0
    adjacency: Adjacency = "replace"

    def __post_init__(self) -> None:
        check_chance("chance", self.chance)
        check_adjacency(self.adjacency)

    @property
    def largest_loss(self) -> float:
        """The largest loss of the round (pure DP), amplified by sampling; infinite for Gaussian noise."""
        return amplified(self.shift.largest_loss, self.chance)

    def profile(self, epsilon: float) -> float:
        """delta of one round at epsilon >= 0, in closed form; the same for both adjacencies.

        Paper: Theorem 1, with its sum over j replaced by the truth: being drawn twice moves one clipped
        vector no further.
        Rests on: Balle, Barthe and Gaboardi 2018, Theorem 2 (advanced joint convexity).
        """
        if epsilon < 0:
            raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
        return self.chance * self.shift.profile(unamplified(epsilon, self.chance))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of one round at delta, in closed form up to a root in one unknown."""
        if self.chance * self.shift.profile(0.0) <= delta:
            return 0.0
        if delta == 0.0:
            return self.largest_loss
        reach = min(self.shift.loss_exceeded(delta / self.chance), self.shift.largest_loss)
        root = optimize.brentq(
            lambda before: self.chance * self.shift.profile(before) - delta,
            0.0,
            reach,
            xtol=1e-13,
            rtol=1e-13,
        )
        return amplified(float(root), self.chance)

    def masses(self, edges: Floats) -> tuple[Masses, ...]:
        """For each direction to be charged, the chance of the loss in (edges[i], edges[i+1]] under its pair.

        `edges` must be symmetric about an edge at zero; one direction for replace-one, remove and add
        otherwise.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            before = unamplified_array(edges, self.chance)
        drawn, absent = self.shift.masses(before)
        mixed = (1.0 - self.chance) * absent + self.chance * drawn
        if self.adjacency == "add-remove":
            return (mixed, absent), (absent[::-1].copy(), mixed[::-1].copy())
        half = (len(edges) - 1) // 2
        upper, lower = mixed.copy(), absent.copy()
        upper[:half], lower[:half] = absent[half:][::-1], mixed[half:][::-1]
        return ((upper, lower),)


def amplified(epsilon: float, chance: float) -> float:
    """log(1 + p(e^epsilon - 1)), without overflow: what a loss paid only with chance p is worth."""
    if math.isinf(epsilon) or chance == 1.0:
        return epsilon
    if epsilon > LARGEST_EXPONENT:
        return epsilon + math.log(chance)
    return math.log1p(chance * math.expm1(epsilon))


def unamplified(epsilon: float, chance: float) -> float:
    """The inverse of `amplified` for epsilon >= 0."""
    if chance == 1.0:
        return epsilon
    if epsilon - math.log(chance) > LARGEST_EXPONENT:
        return epsilon - math.log(chance)
    return math.log1p(math.expm1(epsilon) / chance)


def unamplified_array(loss: Floats, chance: float) -> Floats:
    """`unamplified` for many losses; minus infinity at and below log(1 - p), the least loss there is."""
    if chance == 1.0:
        return loss
    inside = np.log1p(np.maximum(np.expm1(loss) / chance, -1.0))
    return np.where(loss - math.log(chance) > LARGEST_EXPONENT, loss - math.log(chance), inside)
