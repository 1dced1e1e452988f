"""Two vectors in one weighted sum: what the sum tells of each, by enumeration, and what is charged."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from cepam import L2, Gaussian
from cepam.privacy import Client, Release, Sampling
from cepam.privacy.blending import blends

STEPS = 16
"""Of the grid, a standard deviation: the codec's has 2^12, and 64 times as large terms in a ratio do as much."""


def left(p: int, q: int) -> float:
    """The variance of the first noise, on the grid, that is left when p times it plus q times the second is known."""
    grid = np.arange(-6 * STEPS, 6 * STEPS + 1)
    mass = np.exp(-0.5 * (grid / STEPS) ** 2)
    found = defaultdict(list)
    for a, one in zip(grid.tolist(), mass):
        for b, other in zip(grid.tolist(), mass):
            found[p * a + q * b].append((a / STEPS, one * other))
    total = 0.0
    for pairs in found.values():
        place, weight = np.array(pairs).T
        mean = float(place @ weight) / float(weight.sum())
        total += float(weight @ (place - mean) ** 2)
    return total / float(mass.sum()) ** 2


def test_weights_as_small_numbers_hide_as_real_numbers_would() -> None:
    for p, q in ((1, 1), (2, 1), (3, 4)):
        assert left(p, q) == pytest.approx(q * q / (p * p + q * q), abs=1e-6)


def test_odd_weights_tell_the_pair() -> None:
    """The control: every sum has one pair, so the other vector hides nothing."""
    assert left(20_011, 19_997) < 1e-12


def of(*weights: float, laws: tuple[float, ...] = ()) -> Release:
    scales = laws or (1.0,) * len(weights)
    clients = tuple(Client(Gaussian(scale), 10, weight) for scale, weight in zip(scales, weights))
    return Release(clients, L2(1.0), Sampling("all"))


def test_an_odd_pair_is_charged_by_the_own_noise() -> None:
    for odd in (of(20_011.0, 19_997.0), of(1.0, 1.0, laws=(1.0, 1.01)), of(0.7, 0.7 + 1e-9)):
        assert odd.mu(0) == pytest.approx(2.0)
        assert odd.mu(1) == pytest.approx(2.0 / odd.clients[1].law.scale)
    even = of(2.0, 1.0)
    assert even.mu(0) == pytest.approx(2.0 * 2.0 / np.hypot(2.0, 1.0))
    assert of(41_234.0, 18_766.0, 20_011.0).mu(0) < 2.0 * 0.9


def test_colluders_leave_an_odd_pair() -> None:
    release = replace(of(20_011.0, 19_997.0, 30_000.0), colluders=1)
    assert release.mu(0) == pytest.approx(2.0)


def test_what_blends() -> None:
    a = Client(Gaussian(1.0), 10, 1 / 3)
    assert blends(a, a)
    assert blends(a, replace(a, weight=2 / 3))
    assert blends(a, replace(a, weight=64 / 3))
    assert not blends(a, replace(a, weight=65 / 3))
    assert not blends(a, replace(a, law=Gaussian(2.0)))
