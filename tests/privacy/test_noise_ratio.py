"""What noise means for use: the average's noise by hand, by simulation of streams, and the advice that follows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import cepam
from cepam import privacy

CLIP, ALL = cepam.L2(2.0), privacy.Sampling("all")


def test_two_clients_by_hand() -> None:
    loud = privacy.Client(cepam.Gaussian(3.0), 10, weight=0.25)
    quiet = privacy.Client(cepam.Gaussian(1.0), 10, weight=0.75, clip=cepam.L2(1.0))
    found = privacy.noise_ratio(privacy.Mechanism((loud, quiet), CLIP, ALL, rounds=16, coordinates=9))
    assert found.noise == pytest.approx(math.hypot(0.75, 0.75) / (0.25 * 2.0 + 0.75 * 1.0))
    assert found.averaging == 4.0
    assert found.ratio == pytest.approx(3.0 * found.noise)
    alone = privacy.noise_ratio(privacy.Mechanism((loud, quiet), CLIP, ALL).without([1]))
    assert alone.noise == pytest.approx(3.0 / 2.0)


def test_laplace_noise_has_its_own_deviation() -> None:
    mechanism = privacy.Mechanism.uniform(4, cepam.Laplace(1.0), cepam.L1(1.0), ALL, records=10)
    assert privacy.noise_ratio(mechanism).noise == pytest.approx(math.sqrt(2.0) / 2.0)


def test_cohorts_have_the_noise_of_every_sum_over_the_expected_replies() -> None:
    cohort = privacy.Cohort(10_000, 100.0)
    mechanism = privacy.CohortMechanism.of(cohort, CLIP, 3.0, rounds=10)
    assert privacy.noise_ratio(mechanism).noise == pytest.approx(3.0 / 100.0)


def test_local_steps_are_taken_together() -> None:
    mechanism = privacy.LocalMechanism.of([640, 640], CLIP, 4.0, batch=64, epochs=5, rounds=3)
    found = privacy.noise_ratio(mechanism)
    assert mechanism.steps == (50, 50)
    assert found.noise == pytest.approx(4.0 / 64.0 / math.sqrt(2 * 50))


def test_noise_that_cancels_leaves_more_of_the_steps() -> None:
    """Against streams drawn here: how many times less noise the weights hold, as a root mean square over rounds."""
    link, rounds = privacy.CorrelatedNoise(decay=0.9, slices=4), 30
    clients = (privacy.Client(cepam.Gaussian(1.0), 40),)
    mechanism = privacy.MatrixMechanism(clients, CLIP, link=link, rounds=rounds)
    plain = privacy.noise_ratio(replace(mechanism, link=privacy.CorrelatedNoise(slices=4)))
    assert plain.averaging == pytest.approx(math.sqrt(rounds))
    drawn = np.random.default_rng(1).normal(size=(rounds, 20_000))
    shaped = np.linalg.solve(link.matrix(rounds), drawn)
    left, independent = (float(np.sqrt((np.cumsum(each, axis=0) ** 2).mean())) for each in (shaped, drawn))
    assert privacy.noise_ratio(mechanism).averaging == pytest.approx(plain.averaging * independent / left, rel=0.02)


def test_the_advice_follows_the_ratio() -> None:
    words = [privacy.NoiseRatio(noise, 5.0, 100).advice for noise in (0.1, 0.4, 0.6)]
    assert words[0].endswith("as a whole 1 times the largest update: a round's average is mostly update")
    assert "as a whole 4 times the largest update: single rounds are mostly noise, the run" in words[1]
    assert "more noise than the rounds can average out" in words[2]
    unknown = privacy.NoiseRatio(0.01, 5.0).advice
    assert "mostly update up to 10,000 coordinates, the run up to 250,000; beyond that, more clients" in unknown
    assert privacy.NoiseRatio(0.01, 5.0).ratio is None
