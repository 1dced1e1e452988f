"""The problems' constants against scipy's minimiser, finite differences, and points drawn from the domain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import optimize

from cepam_paper.theory.problem import LeastSquares, Logistic, Problem
from cepam_paper.theory.synthetic import Kind, synthetic

Floats = npt.NDArray[np.float64]
KINDS: list[Kind] = ["logistic regression", "least squares"]


@pytest.fixture(params=KINDS)
def problem(request: pytest.FixtureRequest) -> Problem:
    return synthetic(request.param, clients=4, size=6, heterogeneity=1.5, seed=3, records=25)


def client_value(problem: Problem, k: int, w: Floats) -> float:
    alone = type(problem)(problem.features[k : k + 1], problem.targets[k : k + 1], (1.0,), problem.ridge)
    return float(alone.objective(w))


def points(problem: Problem, count: int, surface: bool = False) -> Floats:
    draw = np.random.default_rng(0)
    direction = draw.standard_normal((count, problem.size))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return direction * (problem.radius if surface else problem.radius * draw.random((count, 1)))


def test_minima_are_those_that_scipy_finds(problem: Problem) -> None:
    best, value = problem.minimum
    found = optimize.minimize(problem.objective, np.zeros(problem.size), tol=1e-12)
    assert value == pytest.approx(found.fun, abs=1e-9)
    assert np.abs(best - found.x).max() < 1e-5
    for k, least in enumerate(problem.constants.least_values):
        alone = optimize.minimize(lambda w, k=k: client_value(problem, k, w), np.zeros(problem.size), tol=1e-12)
        assert least == pytest.approx(alone.fun, abs=1e-9)
    assert np.linalg.norm(best) < problem.radius


def test_gradients_are_those_of_the_objective(problem: Problem) -> None:
    w = points(problem, 1)[0]
    each = problem.gradient(w, problem.features, problem.targets).mean(axis=1)
    total = np.asarray(problem.weights) @ each
    numeric = optimize.approx_fprime(w, problem.objective, 1e-7)
    assert np.abs(total - numeric).max() < 1e-5


def test_curvature_lies_between_c_and_l(problem: Problem) -> None:
    """Of every client, along every segment tried: <grad(v) - grad(w), v - w> over ||v - w||^2."""
    v, w = points(problem, 400), points(problem, 400)[::-1]
    c = problem.constants
    for k in range(len(problem.weights)):
        x, y = problem.features[k], problem.targets[k]
        rise = problem.gradient(v[:, None], x, y).mean(axis=1) - problem.gradient(w[:, None], x, y).mean(axis=1)
        quotient = (rise * (v - w)).sum(axis=1) / np.square(v - w).sum(axis=1)
        assert (quotient >= c.convexity * (1 - 1e-9)).all()
        assert (quotient <= c.smoothness * (1 + 1e-9)).all()


def test_gradients_on_the_domain_are_within_their_bounds(problem: Problem) -> None:
    c, w = problem.constants, points(problem, 500, surface=True)
    sizes = np.linalg.norm(problem.gradient(w[:, None, None], problem.features, problem.targets), axis=-1)
    assert (sizes.max(axis=(0, 2)) <= np.array(c.gradient_norms) * (1 + 1e-9)).all()
    means = np.square(sizes).mean(axis=2).max(axis=0)
    assert (means <= np.array(c.theta_squares) * (1 + 1e-9)).all()
    # The bounds are no wild guesses.
    assert (means > 0.05 * np.array(c.theta_squares)).all()


def test_local_steps_cannot_leave_the_domain(problem: Problem) -> None:
    w = points(problem, 300, surface=True)
    for share in (0.1, 1.0):
        rate = share * problem.largest_local_rate
        after = w[:, None, None] - rate * problem.gradient(w[:, None, None], problem.features, problem.targets)
        assert np.linalg.norm(after, axis=-1).max() <= problem.radius * (1 + 1e-9)
    # Control: a smaller ball does get left.
    small = w * 0.01
    after = small[:, None, None] - problem.largest_local_rate * problem.gradient(
        small[:, None, None], problem.features, problem.targets
    )
    assert np.linalg.norm(after, axis=-1).max() > 0.01 * problem.radius


@pytest.mark.parametrize("kind", KINDS)
def test_heterogeneity_raises_gamma(kind: Kind) -> None:
    gammas = [synthetic(kind, 6, 5, h, seed=1, records=200).constants.heterogeneity for h in (0.0, 1.0, 3.0)]
    assert 0 < gammas[0] < gammas[1] < gammas[2]


def test_refusals() -> None:
    x, y = np.ones((2, 3, 4)), np.ones((2, 3))
    with pytest.raises(ValueError, match="targets"):
        Logistic(x, y[:, :2], (0.5, 0.5), 0.1)
    with pytest.raises(ValueError, match="as many weights"):
        LeastSquares(x, y, (1.0,), 0.1)
    with pytest.raises(ValueError, match="ridge"):
        LeastSquares(x, y, (0.5, 0.5), 0.0)
    with pytest.raises(ValueError, match="kind"):
        synthetic("cubic", 2, 2, 0.0, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="heterogeneity"):
        synthetic("least squares", 2, 2, -1.0, 0)
