"""Privacy filters: their Rényi divergences against closed forms, and a game against an adaptive adversary."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from cepam.privacy.composition.filters import PrivacyFilter, best_order, conversion, gaussian_mu, renyi_divergence
from cepam.privacy.composition.losses import Charges, epsilon_of
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, LaplaceShift
from cepam.privacy.mechanisms.mechanism import SubsampledMechanism

DELTA = 1e-5


@pytest.mark.parametrize("order", [1.05, 2.0, 8.0, 40.0])
@pytest.mark.parametrize("size", [0.1, 0.4, 1.5])
def test_renyi_divergences_of_whole_rounds_have_closed_forms(order: float, size: float) -> None:
    found = renyi_divergence(SubsampledMechanism(LaplaceShift(size)), order)
    exact = math.log(
        order / (2 * order - 1) * math.exp((order - 1) * size)
        + (order - 1) / (2 * order - 1) * math.exp(-order * size)
    ) / (order - 1)  # fmt: skip
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-5)
    found = renyi_divergence(SubsampledMechanism(GaussianShift(size)), order)
    exact = order * size**2 / 2
    assert found == math.inf if order * size > 50 else exact * (1 - 1e-9) <= found <= exact * (1 + 1e-3)


@pytest.mark.parametrize(("sampling_rate", "mu", "order"), [(0.01, 1.0, 4.0), (0.1, 0.5, 9.0), (0.5, 2.0, 2.5)])
def test_renyi_divergences_of_sampled_rounds_bound_both_directions(
    sampling_rate: float, mu: float, order: float
) -> None:
    """The densities themselves, integrated: the symmetric pair covers both, and is no more than both together."""

    def power(first: Callable[[float], float], second: Callable[[float], float]) -> float:
        value, _ = integrate.quad(
            lambda x: second(x) * (first(x) / second(x)) ** order, -14.0, 14.0 + order * mu, limit=500
        )
        return float(value)

    def absent(x: float) -> float:
        return float(stats.norm.pdf(x))

    def mixed(x: float) -> float:
        return (1 - sampling_rate) * absent(x) + sampling_rate * float(stats.norm.pdf(x - mu))

    found = math.exp((order - 1) * renyi_divergence(SubsampledMechanism(GaussianShift(mu), sampling_rate), order)) - 1
    both = [power(mixed, absent) - 1, power(absent, mixed) - 1]
    assert max(both) * (1 - 1e-9) <= found <= sum(both) * (1 + 1e-3)


def test_a_filter_is_above_the_figure_for_parameters_that_were_fixed_beforehand() -> None:
    sampled = SubsampledMechanism(GaussianShift(1.0), 0.01)
    order = best_order(((sampled, 1),), DELTA, 10**6, 8.0)
    rounds = 8_000
    fixed, adaptive = (f(((sampled, rounds),), DELTA) for f in (epsilon_of, PrivacyFilter(order).epsilon))
    assert fixed < adaptive < 1.2 * fixed
    assert PrivacyFilter().epsilon(((sampled, rounds),), DELTA) > 100 * fixed  # whole rounds: no sampling is counted
    whole = SubsampledMechanism(GaussianShift(0.1))
    assert PrivacyFilter().epsilon(((whole, 100),), DELTA) == pytest.approx(
        epsilon_of(((whole, 100),), DELTA), rel=1e-4
    )
    few = SubsampledMechanism(LaplaceShift(0.5))
    assert PrivacyFilter(order).epsilon(((few, 3),), DELTA) == 1.5  # pure: a sum of largest losses
    assert conversion(order, DELTA) < 8.0


def test_every_pure_mechanism_is_gaussian_differentially_private() -> None:
    """Randomized response is the worst of them; 0.95 of its `gaussian_mu`, the control, is too little."""
    for gap in (0.01, 0.5, 2.0, 8.0):
        charge = SubsampledMechanism(LaplaceShift(gap))
        at = np.linspace(0.0, gap, 200)
        worst = [(math.exp(gap) - math.exp(t)) / (1.0 + math.exp(gap)) for t in at]
        mu = gaussian_mu(charge)
        for profile in (worst, [charge.shift.profile(t) for t in at]):
            assert all(GaussianShift(mu).profile(t) >= one - 1e-12 for t, one in zip(at, profile))
        assert any(GaussianShift(0.95 * mu).profile(t) < one for t, one in zip(at, worst))


def test_an_adversary_who_chooses_the_second_round_by_the_first_gains_nothing() -> None:
    """The exact game: after one Gaussian round the adversary sees its loss and picks one of three rounds.

    Each of the three, with the first, has the limit's epsilon by the rule that is tested. Its delta is the mean, over
    the first round's loss, of the largest of their profiles. By the rule for fixed parameters it is too large: that is
    the control. The sampled round's profile below zero is the mirror image.
    """
    limit, delta, first = 2.0, 1e-3, SubsampledMechanism(GaussianShift(0.4))
    kinds: list[Callable[[float], SubsampledMechanism]] = [
        lambda size: SubsampledMechanism(GaussianShift(size)),
        lambda size: SubsampledMechanism(LaplaceShift(size)),
        lambda size: SubsampledMechanism(GaussianShift(4.0 * size), 0.02),
    ]

    def game(figure: Callable[[Charges, float], float]) -> float:
        chosen = []
        for kind in kinds:
            size = optimize.brentq(lambda x: figure(((first, 1), (kind(x), 1)), delta) - limit, 0.05, 3.0, xtol=1e-4)  # noqa: B023
            chosen.append(kind(float(size) - 1e-4))
        mu = first.shift.size
        places = np.linspace(-8.0, 8.0, 4001)
        losses = mu**2 / 2 + mu * places
        gains = [max(_profile(charge, limit - loss) for charge in chosen) for loss in losses]
        return float(np.sum(stats.norm.pdf(places) * gains) * (places[1] - places[0]))

    order = best_order(((first, 1),), delta, 10**6, limit)
    assert game(PrivacyFilter().epsilon) <= delta
    assert game(PrivacyFilter(order).epsilon) <= delta
    assert game(epsilon_of) > 1.1 * delta


def _profile(charge: SubsampledMechanism, epsilon: float) -> float:
    if epsilon >= 0.0:
        return charge.profile(epsilon)
    return -math.expm1(epsilon) + math.exp(epsilon) * charge.profile(-epsilon)
