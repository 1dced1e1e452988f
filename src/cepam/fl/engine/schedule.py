"""Learning-rate schedules over the iterations t of the whole run (not its rounds)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

NAMES = ("constant", "theorem", "linear", "cosine")


class RateSchedule(ABC):
    """A learning rate for every iteration."""

    @abstractmethod
    def at(self, iteration: int) -> float:
        """The learning rate eta_t."""


@dataclass(frozen=True)
class Constant(RateSchedule):
    """The same rate throughout."""

    rate: float

    def at(self, iteration: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Theorem(RateSchedule):
    """eta_t = tau / (C (t + alpha)) with alpha = tau max(4L/C, 1).

    Paper: Theorem 3 (convergence), for C-strongly convex and L-smooth losses.
    """

    tau: int
    convexity: float
    smoothness: float

    def __post_init__(self) -> None:
        if not 0 < self.convexity <= self.smoothness:
            raise ValueError(f"need 0 < convexity <= smoothness, got {self.convexity} and {self.smoothness}")

    def at(self, iteration: int) -> float:
        alpha = self.tau * max(4.0 * self.smoothness / self.convexity, 1.0)
        return self.tau / (self.convexity * (iteration + alpha))


@dataclass(frozen=True)
class Linear(RateSchedule):
    """The full rate for the first half of the run, then straight down towards zero."""

    rate: float
    iterations: int

    def at(self, iteration: int) -> float:
        return self.rate * min(1.0, 2.0 * (1.0 - iteration / self.iterations))


@dataclass(frozen=True)
class Cosine(RateSchedule):
    """Half a cosine from the full rate to zero."""

    rate: float
    iterations: int

    def at(self, iteration: int) -> float:
        return self.rate * 0.5 * (1.0 + math.cos(math.pi * iteration / self.iterations))


def schedule(
    name: str, rate: float, iterations: int, tau: int = 1, convexity: float = 0.0, smoothness: float = 0.0
) -> RateSchedule:
    """The named schedule."""
    if name == "constant":
        return Constant(rate)
    if name == "theorem":
        return Theorem(tau, convexity, smoothness)
    if name == "linear":
        return Linear(rate, iterations)
    if name == "cosine":
        return Cosine(rate, iterations)
    raise ValueError(f"schedule must be one of {', '.join(NAMES)}, got {name!r}")
