"""The paper's theorems as stated reproduce the paper's figures, and their saturation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from cepam import L2, Laplace
from cepam.privacy import Mechanism, Sampling, pure_epsilon
from cepam_paper.guarantees import quantized_noise_delta
from cepam_paper.theorems import (
    PaperSetting,
    published_sigma,
    theorem_7,
    theorem_7_saturation,
    theorem_7_sigma,
    theorem_8,
    theorem_8_b,
)

SIGMAS = (0.13881, 0.08567, 0.06058, 0.04447, 0.03274, 0.02362, 0.01623, 0.01011, 0.00494, 0.00052)
SCALES = (0.05944, 0.029859, 0.019937, 0.014965, 0.011977, 0.009984, 0.00856, 0.007491, 0.00666, 0.005994)


def test_gaussian_figure_needs_tau_prime_15() -> None:
    epsilon, delta = theorem_7(PaperSetting(), 0.01, 5.9)
    assert epsilon == pytest.approx(1.45, abs=5e-3)
    assert delta == pytest.approx(9.69e-3, abs=5e-6)
    epsilon, delta = theorem_7(PaperSetting(convention="printed"), 0.01, 5.9)
    assert epsilon == pytest.approx(1.398, abs=1e-3)
    assert delta == pytest.approx(8.997e-3, abs=1e-6)


def test_the_figure_is_its_own_saturation() -> None:
    assert theorem_7(PaperSetting(), 0.01, 5.9)[1] == pytest.approx(
        theorem_7_saturation(PaperSetting(), 5.9)[1], rel=1e-12
    )
    assert theorem_7(PaperSetting(), 1e-9, 5.9)[1] == theorem_7(PaperSetting(), 0.01, 5.9)[1]
    assert theorem_7(PaperSetting(), 10.0, 5.9)[1] < theorem_7_saturation(PaperSetting(), 5.9)[1] / 2


def test_sigma_list_comes_from_swapped_arguments() -> None:
    for k, want in enumerate(SIGMAS, start=1):
        assert published_sigma(k / 2) == pytest.approx(want, abs=5.1e-6)


def test_in_the_right_order_no_noise_is_needed() -> None:
    for k in range(1, 11):
        assert theorem_7_sigma(PaperSetting(), k / 2, 0.015) == 0.0
    assert theorem_7_sigma(PaperSetting(), 1.45, 1e-3) > 0.0


def test_b_list() -> None:
    for k, want in enumerate(SCALES, start=1):
        assert theorem_8_b(PaperSetting(), 500 * k) == pytest.approx(want, abs=5.1e-6 if k == 1 else 6e-7)
    assert theorem_8(PaperSetting(), 0.01) == pytest.approx(2995, abs=0.5)


@pytest.mark.parametrize(
    "bad", [{"clients": 0}, {"records": 1}, {"draws": 1}, {"gamma": -1.0}, {"convention": "other"}]
)
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        PaperSetting(**bad)


def test_theorem_8_is_false_under_l2_clipping() -> None:
    mechanism = Mechanism.uniform(30, Laplace(0.01), L2(1.0), Sampling("replacement", 15), 1666, coordinates=6422)
    assert theorem_8(PaperSetting(), 0.01) == pytest.approx(2995, abs=1)
    assert pure_epsilon(mechanism, 0) == pytest.approx(16_023, abs=1)


def test_a_quantizers_error_protects_as_noise_of_its_size_does() -> None:
    """Without a step the closed form of the Gaussian; with one less, and by simulation of noise and dither."""
    closed = stats.norm.cdf(0.5 - 1.0) - math.e * stats.norm.cdf(-0.5 - 1.0)
    assert quantized_noise_delta(1.0, 1.0, 0.0) == pytest.approx(closed, rel=1e-6)
    assert quantized_noise_delta(1.0, 1.0, 1e-3) == pytest.approx(closed, rel=1e-5)
    step = 3.0
    draw = np.random.default_rng(0)
    noise = draw.standard_normal(400_000)
    dither = draw.uniform(-step / 2, step / 2, 400_000)
    seen = step * np.round((noise + dither) / step) - dither  # what arrives, to whoever does not know the dither

    def density(x: np.ndarray) -> np.ndarray:
        return (stats.norm.cdf(x + step / 2) - stats.norm.cdf(x - step / 2)) / step

    # delta = E[max(0, 1 - e^epsilon g(X - shift)/g(X))] over X with density g.
    weights = np.maximum(0.0, 1 - math.e * density(seen - 1.0) / density(seen))
    assert quantized_noise_delta(1.0, 1.0, step) == pytest.approx(weights.mean(), abs=6 * weights.std() / 400_000**0.5)
    assert quantized_noise_delta(1.0, 1.0, step) < closed / 1.5
