"""Missing replies cost nothing: the server brings their noise, for records and for whole clients.

Noise is judged at a false-alarm rate of 1e-9, each time beside a control that must fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cepam import fl
from cepam.fl import Dataset, Settings, Simulation
from cepam.fl.aggregation.trusted_server import aggregate, receive
from cepam.keys import Address
from cepam.lattices.lattice import E8, Lattice
from cepam.privacy import Accountant, CohortMechanism, server_noise
from tests.fl.resuming import assert_resumed_like_whole

FALSE_ALARMS = 1e-9
RECORDS = fl.Settings.of(
    {
        "data.name": "synthetic",
        "model.name": "linear",
        "clients.count": 6,
        "training.rounds": 3,
        "training.local_steps": 1,
        "training.update": "examples",
        "training.record_sampling": "poisson",
        "training.expected_batch_size": 60.0,
        "privacy.clipping_norm": 0.5,
        "privacy.epsilon": 3.0,
        "run.simulate": True,
        "data.partition": "unequal",
    }
)
CLIENTS = fl.Settings.of(
    {
        "data.name": "synthetic",
        "model.name": "linear",
        "clients.count": 100,
        "clients.sampling_rate": 0.2,
        "clients.sampling": "poisson",
        "privacy.unit": "client",
        "training.update": "difference",
        "training.record_sampling": "all",
        "training.local_steps": 2,
        "training.rounds": 4,
        "privacy.clipping_norm": 0.5,
        "privacy.epsilon": 8.0,
        "run.simulate": True,
        "privacy.adjacency": "add-remove",
    }
)


def finished(simulation: Simulation) -> list[dict[str, Any]]:
    lines = []
    while not simulation.done:
        lines += simulation.step()
    return lines


@pytest.mark.parametrize(
    "settings", [RECORDS, CLIENTS, CLIENTS.updated({"clients.sampling": "fixed"})], ids=["records", "poisson", "fixed"]
)
def test_dropouts_of_30_percent_cost_exactly_nothing(small: Dataset, settings: Settings) -> None:
    whole, torn = Simulation(settings, small), Simulation(settings.updated({"clients.dropout_rate": 0.3}), small)
    ours, theirs = finished(torn), finished(whole)
    assert sum(line["replies"] for line in ours) < sum(line["replies"] for line in theirs)
    assert [line["epsilon"] for line in ours] == [line["epsilon"] for line in theirs]
    assert torn.views() == whole.views()
    assert ours[-1]["epsilon"] <= settings.privacy.epsilon


def noise_of(simulation: Simulation, rounds: int, top_up: bool = True) -> np.ndarray:
    """What the uplink makes of updates of zero, in units of the noise that it states."""
    aggregator, made = simulation.aggregators[0], []
    for number in range(rounds):
        asked = [int(k) for k in aggregator.sampled(number)]
        raw = np.zeros((len(asked), simulation.size), np.float32)
        if top_up:
            made.append(aggregator.collect(number, asked, raw).aggregate)
        else:
            sent, _ = aggregator.senders.send(number, asked, raw)
            came = receive(simulation.arrays, aggregator.plans, [envelope for envelope, _ in sent], simulation.size)
            made.append(aggregate(simulation.arrays, aggregator.plans, came, simulation.size))
    return np.stack(made).astype(np.float64)


def judged(values: np.ndarray) -> float:
    """The smaller of two chances to look so little like independent N(0, 1): by the spread, and by the whole law."""
    flat = values.ravel()
    power = float(np.square(flat).sum())
    tail = 2 * min(stats.chi2.cdf(power, flat.size), stats.chi2.sf(power, flat.size))
    return min(tail, float(stats.kstest(flat, "norm").pvalue))


@pytest.mark.parametrize("settings", [RECORDS, CLIENTS], ids=["records", "clients"])
def test_the_noise_of_an_aggregate_is_the_same_whoever_drops_out(small: Dataset, settings: Settings) -> None:
    simulation = Simulation(settings.updated({"clients.dropout_rate": 0.3}), small)
    stated = simulation.aggregators[0].noise
    values = noise_of(simulation, rounds=4) / stated
    assert judged(values) > FALSE_ALARMS
    # Control: the replies' own noise alone, divided by the replies, is not of this law.
    assert judged(noise_of(simulation, rounds=4, top_up=False) / stated) < FALSE_ALARMS
    # Rounds share no noise: their correlations are those of independent vectors.
    together = np.corrcoef(values)[np.triu_indices(4, 1)] * np.sqrt(simulation.size)
    assert np.abs(together).max() < stats.norm.isf(FALSE_ALARMS / 12)


@pytest.mark.parametrize(
    ("settings", "module"),
    [(RECORDS, "privacy.cohorts.dropouts"), (CLIENTS, "fl.aggregation.cohorts")],
    ids=["records", "clients"],
)
def test_the_servers_noise_lies_on_the_lattice_that_is_charged(
    small: Dataset, settings: Settings, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, Lattice]] = []

    def watched(sigma: float, coordinates: int, at: Address, lattice: Lattice) -> np.ndarray:
        seen.append((sigma, lattice))
        return server_noise(sigma, coordinates, at, lattice)

    monkeypatch.setattr(f"cepam.{module}.server_noise", watched)
    simulation = Simulation(settings.updated({"compression.lattice": "E8", "clients.dropout_rate": 0.5}), small)
    aggregator = simulation.aggregators[0]
    assert aggregator.mechanism is not None
    assert {client.lattice for client in aggregator.mechanism.clients} == {E8}
    asked = [int(k) for k in aggregator.sampled(0)]
    came = aggregator.collect(0, asked, np.zeros((len(asked), simulation.size), np.float32))
    missing = [k for k in asked if k not in came.heard]
    assert {lattice for _, lattice in seen} == {E8}
    assert 0 < len(seen) <= len(missing)  # no more vectors than are charged


def test_the_sum_is_divided_by_the_expected_cohort(small: Dataset) -> None:
    settings = CLIENTS.updated(
        {
            "privacy.noise_scale": 1e-6,
            "privacy.epsilon": None,
            "clients.dropout_rate": 0.3,
            "privacy.clipping_norm": 10.0,
        }
    )
    simulation = Simulation(settings, small)
    aggregator = simulation.aggregators[0]
    asked = [int(k) for k in aggregator.sampled(0)]
    came = aggregator.collect(0, asked, np.full((len(asked), simulation.size), 0.01, np.float32))
    assert len(came.heard) < len(asked)
    np.testing.assert_allclose(came.aggregate, 0.01 * len(came.heard) / 20.0, atol=1e-5)


def test_more_than_the_cap_are_never_asked(small: Dataset) -> None:
    aggregator = Simulation(
        CLIENTS.updated({"clients.max_cohort": 22, "privacy.epsilon": None, "privacy.noise_scale": 1.0}), small
    ).aggregators[0]
    sizes = [len(aggregator.sampled(number)) for number in range(200)]
    assert max(sizes) == 22
    assert min(sizes) < 20
    assert isinstance(aggregator.mechanism, CohortMechanism)
    assert aggregator.mechanism.exceeded > 0


def test_a_client_is_asked_as_often_as_it_may(small: Dataset) -> None:
    simulation = Simulation(CLIENTS.updated({"clients.max_participations": 1, "training.rounds": 12}), small)
    asked: list[int] = []
    for number in range(12):
        now = [int(k) for k in simulation.aggregators[0].sampled(number)]
        simulation.aggregators[0].collect(number, now, np.zeros((len(now), simulation.size), np.float32))
        asked += now
    assert len(asked) == len(set(asked)) > 80
    free = Simulation(CLIENTS.updated({"training.rounds": 12}), small)
    seen = [int(k) for number in range(12) for k in free.aggregators[0].sampled(number)]
    assert len(seen) > len(set(seen))


def test_every_client_is_as_likely_as_the_others(small: Dataset) -> None:
    aggregator = Simulation(CLIENTS, small).aggregators[0]
    counts = np.zeros(100)
    for number in range(500):
        counts[aggregator.sampled(number)] += 1
    spread = np.square(counts - 100.0).sum() / 80.0  # binomial(500, 1/5) of each client
    assert FALSE_ALARMS < stats.chi2.sf(spread, 100) < 1 - FALSE_ALARMS


def test_the_books_are_those_of_the_accountant(small: Dataset) -> None:
    simulation = Simulation(CLIENTS, small)
    finished(simulation)
    mechanism = simulation.aggregators[0].mechanism
    assert isinstance(mechanism, CohortMechanism)
    assert simulation.aggregators[0].accountant.mechanisms == (mechanism.over(4),)
    views = Accountant((mechanism.over(4),)).observers(CLIENTS.privacy.delta)
    assert simulation.views() == {who: value if np.isfinite(value) else None for who, value in views.items()}
    (told,) = [text for text in simulation.warnings if "whole clients" in text]
    assert "against an adversary who sees participation" in told


def test_empty_cohorts_publish_noise_and_are_charged(small: Dataset) -> None:
    simulation = Simulation(
        CLIENTS.updated(
            {"clients.sampling_rate": 0.001, "training.rounds": 3, "privacy.epsilon": None, "privacy.noise_scale": 0.1}
        ),
        small,
    )
    lines = finished(simulation)
    assert min(line["replies"] for line in lines) == 0
    assert simulation.aggregators[0].accountant.rounds == 3
    assert np.isfinite(simulation.state.weights).all()


@pytest.mark.parametrize(
    "settings", [RECORDS, CLIENTS.updated({"clients.max_participations": 2})], ids=["records", "clients"]
)
def test_killed_and_resumed_is_the_whole_run(small: Dataset, settings: Settings, tmp_path: Path) -> None:
    assert_resumed_like_whole(settings.updated({"clients.dropout_rate": 0.3}), small, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients.dropout_handling": "charge"}, "dropout_handling must be compensate"),
        ({"training.update": "examples", "training.record_sampling": "poisson"}, "whole update"),
        ({"privacy.clip_scope": "tensor"}, "whole vector"),
        ({"compression.scheme": "cepam-laplace", "privacy.norm_type": "l1"}, "Gaussian"),
        ({"clients.overrides": (fl.ClientOverride((0,), noise_scale=1.0),)}, "one noise"),
        ({"clients.max_participations": 0}, "participations"),
        ({"clients.sampling": "fixed", "clients.max_cohort": 30}, "max_cohort"),
    ],
)
def test_what_does_not_go_with_whole_clients_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CLIENTS.updated(changes)


def test_cohorts_are_of_whole_clients() -> None:
    with pytest.raises(ValueError, match="unit client"):
        RECORDS.updated({"clients.sampling": "poisson"})
    with pytest.raises(ValueError, match="Gaussian"):
        fl.Settings.of(
            {
                "compression.scheme": "cepam-laplace",
                "privacy.noise_scale": 1.0,
                "clients.dropout_handling": "compensate",
            }
        )
