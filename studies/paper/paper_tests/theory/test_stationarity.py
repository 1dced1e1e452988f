"""The non-convex theorem: every line of its proof on rounds whose expectations are computed exactly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from cepam_paper.theory.descent import follow_gradients
from cepam_paper.theory.geman_mcclure import GemanMcClure
from cepam_paper.theory.stationarity import Stationarity

Floats = npt.NDArray[np.float64]
NODES, SHARES = np.polynomial.hermite_e.hermegauss(40)
SHARES = SHARES / SHARES.sum()


@dataclass(frozen=True)
class Round:
    """One round in one coordinate with one mini-batch step before the update: its exact moments."""

    before: float
    after: float
    gradient: float
    drift: float
    error_square: float
    variance: float


def random_problem(draw: np.random.Generator) -> GemanMcClure:
    clients, records = 2, int(draw.integers(1, 4))
    a = draw.standard_normal((clients, records, 1)) * draw.exponential(1.0)
    heights = draw.uniform(0.2, 3.0, (clients, records))
    weights = draw.dirichlet(np.ones(clients))
    return GemanMcClure(a, heights, tuple(weights.tolist()))


def outcomes(problem: GemanMcClure, k: int, w: float, batch: int) -> Floats:
    """The mini-batch gradients of client k at w, one for every ordered batch."""
    each = problem.gradient(np.array([w]), problem.records[k], problem.heights[k])[:, 0]
    return np.array([each[list(chosen)].mean() for chosen in itertools.product(range(len(each)), repeat=batch)])


def exact_round(
    problem: GemanMcClure, w: float, off: float, steps: int, rate: float, local_rate: float, clip: float, batch: int,
    sigma: float,
) -> Round:  # fmt: skip
    """By enumeration of all batches of all clients and steps, and Gauss-Hermite quadrature of the noise."""
    p = np.array(problem.weights)
    paths: list[Floats] = []
    for _ in p:
        local = np.array([w + off])
        paths.append(local)
    for _ in range(steps - 1):
        paths = [
            np.concatenate([x - local_rate * outcomes(problem, k, float(x), batch) for x in paths[k]])
            for k in range(len(p))
        ]
    gradient = float(problem.full_gradient(np.array([w]))[0])
    means = [
        np.array([np.clip(outcomes(problem, k, float(x), batch), -clip, clip).mean() for x in paths[k]])
        for k in range(len(p))
    ]
    spreads = [
        np.array([np.clip(outcomes(problem, k, float(x), batch), -clip, clip).var() for x in paths[k]])
        for k in range(len(p))
    ]
    grid = [np.array(one) for one in np.meshgrid(*(np.arange(len(x)) for x in paths), indexing="ij")]
    expected = sum(p[k] * means[k][grid[k]] for k in range(len(p)))
    variance = max(sum(p[k] ** 2 * (spreads[k].max() + sigma**2) for k in range(len(p))), 0.0)
    sent = [
        np.array([np.clip(outcomes(problem, k, float(x), batch), -clip, clip) for x in paths[k]]).ravel()
        for k in range(len(p))
    ]
    total = p[0] * sent[0][:, None] + p[1] * sent[1][None, :]
    noise = sigma * np.sqrt(np.square(p).sum())
    after = w - rate * (total[..., None] + noise * NODES)
    value = float((problem.objective(after[..., None]) @ SHARES).mean())
    drift = sum(p[k] * np.sqrt(np.square(paths[k] - w - off).mean()) for k in range(len(p)))
    return Round(
        float(problem.objective(np.array([w]))), value, gradient, float(drift),
        float(np.square(expected - gradient).mean()), float(variance),
    )  # fmt: skip


def test_one_round_of_the_proof_line_by_line_on_exact_rounds() -> None:
    draw, tightest = np.random.default_rng(0), {"drift": 0.0, "error": 0.0, "variance": 0.0, "descent": 0.0}
    for trial in range(300):
        problem = random_problem(draw)
        bounds = problem.gradients
        steps, batch = int(draw.integers(1, 3)), int(draw.integers(1, 3))
        sigma, clip = float(draw.exponential(0.3)), float(draw.choice([0.3, 1.0, 9.0]))
        local_rate, off = float(draw.exponential(0.1)), float(draw.choice([0.0, 1.0])) * float(draw.normal()) * 0.2
        w = float(draw.normal()) * 2
        theory = Stationarity(bounds, steps, batch, clip, sigma**2, 1.0)
        rate = theory.largest_rate * (1.0 if trial % 2 else float(draw.uniform(0.05, 1.0)))
        found = exact_round(problem, w, off, steps, rate, local_rate, clip, batch, sigma)
        theta = float(np.dot(bounds.weights, np.sqrt(bounds.second_moment(batch))))
        error = float(theory.gradient_error(local_rate, abs(off)))
        # Drift; E||E[J] - grad F||^2 <= B^2; Var J <= V; and the descent that follows from the three.
        assert found.drift <= (steps - 1) * local_rate * theta * (1 + 1e-12) + 1e-15
        assert found.error_square <= error**2 * (1 + 1e-9) + 1e-15
        assert found.variance <= theory.variance * (1 + 1e-12)
        stated = found.before - rate / 2 * found.gradient**2 + float(theory.round_cost(rate, local_rate, abs(off)))
        sharper = (
            found.before - rate / 2 * found.gradient**2 + rate / 2 * found.error_square
            + bounds.smoothness * rate**2 / 2 * theory.variance
        )  # fmt: skip
        assert found.after <= sharper + 1e-12
        assert sharper <= stated + 1e-12
        tightest["variance"] = max(tightest["variance"], found.variance / theory.variance)
        if error:
            tightest["error"] = max(tightest["error"], found.error_square / error**2)
        if steps > 1:
            tightest["drift"] = max(tightest["drift"], found.drift / ((steps - 1) * local_rate * theta))
        tightest["descent"] = max(tightest["descent"], (found.after - found.before) / (stated - found.before))
    # The lines say something: somewhere each comes near an equality.
    assert tightest["variance"] > 0.9
    assert tightest["drift"] > 0.8
    assert tightest["error"] > 0.5
    assert tightest["descent"] > 0.5


def test_control_the_descent_line_fails_without_the_clipping_term_and_beyond_the_largest_rate() -> None:
    opposed = GemanMcClure(np.array([[[1.0]], [[-1.0]]]), np.array([[10.0], [1.0]]), (0.5, 0.5))
    theory = Stationarity(opposed.gradients, 1, 1, 0.2, 1e-4, 1.0)
    rate = theory.largest_rate
    found = exact_round(opposed, 0.0, 0.0, 1, rate, 0.0, 0.2, 1, 0.01)
    unbiased = replace(theory, clip=np.inf)
    line = found.before - rate / 2 * found.gradient**2
    assert found.after <= line + float(theory.round_cost(rate, 0.0, 0.0))
    assert found.after > line + float(unbiased.round_cost(rate, 0.0, 0.0))
    bowl = GemanMcClure(np.zeros((2, 1, 1)), np.ones((2, 1)), (0.5, 0.5))
    theory = Stationarity(bowl.gradients, 1, 1, 9.0, 1e-6, 1.0)
    fast = 2.4 * theory.largest_rate
    found = exact_round(bowl, 0.1, 0.0, 1, fast, 0.0, 9.0, 1, 1e-3)
    assert found.after > found.before - fast / 2 * found.gradient**2 + float(theory.round_cost(fast, 0.0, 0.0))
    with pytest.raises(ValueError, match="1/L"):
        theory.bound(np.full(3, fast), 0.0, 0.0)


def test_the_sum_over_rounds_telescopes() -> None:
    """Without chance: one record a client, no noise; rates that change from round to round."""
    draw, tightest = np.random.default_rng(4), 0.0
    for _ in range(100):
        problem = GemanMcClure(draw.standard_normal((3, 1, 2)), draw.uniform(0.5, 2.0, (3, 1)), (0.2, 0.3, 0.5))
        w = draw.standard_normal(2) * 2
        gap = float(problem.objective(w)) - problem.least
        theory = Stationarity(problem.gradients, 1, 1, 99.0, 0.0, gap)
        rates = theory.largest_rate * draw.uniform(0.1, 1.0, 40)
        squares = np.empty(40)
        for r, rate in enumerate(rates):
            gradient = problem.full_gradient(w)
            squares[r], w = float(gradient @ gradient), w - rate * gradient
        means = np.cumsum(rates * squares) / np.cumsum(rates)
        bound = theory.bound(rates, 0.0, 0.0)
        assert (means <= bound).all()
        tightest = max(tightest, float((means / bound).max()))
    assert tightest > 0.5


def test_the_best_rate_is_the_best_of_constant_ones() -> None:
    problem = random_problem(np.random.default_rng(5))
    theory = Stationarity(problem.gradients, 1, 1, 9.0, 4.0, 1.0)
    best = theory.best_rate(500)
    assert best < theory.largest_rate
    at = [float(theory.bound(np.full(500, rate), 0.0, 0.0)[-1]) for rate in (0.7 * best, best, 1.4 * best)]
    assert at[1] < min(at[0], at[2])


def test_paths_are_algorithm_1_where_nothing_is_random() -> None:
    problem = GemanMcClure(np.array([[[1.0, 0.0]], [[-2.0, 1.0]]]), np.ones((2, 1)), (0.25, 0.75))
    path = follow_gradients(problem, lambda u, r: u, np.zeros(2), 3, 3, 0.3, 0.1, 0.4, 2, 2, 0)
    w = np.zeros(2)
    for r in range(3):
        assert path.squares[r] == pytest.approx(np.square(problem.full_gradient(w)).sum())
        sent = []
        for k in range(2):
            x = w.copy()
            for _ in range(2):
                x = x - 0.1 * problem.gradient(x, problem.records[k, 0], problem.heights[k, 0])
            g = problem.gradient(x, problem.records[k, 0], problem.heights[k, 0])
            sent.append(g / max(1.0, float(np.linalg.norm(g)) / 0.4))
        w = w - 0.3 * (0.25 * sent[0] + 0.75 * sent[1])
    assert 0 < path.clipped <= 1
    mean, high = path.averages()
    assert mean[-1] == pytest.approx(path.squares.mean())
    assert (high >= mean).all()
