"""A population of 1,000 clients in Flower's simulation engine: cohorts in secret, bounded in time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import cepam
from cepam import privacy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from loopback_simulation import simulate

from .test_loopback import APP, rounds_of

pytestmark = pytest.mark.flower


def test_a_thousand_clients_in_secret_cohorts(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    report, size, sigma, rounds = tmp_path / "report", 40_000, 0.5, 2
    config = {"report": str(report), "num-server-rounds": rounds, "nodes": 1000, "size": size, "sigma": sigma}
    simulate(tmp_path / "simulation", APP, 1000, {**config, "rate": 0.05, "timeout": 200.0}, 400)
    cohort = privacy.Cohort(1000, 50.0)
    kind = privacy.Client(cepam.Gaussian(sigma), 1, 1.0 / cohort.size)
    mechanism = privacy.CohortMechanism((kind,), cepam.L2(1.0), rounds=rounds, coordinates=size, cohort=cohort)
    metrics = rounds_of(report)
    assert metrics[rounds]["cepam-epsilon"] == pytest.approx(privacy.epsilon(mechanism, 1e-5), rel=1e-3)
    assert metrics[rounds]["cepam-epsilon-sees-participation"] > 2 * metrics[rounds]["cepam-epsilon"]
    assert not [key for one in metrics.values() for key in one if "replies" in key or "asked" in key]
    # Fresh keys. The updates of a cohort are unknown, and 1/200 of the noise a coordinate. False alarm 1e-9; the
    # control, a scale wrong by 10 %, must fail.
    noise = np.load(f"{report}.npy").astype(np.float64)
    scale = sigma * np.sqrt(cohort.cap) / cohort.size * np.sqrt(rounds)
    assert stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > 1e-9
    assert stats.kstest(noise, stats.norm(scale=1.1 * scale).cdf).pvalue < 1e-9
