"""The mechanism's own slack: the inequality on perturbed laws, the constants, the refusal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from cepam import L2, Gaussian, Laplace
from cepam.kernels.model.plan import GRID_BITS
from cepam.noise.radius import OCTAVES
from cepam.privacy import NOT_COVERED, Ledger, Release, Sampling, charged_delta, crude_slack, epsilon, slack
from cepam.privacy.dominating import GaussianShift
from cepam.privacy.numerics import DITHER_RELATIVE, LATENT_RELATIVE, WORD_MISS


def preset(coordinates: int | None = 6422, rounds: int = 600) -> Release:
    return Release.uniform(
        30,
        Gaussian(1.1 * 30**0.5 / 960),
        L2(1.0),
        Sampling("poisson", 32),
        2000,
        rounds=rounds,
        adjacency="add-remove",
        clipped="example",
        coordinates=coordinates,
    )


def test_the_private_preset_is_charged_and_passes() -> None:
    release = preset()
    at = epsilon(release, 1e-5)
    found = slack(release, at)
    assert found.coordinates == 600 * 30 * 6422
    assert 0 < found.delta < 1e-7
    assert charged_delta(release, at, 1e-5) == pytest.approx(1e-5 + found.delta, rel=1e-12)
    assert crude_slack(release, at) > 1e-7  # the plain bound would refuse this run


def test_a_run_too_long_for_the_arithmetic_is_refused() -> None:
    release = preset(coordinates=10**9)
    with pytest.raises(ValueError, match="delta/100"):
        charged_delta(release, 2.0, 1e-5)
    with pytest.raises(ValueError, match="coordinates"):
        slack(preset(coordinates=None), 2.0)


def test_slack_grows_with_rounds_clients_and_coordinates() -> None:
    here = slack(preset(), 2.0)
    assert slack(preset(2 * 6422), 2.0).eta == pytest.approx(2 * here.eta, rel=1e-3)
    assert slack(preset(rounds=1200), 2.0).kappa == pytest.approx(2 * here.kappa, rel=1e-6)
    ledger = Ledger((preset(rounds=300), preset(rounds=300).without([0, 1, 2])))
    assert slack(ledger, 2.0).coordinates == 300 * 6422 * (30 + 27)
    laplace = Release.uniform(3, Laplace(1.0), L2(1.0), Sampling("all"), 10, coordinates=100)
    assert 0 < slack(laplace, 3.0).eta < 1e-9


def test_the_inequality_on_a_perturbed_pair() -> None:
    """Chances changed by e^(±eta) cell by cell, worst signs: delta grows by no more than the slack's formula."""
    mu, eta, y = 1.0, 1e-3, np.linspace(-12, 13, 250_001)
    q, p = np.exp(-(y**2) / 2), np.exp(-((y - mu) ** 2) / 2)
    q, p = q / q.sum(), p / p.sum()
    for at in (0.2, 1.0, 3.0):
        event = p > math.exp(at) * q
        signs = np.where(event, 1.0, -1.0)
        worse_p, worse_q = p * np.exp(eta * signs), q * np.exp(-eta * signs)
        grown = np.maximum(0.0, worse_p - math.exp(at) * worse_q).sum()
        exact = GaussianShift(mu).profile(at)
        over = special.ndtr(mu / 2 - (at - 2 * eta) / mu)  # P(loss > epsilon - 2 eta)
        assert exact < grown <= exact + (math.expm1(eta) + 2 * eta * math.exp(eta)) * over + 1e-9


@pytest.mark.parametrize("scale", [1 + 1e-3, 1 - 1e-3])
def test_a_wrong_radius_changes_the_density_as_charged(scale: float) -> None:
    """Noise scaled by s: the log density moves by at most (n + z^2) |s - 1| to first order."""
    z = np.linspace(-5, 5, 1001)
    moved = -(z**2) / (2 * scale**2) - math.log(scale) + z**2 / 2
    assert (np.abs(moved) <= (1 + z**2) * abs(scale - 1) * 1.01).all()


def test_multiply_high_hits_every_interval_within_one_preimage() -> None:
    """A toy of the dither: words of 16 bits times N; the count of any interval is off by less than one."""
    words, n = 1 << 16, 1000
    values = (np.arange(words) * n) >> 16
    counts = np.bincount(values, minlength=n)
    running = np.concatenate(([0], np.cumsum(counts)))
    exact = np.arange(n + 1) * words / n
    assert (running - exact >= 0).all()
    assert (running - exact < 1).all()


def test_constants_follow_the_codec() -> None:
    assert WORD_MISS >= 2.0**-OCTAVES
    assert DITHER_RELATIVE == 2.0 ** (46 - 64 - GRID_BITS)
    assert LATENT_RELATIVE == 2.0**-49
    assert any("server" in line for line in NOT_COVERED)
    assert any("lengths" in line for line in NOT_COVERED)
