"""One sampled round: closed forms against enumeration of every draw."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cepam.privacy.composition.losses import delta_of
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, LaplaceShift
from cepam.privacy.mechanisms.mechanism import Sampling, SubsampledMechanism, amplified, unamplified

SIGMA = 0.8
Y = np.linspace(-9, 9, 3601)
RULES = {
    "any": lambda drawn: 1.0 if 1 in drawn else -1.0,
    "mean": lambda drawn: sum(drawn) / len(drawn),
    "last": lambda drawn: float(drawn[-1]),
    "parity": lambda drawn: float(np.prod(drawn)),
}


def density(data: tuple[int, ...], draws: int, rule: str) -> np.ndarray:
    """The exact law of one decoded update: every tuple of draws with replacement, gamma = 1."""
    total = np.zeros_like(Y)
    for drawn in itertools.product(data, repeat=draws):
        total += np.exp(-(((Y - RULES[rule](drawn)) / SIGMA) ** 2) / 2)
    return total / (total.sum() * (Y[1] - Y[0]))


def hockey_stick(f: np.ndarray, g: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(0.0, f - math.exp(epsilon) * g).sum() * (Y[1] - Y[0]))


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("draws", [1, 2, 3])
def test_enumeration_never_exceeds_the_closed_form(rule: str, draws: int) -> None:
    records = 3
    charge = SubsampledMechanism(GaussianShift(2.0 / SIGMA), Sampling("replacement", draws).sampling_rate(records))
    for data in itertools.product((-1, 1), repeat=records):
        other = (-data[0], *data[1:])
        for epsilon in (0.0, 0.2, 0.7, 1.5, 3.0):
            got = hockey_stick(density(data, draws, rule), density(other, draws, rule), epsilon)
            assert got <= charge.profile(epsilon) + 2e-6  # the grid of Y integrates to 1e-6


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_the_closed_form_is_attained_and_one_draw_fewer_is_violated(draws: int) -> None:
    records, shift = 3, GaussianShift(2.0 / SIGMA)
    charge = SubsampledMechanism(shift, Sampling("replacement", draws).sampling_rate(records))
    with_record, without = density((1, -1, -1), draws, "any"), density((-1, -1, -1), draws, "any")
    for epsilon in (0.0, 0.3, 1.0):
        assert hockey_stick(with_record, without, epsilon) == pytest.approx(charge.profile(epsilon), abs=2e-6)
    if draws > 1:
        fewer = SubsampledMechanism(shift, Sampling("replacement", draws - 1).sampling_rate(records))
        assert hockey_stick(with_record, without, 0.3) > fewer.profile(0.3) + 1e-3


@pytest.mark.parametrize("rules", [("any", "any"), ("mean", "last"), ("parity", "any")])
@pytest.mark.parametrize("adjacency", ["replace", "add-remove"])
def test_two_rounds_by_enumeration(rules: tuple[str, str], adjacency: str) -> None:
    """The product of two exact laws on a plane, in both orders, stays under the composed charge."""
    draws, step = 2, 6
    charge = SubsampledMechanism(GaussianShift(2.0 / SIGMA), Sampling("replacement", draws).sampling_rate(3), adjacency)  # type: ignore[arg-type]
    data, other = ((1, -1, -1), (-1, -1, -1)) if adjacency == "replace" else ((1, -1, -1), (-1, -1))
    f = [density(data, draws, rule)[::step] for rule in rules]
    g = [density(other, draws, rule)[::step] for rule in rules]
    area = ((Y[1] - Y[0]) * step) ** 2
    for first, second in ((f, g), (g, f)):
        joint, joint_other = np.outer(*first), np.outer(*second)
        for epsilon in (0.0, 0.5, 1.5, 3.0):
            got = np.maximum(0.0, joint - math.exp(epsilon) * joint_other).sum() * area
            assert got <= delta_of(((charge, 2),), epsilon) + 1e-4


def test_two_rounds_are_attained_under_add_or_remove() -> None:
    charge = SubsampledMechanism(GaussianShift(2.0 / SIGMA), Sampling("replacement", 2).sampling_rate(3), "add-remove")
    f, g = density((1, -1, -1), 2, "any")[::3], density((-1, -1), 2, "any")[::3]
    area = ((Y[1] - Y[0]) * 3) ** 2
    for epsilon in (0.1, 1.0):
        got = np.maximum(0.0, np.outer(f, f) - math.exp(epsilon) * np.outer(g, g)).sum() * area
        assert got == pytest.approx(delta_of(((charge, 2),), epsilon), rel=2e-4)


@given(mu=st.floats(0.01, 20), sampling_rate=st.floats(1e-5, 1.0), delta=st.floats(1e-12, 0.5), laplace=st.booleans())
def test_epsilon_inverts_profile(mu: float, sampling_rate: float, delta: float, laplace: bool) -> None:
    charge = SubsampledMechanism(LaplaceShift(mu) if laplace else GaussianShift(mu), sampling_rate)
    epsilon = charge.epsilon(delta)
    if epsilon == 0.0:
        assert charge.profile(0.0) <= delta * (1 + 1e-9)
    else:
        assert charge.profile(epsilon) == pytest.approx(delta, rel=1e-6, abs=2e-13)


@given(mu=st.floats(0.05, 8), sampling_rate=st.floats(1e-4, 0.9), delta=st.floats(1e-9, 1e-3))
def test_monotone_in_shift_sampling_rate_and_delta(mu: float, sampling_rate: float, delta: float) -> None:
    here = SubsampledMechanism(GaussianShift(mu), sampling_rate).epsilon(delta)
    assert SubsampledMechanism(GaussianShift(mu * 1.1), sampling_rate).epsilon(delta) >= here - 1e-12
    assert SubsampledMechanism(GaussianShift(mu), min(1.0, sampling_rate * 1.1)).epsilon(delta) >= here - 1e-12
    assert SubsampledMechanism(GaussianShift(mu), sampling_rate).epsilon(min(0.5, delta * 1.5)) <= here + 1e-12


def test_limits() -> None:
    sampling_rate = 0.01
    assert SubsampledMechanism(GaussianShift(1e6), sampling_rate).profile(0.0) == pytest.approx(
        sampling_rate
    )  # no noise: p, and no more
    assert SubsampledMechanism(GaussianShift(1e-9), sampling_rate).profile(0.0) < 1e-9
    assert SubsampledMechanism(GaussianShift(1.0), 1.0).profile(0.7) == GaussianShift(1.0).profile(0.7)
    assert SubsampledMechanism(LaplaceShift(2.0), sampling_rate).epsilon(0.0) == pytest.approx(
        math.log1p(sampling_rate * math.expm1(2.0))
    )


@given(epsilon=st.floats(0, 5000), sampling_rate=st.floats(1e-6, 1))
@example(epsilon=710.0, sampling_rate=1e-6)
def test_amplification_has_an_inverse_and_never_overflows(epsilon: float, sampling_rate: float) -> None:
    assert unamplified(amplified(epsilon, sampling_rate), sampling_rate) == pytest.approx(epsilon, rel=1e-9, abs=1e-9)
    assert amplified(epsilon, sampling_rate) <= epsilon


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="sampling_rate"):
        SubsampledMechanism(GaussianShift(1.0), 0.0)
    with pytest.raises(ValueError, match="adjacency"):
        SubsampledMechanism(GaussianShift(1.0), 0.5, "add")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epsilon"):
        SubsampledMechanism(GaussianShift(1.0), 0.5).profile(-0.1)
