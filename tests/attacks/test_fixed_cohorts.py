"""Cohorts of a fixed size: the charged pair must dominate every draw, in both directions, or rounds do not compose.

A client whose updates are zero is still drawn, in place of another. Each draw of tiny populations is enumerated, and
the hockey-stick curve of the two worlds compared with that of the charge, above and below zero loss.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from cepam import L2
from cepam.privacy import Accountant, Cohort, CohortMechanism, SubsampledMechanism, delta, epsilon
from cepam.privacy.composition.losses import epsilon_of

Y = np.linspace(-14, 14, 2801)
AT = (-2.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0)
EDGES = np.concatenate(([-np.inf], np.linspace(-60, 60, 24001), [np.inf]))
NUMERICAL = 2e-3  # cells of the loss, and of Y, merge outcomes: both curves are too low by less than this


def published(values: tuple[float, ...], size: int, sigma: float) -> np.ndarray:
    """The density of the noisy sum of a cohort of a fixed size."""
    sets = list(itertools.combinations(range(len(values)), size))
    return np.mean([stats.norm.pdf(Y, sum(values[j] for j in one), sigma) for one in sets], axis=0)


def curve(p: np.ndarray, q: np.ndarray, width: float = 1.0) -> np.ndarray:
    return np.array([np.maximum(0.0, p - math.exp(at) * q).sum() * width for at in AT])


def worst_excess(charge: SubsampledMechanism, size: int, population: int, sigma: float, zeroed_first: bool) -> float:
    """By how much the worlds exceed the direction of the charge that fits them best, over all others' updates."""
    best = math.inf
    for upper, lower in charge.masses(EDGES):
        still = max(0.0, 1.0 - float(upper.sum()))  # the atom at no loss, the same under both
        bound, excess = curve(np.append(upper, still), np.append(lower, still)), 0.0
        for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), population - 1):
            worlds = [published((own, *others), size, sigma) for own in (1.0, 0.0)]
            p, q = reversed(worlds) if zeroed_first else worlds
            excess = max(excess, float((curve(p, q, Y[1] - Y[0]) - bound).max()))
        best = min(best, excess)
    return best


@pytest.mark.parametrize("sigma", [0.3, 0.6])
@pytest.mark.parametrize(("size", "population"), [(1, 2), (1, 3), (2, 3), (3, 4)])
def test_the_charged_pair_dominates_both_worlds(size: int, population: int, sigma: float) -> None:
    cohort = Cohort(population, size, "without")
    charge = CohortMechanism.of(cohort, L2(1.0), sigma, adjacency="add-remove").charge(0)
    for zeroed_first in (False, True):
        assert worst_excess(charge, size, population, sigma, zeroed_first) <= NUMERICAL


def test_the_one_sided_pair_does_not() -> None:
    """The control: what dominates a Poisson cohort is exceeded by far."""
    cohort = Cohort(3, 2, "without")
    charge = CohortMechanism.of(cohort, L2(1.0), 0.3, adjacency="add-remove").charge(0)
    one_sided = SubsampledMechanism(charge.shift, charge.sampling_rate, "add-remove")
    assert max(worst_excess(one_sided, 2, 3, 0.3, way) for way in (False, True)) > 0.1


def test_two_adaptive_rounds_by_enumeration() -> None:
    """Others choose in the second round by what was published in the first: the account of two rounds holds."""
    sigma, y = 1.0, Y[::20]
    mechanism = CohortMechanism.of(Cohort(3, 1, "without"), L2(1.0), sigma, adjacency="add-remove", rounds=2)
    choices = list(itertools.product((-1.0, 1.0), repeat=2))
    laws = {
        (own, others): published((own, *others), 1, sigma)[::20] for own in (1.0, 0.0) for others in choices
    }  # fmt: skip
    area, worst = (y[1] - y[0]) ** 2, 0.0
    for at, (first, below, above) in itertools.product((0.3, 1.0), itertools.product(choices, repeat=3)):
        worlds = []
        for own in (1.0, 0.0):
            second = np.where((y < 0.0)[:, None], laws[own, below][None, :], laws[own, above][None, :])
            worlds.append(laws[own, first][:, None] * second)
        p, q = worlds
        found = max(np.maximum(0, a - math.exp(at) * b).sum() * area for a, b in ((p, q), (q, p)))
        worst = max(worst, found / delta(mechanism, at))
    assert 0.2 < worst <= 1.0


def test_fixed_and_poisson_cohorts_add_up_in_one_accountant() -> None:
    """A symmetric pair beside a one-sided one: both directions of the whole are charged, in either order."""
    fixed = CohortMechanism.of(Cohort(100, 10, "without"), L2(1.0), 2.0, adjacency="add-remove", rounds=9)
    poisson = CohortMechanism.of(Cohort(100, 10), L2(1.0), 2.0, adjacency="add-remove", rounds=9)
    both = Accountant((fixed, poisson)).epsilon(1e-5)
    assert both == pytest.approx(Accountant((poisson, fixed)).epsilon(1e-5), rel=1e-12)
    assert max(epsilon(fixed, 1e-5), epsilon(poisson, 1e-5)) < both
    assert both <= epsilon_of(((fixed.charge(0), 9), (SubsampledMechanism(poisson.charge(0).shift, 0.1), 9)), 1e-5) * (
        1 + 1e-4
    )
