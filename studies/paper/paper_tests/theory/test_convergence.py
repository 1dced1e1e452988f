"""The repaired theorem: one round against exact rounds, the closed form against the recursion, clipping's floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from cepam_paper.theory.convergence import Constants, Convergence, Schedule, one_round

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bowls:
    """Quadratic clients (w - a_k)' A_k (w - a_k) / 2 whose rounds can be computed exactly."""

    matrices: Floats
    centres: Floats
    weights: Floats

    def gradients(self, local: Floats) -> Floats:
        return np.einsum("kij,kj->ki", self.matrices, local - self.centres)

    def best(self) -> Floats:
        mean = np.einsum("k,kij->ij", self.weights, self.matrices)
        pull = np.einsum("k,kij,kj->i", self.weights, self.matrices, self.centres)
        return np.linalg.solve(mean, pull)

    def value(self, w: Floats) -> float:
        off = w - self.centres
        return float(self.weights @ np.einsum("ki,kij,kj->k", off, self.matrices, off) / 2)

    def constants(self, reach: float = 1.0) -> Constants:
        eigen = np.linalg.eigvalsh(self.matrices)
        clients = len(self.weights)
        return Constants(
            smoothness=float(eigen.max()),
            convexity=float(eigen.min()),
            weights=tuple(self.weights),
            theta_squares=(reach**2,) * clients,
            gradient_norms=(reach,) * clients,
            least_values=(0.0,) * clients,
            least_value=self.value(self.best()),
        )


def random_bowls(draw: np.random.Generator) -> Bowls:
    clients, size = int(draw.integers(1, 6)), int(draw.integers(1, 4))
    basis = np.linalg.qr(draw.standard_normal((clients, size, size)))[0]
    eigen = np.exp(draw.uniform(-1.5, 1.5, (clients, size)))
    matrices = np.einsum("kij,kj,klj->kil", basis, eigen, basis)
    return Bowls(
        matrices, draw.standard_normal((clients, size)) * draw.exponential(2.0), draw.dirichlet(np.ones(clients))
    )


def local_models(bowls: Bowls, w: Floats, rates: Floats) -> Floats:
    local = np.repeat(w[None, :], len(bowls.weights), axis=0)
    for rate in rates:
        local = local - rate * bowls.gradients(local)
    return local


def test_one_round_inequality_on_exact_rounds() -> None:
    """Full gradients, so that the round's expectation is a formula; every share c, any local step sizes."""
    draw, tightest = np.random.default_rng(0), 0.0
    for _ in range(1500):
        bowls = random_bowls(draw)
        constants, best = bowls.constants(), bowls.best()
        rate = float(draw.uniform(0.01, 1.0)) / (4 * constants.smoothness)
        w = best + draw.standard_normal(len(best)) * draw.exponential(3.0)
        local = local_models(bowls, w, rate * draw.uniform(1, 2, int(draw.integers(0, 12))))
        variance = float(draw.exponential(1.0))
        after = w - rate * (bowls.weights @ bowls.gradients(local)) - best
        exact = float(after @ after) + rate**2 * variance
        drift = float(bowls.weights @ np.square(w - local).sum(axis=1))
        start = float(np.square(w - best).sum())
        stated = one_round(constants, rate, start, drift, variance, share=float(draw.uniform(0.02, 0.98)))
        assert exact <= stated * (1 + 1e-12)
        tightest = max(tightest, exact / stated)
    # The inequality says something: somewhere it is nearly an equality.
    assert tightest > 0.98


def random_convergence(draw: np.random.Generator) -> Convergence:
    clients = int(draw.integers(1, 6))
    weights = draw.dirichlet(np.ones(clients))
    convexity = float(draw.exponential(1.0)) + 0.01
    thetas = draw.exponential(2.0, clients)
    least = draw.uniform(0, 1, clients)
    constants = Constants(
        smoothness=convexity * float(1 + draw.exponential(5.0)),
        convexity=convexity,
        weights=tuple(weights),
        theta_squares=tuple(thetas**2),
        gradient_norms=tuple(thetas * 1.5),
        least_values=tuple(least),
        least_value=float(weights @ least + draw.exponential(0.5)),
    )
    noise = float(draw.exponential(3.0))
    return Convergence(constants, int(draw.integers(1, 12)), noise, noise, 4, float(draw.exponential(10.0)))


def test_closed_form_is_never_under_the_recursion() -> None:
    draw, closest = np.random.default_rng(1), math.inf
    for _ in range(150):
        theory = random_convergence(draw)
        squares = theory.recursion(400)
        closed = theory.bound(np.arange(401) * theory.steps) * 2 / theory.constants.smoothness
        assert (squares <= closed * (1 + 1e-12)).all()
        closest = min(closest, float((closed / squares).min()))
    assert closest < 1.0 + 1e-9  # equal at the start when the start dominates


def test_one_contraction_of_the_printed_size_would_not_do() -> None:
    """Control: with (1 - C eta), as Li et al. have it, the same learning rates give log(T)/T, above the closed form."""
    constants = Constants(1.0, 1.0, (1.0,), (1.0,), (1.0,), (0.0,), 0.0)
    theory = Convergence(constants, 2, 1.0, 1.0, 1, start_square=0.0)
    square, rounds = 0.0, 20_000
    for r in range(rounds):
        rate = float(theory.schedule.rate(2 * r + 1))
        square = (1 - rate) * square + theory.repaired_b() * rate**2
    assert square > float(theory.bound(2 * rounds)) * 2


def test_the_printed_constant_is_never_smaller() -> None:
    """With the weighted psi, no M and a start at w*, the printed bound is at least the repaired one."""
    draw = np.random.default_rng(2)
    for _ in range(100):
        theory = random_convergence(draw)
        if theory.steps < 2:
            continue
        c = theory.constants
        zeroed = Constants(
            c.smoothness,
            c.convexity,
            c.weights,
            c.theta_squares,
            (0.0,) * len(c.weights),
            (0.0,) * len(c.weights),
            c.heterogeneity,
        )
        near = Convergence(zeroed, theory.steps, theory.noise, theory.noise, 4, start_square=0.0)
        assert float(near.bound(100)) <= float(near.printed_bound(100))


def test_printed_bound_term_by_term() -> None:
    constants = Constants(2.0, 0.5, (0.25, 0.75), (3.0, 5.0), (2.5, 4.0), (0.1, 0.2), 1.0)
    theory = Convergence(constants, 3, noise=7.0, printed_noise=8.0, subvectors=4, start_square=9.0)
    b = 6 * 2 * (1 - 0.3) + (8 + 4 * 16) * (0.0625 + 0.5625) + (0.0625 * 3 + 0.5625 * 5) + 8 * 4 * (0.75 + 3.75)
    assert theory.printed_b() == pytest.approx(b)
    alpha = 3 * 16
    nu = max(4 * b * 9 * (3 + alpha) / (0.25 * alpha * 2), alpha * 3)
    assert float(theory.printed_bound(60)) == pytest.approx(2 * nu / (2 * (60 + alpha)))
    repaired = 6 * 2 * (1 - 0.175) + 0.0625 * 10 + 0.5625 * 12 + 6 * 4 * 4.5
    assert float(theory.bound(60)) == pytest.approx(2 * max(12 * repaired / 0.25, alpha * 9) / (2 * (60 + alpha)))


def test_one_step_a_round_has_a_repaired_bound_only() -> None:
    theory = random_convergence(np.random.default_rng(0))
    single = Convergence(theory.constants, 1, 1.0, 1.0, 1, 1.0)
    assert np.isinf(single.printed_bound([0, 5])).all()
    assert np.isfinite(single.bound([0, 5])).all()


def test_idle_clipping_gives_the_plain_bound() -> None:
    theory = random_convergence(np.random.default_rng(3))
    clip = theory.constants.gradient_norm
    assert float(theory.clipped_bound(50, clip)) == float(theory.bound(50))
    assert theory.clipping_floor(clip) == 0.0
    assert theory.clipping_floor(clip / 2) > 0


def test_clipped_rounds_stay_under_the_clipped_bound() -> None:
    """Exact training of quadratic clients with hard clipping; gradients are bounded by what was met on the way."""
    draw, closest = np.random.default_rng(5), math.inf
    for _ in range(120):
        bowls, tau, rounds = random_bowls(draw), int(draw.integers(1, 5)), 150
        best = bowls.best()
        w = best + draw.standard_normal(len(best)) * 3
        start = w.copy()
        eigen = np.linalg.eigvalsh(bowls.matrices)
        schedule = Schedule(tau, float(eigen.max()), float(eigen.min()))
        clip, largest = float(draw.uniform(0.05, 2.0)), 0.0
        for r in range(rounds):
            rates = schedule.rate(r * tau + np.arange(tau))
            for s in range(tau):
                met = bowls.gradients(local_models(bowls, w, rates[:s]))
                largest = max(largest, float(np.linalg.norm(met, axis=1).max()))
            sent = met / np.maximum(1.0, np.linalg.norm(met, axis=1) / clip)[:, None]
            w = w - rates[-1] * (bowls.weights @ sent)
        constants = bowls.constants(largest)
        theory = Convergence(constants, tau, 0.0, 0.0, 1, float(np.square(start - best).sum()))
        gap = bowls.value(w) - constants.least_value
        bound = float(theory.clipped_bound(rounds * tau, clip))
        assert gap <= bound
        closest = min(closest, bound / max(gap, 1e-12))
    assert closest < 100


def test_clipped_closed_form_is_never_under_its_recursion() -> None:
    """The recursion of docs/paper/theory.md written out again, with the worst drift that the schedule allows."""
    draw = np.random.default_rng(6)
    for _ in range(100):
        theory = random_convergence(draw)
        c, tau = theory.constants, theory.steps
        clip = float(draw.uniform(0.1, 0.9)) * c.gradient_norm
        bias = sum(p * max(0.0, m - clip) for p, m in zip(c.weights, c.gradient_norms))
        sent = sum(p**2 * (min(t, clip**2) + theory.noise) for p, t in zip(c.weights, c.theta_squares))
        square = theory.start_square
        for r in range(300):
            rates = theory.schedule.rate(r * tau + np.arange(tau))
            eta = float(rates[-1])
            drift = (tau - 1) * float(np.square(rates[:-1]).sum()) * c.mean_theta_square
            young = c.convexity * eta / 8
            square = (1 + young) * one_round(c, eta, square, drift, 0.0) + (1 + 1 / young) * eta**2 * bias**2
            square += eta**2 * sent
            assert c.smoothness / 2 * square <= float(theory.clipped_bound((r + 1) * tau, clip)) * (1 + 1e-12)


def test_rates_never_exceed_a_quarter_over_l() -> None:
    for smoothness in (1.0, 3.0, 50.0):
        schedule = Schedule(7, smoothness, 1.0)
        assert float(schedule.rate(0)) <= 1 / (4 * smoothness) + 1e-15
        assert schedule.rate([0, 10])[1] < schedule.rate([0, 10])[0]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="steps"):
        Schedule(0, 1.0, 1.0)
    with pytest.raises(ValueError, match="convexity"):
        Schedule(2, 1.0, 2.0)
    with pytest.raises(ValueError, match="one entry"):
        Constants(1.0, 1.0, (0.5, 0.5), (1.0,), (1.0, 1.0), (0.0, 0.0), 0.0)
    with pytest.raises(ValueError, match="rate"):
        one_round(Constants(1.0, 1.0, (1.0,), (1.0,), (1.0,), (0.0,), 0.0), 0.3, 1.0, 0.0, 0.0)
