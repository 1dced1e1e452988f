"""Who sees how much: shares for each observer, the node's own ledger, and the reach rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cepam
from cepam import privacy
from cepam.policy import AnsweredRounds, ClientPolicy, RoundCharge
from cepam.secure_aggregation import QuantizationRange, View, epsilons, fit, mechanism_for, run_epsilons, views


def test_the_shares_of_each_observer() -> None:
    found = {view.observer: view.shares for view in views(30, 24, 3, survivors=27)}
    assert found == {
        "outsider": 27, "server": 27, "server with 3 colluders": 24, "lying server": 18,
        "lying server with 3 colluders": 15,
    }  # fmt: skip
    assert [view.observer for view in views(5, 4)] == ["outsider", "server", "lying server"]
    for wrong in ((30, 15, 0, 30), (30, 24, 18, 30), (30, 24, 0, 23), (30, 24, 0, 31), (30, 24, -1, 30)):
        with pytest.raises(ValueError, match="K \\+ c < 2t"):
            views(*wrong)


def preset() -> privacy.Mechanism:
    """Thirty clients, 64 of 2,000 records a round and client, each example clipped, 500 rounds, epsilon 1.99."""
    mechanism = privacy.Mechanism.uniform(
        30, cepam.Gaussian(0.001), cepam.L2(0.1), privacy.Sampling("poisson", 64.0), records=2000, rounds=500,
        clipped="example", adjacency="add-remove",
    )  # fmt: skip
    return privacy.calibrate(mechanism, epsilon=1.99, delta=1e-5)


def test_epsilon_of_each_observer_of_the_private_preset() -> None:
    found = epsilons(preset(), 1e-5, quorum=24, colluders=3)
    assert found["outsider"] == found["server"] == pytest.approx(1.99, abs=0.005)
    assert found["server with 3 colluders"] == pytest.approx(2.15, abs=0.005)
    assert found["lying server"] == pytest.approx(2.93, abs=0.005)
    assert found["lying server with 3 colluders"] == pytest.approx(3.42, abs=0.005)
    assert list(found.values()) == sorted(found.values())


def test_the_views_of_a_run_are_those_of_its_mechanism_where_everybody_is_there() -> None:
    mechanism = preset()
    book = privacy.Accountant().add(mechanism)
    found = run_epsilons(book, book, 1e-5, views(30, 24, 3), 30)
    assert found == pytest.approx(epsilons(mechanism, 1e-5, 24, 3), rel=1e-9)


def test_lost_rounds_cost_nothing_but_against_a_server_that_lies() -> None:
    mechanism = preset()
    some = privacy.Accountant().add(mechanism.over(400)).add(mechanism.over(50).without({0, 1}))
    every = privacy.Accountant().add(mechanism)
    found = run_epsilons(some, every, 1e-5, views(30, 24, 3), 30)
    whole = run_epsilons(every, every, 1e-5, views(30, 24, 3), 30)
    assert found["server"] < whole["server"]
    assert found["lying server"] == whole["lying server"]


def test_mu_goes_with_the_root_of_the_shares() -> None:
    mechanism = preset()
    whole = mechanism.mu(0)
    for shares in (1, 15, 18, 30):
        assert mechanism_for(View("…", shares), mechanism).mu(0) == pytest.approx(whole * math.sqrt(30 / shares))
    with pytest.raises(ValueError, match="shares"):
        mechanism_for(View("…", 31), mechanism)
    with pytest.raises(ValueError, match="one law"):
        mechanism_for(View("…", 3), mechanism.with_noise([0.1 + i for i in range(30)]))


def test_a_node_computes_its_own_epsilon_from_its_accountant() -> None:
    answered = AnsweredRounds()
    for _ in range(3):
        answered = answered.add(RoundCharge("secure-aggregation", 1.0, 0.5, 100, 18))
    answered = answered.add(RoundCharge("secure-aggregation", 1.0, 0.5, 100, 15))
    assert answered.rounds == 4
    # One Gaussian mechanism: the squares of mu add up, and a clipped update moves by twice its bound.
    mu = math.sqrt(3 / 18 + 1 / 15)
    shift = privacy.SubsampledMechanism(privacy.GaussianShift(mu))
    assert answered.epsilon(1e-5) == pytest.approx(shift.epsilon(1e-5), rel=4e-3)  # its rounding has a share


def test_clipped_examples_in_a_nodes_accountant() -> None:
    answered = AnsweredRounds((RoundCharge("secure-aggregation", 0.001, 0.1, 100, 30, 1920.0, 0.96),))
    mechanism = answered.accountant().mechanisms[0]
    assert mechanism.distance(0) == pytest.approx(2 * 0.1 / 1920.0)
    assert mechanism.sampling_rate(0) == pytest.approx(0.96)


def test_reach_starts_at_the_clip_and_follows_what_was_released() -> None:
    law = cepam.Gaussian(0.1)
    rule = QuantizationRange(law, 30, 1.0)
    assert rule.value == 30.0
    deviation = 0.1 * math.sqrt(30)
    rule.observe(np.array([0.0, -4.0 * deviation, 1.0 * deviation]))
    assert rule.value == pytest.approx(2 * 0.5 * deviation)
    rule.observe(np.array([30.0]))
    assert rule.value == 30.0
    for _ in range(10):
        rule.observe(np.zeros(3))
    assert rule.value == 0.0
    again = QuantizationRange(law, 30, 1.0)
    again.restore(rule.saved())
    assert again.value == rule.value
    with pytest.raises(ValueError, match="finite"):
        rule.observe(np.array([np.inf]))


def test_noise_alone_asks_for_next_to_no_reach() -> None:
    rng, law = np.random.default_rng(1), cepam.Gaussian(0.1)
    rule = QuantizationRange(law, 30, 1.0)
    for _ in range(10):
        rule.observe(rng.normal(0.0, 0.1 * math.sqrt(30), 39_700))
    assert rule.value < 1.5 * 0.1 * math.sqrt(30)
    assert fit(law, 30, 39_700, rule.value, 600).bits == 7


def test_bits_follow_the_table_of_the_reach() -> None:
    """11,392 coordinates, clip 1, sigma = z: bits for measured and worst sums, K = 10, 30, 100, 1000."""
    for clients, reach, z, bits in (
        (10, 0.77, 1, 6),
        (30, 1.5, 1, 7),
        (100, 5.1, 1, 9),
        (1000, 24, 1, 12),
        (30, 30, 1, 9),
    ):
        assert fit(cepam.Gaussian(z / math.sqrt(clients)), clients, 11_392, reach).bits == bits


def test_doors_of_policy() -> None:
    good = {"noise_scale": 0.1, "clipping_norm": 1.0, "rounds": 5}
    for wrong in ({"noise_scale": 0}, {"clipping_norm": -1}, {"rounds": 0}, {"quorum": 2}, {"honest": 0},
                  {"colluders": -1}, {"divisor": -1.0}, {"divisor": 8.0}, {"records": -1}, {"records": 8.0},
                  {"record_sampling_rate": 0.0}, {"record_sampling_rate": 1.1}, {"epsilon": 0.0}, {"epsilon": "2"},
                  {"delta": 0.0}, {"delta": 1.0}, {"trust": "nobody"}, {"metrics": 1},
                  {"participants": 0}):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ClientPolicy(**{**good, **wrong})  # type: ignore[arg-type]


def test_unlike_records_are_charged_as_the_worst_client() -> None:
    """Five clients of 500 to 4,500 records, ten drawn by each: the smallest is drawn most, wherever it stands."""
    sizes = (4500, 500, 2500, 1500, 3500)
    clients = tuple(privacy.Client(cepam.Gaussian(0.05), many, 0.2) for many in sizes)
    mechanism = privacy.Mechanism(
        clients, cepam.L2(1.0), privacy.Sampling("poisson", 10), 50, 0, "add-remove", "example"
    )  # fmt: skip
    alike = privacy.Mechanism.uniform(
        5, cepam.Gaussian(0.05), cepam.L2(1.0), privacy.Sampling("poisson", 10), records=500, rounds=50,
        clipped="example", adjacency="add-remove",
    )  # fmt: skip
    found, worst = (epsilons(each, 1e-5, 4, 1) for each in (mechanism, alike))
    assert found == pytest.approx(worst, rel=1e-9)
