"""Large populations: what a round keeps and does is in proportion to the cohort, not to the population."""

from __future__ import annotations

import tracemalloc

import numpy as np

from cepam import fl
from cepam.fl.aggregation.cohorts import cohort_of
from cepam.fl.aggregation.downlink import GridDownlink
from cepam.fl.clients import sampling
from cepam.fl.clients.sampling import Randomness
from cepam.fl.data.partition import Parts, iid
from cepam.keys import Key

CLIENTS, COHORT = 100_000, 60


def test_a_hundred_thousand_clients() -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    labels = draw.integers(0, 4, CLIENTS)
    inputs = draw.integers(0, 200, (CLIENTS, 6), dtype=np.uint8)
    data = fl.from_arrays((inputs, labels), (inputs[:50], labels[:50]), "drawn")
    settings = fl.Settings.of(
        {
            "data.name": "own: drawn",
            "model.name": "linear",
            "clients.count": CLIENTS,
            "clients.sampling_rate": COHORT / CLIENTS,
            "privacy.unit": "client",
            "clients.sampling": "poisson",
            "training.update": "difference",
            "training.local_steps": 1,
            "training.rounds": 1000,
            "privacy.epsilon": 4.0,
            "privacy.delta": 1e-6,
            "privacy.adjacency": "add-remove",
            "compression.downlink": "quantized",
            "clients.dropout_rate": 0.2,
            "run.simulate": True,
            "run.evaluate_every": 1000,
        }
    )
    simulation = fl.Simulation(settings, data)
    simulation.step()
    tracemalloc.start()
    lines = [simulation.step()[0] for _ in range(2)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.0 < simulation.views()["outsider"] <= 4.0  # figures take memory of their own, so none is asked for above
    assert 0 < lines[-1]["replies"] < 2 * COHORT
    assert peak < 40 * CLIENTS  # bytes; a list of as many objects would take more
    downlink = simulation.state.downlinks[0]
    assert isinstance(downlink, GridDownlink)
    assert len(downlink.held) < 6 * COHORT


def test_the_preset_of_users_is_what_it_says() -> None:
    settings = fl.preset("users")
    cohort = cohort_of(settings)
    assert (cohort.population, cohort.size, cohort.kind) == (10_000, 500.0, "poisson")
    assert (settings.privacy.unit, settings.privacy.epsilon, settings.privacy.delta, settings.dropout_handling) == (
        "client",
        4.0,
        1e-5,
        "compensate",
    )
    draw = np.random.default_rng(1)
    train, test = draw.random((600, 1, 8, 8)), draw.random((9, 1, 8, 8))
    data = fl.from_arrays((train, np.arange(600) % 10), (test, np.zeros(9)))
    own = {
        "data.name": "own: own",
        "model.name": "linear",
        "clients.count": 100,
        "clients.sampling_rate": 0.1,
        "training.rounds": 2,
        "run.evaluate_every": 1,
    }
    few = settings.updated({**own, "run.simulate": True})
    simulation = fl.Simulation(few, data)
    assert simulation.work.parts[0].held.tolist() == [6] * 100
    lines = [simulation.step()[0] for _ in range(2)]
    assert lines[-1]["epsilon"] <= 4.0


def test_parts_are_the_arrays_that_they_stand_for() -> None:
    arrays = [np.array([3, 5]), np.array([0]), np.array([1, 2, 9])]
    parts = Parts.of(arrays)
    assert [part.tolist() for part in parts] == [part.tolist() for part in arrays]
    assert parts[-1].tolist() == [1, 2, 9]
    assert [part.tolist() for part in parts[1:]] == [[0], [1, 2, 9]]
    assert parts.held.tolist() == [2, 1, 3]
    assert parts.within(np.arange(10) * 2)[0].tolist() == [6, 10]
    dealt = iid(np.zeros(10, dtype=np.int64), 3, np.random.default_rng(1))
    assert sorted(np.concatenate(list(dealt)).tolist()) == sorted(set(np.concatenate(list(dealt)).tolist()))


def test_a_certain_draw_draws_all_and_an_impossible_one_nobody() -> None:
    draws = Randomness(Key.simulated(3))
    assert len(sampling.poisson_cohort(draws, 0, 1000, 1.0)) == 1000
    assert len(sampling.poisson_cohort(draws, 0, 1000, 1e-19)) == 0
    # Ties of the first 16 bits are settled by the rest: a chance under 2^-16 is still a chance.
    rare = sum(len(sampling.poisson_cohort(draws, number, 100_000, 1e-5)) for number in range(40))
    assert 10 < rare < 90
