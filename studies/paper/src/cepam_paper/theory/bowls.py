"""Quadratic clients, whose constants are all exact on R^m at tau = 1, trained through the downlink of a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cepam.downlink.grid import NEAREST, Hysteresis
from cepam.fl.aggregation.downlink import GridDownlink
from cepam_paper.theory.convergence import Constants, Schedule
from cepam_paper.theory.descent import Channel
from cepam_paper.theory.gradients import GradientBounds

Floats = npt.NDArray[np.float64]
Publish = Callable[[Floats, float, Floats], Floats]
"""The server's weights (rows, m), the rate of the step that led to them and its aggregate in, the broadcast out."""


@dataclass(frozen=True, eq=False)
class QuadraticClients:
    """K clients with records a (K, records, m): F_k(w) = mean over j of sum_i h_i (w_i - a_kji)^2 / 2, F = sum p_k F_k.

    Records of a client differ in their gradients by h (a - a'), at every w: so their variance is exact, and with tau =
    1 and idle clipping the theorem needs no other bound on gradients, hence no bounded domain.
    """

    records: Floats = field(repr=False)
    curvatures: Floats
    weights: tuple[float, ...]

    @cached_property
    def centres(self) -> Floats:
        """The minimiser of every F_k."""
        return np.asarray(self.records.mean(axis=1))

    @cached_property
    def minimum(self) -> Floats:
        """w*."""
        return np.asarray(np.asarray(self.weights) @ self.centres)

    def gaps(self, w: Floats) -> Floats:
        """F(w) - F(w*) at weights (…, m)."""
        return np.asarray(np.square(w - self.minimum) @ self.curvatures / 2)

    def gradient(self, w: Floats, records: Floats) -> Floats:
        """The gradients at weights (…, m) of single records (…, m)."""
        return np.asarray(self.curvatures * (w - records))

    @cached_property
    def constants(self) -> Constants:
        """L, C and the minima, exact; gradients have no bound."""
        least = (np.square(self.records - self.centres[:, None]) @ self.curvatures).mean(axis=1) / 2
        between = np.asarray(self.weights) @ (np.square(self.centres - self.minimum) @ self.curvatures) / 2
        unbounded = (math.inf,) * len(self.weights)
        return Constants(
            float(self.curvatures.max()), float(self.curvatures.min()), self.weights, unbounded, unbounded,
            tuple(least.tolist()), float(np.asarray(self.weights) @ least + between),
        )  # fmt: skip

    @cached_property
    def gradients(self) -> GradientBounds:
        """s_k^2, exact; the norms have no bound."""
        apart = self.curvatures * (self.records - self.centres[:, None])
        unbounded = (math.inf,) * len(self.weights)
        spread = tuple(np.square(apart).sum(axis=2).mean(axis=1).tolist())
        return GradientBounds(float(self.curvatures.max()), self.weights, unbounded, spread, unbounded)


def simulated_downlink(run: str, start: Floats, step_of: Callable[[float], float], zone: float) -> Publish:
    """The downlink of a simulation with this hysteresis; every row of weights is a matrix of one row by itself."""
    rows, size = start.shape
    chooser = Hysteresis(zone, [(size, 1)] * rows) if zone > NEAREST else None
    downlink = GridDownlink(run.encode(), start.ravel().astype(np.float32), step_of, chooser)

    def publish(weights: Floats, rate: float, aggregate: Floats) -> Floats:
        made = downlink.publish(weights.ravel(), rate, aggregate.ravel())
        return np.asarray(made, dtype=np.float64).reshape(weights.shape)

    return publish


@dataclass(frozen=True)
class BowlPath:
    """F - F(w*) at the server's weights, (rounds + 1, repetitions); the broadcast's error by round, l2 and largest."""

    gaps: Floats
    errors: Floats
    largest: Floats

    def band(self) -> tuple[Floats, Floats, Floats]:
        """The mean gap and the ends of its 95 % interval (normal; repetitions have noise and matrices of their own)."""
        mean = self.gaps.mean(axis=1)
        half = 1.96 * self.gaps.std(axis=1, ddof=1) / math.sqrt(self.gaps.shape[1])
        return mean, mean - half, mean + half


def roll(
    problem: QuadraticClients, schedule: Schedule, channel: Channel, start: Floats, rounds: int, batch: int, seed: int,
    publish: Publish,
) -> BowlPath:  # fmt: skip
    """Algorithm 1 at tau = 1 from weights (repetitions, m); clients hold `start` in the first round."""
    draw, p, server, public = np.random.default_rng(seed), np.asarray(problem.weights), start.copy(), start.copy()
    each, shape = np.arange(len(p))[None, :], (len(start), len(p))
    gaps, errors, largest = [problem.gaps(server)], [], []
    for r in range(rounds):
        off = public - server
        errors.append(float(np.linalg.norm(off, axis=1).max()))
        largest.append(float(np.abs(off).max()))
        updates = np.zeros((*shape, start.shape[1]))
        for _ in range(batch):
            chosen = problem.records[each, draw.integers(problem.records.shape[1], size=shape)]
            updates += problem.gradient(public[:, None, :], chosen) / batch
        decoded = channel(updates.reshape(-1, start.shape[1]), r).reshape(updates.shape)
        rate, aggregate = float(schedule.rate(r)), np.einsum("k,skm->sm", p, decoded)
        server = server - rate * aggregate
        public = publish(server, rate, aggregate)
        gaps.append(problem.gaps(server))
    return BowlPath(np.stack(gaps), np.array(errors), np.array(largest))
