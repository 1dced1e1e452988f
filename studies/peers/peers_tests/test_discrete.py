"""Integer noise has the law that its paper says, in small cases, by another method.

False-alarm rate: fixed seeds; a chi-square beyond nine deviations of its own.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial

import numpy as np
import pytest

from cepam_peers.discrete import DiscreteGaussian, IntegerLaw, Skellam, excess


def chi_square(law: IntegerLaw, drawn: np.ndarray) -> float:
    """How many deviations the draws' chi-square against the law's masses is above its mean."""
    values = np.arange(-4, 5)
    masses = law.mass(values)
    seen = np.array([(drawn == value).sum() for value in values])
    masses, seen = np.append(masses, 1.0 - masses.sum()), np.append(seen, len(drawn) - seen.sum())
    expected = masses * len(drawn)
    return float((((seen - expected) ** 2 / expected).sum() - len(values)) / np.sqrt(2 * len(values)))


@pytest.mark.parametrize("scale", [0.7, 1.5, 6.0])
def test_the_discrete_gaussian_is_the_gaussian_on_the_integers(scale: float) -> None:
    law, values = DiscreteGaussian(scale), np.arange(-40, 41)
    # Poisson's formula gives the normaliser by another sum.
    normal = scale * np.sqrt(2 * np.pi) * (1 + 2 * sum(np.exp(-2 * (np.pi * scale * k) ** 2) for k in range(1, 9)))
    assert np.allclose(law.mass(values), np.exp(-0.5 * (values / scale) ** 2) / normal, rtol=1e-12, atol=1e-30)
    assert law.variance <= scale**2 * (1 + 1e-12)


def test_the_skellam_law_is_the_difference_of_two_poisson_variables() -> None:
    mean = Fraction(3, 2)
    for value in range(-3, 4):
        terms = [mean ** (2 * k + abs(value)) / (factorial(k) * factorial(k + abs(value))) for k in range(40)]
        assert Skellam(1.5).mass(np.array([value]))[0] == pytest.approx(float(sum(terms)) * np.exp(-3.0), rel=1e-12)


@pytest.mark.parametrize("law", [DiscreteGaussian(1.5), Skellam(1.2)])
def test_draws_have_the_law(law: IntegerLaw) -> None:
    drawn = law.draw(np.random.default_rng(3), 200_000)
    assert chi_square(law, drawn) < 9
    assert chi_square(law, np.rint(np.random.default_rng(3).normal(0.05, np.sqrt(law.variance), 200_000))) > 9


def test_sums_of_skellam_are_skellam_and_of_discrete_gaussians_nearly_so() -> None:
    values = np.arange(-60, 61)
    for law, whole, distance in (
        (Skellam(1.2), Skellam(2.4), 1e-12),
        (DiscreteGaussian(2.0), DiscreteGaussian(np.sqrt(8.0)), 1e-15),
        (DiscreteGaussian(1.0), DiscreteGaussian(np.sqrt(2.0)), 1e-3),
    ):
        twice = np.convolve(law.mass(values), law.mass(values), mode="same")
        assert np.abs(twice - whole.mass(values)).max() < distance
    # Control: at half a step the sum of two is not one of them.
    half = DiscreteGaussian(0.5)
    twice = np.convolve(half.mass(values), half.mass(values), mode="same")
    assert np.abs(twice - DiscreteGaussian(np.sqrt(0.5)).mass(values)).max() > 1e-2


def test_what_the_theorems_add_to_the_gaussian_account_is_small_where_rivals_run() -> None:
    assert excess(Skellam(500.0), 30, 39_700, 90.0) < 1e-3
    assert excess(DiscreteGaussian(2.0), 30, 39_700, 6.0) < 1e-3
    assert excess(DiscreteGaussian(0.4), 30, 39_700, 1.0) > 1.0
