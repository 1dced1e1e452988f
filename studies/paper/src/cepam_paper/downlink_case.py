"""The presets' rule for the downlink, exponent 1/2 with hysteresis, beside the convex theorem: every constant exact.

Theorem: docs/paper/theory.md, "Mini-batches and the downlink".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian
from cepam.downlink.broadcast import Broadcast
from cepam.downlink.grid import farthest
from cepam_paper.section import Table
from cepam_paper.theory.bowls import BowlPath, Publish, QuadraticClients, roll, simulated_downlink
from cepam_paper.theory.descent import stacked
from cepam_paper.theory.downlink import DownlinkError
from cepam_paper.theory.minibatch import BatchConvergence

Floats = npt.NDArray[np.float64]
CLIENTS, COORDINATES, RECORDS, BATCH, START = 10, 64, 20, 4, 2.0
SIGMA = 0.1
FACTOR, EXPONENT, ZONE = 256.0, 0.5, 0.75
"""As in the presets (`cepam.fl.config.presets.SMALL_DOWNLINK`)."""
RULE = "exponent 1/2, hysteresis 0.75"
LARGEST = 8.0
"""More than any weight of the cases that hold."""


def hysteresis(rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    """The rule as run, the worst broadcast that the assumption allows, and a control that breaks the assumption."""
    problem = _problem()
    start = np.full((repetitions, COORDINATES), START)
    noise = SIGMA * math.sqrt(problem.constants.spread)
    theory = BatchConvergence(
        problem.constants, problem.gradients, 1, BATCH, COORDINATES * SIGMA**2,
        float(np.square(start[0] - problem.minimum).sum()),
    )  # fmt: skip
    first, second = (float(theory.schedule.rate(r)) for r in (0, 1))
    # The broadcast of a round has the step of the rate before: `late` is how much larger that is at most.
    error = DownlinkError.of_rule(
        FACTOR, noise, EXPONENT, first, COORDINATES, LARGEST, farthest(ZONE), late=first / second
    )

    def step_of(rate: float) -> float:
        return Broadcast.step_for(rate, noise, FACTOR, EXPONENT, first)

    def trained(name: str, publish: Publish) -> dict[str, Any]:
        channel = stacked(Codec(Gaussian(SIGMA), coder="layered"), seed)
        path = roll(problem, theory.schedule, channel, start, rounds, BATCH, seed, publish)
        return _found(path, theory, error, step_of)

    cases = {
        RULE: trained("rule", _grid(start, step_of, ZONE)),
        "the worst errors of that size": trained("worst", _worst(problem, theory, error)),
    }
    return {
        "cases": cases,
        "control": trained("control", _grid(start, step_of, 1e9)),
        "held_everywhere": all(one["held"] for one in cases.values()),
        "farthest": farthest(ZONE), "kappa": error.ratio, "rounds": rounds,
    }  # fmt: skip


def _problem() -> QuadraticClients:
    draw = np.random.default_rng(0)
    centres = 0.3 * draw.standard_normal((CLIENTS, 1, COORDINATES))
    records = centres + 0.5 * draw.standard_normal((CLIENTS, RECORDS, COORDINATES))
    weights = np.linspace(1.0, 2.0, CLIENTS)
    return QuadraticClients(records, np.linspace(1.0, 2.0, COORDINATES), tuple((weights / weights.sum()).tolist()))


def _grid(start: Floats, step_of: Any, zone: float) -> Publish:
    return simulated_downlink("cepam reproduce hysteresis", start, step_of, zone)


def _worst(problem: QuadraticClients, theory: BatchConvergence, error: DownlinkError) -> Publish:
    """Broadcasts off by the whole bound, along the direction of the largest curvature, towards where it harms."""
    steepest = int(np.argmax(problem.curvatures))

    def publish(weights: Floats, rate: float, aggregate: Floats) -> Floats:
        public = weights.copy()
        behind = weights[:, steepest] - problem.minimum[steepest]
        round = 1 / (problem.constants.convexity * rate) - theory.schedule.alpha
        following = float(theory.schedule.rate(round + 1))
        public[:, steepest] -= np.where(behind >= 0, 1.0, -1.0) * float(error.at(following))
        return public

    return publish


def _found(path: BowlPath, theory: BatchConvergence, error: DownlinkError, step_of: Any) -> dict[str, Any]:
    rounds = len(path.errors)
    mean, low, high = path.band()
    rates = theory.schedule.rate(np.arange(rounds))
    steps = np.array([2.0 ** math.floor(math.log2(step_of(float(rate)))) for rate in rates[:-1]])
    bound = theory.biased_bound(np.arange(rounds + 1), math.inf, error)
    recursion = theory.constants.smoothness / 2 * theory.biased_recursion(rounds, math.inf, error)
    return {
        "T": rounds, "gap": float(mean[-1]), "gap_low": float(low[-1]), "gap_high": float(high[-1]),
        "bound": float(bound[-1]), "recursion": float(recursion[-1]),
        "steps_off": float((path.largest[1:] / steps).max()),
        "error_share": float((path.errors / error.at(rates)).max()),
        "held": bool((high <= np.minimum(bound, recursion) * (1 + 1e-12)).all()),
    }  # fmt: skip


def hysteresis_table(numbers: dict[str, Any]) -> Table:
    """Both cases and the control."""
    named = {**numbers["cases"], "control: a weight never moves": numbers["control"]}
    rows = tuple(
        (name, f"{one['T']}", f"{one['error_share']:.2f}",
         f"{one['gap']:.3g} [{one['gap_low']:.3g}, {one['gap_high']:.3g}]",
         f"{one['recursion']:.3g}", f"{one['bound']:.3g}", "yes" if one["held"] else "NO")
        for name, one in named.items()
    )  # fmt: skip
    columns = ("case", "T", "largest error over its bound", "gap [95 %]", "iterated bound", "bound", "held at every T")
    caption = (
        f"Quadratic clients, K {CLIENTS}, {COORDINATES} coordinates, curvatures from 1 to 2, sigma {SIGMA:g}, "
        f"b {BATCH}, tau 1, through real messages. The downlink has the presets' rule: factor {FACTOR:g}, exponent "
        f"{EXPONENT:g}, hysteresis {ZONE:g}. The bound allows {numbers['farthest']:.2f} steps per coordinate; the "
        f"farthest was {numbers['cases'][RULE]['steps_off']:.2f} steps off. The control breaks that and must exceed it."
    )
    return Table("hysteresis", "A downlink with exponent 1/2 and hysteresis", columns, rows, caption)
