"""The counterexamples do break what is printed, spare what is repaired, and vanish when their cause is taken away."""

from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam_paper.theory.convergence import Convergence
from cepam_paper.theory.counterexamples import (
    one_parabola,
    opposed_clients,
    opposed_convergence,
    silencing_offset,
    with_offset,
)
from cepam_paper.theory.descent import descend, stacked
from cepam_paper.theory.synthetic import synthetic

CODEC = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), coder="layered")


def test_clipping_that_cancels_breaks_the_printed_theorem() -> None:
    stall = opposed_clients(CODEC, clip=0.05, rounds=700)
    assert stall.violated_at is not None
    assert stall.violated_at <= 1400
    assert abs(stall.gaps - 8.0).max() < 0.5
    assert (stall.gaps <= stall.clipped).all()


def test_without_clipping_the_same_clients_converge() -> None:
    stall = opposed_clients(CODEC, clip=10.0, rounds=700)
    assert stall.violated_at is None
    assert stall.gaps[-1] < 1e-3


def test_constants_of_the_opposed_clients() -> None:
    c = opposed_convergence(CODEC, 2).constants
    w = np.linspace(-9, 1, 10_001)
    f = ((w - 1) ** 2 + (w + 9) ** 2) / 4
    assert c.least_value == pytest.approx(f.min())
    assert w[f.argmin()] == pytest.approx(-4)
    assert c.heterogeneity == c.printed_psi == 12.5


def test_a_constant_in_the_losses_silences_the_printed_bound() -> None:
    problem = synthetic("logistic regression", 4, 5, 1.0, seed=0, records=30)
    best, codec = problem.minimum[0], cepam.Codec(cepam.Gaussian(0.1), cepam.Integer(1), coder="layered")
    theory = Convergence(problem.constants, 3, 5 * 0.01, 5 * 0.01, 5, start_square=0.0)
    offset = silencing_offset(theory)
    shifted = Convergence(with_offset(problem.constants, offset), 3, 5 * 0.01, 5 * 0.01, 5, start_square=0.0)
    clip = problem.constants.gradient_norm
    found = descend(problem, theory.schedule, stacked(codec, 0), best, [1], clip, 20, 0)
    _, low, high = found.band()
    assert float(shifted.printed_bound(3)) == 0.0 < low[0]
    assert high[0] < float(shifted.bound(3)) == pytest.approx(float(theory.bound(3)))
    # Without the constant the printed bound is not violated here.
    assert high[0] < float(theory.printed_bound(3))


def test_a_round_contracts_at_most_twice_not_tau_times() -> None:
    late = one_parabola(steps=5, first=10_000)
    assert late.printed_induction < late.exact <= late.repaired
    # One or two local steps hide it.
    early = one_parabola(steps=2, first=10_000)
    assert early.exact <= early.printed_induction
    # Drift from the mean of the local models is none here, yet the first round contracts less than 1 - C eta.
    assert one_parabola(steps=5, first=0).exact > one_parabola(steps=5, first=0).printed_step
    for steps in (2, 5, 15):
        for first in (0, 100, 10_000):
            found = one_parabola(steps, first)
            assert found.exact <= found.repaired


def test_refusals() -> None:
    problem = synthetic("logistic regression", 1, 5, 1.0, seed=0, records=30)
    with pytest.raises(ValueError, match="2 clients"):
        silencing_offset(Convergence(problem.constants, 3, 1.0, 1.0, 5, 0.0))
    with pytest.raises(RuntimeError, match="left the interval"):
        opposed_clients(cepam.Codec(cepam.Gaussian(50.0), cepam.Integer(1), coder="layered"), clip=0.05, rounds=20)
