"""The slack on delta: the numbers that docs/exactness.md prints."""

from __future__ import annotations

import math

import pytest

import cepam
from cepam.slack import distance_per_coordinate, slack_on_delta

LARGEST_MANTISSA = math.nextafter(2.0, 1.0)


@pytest.mark.parametrize(
    ("law", "bits"),
    [
        (cepam.Gaussian(LARGEST_MANTISSA), [49.8, 48.4, 48.0, 46.7]),
        (cepam.Laplace(LARGEST_MANTISSA), [49.6, 47.3, 46.7, 40.4]),
    ],
    ids=["gaussian", "laplace"],
)
def test_the_documented_distances(law: cepam.Law, bits: list[float]) -> None:
    lattices = (cepam.Integer(1), cepam.A2, cepam.D4, cepam.E8)
    found = [-math.log2(distance_per_coordinate(law, lattice)) for lattice in lattices]
    assert found == pytest.approx(bits, abs=0.06)


def test_the_documented_run() -> None:
    distance = distance_per_coordinate(cepam.Gaussian(LARGEST_MANTISSA), cepam.Integer(1))
    assert slack_on_delta(distance, 600, 30, 6422, 0.0) / 2 == pytest.approx(1.2e-7, rel=0.05)


def test_a_users_lattice_and_a_users_law_have_a_bound_too() -> None:
    skew = cepam.Lattice([[1.0, 0.3, 0.1], [0.0, 1.0, 0.2], [0.0, 0.0, 1.1]])
    assert distance_per_coordinate(cepam.Gaussian(1.0), skew) < 2.0**-45
    assert distance_per_coordinate(cepam.UniformBall(1.0), cepam.Integer(1)) < 2.0**-36
