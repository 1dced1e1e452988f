"""The audit: under the account for a sound mechanism, near it for one round, above it for a broken one.

False alarms: every audit here has confidence 0.99 and a fixed seed; a sound mechanism fails one test in a hundred seeds
at most. The broken ones are the negative controls that must be refuted.
"""

from __future__ import annotations

import numpy as np
import pytest

from cepam import L1, L2, Gaussian, Laplace
from cepam.privacy import Mechanism, Sampling, audit, epsilon
from cepam.privacy.auditing.audit import Rates
from tests.privacy.mechanisms import Exact, Redrawn, Shared

ONE = Mechanism.uniform(1, Gaussian(1.0), L2(0.5), Sampling("all"), 1000)
TRIALS = 200_000


@pytest.mark.parametrize("delta", [1e-5, 1e-2])
@pytest.mark.parametrize("attacked", [Exact(1.0), Shared(1.0)], ids=["exact", "shared"])
def test_a_sound_mechanism_is_near_the_account_and_under_it(attacked, delta: float) -> None:
    found = audit(attacked, ONE, delta, TRIALS)
    assert found.claim == epsilon(ONE, delta)
    assert not found.refuted
    assert found.lower <= found.claim
    assert 0.95 * found.claim <= found.by_curve <= found.claim
    if delta == 1e-2:
        assert found.lower >= 0.85 * found.claim  # with no assumption at all


@pytest.mark.parametrize("attacked", [Exact(0.5), Redrawn(1.0)], ids=["sigma halved", "decoder redraws"])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_a_broken_mechanism_is_refuted_without_any_assumption(attacked, delta: float) -> None:
    found = audit(attacked, ONE, delta, TRIALS)
    assert found.refuted
    assert found.lower > found.claim


def test_twenty_seeds_raise_no_false_alarm() -> None:
    for seed in range(20):
        assert not audit(Exact(1.0, seed=100 + seed), ONE, 1e-3, 20_000, seed=seed).refuted


def test_several_clients_colluders_and_sampling() -> None:
    mechanism = Mechanism.uniform(4, Gaussian(2.0), L2(1.0), Sampling("poisson", 300), 1000, colluders=1)
    found = audit(Exact(2.0), mechanism, 1e-3, TRIALS)
    assert 0.5 * found.claim < found.lower <= found.claim
    assert found.by_curve <= found.claim
    assert audit(Exact(0.7), mechanism, 1e-3, TRIALS).refuted


def test_many_rounds_stay_under_the_account() -> None:
    mechanism = Mechanism.uniform(1, Gaussian(2.0), L2(1.0), Sampling("poisson", 100), 1000, rounds=6)
    found = audit(Exact(2.0), mechanism, 1e-3, 100_000)
    assert 0.3 * found.claim < found.lower <= found.claim
    assert found.by_curve is None
    assert audit(Exact(0.7), mechanism, 1e-3, 100_000).refuted


@pytest.mark.parametrize(("rounds", "delta"), [(1, 1e-3), (4, 0.0)])
def test_laplace(rounds: int, delta: float) -> None:
    mechanism = Mechanism.uniform(3, Laplace(1.0), L1(0.5), Sampling("all"), 1000, rounds=rounds)
    found = audit(Exact(1.0, "laplace"), mechanism, delta, TRIALS)
    assert 0.85 * found.claim < found.lower <= found.claim
    assert audit(Exact(0.5, "laplace"), mechanism, delta, TRIALS).refuted


def test_a_claim_can_be_handed_in() -> None:
    assert audit(Exact(1.0), ONE, 1e-2, TRIALS, claim=1.0).refuted


def test_rates_bound_epsilon() -> None:
    assert Rates(0.5, 0.1).epsilon(0.0) == pytest.approx(np.log(5))
    assert Rates(0.1, 0.5).epsilon(0.0) == 0.0
    assert Rates(0.01, 0.5).epsilon(0.02) == 0.0


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="trials"):
        audit(Exact(1.0), ONE, 1e-2, 10)
    with pytest.raises(ValueError, match="confidence"):
        audit(Exact(1.0), ONE, 1e-2, 1000, confidence=1.0)
    with pytest.raises(ValueError, match="delta"):
        audit(Exact(1.0), ONE, 1.5, 1000)
