"""Noise inside local steps: one figure for every observer, against dp-accounting, and what calibrates it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import cepam
from cepam import privacy

SITES = (500, 1000, 2000, 3000, 5000, 8000, 12000, 20000)


def sites(multiplier: float, records: tuple[int, ...] = SITES, rounds: int = 50) -> privacy.LocalMechanism:
    return privacy.LocalMechanism.of(
        records, cepam.L2(1.0), noise_multiplier=multiplier, batch=64, epochs=5, rounds=rounds
    )


def test_steps_are_epochs_of_batches() -> None:
    assert sites(1.0).steps == tuple(5 * -(-n // 64) for n in SITES)
    assert sites(1.0).events_of(0) == 50 * 40
    assert privacy.steps_of(20000, 64, 5) == 1565


def test_epsilon_is_that_of_another_library() -> None:
    dp_event = pytest.importorskip("dp_accounting").dp_event
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    mechanism = sites(1.2, (500, 3000), 10)
    for client, records in enumerate((500, 3000)):
        oracle = pld.PLDAccountant()
        step = dp_event.PoissonSampledDpEvent(64 / records, dp_event.GaussianDpEvent(1.2))
        oracle.compose(step, 10 * privacy.steps_of(records, 64, 5))
        mine = privacy.epsilon(mechanism, 1e-6, client)
        assert mine == pytest.approx(oracle.get_epsilon(1e-6), rel=2e-3)
        event = privacy.to_dp_event(mechanism, client)
        assert event.count == 10 * privacy.steps_of(records, 64, 5)


def test_one_figure_for_outsider_server_and_all_others() -> None:
    mechanism = sites(1.2, (500, 3000), 10)
    figures = privacy.Accountant((mechanism,)).observers(1e-6)
    assert list(figures) == ["outsider", "server", "server with all other clients"]
    assert len(set(figures.values())) == 1
    assert figures["server"] == privacy.epsilon(mechanism, 1e-6)
    quiet = mechanism.with_noise([mechanism.clients[0].law.scale, 1e-3 * mechanism.clients[1].law.scale])
    assert privacy.epsilon(quiet, 1e-6, 0) == privacy.epsilon(mechanism, 1e-6, 0)  # others' noise is not counted
    rows = privacy.report(mechanism, 1e-6)
    assert [row.outsider for row in rows] == [row.colluding for row in rows]


def test_each_site_is_calibrated_by_itself() -> None:
    mechanism = sites(1.0, (500, 3000), 10)
    made = privacy.calibrate_each(mechanism, [3.0, 1.5], [1e-6, 1e-7])
    assert isinstance(made, privacy.LocalMechanism)
    for client, (target, delta) in enumerate(((3.0, 1e-6), (1.5, 1e-7))):
        assert 0.999 * target < privacy.epsilon(made, delta, client) <= target
    less = made.with_noise([0.97 * client.law.scale for client in made.clients])
    assert privacy.epsilon(less, 1e-6, 0) > 3.0


def test_roundings_count_a_client_s_own_steps() -> None:
    mechanism = replace(sites(1.2, (500, 3000), 10), coordinates=10_000)
    assert privacy.slack(mechanism).coordinates == 10_000 * mechanism.events_of(1)
    assert privacy.epsilon(mechanism, 1e-6) < 1.001 * privacy.epsilon(replace(mechanism, coordinates=None), 1e-6)


def test_a_accountant_of_local_rounds_is_saved_and_read() -> None:
    mechanism = sites(1.2, (500, 3000), 1)
    accountant = privacy.Accountant(configuration="c")
    for absent in ((), (), (0,)):
        accountant = accountant.add(mechanism.without(absent))
    again = privacy.Accountant(configuration="c").load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again == accountant
    assert again.epsilon(1e-6, 0) == privacy.epsilon(mechanism.over(2), 1e-6, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": (1,)}, "one count for each of 2"),
        ({"steps": (1, 0)}, "steps must be an integer"),
        ({"clipped": "update"}, "clips each example"),
        ({"sampling": privacy.Sampling("all")}, "draws by poisson"),
    ],
)
def test_what_it_is_not_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(sites(1.0, (500, 3000)), **changes)
