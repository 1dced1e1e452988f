"""Vectors on grids in one weighted sum: what the sum tells of each, by enumeration, and what is charged."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, special

from cepam import L2, Gaussian
from cepam.privacy import Client, Mechanism, Sampling
from cepam.privacy.numerics import smoothing as blending
from cepam.privacy.numerics.smoothing import blends, least_distance

STEPS = 8
"""Of the grid, a standard deviation here: the codec's has 2^12, and weights 512 times as large do as much."""


@pytest.fixture
def coarse(monkeypatch):
    """Accounts as if the codec's grid had `STEPS` steps a deviation."""
    monkeypatch.setattr(blending, "DEVIATION", STEPS)
    for cached in (blends, least_distance):
        cached.cache_clear()
    yield
    for cached in (blends, least_distance):
        cached.cache_clear()


def left(*weights: int) -> float:
    """The variance of the first noise, on the grid, that is left when the weighted sum of all is known."""
    grid = np.arange(-6 * STEPS, 6 * STEPS + 1)
    mass = np.exp(-0.5 * (grid / STEPS) ** 2)
    mass /= mass.sum()
    places = np.meshgrid(*[grid] * len(weights), indexing="ij")
    chance = math.prod(np.meshgrid(*[mass] * len(weights), indexing="ij")).ravel()
    sums = sum(w * place for w, place in zip(weights, places)).ravel()
    _, which = np.unique(sums, return_inverse=True)
    first = places[0].ravel() / STEPS
    total, mean, square = (np.bincount(which, chance * first**power) for power in (0, 1, 2))
    return float((square - mean**2 / total).sum())


def of_real_numbers(*weights: int) -> float:
    """The same for real numbers: one weight's part of the squares is told."""
    return 1.0 - weights[0] ** 2 / sum(w * w for w in weights)


@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (1, 1, 1), (1, 1, 2), (2, 3, 4), (4, 3, 2), (3, 1, 1)])
def test_weights_that_blend_hide_as_real_numbers_would(coarse, weights: tuple[int, ...]) -> None:
    assert blends(tuple(sorted(map(float, weights))))
    assert left(*weights) == pytest.approx(of_real_numbers(*weights), abs=1e-6)


@pytest.mark.parametrize("weights", [(397, 389), (1, 1, 90), (391, 397, 393)])
def test_others_tell_more_than_their_sum(coarse, weights: tuple[int, ...]) -> None:
    """The controls: of two all is told, of three one more direction than the sum."""
    assert not blends(tuple(sorted(map(float, weights))))
    assert left(*weights) < of_real_numbers(*weights) - 0.05


def spread(weights: tuple[int, ...], deviation: float, at: np.ndarray) -> np.ndarray:
    """The density of a Gaussian sum plus one uniform number as wide as each weight, by its Fourier integral."""
    scale = deviation * math.hypot(*weights)

    def part(angle: float, place: float) -> float:
        uniform = math.prod(np.sinc(w * angle / (2 * math.pi)) for w in weights)
        return math.exp(-0.5 * (scale * angle) ** 2) * uniform * math.cos(angle * place)

    found = [integrate.quad(part, 0, 12.0 / scale, args=(place,), limit=400)[0] for place in at]
    return np.array(found) / math.pi


@pytest.mark.parametrize(
    ("weights", "deviation"), [((2, 3, 4), 1.0), ((1, 2, 2), 0.7), ((5, 6, 7), 1.5), ((1, 3), 0.8)]
)
def test_the_sum_is_a_gaussian_rounded_at_random_up_to_the_stated_error(
    weights: tuple[int, ...], deviation: float
) -> None:
    """Theorem "Sums of grids": both laws by themselves, and the bound from all whole vectors near the line."""
    shifts = np.array([0.3, 0.45, 0.1])[: len(weights)]
    pmf, reach = np.ones(1), 0
    for weight, shift in zip(weights, shifts):
        grid = np.arange(-12, 13)
        edges = (np.append(grid, 13) - 0.5 - shift) / deviation
        one = np.zeros(24 * weight + 1)
        one[::weight] = np.diff(special.ndtr(edges))
        pmf, reach = np.convolve(pmf, one), reach + 12 * weight
    numbers = np.arange(-reach, reach + 1)
    some = np.abs(numbers) <= 25
    found = pmf[some] - spread(weights, deviation, numbers[some] - float(np.dot(weights, shifts)))
    w, disturbing = np.array(weights, dtype=float), 0.0
    for k in itertools.product(range(-9, 10), repeat=len(weights)):
        if 0 <= k[0] < weights[0] and any(k):  # one of each class modulo w
            far = np.dot(k, k) - np.dot(k, w) ** 2 / np.dot(w, w)
            disturbing += math.exp(-2.0 * math.pi**2 * deviation**2 * far)
    bound = disturbing / (math.sqrt(2.0 * math.pi) * deviation * math.hypot(*weights))
    assert np.abs(found).max() <= bound * (1 + 1e-6) + 1e-12
    assert np.abs(found).max() >= bound / 50  # and it is no idle bound


def test_the_search_finds_every_whole_vector_near_the_line() -> None:
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(60):
        w = rng.integers(1, 14, size=rng.integers(2, 4))
        w //= np.gcd.reduce(w)
        ways = np.array(list(itertools.product(range(14), repeat=len(w))))
        ways = ways[np.any(np.outer(ways[:, 0], w) != ways * w[0], axis=1)]
        far = (ways**2).sum(axis=1) - (ways @ w) ** 2 / (w @ w)
        truth, least = math.sqrt(max(far.min(), 0.0)), float(rng.uniform(0.02, 0.24))
        found = blending._distance(tuple(w.tolist()), (1,) * len(w), least)
        assert (found is not None) == (truth < least), (w, truth, least)
        seen.add(found is None)
    assert seen == {True, False}


def of(*weights: float, laws: tuple[float, ...] = ()) -> Mechanism:
    scales = laws or (1.0,) * len(weights)
    clients = tuple(Client(Gaussian(scale), 10, weight) for scale, weight in zip(scales, weights))
    return Mechanism(clients, L2(1.0), Sampling("all"))


def test_vectors_that_do_not_blend_are_charged_by_those_that_blend_with_them() -> None:
    for odd in (of(20_011.0, 19_997.0), of(0.7, 0.7 + 1e-9), of(200_011.0, 199_997.0, 200_003.0), of(1.0, 3.1e6)):
        assert odd.mu(0) == pytest.approx(2.0)
        assert odd.mu(1) == pytest.approx(2.0)
    assert of(1.0, 1.0, 1e6).mu(0) == pytest.approx(2.0 / math.sqrt(2.0))
    assert of(*[8571.0] * 3, *[8572.0] * 4).mu(6) == pytest.approx(1.0)


def test_vectors_that_blend_are_charged_as_real_numbers() -> None:
    for weights in ((2.0, 1.0), (41_234.0, 18_766.0, 20_011.0), (1300.0, 1301.0), (3.0, 1.0, 1000.0), (1 / 3, 2 / 3)):
        assert of(*weights).mu(0) == pytest.approx(2.0 * weights[0] / math.hypot(*weights))
    many = np.random.default_rng(5).integers(100, 4000, 30).astype(float)
    shares = (many / many.sum()).tolist()
    assert of(*shares).mu(0) == pytest.approx(2.0 * many[0] / math.hypot(*many))
    # Laws of other scales lie on grids whose steps are powers of two.
    assert of(1.0, 1.0, laws=(1.0, 2.5)).mu(0) == pytest.approx(2.0 / math.hypot(1.0, 2.5))


def test_colluders_leave_an_odd_pair() -> None:
    mechanism = replace(of(20_011.0, 19_997.0, 30_000.0), colluders=1)
    assert mechanism.mu(0) == pytest.approx(2.0)
