"""A plan: its noise meets the target, its mode fits who is trusted, and its words follow its figures."""

from __future__ import annotations

import pytest

from cepam.privacy import CohortMechanism, Federation, LocalMechanism, epsilon, plan

SITES = (500, 4000, 20000)


@pytest.mark.parametrize(
    ("federation", "mode"),
    [
        (Federation(10_000, 2.0, records=SITES, rounds=50), "per-example"),
        (Federation(10_000, 2.0, records=SITES, rounds=50, trust="nobody"), "local-dp-sgd"),
        (Federation(10_000, 2.0, clients=40, records=(2000,), trust="secure-aggregation", rounds=50), "per-example"),
        (Federation(10_000, 4.0, "client", clients=100_000, rounds=50), "client-sampling"),
        (Federation(10_000, 4.0, "client", clients=12, rounds=50), "all-clients"),
        (Federation(10_000, 4.0, "client", clients=12, rounds=50, trust="secure-aggregation"), "all-clients"),
    ],
)
def test_the_noise_meets_the_target(federation: Federation, mode: str) -> None:
    made = plan(federation)
    assert made.mode == mode
    assert 0.99 * federation.epsilon < made.epsilon <= federation.epsilon
    assert epsilon(made.mechanism, federation.delta) <= federation.epsilon
    assert made.mechanism.unit == federation.unit
    assert made.rounding_charged
    kinds = {"local-dp-sgd": LocalMechanism, "client-sampling": CohortMechanism}
    assert isinstance(made.mechanism, kinds.get(mode, object))
    assert "times the largest update" in made.expectation


def test_records_are_drawn_alike_whoever_holds_them() -> None:
    made = plan(Federation(10_000, 2.0, records=SITES, rounds=50))
    assert len({made.mechanism.chance(j) for j in range(3)}) == 1
    assert made.batch == pytest.approx(sum(SITES) / 16)


def test_the_target_holds_against_colluders_where_asked() -> None:
    alone = plan(Federation(10_000, 2.0, records=SITES, rounds=50))
    other = plan(Federation(10_000, 2.0, records=SITES, rounds=50, colluders=1))
    assert other.mechanism.clients[0].law.scale > 1.5 * alone.mechanism.clients[0].law.scale
    assert epsilon(other.mechanism, other.federation.delta) <= 2.0


def test_words_follow_the_noise() -> None:
    quiet = plan(Federation(1000, 8.0, "client", clients=1_000_000, rounds=50))
    loud = plan(Federation(1_000_000, 1.0, "client", clients=12, rounds=50))
    assert "nearly the accuracy" in quiet.expectation
    assert "learns little" in loud.expectation
    assert 0 < quiet.least_bytes < 4000


def test_delta_is_well_under_one_over_the_units() -> None:
    assert Federation(10, 1.0, records=SITES).delta == 1e-6
    assert Federation(10, 1.0, "client", clients=1000).delta == pytest.approx(1e-4)
    assert Federation(10, 1.0, "client", clients=1000, delta=1e-7).delta == 1e-7


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"clients": 3}, "records is needed"),
        ({"records": (1, 2), "clients": 3}, "records must give"),
        ({"unit": "client"}, "clients must be"),
        ({"unit": "client", "clients": 9, "trust": "nobody"}, "secure aggregation"),
        ({"records": (5,), "trust": "no one"}, "trust one of"),
    ],
)
def test_what_cannot_be_planned_is_refused(given: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Federation(1000, 2.0, **given)
