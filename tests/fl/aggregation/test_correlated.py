"""Runs without secret draws: slices in turn, streams, absences, the account, and what a checkpoint holds of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepam.fl import Dataset, Settings, Simulation, train
from cepam.fl.aggregation.correlated import CorrelatedNoiseAggregator
from cepam.fl.clients import sampling
from cepam.fl.clients.sampling import RunSecret, link_of
from cepam.fl.runs import checkpoint
from cepam.privacy import MatrixMechanism, ObservedParticipation, best_decay, epsilon
from tests.fl.runs.test_resume import stopped

SLICES, ROUNDS = 3, 8


@pytest.fixture
def cyclic() -> Settings:
    return Settings.of(
        {
            "data.name": "synthetic",
            "clients.count": 4,
            "training.rounds": ROUNDS,
            "training.local_steps": 1,
            "model.name": "linear",
            "training.update": "examples",
            "training.record_sampling": "cyclic",
            "training.slices": SLICES,
            "privacy.noise_correlation": "matrix",
            "privacy.clipping_norm": 0.1,
            "training.server_learning_rate": 0.5,
            "privacy.epsilon": 2.0,
            "privacy.delta": 1e-4,
            "training.server_optimizer": "momentum",
            "training.schedule": "linear",
            "privacy.adjacency": "add-remove",
            "run.simulate": True,
        }
    )


def aggregator_for(simulation: Simulation) -> CorrelatedNoiseAggregator:
    found = simulation.aggregators[0]
    assert isinstance(found, CorrelatedNoiseAggregator)
    return found


def run(settings: Settings, data: Dataset, before: Callable[[Simulation], Any] = lambda _: None) -> Simulation:
    simulation = Simulation(settings, data)
    before(simulation)
    while not simulation.done:
        simulation.step()
    return simulation


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"clients.dropout_rate": 0.3},
        {"training.update": "difference", "training.local_steps": 2, "training.batch_size": 4},
    ],
)
def test_the_server_undoes_what_the_clients_shape(small: Dataset, cyclic: Settings, more: dict) -> None:
    """Without noise, whatever is carried: the same weights. A server that undoes 1 % less ends elsewhere."""
    silent = cyclic.updated({"compression.scheme": "fl", "privacy.epsilon": None, **more})
    plain = run(silent.updated({"privacy.noise_correlation": "independent"}), small)
    carried = run(silent.updated({"privacy.decay": 0.9}), small)
    np.testing.assert_allclose(carried.state.weights, plain.state.weights, atol=2e-6)

    def less(simulation: Simulation) -> None:
        aggregator = aggregator_for(simulation)
        wrong = replace(aggregator.link, decay=0.99 * 0.9)
        aggregator.receivers = tuple(wrong.receiver(simulation.size) for _ in aggregator.plans)

    wrong = run(silent.updated({"privacy.decay": 0.9}), small, less)
    assert np.abs(wrong.state.weights - plain.state.weights).max() > 1e-5


def test_the_aggregate_is_the_mean_update_and_noise_that_cancels(small: Dataset, cyclic: Settings) -> None:
    """Of each message the codec adds noise of its own; of the aggregate it is z_t less the decay times z_(t-1)."""
    simulation, kept = Simulation(cyclic, small), []

    def powers(updates: list, vectors: list) -> tuple[float, float]:
        kept.append(np.mean([np.asarray(v, np.float64) - u for u, v in zip(updates, vectors)], axis=0))
        return 1.0, 1.0

    simulation.arrays.powers = powers  # type: ignore[method-assign]
    aggregator, seen = aggregator_for(simulation), []
    collect = aggregator.collect

    def watching(number: int, clients: list[int], raw: Any) -> Any:
        seen.append((np.mean(raw, axis=0), collect(number, clients, raw)))
        return seen[-1][1]

    aggregator.collect = watching  # type: ignore[method-assign]
    for _ in range(3):
        simulation.step()
    noise = [came.aggregate - update for update, came in seen]
    decay = aggregator.link.decay
    assert decay > 0.4
    np.testing.assert_allclose(noise[0], kept[0], atol=1e-7)
    np.testing.assert_allclose(noise[2], kept[2] - decay * kept[1], atol=1e-7)
    scale = aggregator.plans[0].law.scale  # type: ignore[union-attr]
    assert np.std(kept[1]) == pytest.approx(scale / 2, rel=0.05)  # four clients; 7,850 coordinates: five deviations


def test_slices_are_taken_in_turn_and_an_absent_client_misses_none(small: Dataset, cyclic: Settings) -> None:
    settings = cyclic.updated({"clients.dropout_rate": 0.4, "privacy.epsilon": None, "privacy.noise_scale": 0.05})
    simulation, used = Simulation(settings, small), []
    aggregator = aggregator_for(simulation)
    while not simulation.done:
        before = [stream.position for stream in aggregator.streams]
        drawn = aggregator.drawn(simulation.state.round, range(4)).places
        simulation.step()
        used.append([d if s.position > b else None for d, s, b in zip(drawn, aggregator.streams, before)])
    silent = np.array([sampling.silent(simulation.rows[0], t, 0, 4, 0.4) for t in range(ROUNDS)])
    assert 0 < silent.sum() < silent.size
    for k in range(4):
        mine = [round[k] for round in used]
        assert [one is None for one in mine] == silent[:, k].tolist()
        for i, places in enumerate(one for one in mine if one is not None):
            np.testing.assert_array_equal(places, np.arange(i % SLICES, aggregator.row.held[k], SLICES))
    mechanism = aggregator.accountant.mechanisms[0]
    assert isinstance(mechanism, MatrixMechanism)
    assert mechanism.observed_participation == ObservedParticipation.observed(~silent.T)


def test_a_record_more_moves_no_other_to_another_slice(cyclic: Settings, small: Dataset) -> None:
    aggregator = aggregator_for(Simulation(cyclic, small))
    before = aggregator.drawn(0, [0])
    aggregator.row.held[0] += 1
    after = aggregator.drawn(0, [0])
    assert set(before.places[0]) <= set(after.places[0])


def test_the_run_is_one_event_and_ends_at_its_target(small: Dataset, cyclic: Settings) -> None:
    simulation = run(cyclic, small)
    aggregator = aggregator_for(simulation)
    rates = [0.5 * min(1.0, 2.0 * (1.0 - t / ROUNDS)) for t in range(ROUNDS)]
    assert aggregator.link == link_of(cyclic)
    assert aggregator.link.decay == pytest.approx(best_decay(ROUNDS, SLICES, 0.9, rates))
    mechanism = aggregator.mechanism
    assert isinstance(mechanism, MatrixMechanism)
    found = simulation.views()
    assert found["outsider"] == pytest.approx(2.0, rel=1e-4) == epsilon(mechanism.over(ROUNDS), 1e-4)
    assert found["outsider"] < found["one curious client"] < found["3 colluders"]
    assert any("no draw is secret: 3 fixed slices" in said for said in simulation.warnings)
    apart = run(cyclic.updated({"privacy.noise_correlation": "independent"}), small)
    assert apart.views()["outsider"] == pytest.approx(2.0, rel=1e-4)
    assert aggregator_for(apart).link.decay == 0.0


def test_absences_are_charged_and_refused_where_they_break_a_target(small: Dataset, cyclic: Settings) -> None:
    stated = cyclic.updated({"privacy.epsilon": None, "privacy.noise_scale": 0.05, "clients.dropout_rate": 0.3})
    simulation = Simulation(stated, small)
    (foreseen,) = [said for said in simulation.warnings if "dropout_handling charge" in said]
    simulation = run(stated, small)
    assert f"epsilon {simulation.views()['outsider']:.4g} with these absences" in foreseen
    waited = run(stated.updated({"clients.dropout_handling": "wait"}), small)
    assert waited.views()["outsider"] == pytest.approx(epsilon(aggregator_for(waited).mechanism.over(ROUNDS), 1e-4))  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"would end at epsilon .* above the target 2: .*dropout_handling wait"):
        Simulation(cyclic.updated({"clients.dropout_rate": 0.1}), small)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_stopped_and_resumed_is_bit_identical(tmp_path: Path, small: Dataset, cyclic: Settings, dropout: float) -> None:
    settings = cyclic.updated(
        {
            "run.checkpoint_every": 3,
            "run.keep_messages": True,
            "clients.dropout_rate": dropout,
            "compression.downlink": "quantized",
            "privacy.epsilon": None,
            "privacy.noise_scale": 0.05,
        }
    )
    stopped(settings, tmp_path / "stopped", small, 5)
    train(settings, tmp_path / "stopped", small, resume=True)
    train(settings, tmp_path / "whole", small)
    files = [
        sorted(p.relative_to(tmp_path / name) for p in (tmp_path / name).rglob("*.bin"))
        for name in ("stopped", "whole")
    ]
    assert files[0] == files[1]
    assert len(files[0]) > 4 * ROUNDS // 2
    for name in (*files[0], Path("metrics.jsonl")):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_checkpoint_shows_no_stream_without_the_secret(tmp_path: Path, small: Dataset, cyclic: Settings) -> None:
    """A sender's memory is raw updates: a checkpoint shows no number of it, and opens under the run's secret."""
    simulation = Simulation(cyclic.updated({"run.simulate": False}), small)
    simulation.step()
    checkpoint.save(simulation, tmp_path, 0)
    (tmp_path / "metrics.jsonl").touch()
    held = [end.state_dict()["memory"] for _, end in aggregator_for(simulation)._ends()]
    raw = (tmp_path / "checkpoint.npz").read_bytes()
    known = {value.tobytes() for memory in held for value in np.unique(memory) if value != 0.0}
    assert len(known) > 1000
    assert not any(value in raw for value in list(known)[:1000])
    with pytest.raises(ValueError, match="is damaged"):
        checkpoint.latest(tmp_path, RunSecret.fresh().checkpoint_key())
    assert simulation.secret is not None
    found = checkpoint.latest(tmp_path, simulation.secret.checkpoint_key())
    assert found is not None
    assert all(memory.tobytes() in found.content for memory in held if memory.size)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"training.record_sampling": "without", "training.update": "gradient"},
            "noise_correlation matrix needs training.record_sampling cyclic",
        ),
        ({"privacy.noise_correlation": "independent", "privacy.decay": 0.5}, "privacy.decay needs"),
        ({"privacy.decay": 1.0}, r"privacy.decay must lie in \[0, 1\)"),
        ({"compression.scheme": "cepam-laplace"}, "Gaussian"),
        ({"clients.sampling_rate": 0.5}, "sampling_rate must be 1"),
        ({"clients.byzantine": (1,)}, "byzantine"),
        ({"training.slices": 0}, "slices"),
    ],
)
def test_doors(cyclic: Settings, changes: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cyclic.updated(changes)


def test_clients_need_a_record_for_each_slice(small: Dataset, cyclic: Settings) -> None:
    with pytest.raises(ValueError, match=r"at least training\.slices = 400 records"):
        Simulation(cyclic.updated({"training.slices": 400}), small)


def test_the_papers_coder_reaches_what_a_stream_adds_up(small: Dataset, cyclic: Settings) -> None:
    codec = (
        aggregator_for(Simulation(cyclic.updated({"compression.coder": "paper", "privacy.decay": 0.75}), small))
        .plans[0]
        .codec
    )
    held = aggregator_for(Simulation(cyclic, small)).row.held[0]
    longest = np.ceil(held / SLICES) / (held / SLICES)
    assert codec.bound == pytest.approx(longest * 0.1 / (1 - 0.75))  # type: ignore[attr-defined]
