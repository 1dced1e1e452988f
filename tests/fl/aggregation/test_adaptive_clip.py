"""A clip that follows the norms: charged with the update as one mechanism, found by what was published alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cepam import fl
from cepam.fl import Dataset, Simulation
from cepam.privacy import CohortMechanism, joint_multiplier
from tests.fl.resuming import assert_resumed_like_whole

SETTINGS = fl.Settings.of(
    {
        "data.name": "synthetic",
        "model.name": "linear",
        "clients.count": 100,
        "clients.sampling_rate": 0.6,
        "clients.sampling": "poisson",
        "privacy.unit": "client",
        "training.update": "difference",
        "training.record_sampling": "all",
        "training.local_steps": 1,
        "training.rounds": 4,
        "privacy.clipping_norm": 0.5,
        "privacy.epsilon": 8.0,
        "run.simulate": True,
        "privacy.adjacency": "add-remove",
        "privacy.clip_quantile": 0.5,
        "clients.dropout_rate": 0.1,
    }
)


def test_the_clip_goes_to_the_quantile_and_the_mean_is_that_of_the_clipped(small: Dataset) -> None:
    simulation = Simulation(
        SETTINGS.updated({"privacy.epsilon": None, "privacy.noise_scale": 1e-3, "training.rounds": 60}), small
    )
    aggregator, norms = simulation.aggregators[0], np.linspace(1.0, 3.0, 100)
    for number in range(60):
        asked = [int(k) for k in aggregator.sampled(number)]
        raw = np.zeros((len(asked), simulation.size), np.float32)
        raw[:, 0] = norms[asked]
        came = aggregator.collect(number, asked, raw)
        heard = np.array(sorted(came.heard))
        expected = np.minimum(norms[heard], came.line["clip"]).sum() / 60.0
        assert float(came.aggregate[0]) == pytest.approx(expected, rel=0.05)
        assert came.aggregate.shape == (simulation.size,)
    assert 1.5 < aggregator.clip < 2.5
    assert aggregator.clip != SETTINGS.privacy.clipping_norm


def test_update_and_bit_are_charged_as_one_mechanism(small: Dataset) -> None:
    simulation = Simulation(SETTINGS, small)
    while not simulation.done:
        line = simulation.step()[0]
    mechanism = simulation.aggregators[0].mechanism
    assert isinstance(mechanism, CohortMechanism)
    assert mechanism.bit is not None
    assert mechanism.mu(0) == pytest.approx(
        1.0 / joint_multiplier(mechanism.compensation.total / mechanism.clip.bound, mechanism.bit)
    )
    assert line["epsilon"] <= 8.0
    assert len(simulation.aggregators[0].accountant.mechanisms) == 1
    # Without the bit the same noise costs less: it is charged.
    assert replace(mechanism, bit=None).mu(0) < mechanism.mu(0)


def test_the_noise_is_in_proportion_to_the_clip(small: Dataset) -> None:
    simulation = Simulation(SETTINGS, small)
    aggregator = simulation.aggregators[0]
    for number in range(3):
        asked = [int(k) for k in aggregator.sampled(number)]
        came = aggregator.collect(number, asked, np.zeros((len(asked), simulation.size), np.float32))
        unit = came.aggregate / came.line["clip"] / aggregator.noise
        assert stats.kstest(unit, "norm").pvalue > 1e-9
        assert stats.kstest(1.3 * unit, "norm").pvalue < 1e-9  # a control
    assert aggregator.clip < SETTINGS.privacy.clipping_norm


def test_killed_and_resumed_is_the_whole_run(small: Dataset, tmp_path: Path) -> None:
    assert_resumed_like_whole(SETTINGS, small, tmp_path)


def test_what_does_not_go_together_is_refused() -> None:
    for changes in (
        {"privacy.clip_quantile": 1.0},
        {"compression.downlink": "quantized"},
        {"privacy.unit": "record", "clients.sampling": "fixed"},
    ):
        with pytest.raises(ValueError, match="clip_quantile"):
            SETTINGS.updated(changes)
