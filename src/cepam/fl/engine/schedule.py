"""Learning-rate schedules over the iterations t of the whole run (not its rounds)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("constant", "theorem", "linear", "cosine")


@dataclass(frozen=True)
class RateSchedule:
    """A learning rate for every iteration."""

    at: Callable[[int], float]


def schedule(
    name: str, rate: float, iterations: int, tau: int = 1, convexity: float = 0.0, smoothness: float = 0.0
) -> RateSchedule:
    """The named schedule.

    `constant`; `linear`: the full rate for the first half of the run, then straight down towards zero; `cosine`: half a
    cosine from the full rate to zero; `theorem`: eta_t = tau / (C (t + alpha)) with alpha = tau max(4L/C, 1).
    Paper: Theorem 3 (convergence), for C-strongly convex and L-smooth losses.
    """
    if name == "constant":
        return RateSchedule(lambda t: rate)
    if name == "linear":
        return RateSchedule(lambda t: rate * min(1.0, 2.0 * (1.0 - t / iterations)))
    if name == "cosine":
        return RateSchedule(lambda t: rate * 0.5 * (1.0 + math.cos(math.pi * t / iterations)))
    if name != "theorem":
        raise ValueError(f"schedule must be one of {', '.join(NAMES)}, got {name!r}")
    if not 0 < convexity <= smoothness:
        raise ValueError(f"need 0 < convexity <= smoothness, got {convexity} and {smoothness}")
    alpha = tau * max(4.0 * smoothness / convexity, 1.0)
    return RateSchedule(lambda t: tau / (convexity * (t + alpha)))
