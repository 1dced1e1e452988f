"""A clip that follows the norms: update and bit as one mechanism, and the rule of the clip."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from cepam.privacy import GaussianShift, fraction_within, joint_multiplier, next_clip, update_multiplier


@pytest.mark.parametrize(("update", "bit", "clip"), [(1.0, 4.0, 1.0), (0.8, 1.5, 0.3), (2.0, 2.0, 7.0)])
def test_update_and_bit_are_one_gaussian_mechanism(update: float, bit: float, clip: float) -> None:
    """The joint density of both sums on a plane, with one client and without it."""
    x, y = np.linspace(-9, 9, 1201), np.linspace(-9, 9, 1201)
    area = (x[1] - x[0]) * (y[1] - y[0])
    moved = (clip / (update * clip), 0.5 / (bit * 0.5))  # each over its noise
    p = np.outer(stats.norm.pdf(x - moved[0]), stats.norm.pdf(y - moved[1]))
    q = np.outer(stats.norm.pdf(x), stats.norm.pdf(y))
    one, alone = GaussianShift(1 / joint_multiplier(update, bit)), GaussianShift(1 / update)
    for epsilon in (0.0, 0.4, 1.0):
        got = float(np.maximum(0.0, p - math.exp(epsilon) * q).sum() * area)
        assert got == pytest.approx(one.profile(epsilon), rel=1e-3)
        assert got > 1.01 * alone.profile(epsilon)  # the bit is not free


def test_the_inverse() -> None:
    assert joint_multiplier(update_multiplier(1.1, 5.0), 5.0) == pytest.approx(1.1, rel=1e-12)
    assert update_multiplier(1.1, 5.0) > 1.1
    with pytest.raises(ValueError, match="bit"):
        update_multiplier(1.1, 1.1)


def test_the_clip_finds_its_quantile_in_noise() -> None:
    """200 steps on lognormal norms, with the bits' noise, end near the median; the control's wrong sign runs away."""
    coin, cohort = np.random.default_rng(5), 500
    clip, away = 30.0, 1.2
    for _ in range(200):
        norms = coin.lognormal(0.0, 0.7, cohort)
        noise = coin.normal(0, 10.0 * 0.5)
        clip = next_clip(clip, fraction_within(float((norms <= clip).sum() - cohort / 2) + noise, cohort))
        away = next_clip(away, 1.0 - fraction_within(float((norms <= away).sum() - cohort / 2), cohort))
    assert clip == pytest.approx(1.0, rel=0.1)
    assert away > 100.0


def test_bad_arguments_are_refused() -> None:
    for call in (lambda: joint_multiplier(0.0, 1.0), lambda: next_clip(1.0, math.nan), lambda: next_clip(1.0, 0.5, 1.0),
                 lambda: fraction_within(math.inf, 3), lambda: next_clip(0.0, 0.5)):  # fmt: skip
        with pytest.raises(ValueError, match="must"):
            call()
