"""The grid: pessimistic, fine enough, and the same whatever the order of charges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cepam.privacy.composition.losses import (
    COARSE,
    FINE,
    LossMasses,
    delta_of,
    discretize,
    epsilon_of,
    gathered,
    spacing_of,
)
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, LaplaceShift
from cepam.privacy.mechanisms.mechanism import SubsampledMechanism

CHARGES = [
    SubsampledMechanism(GaussianShift(1.46), 0.0075),
    SubsampledMechanism(GaussianShift(1.46), 0.0075, "add-remove"),
    SubsampledMechanism(GaussianShift(0.3), 0.9, "add-remove"),
    SubsampledMechanism(LaplaceShift(2.0), 0.05),
    SubsampledMechanism(LaplaceShift(2.0), 1.0, "add-remove"),
    SubsampledMechanism(LaplaceShift(2.0), 0.05, "add-remove"),
]


def _delta(masses: LossMasses, epsilon: float) -> float:
    over = masses.losses > epsilon
    return float((masses.masses[over] * -np.expm1(epsilon - masses.losses[over])).sum()) + masses.beyond


@pytest.mark.parametrize("charge", CHARGES, ids=repr)
def test_one_discretized_round_is_just_above_the_closed_form(charge: SubsampledMechanism) -> None:
    grid = discretize(charge, spacing_of(charge))
    for epsilon in (0.0, 0.01, 0.3, 1.1):
        exact = charge.profile(epsilon)
        got = max(_delta(masses, epsilon) for masses in grid)
        assert exact - 1e-14 <= got <= exact * (1 + 2e-3) + 2e-6 * charge.sampling_rate


@pytest.mark.parametrize("charge", CHARGES, ids=repr)
def test_masses_are_probabilities(charge: SubsampledMechanism) -> None:
    edges = np.concatenate(([-np.inf], np.arange(-4000, 4001) * 0.005, [np.inf]))
    for upper, lower in charge.masses(edges):
        assert (upper >= 0).all()
        assert (lower >= 0).all()
        assert upper.sum() <= 1 + 1e-12
        atom = 1 - upper.sum()
        assert lower.sum() + atom == pytest.approx(1.0, abs=1e-12)


def test_unsampled_gaussians_compose_in_closed_form() -> None:
    charges = ((SubsampledMechanism(GaussianShift(0.3)), 16), (SubsampledMechanism(GaussianShift(0.5)), 4))
    mu = math.sqrt(16 * 0.09 + 4 * 0.25)
    assert epsilon_of(charges, 1e-6) == pytest.approx(SubsampledMechanism(GaussianShift(mu)).epsilon(1e-6), rel=1e-12)


def test_nearly_unsampled_agrees_with_unsampled() -> None:
    exact = epsilon_of(((SubsampledMechanism(GaussianShift(0.1)), 100),), 1e-5)
    near = epsilon_of(((SubsampledMechanism(GaussianShift(0.1), 1 - 1e-9), 100),), 1e-5)
    assert near == pytest.approx(exact, rel=1e-4)


def test_coarse_is_above_fine_and_close() -> None:
    for charge in CHARGES[:3]:
        fine, coarse = (epsilon_of(((charge, 200),), 1e-5, cells) for cells in (FINE, COARSE))
        assert fine * (1 - 1e-9) <= coarse <= fine * (1 + 2e-4)


def test_order_and_grouping_do_not_matter() -> None:
    a, b = CHARGES[0], SubsampledMechanism(GaussianShift(1.6), 0.0075)
    assert gathered([(a, 3), (b, 2), (a, 4)]) == gathered([(b, 2), (a, 7)])
    assert epsilon_of(((a, 3), (b, 2), (a, 4)), 1e-5) == epsilon_of(((b, 2), (a, 7)), 1e-5)


def test_free_charges_cost_nothing() -> None:
    free = SubsampledMechanism(GaussianShift(0.0), 0.5)
    assert epsilon_of(((free, 100),), 1e-5) == 0.0
    assert delta_of(((free, 100),), 0.0) == 0.0


def test_heterogeneous_rounds_lie_between_the_homogeneous_ones() -> None:
    quiet, loud = SubsampledMechanism(GaussianShift(1.6), 0.0075), SubsampledMechanism(GaussianShift(1.4), 0.0075)
    low, high = (epsilon_of(((charge, 50),), 1e-5) for charge in (loud, quiet))
    assert low < epsilon_of(((loud, 25), (quiet, 25)), 1e-5) < high


def test_laplace_never_exceeds_pure_composition() -> None:
    charge = SubsampledMechanism(LaplaceShift(0.5), 0.1)
    pure = 30 * charge.largest_loss
    assert epsilon_of(((charge, 30),), 0.0) == pytest.approx(pure)
    assert epsilon_of(((charge, 30),), 1e-6) < pure
    assert delta_of(((charge, 30),), pure) == 0.0


def test_a_delta_below_the_arithmetic_is_refused() -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon_of(((CHARGES[0], 10),), 1e-13)
