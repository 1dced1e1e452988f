"""What a run's charges come to: their curves, and epsilon once the mechanism's own rounding is added."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cepam.privacy.composition import Charges, delta_of, epsilon_of
from cepam.privacy.numerics import Slack

TRIES = 8


@dataclass(frozen=True)
class Costs:
    """The curves of one or several histories: the worst of them counts, or `limited`, a bound on all, if less."""

    epsilons: tuple[Callable[[float], float], ...]
    deltas: tuple[Callable[[float], float], ...]
    limited: Charges = ()

    def epsilon(self, delta: float) -> float:
        """epsilon at delta."""
        worst = max((curve(delta) for curve in self.epsilons), default=0.0)
        return min(worst, epsilon_of(self.limited, delta)) if self.limited else worst

    def delta(self, epsilon: float) -> float:
        """delta at epsilon."""
        worst = max((curve(epsilon) for curve in self.deltas), default=0.0)
        return min(worst, delta_of(self.limited, epsilon)) if self.limited else worst


def charged(curve: Callable[[float], float], slack: Slack | None, delta: float) -> float:
    """epsilon at delta of a mechanism whose exact curve is given, with its slack; infinite where that is too much."""
    found, extra = curve(delta), 0.0
    if delta == 0.0 or slack is None:
        return found
    for _ in range(TRIES):
        if slack.excess(found, delta) is not None:
            break
        if slack.at(found) <= extra:
            return found
        extra = 1.25 * slack.at(found)
        found = curve((delta - extra) * math.exp(-slack.epsilon / 2.0)) + slack.epsilon
    return math.inf
