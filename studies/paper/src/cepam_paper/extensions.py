"""What the paper leaves for future work, measured: objectives that are not convex, mini-batches, a quantized downlink.

Paper: footnotes to Section II-A (mini-batching) and to AS4 (non-convex objectives). Theorems: docs/paper/theory.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian
from cepam.downlink.broadcast import Broadcast
from cepam_paper.convergence_sweep import SIZE, problem_of
from cepam_paper.section import Table
from cepam_paper.theory.descent import descend, follow_gradients, quantized_downlink, stacked
from cepam_paper.theory.downlink import downlink_error
from cepam_paper.theory.geman_mcclure import GemanMcClure, scattered
from cepam_paper.theory.minibatch import BatchConvergence
from cepam_paper.theory.stationarity import Stationarity

Floats = npt.NDArray[np.float64]
CLIENTS, COORDINATES, RECORDS, START = 8, 6, 40, 3.0
IDLE = 2.0
"""A clipping norm above every gradient of the non-convex problem."""
LOCAL_RATE = 0.02
BATCHES = (1, 4, 16, 64)
BATCH_SIGMA = 0.05


@dataclass(frozen=True)
class Case:
    """One training on the non-convex problem; `grid` is the downlink's step, 0 for a downlink without error."""

    steps: int = 1
    batch: int = 1
    sigma: float = 0.05
    grid: float = 0.0
    clip: float = IDLE


CASES: dict[str, Case] = {
    "tau 1, b 1": Case(),
    "tau 5, b 1": Case(steps=5),
    "tau 5, b 16": Case(steps=5, batch=16),
    "tau 5, b 16, downlink step 1/64": Case(steps=5, batch=16, grid=2.0**-6),
    "tau 1, b 1, sigma 1": Case(sigma=1.0),
    "tau 5, b 1, downlink step 1/64, gamma 0.8": Case(steps=5, grid=2.0**-6, clip=0.8),
    "tau 5, b 64, gamma 1": Case(steps=5, batch=64, clip=1.0),
}


def nonconvex(rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    """Measured mean squared gradients beside the bound, and two controls in which an assumption is broken."""
    problem = scattered(CLIENTS, COORDINATES, RECORDS, 1.0, 0)
    found = {name: _train(problem, case, rounds, repetitions, seed) for name, case in CASES.items()}
    return {
        "cases": found,
        "held_everywhere": all(case["held"] for case in found.values()),
        "smoothness": problem.gradients.smoothness,
        "start_gap": _gap(problem, np.full(COORDINATES, START)),
        "rounds": rounds,
        "controls": {"rate": _fast(rounds, repetitions, seed), "clipping": _opposed(rounds, repetitions, seed)},
    }


def _gap(problem: GemanMcClure, start: Floats) -> float:
    return float(problem.objective(start)) - problem.least


def _train(problem: GemanMcClure, case: Case, rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    start = np.full(problem.size, START)
    theory = Stationarity(
        problem.gradients, case.steps, case.batch, case.clip, problem.size * case.sigma**2, _gap(problem, start)
    )
    rate, error, downlink = theory.best_rate(rounds), 0.0, None
    if case.grid:
        error = downlink_error(case.grid, problem.size, 16.0)
        rows = np.repeat(start[None, :], repetitions, axis=0)
        downlink = quantized_downlink(lambda r: case.grid, "cepam reproduce non-convex", rows)
    path = follow_gradients(
        problem, stacked(Codec(Gaussian(case.sigma), coder="layered"), seed), start, rounds, case.steps, rate,
        LOCAL_RATE,
        case.clip, case.batch, repetitions, seed, downlink,
    )  # fmt: skip
    mean, high = path.averages()
    bound = theory.bound(np.full(rounds, rate), LOCAL_RATE, error)
    return {
        "rate": rate, "mean": float(mean[-1]), "high": float(high[-1]), "bound": float(bound[-1]),
        "bound_over_mean": float(bound[-1] / mean[-1]), "held": bool((high <= bound).all()),
        "error": float(theory.gradient_error(LOCAL_RATE, error)), "variance": theory.variance,
        "clipped": path.clipped, "downlink_error": path.downlink_error, "downlink_bound": error,
        "bias": theory.gradients.bias(case.batch, case.clip),
    }  # fmt: skip


def _fast(rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    """A server learning rate of 1.2 where 1/L is 0.5: equal records, so that the curvature at the minimum is L."""
    problem = GemanMcClure(np.zeros((2, 1, 2)), np.ones((2, 1)), (0.5, 0.5))
    start, sigma, rate = np.full(2, 0.5), 0.01, 1.2
    theory = Stationarity(problem.gradients, 1, 1, IDLE, 2 * sigma**2, _gap(problem, start))
    channel = stacked(Codec(Gaussian(sigma), coder="layered"), seed)
    path = follow_gradients(problem, channel, start, rounds, 1, rate, 0.0, IDLE, 1, repetitions, seed)
    slow = follow_gradients(problem, channel, start, rounds, 1, theory.largest_rate, 0.0, IDLE, 1, repetitions, seed)
    return {
        "rate": rate, "largest_rate": theory.largest_rate, "mean": float(path.squares.mean()),
        "formula": float(theory.formula(np.full(rounds, rate), 0.0, 0.0)[-1]),
        "mean_within": float(slow.squares.mean()),
        "bound_within": float(theory.bound(np.full(rounds, theory.largest_rate), 0.0, 0.0)[-1]),
    }  # fmt: skip


def _opposed(rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    """Two clients that pull apart, one ten times as hard: clipped they cancel; with and without the bias term."""
    problem = GemanMcClure(np.array([[[1.0]], [[-1.0]]]), np.array([[10.0], [1.0]]), (0.5, 0.5))
    start, sigma, clip = np.zeros(1), 0.01, 0.2
    theory = Stationarity(problem.gradients, 1, 1, clip, sigma**2, _gap(problem, start))
    rate = theory.largest_rate / 2
    path = follow_gradients(
        problem, stacked(Codec(Gaussian(sigma), coder="layered"), seed), start, rounds, 1, rate, 0.0, clip, 1,
        repetitions, seed,
    )  # fmt: skip
    unbiased = replace(theory, clip=math.inf)  # clients have one record each, so that nothing else changes
    rates = np.full(rounds, rate)
    return {
        "clip": clip, "mean": float(path.squares.mean()), "formula": float(unbiased.formula(rates, 0.0, 0.0)[-1]),
        "bound": float(theory.bound(rates, 0.0, 0.0)[-1]),
    }  # fmt: skip


def minibatches(rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    """The convex problem by mini-batch size at tau = 1; then tau = 5, and with the downlink's own rule for its step."""
    found = {f"{batch}": _convex(batch, 1, False, rounds, repetitions, seed) for batch in BATCHES}
    local = {
        "exact": _convex(16, 5, False, rounds, repetitions, seed),
        "quantized": _convex(16, 5, True, rounds, repetitions, seed),
    }
    return {
        "cases": found, "local": local, "rounds": rounds,
        "held_everywhere": all(case["held"] for case in (*found.values(), *local.values())),
    }  # fmt: skip


def _convex(batch: int, steps: int, quantized: bool, rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    problem = problem_of("logistic regression", 10, 1.0)
    start = np.zeros(SIZE)  # near the minimum, where sampling matters more than the start
    theory = BatchConvergence(
        problem.constants, problem.gradients, steps, batch, SIZE * BATCH_SIGMA**2,
        float(np.square(start - problem.minimum[0]).sum()),
    )  # fmt: skip
    downlink = None
    if quantized:
        noise = BATCH_SIGMA * math.sqrt(problem.constants.spread)

        def rate_of(r: int) -> float:
            return float(theory.schedule.rate((r + 1) * steps - 1))

        def step_of(r: int) -> float:
            return Broadcast.step_for(rate_of(r), noise)

        errors = [downlink_error(step_of(r), SIZE, problem.radius) / rate_of(r) for r in range(rounds)]
        theory = replace(theory, downlink_ratio=max(errors))
        rows = np.repeat(start[None, :], repetitions, axis=0)
        downlink = quantized_downlink(step_of, "cepam reproduce mini-batches", rows)
    marks = sorted({0, *np.unique(np.geomspace(1, rounds, 20).astype(int)).tolist()})
    descent = descend(
        problem, theory.schedule, stacked(Codec(Gaussian(BATCH_SIGMA), coder="layered"), seed), start, marks,
        problem.constants.gradient_norm, repetitions, seed, batch, downlink,
    )  # fmt: skip
    mean, low, high = descent.band()
    bound = theory.bound(np.array(marks, dtype=np.float64) * steps)
    recursion = problem.constants.smoothness / 2 * theory.recursion(rounds)[marks]
    return {
        "T": marks[-1] * steps, "gap": float(mean[-1]), "gap_low": float(low[-1]), "gap_high": float(high[-1]),
        "bound": float(bound[-1]), "recursion": float(recursion[-1]), "kappa": theory.downlink_ratio,
        "held": bool((high <= np.minimum(bound, recursion)).all() and descent.farthest <= problem.radius),
    }  # fmt: skip


def nonconvex_table(numbers: dict[str, Any]) -> Table:
    """Every case and both controls."""
    rows = [
        (name, f"{one['rate']:.3f}", f"{one['mean']:.4f}", f"{one['high']:.4f}", f"{one['bound']:.4f}",
         f"{one['bound_over_mean']:.1f}", "yes" if one["held"] else "NO")
        for name, one in numbers["cases"].items()
    ]  # fmt: skip
    fast, opposed = numbers["controls"]["rate"], numbers["controls"]["clipping"]
    rows += [
        ("control: learning rate above 1/L", f"{fast['rate']:.3f}", f"{fast['mean']:.4f}", "–",
         f"{fast['formula']:.4f}", "–", "yes" if fast["mean"] <= fast["formula"] else "NO"),
        ("control: clipping taken for unbiased", "–", f"{opposed['mean']:.4f}", "–", f"{opposed['formula']:.4f}", "–",
         "yes" if opposed["mean"] <= opposed["formula"] else "NO"),
        ("the same with the bias term", "–", f"{opposed['mean']:.4f}", "–", f"{opposed['bound']:.4f}", "–",
         "yes" if opposed["mean"] <= opposed["bound"] else "NO"),
    ]  # fmt: skip
    columns = ("case", "learning rate", "mean of ||grad F||^2", "upper 95 % end", "bound", "bound / mean", "held")
    caption = (
        f"Robust location with the loss x^2/(1+x^2), {CLIENTS} clients, {COORDINATES} coordinates, "
        f"{numbers['rounds']} rounds through real messages; the mean is over rounds and repetitions. A control breaks "
        "one assumption and must exceed what the formula says."
    )
    return Table("nonconvex", "Future work: objectives that are not convex", columns, tuple(rows), caption)


def minibatch_table(numbers: dict[str, Any]) -> Table:
    """The gap by batch size."""
    named = {f"tau = 1, b = {batch}": one for batch, one in numbers["cases"].items()}
    named["tau = 5, b = 16"] = numbers["local"]["exact"]
    named["tau = 5, b = 16, quantized downlink"] = numbers["local"]["quantized"]
    rows = tuple(
        (name, f"{one['T']}", f"{one['gap']:.3g} [{one['gap_low']:.3g}, {one['gap_high']:.3g}]",
         f"{one['recursion']:.3g}", f"{one['bound']:.3g}", "yes" if one["held"] else "NO")
        for name, one in named.items()
    )  # fmt: skip
    columns = ("case", "T", "gap [95 %]", "iterated bound", "bound", "held at every T")
    caption = f"Logistic regression, K 10, sigma {BATCH_SIGMA:g}, {numbers['rounds']} rounds through real messages."
    return Table("minibatch", "Future work: mini-batches and a quantized downlink", columns, rows, caption)
