"""A plan: its noise meets the target, its mode fits who is trusted, and its words follow its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cepam.privacy import CohortMechanism, Federation, LocalMechanism, epsilon, explain, plan
from cepam.privacy.reports.page import impact_paragraph
from cepam.privacy.reports.planning import rounded_up

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
    assert len({made.mechanism.sampling_rate(j) for j in range(3)}) == 1
    assert made.batch == pytest.approx(sum(SITES) / 16)


def test_the_target_holds_against_colluders_where_asked() -> None:
    alone = plan(Federation(10_000, 2.0, records=SITES, rounds=50))
    other = plan(Federation(10_000, 2.0, records=SITES, rounds=50, colluders=1))
    ratio = other.mechanism.clients[0].law.scale / alone.mechanism.clients[0].law.scale
    assert ratio == pytest.approx((len(SITES) / (len(SITES) - 1)) ** 0.5, rel=1e-3)  # equal shares, one of them known
    assert epsilon(other.mechanism, other.federation.delta) <= 2.0
    assert epsilon(replace(alone.mechanism, colluders=1), alone.federation.delta) > 2.1


def test_sites_of_unlike_sizes_share_the_noise_evenly() -> None:
    """As in the engine: so no site's knowledge of its own noise counts for more than another's."""
    made = plan(Federation(10_000, 2.0, records=SITES, rounds=50)).mechanism
    parts = [each.weight * each.law.scale for each in made.clients]
    assert parts == pytest.approx([parts[0]] * len(SITES), rel=1e-12)


def test_words_follow_the_noise() -> None:
    quiet = plan(Federation(1000, 8.0, "client", clients=1_000_000, rounds=50))
    loud = plan(Federation(1_000_000, 1.0, "client", clients=12, rounds=50))
    assert "nearly the accuracy" in quiet.expectation
    assert "learns little" in loud.expectation


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
        ({"records": (5,) * 3, "colluders": 3}, "colluders must be from 0 to 2"),
        ({"records": (5,) * 2, "trust": "secure-aggregation"}, "at least 3"),
        ({"records": (5,) * 10, "trust": "secure-aggregation", "colluders": 6}, "colluders must be at most 5"),
    ],
)
def test_what_cannot_be_planned_is_refused(given: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Federation(1000, 2.0, **given)


def test_unlike_local_clients_stay_within_the_target() -> None:
    """The rounding of all clients is charged together: noise for the target itself would cost more."""
    made = plan(Federation(100_000, 2.0, records=(500, 500, 9000, 9000), rounds=200, trust="nobody"))
    assert 1.999 < made.epsilon <= 2.0
    assert made.aim is not None
    assert made.aim < 2.0


@pytest.mark.parametrize("scale", [0.0031272612345, 1.0, 9.9999999, 123456.5, 1e-7])
def test_noise_is_rounded_up_to_what_is_printed(scale: float) -> None:
    found = rounded_up(scale)
    assert scale <= found < scale * (1 + 2e-5)
    assert float(f"{found:.6g}") == found


def test_a_paragraph_names_weaker_observers_only() -> None:
    observers = {"outsider": 1.0, "one curious client": 1.5, "9 colluders": None, "server": None, "lying server": 3.0}
    said = impact_paragraph("record", 1.0, 1e-5, 10, "replace", "secure-aggregation", 0, observers)
    assert "Other participants: epsilon 1.5 (one curious client), no guarantee (9 colluders)." in said
    assert "lies about who dropped out: epsilon 3 (lying server)." in said
    assert "(outsider)" not in said
    blind = {"an adversary who sees participation": float("inf")}
    assert "no guarantee against an adversary who sees participation" in impact_paragraph(
        "client", 1.0, 1e-5, 10, "add-remove", "server", 0, blind
    )


def test_a_page_quotes_the_figure_at_the_quorum(tmp_path: Path) -> None:
    made = plan(Federation(12, 2.0, records=(2000,) * 10, rounds=20, trust="secure-aggregation"))
    rows = {"server, nobody dropped out": 1.7, "server, at the quorum of 8": 2.0, "lying server": 2.4}
    page = explain(made.mechanism, 1e-6, tmp_path / "page.html", observers=rows).read_text(encoding="utf-8")
    said = page[page.index("For a data-protection impact assessment") :]
    assert "for one record: epsilon 2 at delta" in said
    assert "epsilon 2.4 (lying server)" in said
