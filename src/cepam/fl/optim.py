"""Server optimizers and learning-rate schedules.

They see decoded vectors only, so by post-processing they cost no privacy. Arrays and tensors step by the same lines.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Rows = Any
Memory = dict[str, Rows]
OPTIMIZERS = ("sgd", "momentum", "adam")


class Optimizer(ABC):
    """A step from an aggregate; what it remembers is a mapping of arrays, so that a run can be resumed."""

    @abstractmethod
    def start(self, weights: Floats) -> Memory:
        """The memory before the first round."""

    @abstractmethod
    def step(self, weights: Rows, aggregate: Rows, rate: float, memory: Memory) -> tuple[Rows, Memory]:
        """The new weights and the new memory."""


@dataclass(frozen=True)
class Sgd(Optimizer):
    """weights - rate · aggregate. Paper: Algorithm 1."""

    def start(self, weights: Floats) -> Memory:
        return {}

    def step(self, weights: Rows, aggregate: Rows, rate: float, memory: Memory) -> tuple[Rows, Memory]:
        return weights - rate * aggregate, {}


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Heavy-ball momentum on the aggregates."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")

    def start(self, weights: Floats) -> Memory:
        return {"velocity": np.zeros_like(weights)}

    def step(self, weights: Rows, aggregate: Rows, rate: float, memory: Memory) -> tuple[Rows, Memory]:
        velocity = self.momentum * memory["velocity"] + aggregate
        return weights - rate * velocity, {"velocity": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam on the aggregates."""

    momentum: float = 0.9
    second: float = 0.999
    floor: float = 1e-8

    def __post_init__(self) -> None:
        if not (0.0 <= self.momentum < 1.0 and 0.0 <= self.second < 1.0):
            raise ValueError(f"momentum and second must lie in [0, 1), got {self.momentum} and {self.second}")

    def start(self, weights: Floats) -> Memory:
        return {"mean": np.zeros_like(weights), "square": np.zeros_like(weights), "steps": np.zeros(1, np.float32)}

    def step(self, weights: Rows, aggregate: Rows, rate: float, memory: Memory) -> tuple[Rows, Memory]:
        steps = memory["steps"] + 1
        mean = self.momentum * memory["mean"] + (1 - self.momentum) * aggregate
        square = self.second * memory["square"] + (1 - self.second) * aggregate**2
        count = float(steps[0])
        top = mean / (1 - self.momentum**count)
        low = (square / (1 - self.second**count)) ** 0.5 + self.floor
        moved = weights - rate * top / low
        return moved, {"mean": mean, "square": square, "steps": steps}


def optimizer(name: str, momentum: float) -> Optimizer:
    """The named server optimizer."""
    if name == "sgd":
        return Sgd()
    if name == "momentum":
        return Momentum(momentum)
    if name == "adam":
        return Adam(momentum)
    raise ValueError(f"server must be one of {', '.join(OPTIMIZERS)}, got {name!r}")


SCHEDULES = ("constant", "theorem", "linear", "cosine")


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
    Paper: Theorem 11 (convergence), for C-strongly convex and L-smooth losses.
    """
    if name == "constant":
        return RateSchedule(lambda t: rate)
    if name == "linear":
        return RateSchedule(lambda t: rate * min(1.0, 2.0 * (1.0 - t / iterations)))
    if name == "cosine":
        return RateSchedule(lambda t: rate * 0.5 * (1.0 + math.cos(math.pi * t / iterations)))
    if name != "theorem":
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")
    if not 0 < convexity <= smoothness:
        raise ValueError(f"need 0 < convexity <= smoothness, got {convexity} and {smoothness}")
    alpha = tau * max(4.0 * smoothness / convexity, 1.0)
    return RateSchedule(lambda t: tau / (convexity * (t + alpha)))
