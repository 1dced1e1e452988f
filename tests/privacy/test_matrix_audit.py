"""The audit of correlated streams: under the account when it is right, above it when rounds are charged one by one.

False alarms: every audit of a sound mechanism has confidence 1 - 1e-9 and the keys are fixed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import cepam
from cepam import L2, Gaussian
from cepam.privacy import (
    Client,
    CorrelatedNoise,
    GaussianShift,
    MatrixMechanism,
    ObservedParticipation,
    RoundTrip,
    Sampling,
    SubsampledMechanism,
    audit,
)
from tests.privacy.mechanisms import Exact

SURE = 1 - 1e-9
LINK = CorrelatedNoise(0.9, slices=8)
ONE = MatrixMechanism((Client(Gaussian(1.0), 1000),), L2(0.5), link=LINK, rounds=64)
ONE = ONE.with_noise([ONE.sensitivity])  # mu = 1


def through(mechanism: MatrixMechanism, key: bytes = bytes(range(32))) -> RoundTrip:
    """The real encoder and decoder, on the integers, under a fixed key."""
    codecs = tuple(cepam.Codec(client.law, lattice=cepam.Integer(1)) for client in mechanism.clients)
    made = cepam.Key(key)
    return RoundTrip(codecs, lambda round, client: cepam.Address(made, round=round, client=client), stride=1)


def charged_by_rounds(mechanism: MatrixMechanism, delta: float) -> float:
    """The wrong account: every round's update in the noise that its own variance shows, composed as if independent."""
    times = -(-mechanism.rounds // mechanism.link.slices)
    own = math.sqrt(1 + mechanism.link.decay**2) * mechanism.noise_against(0)
    return SubsampledMechanism(GaussianShift(mechanism.distance(0) * math.sqrt(times) / own)).epsilon(delta)


def test_the_codecs_stream_is_near_its_account_and_under_it() -> None:
    assert ONE.mu(0) == pytest.approx(1.0)
    found = audit(through(ONE), ONE, 1e-2, 40_000, SURE)
    assert not found.refuted
    assert found.by_curve > 0.85 * found.claim
    assert found.lower > 0.6 * found.claim


def test_the_trap_charging_rounds_by_their_own_variance_is_refuted_on_the_codec() -> None:
    wrong = charged_by_rounds(ONE, 1e-2)
    assert wrong < 0.31  # mu 0.22 for a stream that gives 1 away
    found = audit(through(ONE), ONE, 1e-2, 10_000, SURE, claim=wrong)
    assert found.refuted
    assert found.lower > 3 * wrong


def test_half_the_noise_is_refuted() -> None:
    half = through(replace(ONE, clients=ONE.with_noise([0.5 * ONE.sensitivity]).clients))
    assert audit(half, ONE, 1e-2, 10_000, SURE).refuted


@pytest.mark.parametrize("unit", ["record", "client"])
def test_several_clients_colluders_and_a_matrix_of_ones_own(unit: str) -> None:
    link = CorrelatedNoise.from_matrix([0.5, 0.1, 0.9], slices=3)
    clients = (Client(Gaussian(2.0), 10, 0.5), Client(Gaussian(2.0), 10, 0.3), Client(Gaussian(2.0), 10, 0.2))
    mechanism = MatrixMechanism(clients, L2(0.4), link=link, rounds=9, colluders=1, unit=unit)
    found = audit(Exact(2.0), mechanism, 1e-2, 100_000, SURE)
    assert not found.refuted
    assert found.by_curve > 0.85 * found.claim
    assert audit(Exact(1.0), mechanism, 1e-2, 100_000, SURE).refuted


def test_secret_draws_inside_banded_slices() -> None:
    link = CorrelatedNoise.from_matrix([1.0, 0.8, 0.6], slices=3)
    mechanism = MatrixMechanism(
        (Client(Gaussian(2.0), 30),), L2(1.0), Sampling("poisson", 5), rounds=12, link=link, adjacency="add-remove"
    )
    found = audit(Exact(2.0), mechanism, 1e-2, 200_000, SURE)
    assert not found.refuted
    assert found.lower > 0.5 * found.claim
    assert audit(Exact(1.0), mechanism, 1e-2, 200_000, SURE).refuted


def test_what_the_audit_does_not_run_is_refused() -> None:
    came = ObservedParticipation.observed(np.ones((1, 64)))
    with pytest.raises(ValueError, match="every message"):
        audit(Exact(1.0), replace(ONE, observed_participation=came), 1e-2, 1000)
