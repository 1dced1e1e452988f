"""Theorem 2: a sum of rounded Gaussians is one Gaussian rounded at random, up to K^2 exp(-(pi S)^2)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

REACH = 40


def sum_of_rounded(x: list[float], scale: float) -> np.ndarray:
    """The chances of the sum of round(x_i + N(0, scale^2)), from -K REACH on."""
    total = np.ones(1)
    edges = np.arange(-REACH, REACH + 2) - 0.5
    for each in x:
        total = np.convolve(total, np.diff(special.ndtr((edges - each) / scale)))
    return total


def rounded_sum(x: list[float], scale: float) -> np.ndarray:
    """The chances of N(sum x, K scale^2) rounded by the B-spline of order K, by its Fourier integral."""
    clients = len(x)
    count = 40_001
    omega = np.linspace(-60.0 / scale, 60.0 / scale, count)
    wave = np.exp(-clients * (scale * omega) ** 2 / 2) * np.sinc(omega / (2 * np.pi)) ** clients
    n = np.arange(-clients * REACH, clients * REACH + 1)
    near = np.abs(n - sum(x)) < 12 * scale * math.sqrt(clients) + clients
    out = np.zeros(len(n))
    step = omega[1] - omega[0]
    out[near] = (np.cos(np.outer(n[near] - sum(x), omega)) @ wave) * step / (2 * np.pi)
    return out


@pytest.mark.parametrize("scale", [0.7, 0.85, 1.0, 1.15, 1.3])
@pytest.mark.parametrize("x", [[0.0, 0.0], [0.25, 0.25], [0.5, -0.1], [0.3, 0.4, 0.45], [0.1, 0.2, 0.3, 0.4, 0.5]])
def test_the_two_laws_agree_to_the_stated_error(x: list[float], scale: float) -> None:
    gap = np.abs(sum_of_rounded(x, scale) - rounded_sum(x, scale)).max()
    assert gap <= len(x) ** 2 * math.exp(-((math.pi * scale) ** 2)) + 1e-13


def test_the_total_variation_at_scale_one() -> None:
    worst = max(
        np.abs(sum_of_rounded([a, b], 1.0) - rounded_sum([a, b], 1.0)).sum() / 2
        for a in np.linspace(0, 1, 9)
        for b in np.linspace(0, 1, 9)
    )
    assert 5e-6 < worst < 1e-4


def test_without_noise_to_speak_of_the_laws_differ() -> None:
    gap = np.abs(sum_of_rounded([0.25, 0.25], 0.25) - rounded_sum([0.25, 0.25], 0.25)).max()
    assert gap > 0.05
