"""The convex theorem with mini-batches and a quantized downlink: one round exactly, closed forms, and old values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cepam_paper.theory.convergence import Constants, Convergence, one_round
from cepam_paper.theory.downlink import DownlinkError
from cepam_paper.theory.gradients import GradientBounds
from cepam_paper.theory.minibatch import BatchConvergence, one_biased_round
from cepam_paper.theory.synthetic import synthetic
from paper_tests.theory.test_convergence import local_models, random_bowls


def random_theory(draw: np.random.Generator) -> BatchConvergence:
    problem = synthetic(
        "logistic regression", int(draw.integers(1, 5)), 3, float(draw.exponential(1.0)), int(draw.integers(9)), 10
    )
    return BatchConvergence(
        problem.constants, problem.gradients, int(draw.integers(1, 8)), int(draw.integers(1, 20)),
        float(draw.exponential(1.0)), float(draw.exponential(10.0)), float(draw.choice([0, 1]) * draw.exponential()),
    )  # fmt: skip


def test_one_round_from_a_broadcast_that_is_off() -> None:
    """Full gradients, so that the round is a formula. Drift counted from W covers the downlink's error; counted from
    the broadcast it does with the bias L delta. A bias of the update on top, of any direction."""
    draw, tightest = np.random.default_rng(0), [0.0, 0.0]
    for _ in range(1500):
        bowls = random_bowls(draw)
        constants, best = bowls.constants(), bowls.best()
        rate = float(draw.uniform(0.01, 1.0)) / (4 * constants.smoothness)
        w = best + draw.standard_normal(len(best)) * draw.exponential(3.0)
        off = draw.standard_normal(len(best)) * draw.exponential(0.3)
        local = local_models(bowls, w + off, rate * draw.uniform(1, 2, int(draw.integers(0, 8))))
        bias = draw.standard_normal(len(best)) * draw.exponential(0.3)
        update, variance = bowls.weights @ bowls.gradients(local), float(draw.exponential(1.0))
        start = float(np.square(w - best).sum())

        exact = float(np.square(w - rate * update - best).sum()) + rate**2 * variance
        from_server = float(bowls.weights @ np.square(w - local).sum(axis=1))
        stated = one_round(constants, rate, start, from_server, variance)
        assert exact <= stated * (1 + 1e-12)
        tightest[0] = max(tightest[0], exact / stated)

        exact = float(np.square(w - rate * (update + bias) - best).sum()) + rate**2 * variance
        from_broadcast = float(bowls.weights @ np.square(w + off - local).sum(axis=1))
        beta = float(np.linalg.norm(bias)) + constants.smoothness * float(np.linalg.norm(off))
        stated = one_biased_round(constants, rate, start, from_broadcast, variance, beta)
        assert exact <= stated * (1 + 1e-12)
        tightest[1] = max(tightest[1], exact / stated)
    assert min(tightest) > 0.9


def test_control_without_the_downlinks_term_the_inequality_fails() -> None:
    """One client w^2/2, tau = 1, the broadcast off towards w*: the step is too short."""
    constants = Constants(1.0, 1.0, (1.0,), (9.0,), (9.0,), (0.0,), 0.0)
    w, off, rate = 1.0, -1.0, 0.01
    exact = (w - rate * (w + off)) ** 2
    assert exact > one_round(constants, rate, w**2, 0.0, 0.0)
    assert exact <= one_round(constants, rate, w**2, off**2, 0.0)
    assert exact <= one_biased_round(constants, rate, w**2, 0.0, 0.0, 1.0)


def test_closed_form_is_never_under_the_recursion() -> None:
    draw = np.random.default_rng(1)
    for _ in range(60):
        theory = random_theory(draw)
        squares = theory.recursion(300)
        closed = theory.bound(np.arange(301) * theory.steps) * 2 / theory.constants.smoothness
        assert (squares <= closed * (1 + 1e-12)).all()


def random_error(draw: np.random.Generator) -> DownlinkError:
    fixed, ratio = draw.choice([0, 1], 2) * draw.exponential(0.1, 2)
    exponent = draw.choice([0.0, 0.25, 0.5, 0.75, 1.0, draw.uniform(0, 2)])
    return DownlinkError(float(fixed), float(ratio), float(exponent))


def test_the_line_is_above_the_squared_bias_and_touches_it() -> None:
    draw = np.random.default_rng(6)
    for _ in range(300):
        error, bias, smoothness, largest = (
            random_error(draw),
            float(draw.exponential()),
            float(draw.exponential()),
            0.25,
        )
        rates = largest * draw.random(50) ** 3
        at = rates[:1]
        beta_square, slope = error.line(bias, smoothness, at, largest)
        squares = np.square(bias + smoothness * error.at(rates))
        assert (squares <= (beta_square + slope * rates) * (1 + 1e-12)).all()
        if error.exponent <= 0.5:
            assert squares[0] == pytest.approx(float(beta_square[0] + slope[0] * rates[0]))
    half = DownlinkError(0.0, 3.0, 0.5).line(0.0, 2.0, np.array([0.1]), 0.25)
    assert (float(half[0][0]), float(half[1][0])) == pytest.approx((0.0, 36.0)), "1/2: nothing stays, L^2 kappa^2 eta"
    with pytest.raises(ValueError, match="at least 0"):
        DownlinkError(exponent=-0.1)


def test_biased_closed_form_is_never_under_its_recursion() -> None:
    draw = np.random.default_rng(2)
    for _ in range(60):
        theory, error = random_theory(draw), random_error(draw)
        clip = float(draw.choice([0.3, 9.0, math.inf]))
        squares = theory.biased_recursion(200, clip, error)
        stated = theory.biased_bound(np.arange(201) * theory.steps, clip, error) * 2 / theory.constants.smoothness
        assert (squares <= stated * (1 + 1e-12)).all()
        if error.exponent > 0 and error.ratio:
            continue
        stays = theory.floor(clip, float(error.at(1.0)))
        assert float(theory.biased_bound(1e12, clip, error)) == pytest.approx(stays, rel=1e-3, abs=1e-6)


def test_exponents_from_a_half_on_cost_no_order_and_smaller_ones_do() -> None:
    """T times the bound tends to a constant from 1/2 on; at 1/4 the bound falls as T^(-1/2)."""
    theory = random_theory(np.random.default_rng(3))
    far, farther = 1e9, 1e12
    for exponent, power in ((1.0, 1.0), (0.5, 1.0), (0.25, 0.5), (0.0, 0.0)):
        error = DownlinkError(0.0, 0.3, exponent)
        fell = float(theory.biased_bound(far, math.inf, error) / theory.biased_bound(farther, math.inf, error))
        assert math.log(fell) / math.log(farther / far) == pytest.approx(power, abs=0.01)


def test_the_worst_broadcast_comes_within_a_factor_of_the_iterated_bound() -> None:
    """One client w^2/2 without noise; the broadcast is off by the whole bound, always away from w*."""
    constants = Constants(1.0, 1.0, (1.0,), (9.0,), (9.0,), (0.0,), 0.0)
    gradients = GradientBounds(1.0, (1.0,), (9.0,), (0.0,), (9.0,))
    theory, error, w = BatchConvergence(constants, gradients, 1, 1, 0.0, 1.0), DownlinkError(0.0, 0.5, 0.5), 1.0
    squares = theory.biased_recursion(2000, math.inf, error)
    for r in range(2000):
        rate = float(theory.schedule.rate(r))
        w -= rate * (w - float(error.at(rate)))
        assert w**2 <= squares[r + 1]
    assert squares[-1] < 40 * w**2


def test_single_samples_and_an_exact_downlink_give_the_earlier_theorem_or_a_smaller_bound() -> None:
    problem = synthetic("logistic regression", 5, 4, 1.0, 0)
    for steps in (1, 2, 15):
        new = BatchConvergence(problem.constants, problem.gradients, steps, 1, 0.3, 2.0)
        old = Convergence(problem.constants, steps, 0.3, 0.3, 4, 2.0)
        assert float(new.bound(1000)) <= float(old.bound(1000)) * (1 + 1e-12)
        larger = replace(new, batch=64)
        assert larger.b() < new.b()
        assert replace(new, downlink_ratio=1.0).b() > new.b()
        off = [float(new.biased_bound(1e6, math.inf, DownlinkError(fixed))) for fixed in (0.1, 0.0)]
        assert off[0] > off[1]


def test_a_batch_helps_only_what_sampling_causes() -> None:
    gradients = GradientBounds(1.0, (1.0,), (1.0,), (4.0,), (3.0,))
    assert gradients.update_variance(4, math.inf, 0.5) == 1.5
    assert gradients.update_variance(10**9, math.inf, 0.5) == pytest.approx(0.5)
