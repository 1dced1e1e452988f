"""One round without sampling: closed forms against numerical integration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, LaplaceShift, Shift

SHIFTS = [GaussianShift(0.05), GaussianShift(1.3), GaussianShift(6.0), LaplaceShift(0.2), LaplaceShift(3.0)]


def densities(shift: Shift):
    if isinstance(shift, GaussianShift):
        return lambda x: math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return lambda x: 0.5 * math.exp(-abs(x))


@pytest.mark.parametrize("shift", SHIFTS, ids=repr)
@pytest.mark.parametrize("epsilon", [-0.5, 0.0, 0.1, 1.0, 2.5])
def test_profile_is_the_integral(shift: Shift, epsilon: float) -> None:
    f, s = densities(shift), shift.size
    excess = lambda x: max(0.0, f(x - s) - math.exp(epsilon) * f(x))  # noqa: E731
    bends = sorted({0.0, s, s / 2, (epsilon + s) / 2, epsilon / s + s / 2})
    parts = [-40.0, *[b for b in bends if -40 < b < 40], 40.0]
    want = sum(integrate.quad(excess, a, b, limit=200, epsabs=1e-13)[0] for a, b in itertools.pairwise(parts))
    assert shift.profile(epsilon) == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("shift", SHIFTS, ids=repr)
def test_masses_add_up_and_reproduce_the_profile(shift: Shift) -> None:
    edges = np.concatenate(([-np.inf], np.linspace(-30, 30, 60_001), [np.inf]))
    upper, lower = shift.masses(edges)
    assert upper.sum() == pytest.approx(1.0, abs=1e-12)
    assert lower.sum() == pytest.approx(1.0, abs=1e-12)
    above = edges[:-1] >= 0.5 - 1e-9
    got = upper[above].sum() - math.exp(0.5) * lower[above].sum()
    assert got == pytest.approx(shift.profile(0.5), abs=1e-12)


@pytest.mark.parametrize("shift", SHIFTS, ids=repr)
def test_swapping_the_laws_negates_the_loss(shift: Shift) -> None:
    edges = np.concatenate(([-np.inf], np.linspace(-29.9995, 29.9995, 60_000), [np.inf]))
    upper, lower = shift.masses(edges)
    np.testing.assert_allclose(upper[::-1], lower, atol=1e-14)


@given(mu=st.floats(1e-3, 30), epsilon=st.floats(0, 200))
def test_gaussian_profile_is_a_probability_that_falls_with_epsilon(mu: float, epsilon: float) -> None:
    shift = GaussianShift(mu)
    here = shift.profile(epsilon)
    assert 0.0 <= here <= 1.0
    assert shift.profile(epsilon + 0.1) <= here
    assert GaussianShift(mu * 1.1).profile(epsilon) >= here


def test_deep_tail_keeps_its_digits() -> None:
    # mpmath: Phi(0.5 - 20) - e^20 Phi(-0.5 - 20), 50 digits
    import mpmath

    with mpmath.workdps(60):
        want = mpmath.ncdf(mpmath.mpf(-19.5)) - mpmath.exp(20) * mpmath.ncdf(mpmath.mpf(-20.5))
        assert GaussianShift(1.0).profile(20.0) == pytest.approx(float(want), rel=1e-10)


@pytest.mark.parametrize("tail", [1e-3, 1e-20])
def test_loss_exceeded_is_exceeded_that_rarely(tail: float) -> None:
    for shift in SHIFTS:
        reach = shift.loss_exceeded(tail)
        upper, _ = shift.masses(np.array([reach, np.inf]))
        assert upper[0] <= tail * (1 + 1e-9)


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_bad_shifts_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="mu"):
        GaussianShift(bad)
    with pytest.raises(ValueError, match="gap"):
        LaplaceShift(bad)


@given(split=st.floats(0.05, 0.95), gap=st.floats(0.1, 4), epsilon=st.floats(0, 4))
def test_one_axis_is_the_worst_l1_shift(split: float, gap: float, epsilon: float) -> None:
    """Laplace noise in two coordinates, the same l1 shift spread over both: never worse than on one axis."""
    edges = np.linspace(-gap - 1e-9, gap, 801)
    one, two = LaplaceShift(gap * split), LaplaceShift(gap * (1 - split))
    upper, _ = one.masses(edges)
    places = edges[1:]  # the loss of the first coordinate, rounded up: an upper bound on the divergence
    both = sum(p * (1 - math.exp(epsilon - x)) if x > epsilon + two.gap else 0.0 for x, p in zip(places, upper))
    for x, p in zip(places, upper):
        if x <= epsilon + two.gap and p > 0:
            both += p * max(0.0, two.profile(epsilon - x))
    assert both <= LaplaceShift(gap).profile(epsilon) + 0.01 * gap
