"""What-if tables: every row is the accountant's figure of the run that its words name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import cepam
from cepam import privacy
from cepam.privacy.reports.page import what_if

CLIP, DELTA = cepam.L2(1.0), 1e-5
RECORDS = privacy.Mechanism.uniform(
    8, cepam.Gaussian(0.05), CLIP, privacy.Sampling("poisson", 20.0), 1000, rounds=40, adjacency="add-remove",
    clipped="example",
)  # fmt: skip
SITES = privacy.LocalMechanism.of([500, 4000, 20_000], CLIP, 2.0, batch=64, rounds=4)
USERS = privacy.CohortMechanism.of(privacy.Cohort(10_000, 100.0), CLIP, 1.0, rounds=50, adjacency="add-remove")
STREAM = privacy.MatrixMechanism(
    (privacy.Client(cepam.Gaussian(9.0), 400, 0.25),) * 4, CLIP, link=privacy.CorrelatedNoise(decay=0.9, slices=4),
    rounds=12,
)  # fmt: skip


@pytest.mark.parametrize("mechanism", [RECORDS, SITES, USERS, STREAM])
def test_epsilon_moves_as_it_must(mechanism: privacy.Mechanism) -> None:
    now, *others = what_if(mechanism, DELTA)
    found = {each.change: each for each in others}
    assert now.epsilon == privacy.epsilon(mechanism, DELTA)
    assert now.noise == privacy.noise_ratio(mechanism).noise
    assert (
        found[f"{2 * mechanism.rounds:,} rounds"].epsilon
        > now.epsilon
        > found[f"{mechanism.rounds // 2:,} rounds"].epsilon
    )
    assert found["half the noise"].epsilon > now.epsilon > found["twice the noise"].epsilon
    assert found["twice the noise"].noise == pytest.approx(2.0 * now.noise)
    twice = found[f"{2 * mechanism.enrolled:,} clients"]
    assert twice.epsilon <= now.epsilon * (1.0 + 1e-3)
    assert math.isfinite(twice.epsilon)
    *_, smaller, larger = others
    assert (smaller.epsilon, larger.epsilon) == pytest.approx((now.epsilon / 2.0, 2.0 * now.epsilon), rel=1e-3)
    assert smaller.noise > now.noise > larger.noise


def test_other_clients_are_those_that_one_would_write_down() -> None:
    found = {each.change: each.epsilon for each in what_if(RECORDS, DELTA)}
    for many in (4, 16):
        made = replace(RECORDS, clients=(replace(RECORDS.clients[0], weight=1.0 / many),) * many)
        assert found[f"{many} clients"] == pytest.approx(privacy.epsilon(made, DELTA), rel=1e-3)
    cohort = privacy.CohortMechanism.of(privacy.Cohort(20_000, 100.0), CLIP, 1.0, rounds=50, adjacency="add-remove")
    found = {each.change: each.epsilon for each in what_if(USERS, DELTA)}
    assert found["20,000 clients"] == pytest.approx(privacy.epsilon(cohort, DELTA), rel=1e-2)


def test_changes_that_no_run_has_are_left_out() -> None:
    assert not any(each.change == "1 client" for each in what_if(SITES, DELTA))  # unlike: which one would stay?
    held = privacy.CorrelatedNoise(rows=((1.0,), (0.5, 1.0)), slices=1)
    short = replace(STREAM, link=held, rounds=2)
    assert [each.change for each in what_if(short, DELTA)][:3] == ["as it is", "1 round", "2 clients"]
