from __future__ import annotations

import threading

import numpy as np
import pytest

from cepam._internal import prefetch as ahead
from cepam.fl import Dataset, Settings, Simulation
from cepam.fl.aggregation import trusted_server as server_aggregator
from cepam.fl.aggregation.accounting import foresee
from cepam.fl.clients import sampling as draws
from cepam.fl.clients.sampling import RunSecret
from cepam.privacy import Mechanism
from cepam.privacy.composition import accountant as accountant
from cepam.privacy.composition import losses as composition
from tests.fl.models.plain import algorithm_1, gradient


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.local_momentum": 0.5, "data.partition": "dirichlet", "training.batch_size": 3},
        {"training.schedule": "theorem", "training.convexity": 0.5, "training.smoothness": 4.0},
        {"compression.scheme": "fl", "privacy.noise_scale": None, "privacy.clipping_norm": 1e-3},
        {"compression.lattice": "Z2", "training.local_steps": 1, "training.local_learning_rate": 0.01},
        {"run.device": "cpu-torch"},
    ],
)
def test_agrees_with_plain_algorithm_1(small: Dataset, quick: Settings, changes: dict) -> None:
    """Tolerance: a codec's output moves by a grid step or a quantizer's cell where an update moves by a rounding."""
    settings = quick.updated(changes)
    simulation = Simulation(settings, small)
    for _ in range(settings.training.rounds):
        simulation.step()
    plain = algorithm_1(settings, small, simulation, settings.training.rounds)
    difference = np.abs(simulation.state.weights[0] - plain)
    assert difference.mean() < 2e-6
    assert difference.max() < 5e-3


def test_examples_are_record_level_dp_sgd(small: Dataset, quick: Settings) -> None:
    settings = quick.updated(
        {
            "training.update": "examples",
            "training.record_sampling": "poisson",
            "training.expected_batch_size": 40.0,
            "training.local_steps": 1,
            "privacy.clipping_norm": 0.5,
            "privacy.noise_scale": 0.01,
            "compression.scheme": "fl+gaussian",
        }
    )
    simulation = Simulation(settings, small)
    start, parts = simulation.state.weights[0].copy(), simulation.work.parts[0]
    drawn = draws.poisson(simulation.rows[0], 0, np.array([len(p) for p in parts]), 40 / 600)
    total = np.zeros_like(start)
    for part, places in zip(parts, drawn):
        for record in part[places]:
            slope = gradient(simulation.vector.module, small, start, np.array([record]))
            total += slope * min(1.0, 0.5 / float(np.linalg.norm(slope)))
    raw, _ = simulation.work.updates(
        simulation.state.weights, 0, [(0, k) for k in range(4)], np.full(4, 0.5, np.float32)
    )
    weights = [plan.weight for plan in simulation.aggregators[0].plans]
    np.testing.assert_allclose(np.average(raw, axis=0, weights=weights), total / 40, atol=1e-5)


def test_difference_is_fedavg(small: Dataset, quick: Settings) -> None:
    settings = quick.updated(
        {
            "training.update": "difference",
            "compression.scheme": "fl",
            "privacy.noise_scale": None,
            "privacy.norm_type": "none",
            "training.server_learning_rate": 1.0,
            "training.local_learning_rate": 0.1,
        }
    )
    simulation = Simulation(settings, small)
    start = simulation.state.weights.copy()
    rows = [(0, k) for k in range(4)]
    raw, _ = simulation.work.updates(start, 0, rows, np.full(4, np.inf, np.float32))
    local, _ = simulation.work._trained(start[[0] * 4], 0, rows, *simulation.work._steps(0, rows))
    simulation.step()
    np.testing.assert_allclose(simulation.state.weights[0], local.mean(0), atol=1e-6)
    np.testing.assert_allclose(raw, start - local, atol=1e-7)


def test_seeds_side_by_side_are_the_single_runs(small: Dataset, quick: Settings) -> None:
    nonce = RunSecret(None, b"one nonce")
    together = Simulation(quick.updated({"run.seed": 5, "run.seeds": 2}), small, secret=nonce)
    alone = [Simulation(quick.updated({"run.seed": seed}), small, secret=nonce) for seed in (5, 6)]
    for simulation in alone:
        simulation.step()
    together.step()
    for s, simulation in enumerate(alone):
        np.testing.assert_allclose(together.state.weights[s], simulation.state.weights[0], atol=1e-6)


def test_two_runs_are_identical(small: Dataset, quick: Settings) -> None:
    first, second = Simulation(quick, small), Simulation(quick, small)
    lines = [[simulation.step() for _ in range(3)] for simulation in (first, second)]
    assert lines[0] == lines[1]
    np.testing.assert_array_equal(first.state.weights, second.state.weights)


def test_garbage_is_dropped_with_a_reason(small: Dataset, quick: Settings) -> None:
    simulation = Simulation(quick.updated({"clients.byzantine": (2,), "clients.dropout_handling": "charge"}), small)
    line = simulation.step()[0]
    assert line["replies"] == 3
    assert list(line["dropped"]) == ["2"]
    assert line["dropped"]["2"].strip()
    assert [(r.absent, r.rounds) for r in simulation.aggregators[0].accountant.mechanisms] == [({2}, 1)]


def test_dropouts_charge_or_wait(small: Dataset, quick: Settings) -> None:
    quick = quick.updated({"privacy.noise_scale": 2.0})
    charge = Simulation(
        quick.updated({"clients.dropout_rate": 0.5, "training.rounds": 6, "clients.dropout_handling": "charge"}), small
    )
    lines = [charge.step()[0] for _ in range(6)]
    assert min(line["replies"] for line in lines) < 4
    full = Simulation(quick.updated({"training.rounds": 6}), small)
    for _ in range(6):
        last = full.step()[0]
    assert lines[-1]["epsilon"] is not None
    wait = Simulation(
        quick.updated({"clients.dropout_rate": 0.5, "training.rounds": 6, "clients.dropout_handling": "wait"}), small
    )
    waited = [wait.step()[0] for _ in range(6)]
    assert {line["replies"] for line in waited} == {4}
    assert sum(line.get("waits", 0) for line in waited) > 0
    assert waited[-1]["epsilon"] == pytest.approx(last["epsilon"])


def test_fewer_clients_are_asked(small: Dataset, quick: Settings) -> None:
    simulation = Simulation(quick.updated({"clients.sampling_rate": 0.5}), small)
    assert {simulation.step()[0]["replies"] for _ in range(3)} == {2}


def test_a_client_that_diverged_sends_zeros_with_their_noise(small: Dataset, quick: Settings) -> None:
    simulation = Simulation(quick.updated({"training.server_learning_rate": 1e30, "training.rounds": 9}), small)
    lines = [simulation.step()[0] for _ in range(3)]
    assert {line["replies"] for line in lines} == {4}
    assert not any("dropped" in line for line in lines)


def test_own_channel_and_model(small: Dataset, quick: Settings) -> None:
    from torch import nn

    from cepam.fl import Model

    class Doubling:
        def encode(self, update, at):
            return (2 * update).tobytes()

        def decode(self, message, at):
            return np.frombuffer(message, dtype=np.float32)

    model = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    simulation = Simulation(quick, small, model, codecs=lambda client: Doubling())
    line = simulation.step()[0]
    assert line["bits"] == 4 * 32 * model.size
    assert line["snr_db"] == pytest.approx(0.0, abs=1e-6)
    assert line["epsilon"] is None


@pytest.mark.parametrize(
    "scheme", ["fl", "fl+sdq", "fl+gaussian", "fl+laplace", "fl+gaussian+sdq", "fl+laplace+sdq", "cepam-laplace"]
)
def test_every_scheme_makes_bytes(small: Dataset, quick: Settings, scheme: str) -> None:
    noisy = "gaussian" in scheme or "laplace" in scheme
    simulation = Simulation(
        quick.updated({"compression.scheme": scheme, "privacy.noise_scale": 2.0 if noisy else None}), small
    )
    seen: list[int] = []
    simulation.watch = lambda sent: seen.extend(8 * len(e.message) for e in sent.envelopes)
    line = simulation.step()[0]
    assert line["bits"] == sum(seen) > 0
    assert line["replies"] == 4
    assert (line["epsilon"] is None) == (not noisy)


@pytest.mark.parametrize("lattice", ["Z2", "Z3", "A2", "D4", "E8"])
def test_every_lattice_carries_the_same_noise(small: Dataset, quick: Settings, lattice: str) -> None:
    line = Simulation(quick.updated({"compression.lattice": lattice}), small).step()[0]
    reference = Simulation(quick, small).step()[0]
    assert line["snr_db"] == pytest.approx(reference["snr_db"], abs=0.3)


def test_what_a_run_will_spend_is_foreseen(quick: Settings, small: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epsilons that a thread computes ahead are those that the run asks for: nothing is computed twice.

    But for the rough figures by observer that the page of a run shows before its end.
    """
    views = Simulation.views
    monkeypatch.setattr(Simulation, "views", lambda self, rough=False: {} if rough else views(self))
    quick = quick.updated({"privacy.noise_scale": 0.5})
    simulation = Simulation(quick, small)
    mechanism = simulation.aggregators[0].mechanism
    assert mechanism is not None
    foresee(quick, mechanism)
    known = accountant._remembered.cache_info().misses
    while not simulation.done:
        lines = simulation.step()
    assert lines[0]["epsilon"] == pytest.approx(simulation.views()["outsider"], rel=1e-3)
    assert accountant._remembered.cache_info().misses == known


def forget_figures() -> None:
    for kept in (accountant._remembered, composition._composed, composition.discretize):
        kept.cache_clear()


def test_what_was_foreseen_in_part_changes_no_figure(
    quick: Settings, small: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends gives the thread up: wherever that is, what the thread has kept is right."""
    begun = threading.Event()

    def foresee_without_end(settings: Settings, mechanism: Mechanism) -> None:
        while True:
            forget_figures()
            foresee(settings, mechanism)
            begun.set()

    monkeypatch.setattr(server_aggregator, "foresee", foresee_without_end)
    quick = quick.updated({"privacy.noise_scale": 0.5})
    before = set(ahead._STARTED)
    mechanism = Simulation(quick, small).aggregators[0].mechanism
    assert mechanism is not None
    assert begun.wait(60)
    (thread,) = set(ahead._STARTED) - before
    ahead.give_up(thread)
    assert not thread.is_alive()
    whole = accountant.Accountant().add(mechanism.over(quick.training.rounds))
    found = whole.running(quick.privacy.delta, quick.training.rounds), whole.observers(quick.privacy.delta)
    forget_figures()
    assert found == (whole.running(quick.privacy.delta, quick.training.rounds), whole.observers(quick.privacy.delta))
