"""Dropout compensation in FLARE: the published model has one law of noise, whoever sends a result."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from scipy import stats

import cepam
from cepam import errors, privacy
from cepam.flare import Compression, Dropouts, ServerFilter, Target
from tests.deployment import flat

from .test_account import DELTA, SIGMA, Workflow, start

SITES = 4


class Scattered(Workflow):
    """A workflow some of whose sites send nothing, and whose own aggregate weighs results as it likes."""

    def scatter(self, weights: dict[str, np.ndarray], silent: set[int], kind: str = DataKind.WEIGHTS):
        got = []
        for k, site in enumerate(self.sites):
            site.task(weights, self.engine)
            if k not in silent:
                moved = np.full_like(weights["w"], 0.01)
                data = {"w": moved if kind == DataKind.WEIGHT_DIFF else weights["w"] + moved}
                got.append(site.open(site.seal(DXO(kind, data=data))).data)
        self.event(AppEventType.BEFORE_AGGREGATION)
        data = {"w": sum(10.0**k * one["w"] for k, one in enumerate(got))} if got else {}
        wild = DXO(kind, data=data).to_shareable()
        self.event(AppEventType.AFTER_AGGREGATION, **{AppConstants.AGGREGATION_RESULT: wild})
        return got, from_shareable(wild).data


def compensated(folder, job: str, sites: int = SITES, **options) -> Scattered:
    return Scattered(folder, job, sites, released="average", dropouts=Dropouts("compensate"), clients=SITES, **options)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_missing_sites_cost_exactly_nothing_also_after_a_restart(tmp_path, unit: str) -> None:
    spent = []
    for silent in (set(), {1}, {0, 2, 3}, {0, 1, 2, 3}):
        job = compensated(tmp_path / str(len(silent)), f"{unit} {len(silent)}", unit=unit)
        _, weights = job.scatter(start(), silent)
        job.sites[0].task(weights, job.engine)  # the model is out: whoever starts from it goes on with the account
        again = compensated(tmp_path / str(len(silent)), f"{unit} {len(silent)} again", unit=unit)
        again.scatter(weights, silent)
        spent.append([value for _, value in job.metrics + again.metrics])
    assert spent[0] == spent[1] == spent[2] == spent[3]
    mechanism = privacy.Mechanism.uniform(
        SITES, cepam.Gaussian(SIGMA), cepam.L2(1.0), privacy.Sampling("all"), 1, rounds=2, unit=unit
    )
    assert spent[0][1] == pytest.approx(privacy.epsilon(mechanism, DELTA), rel=1e-3)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_the_published_model_has_the_noise_of_all_sites_over_all_sites(tmp_path, kind: str) -> None:
    # Fresh keys. False alarm 1e-9; the control, the noise of the two results alone, must fail.
    weights = {"w": np.zeros((20_000, 1), np.float32)}
    got, made = compensated(tmp_path, f"law {kind}").scatter(weights, {0, 3}, kind)
    for handed in got:  # nothing that a workflow could publish by itself
        np.testing.assert_array_equal(handed["w"], weights["w"])
    norm = 0.01 * np.sqrt(20_000)
    noise = made["w"].ravel().astype(np.float64) - 2 * 0.01 / norm / SITES
    assert stats.kstest(noise, stats.norm(scale=SIGMA * np.sqrt(SITES) / SITES).cdf).pvalue > 1e-9
    assert stats.kstest(noise, stats.norm(scale=SIGMA * np.sqrt(2) / SITES).cdf).pvalue < 1e-9


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_round_without_a_result_does_not_tell_that_nobody_was_there(tmp_path, kind: str) -> None:
    weights = {"w": np.zeros((20_000, 1), np.float32)}
    job = compensated(tmp_path, f"nobody {kind}")
    _, made = job.scatter(weights, set(range(SITES)), kind)
    noise = made["w"].ravel().astype(np.float64)
    assert stats.kstest(noise, stats.norm(scale=SIGMA * np.sqrt(SITES) / SITES).cdf).pvalue > 1e-9
    assert len(job.metrics) == 1
    job.event(AppEventType.BEFORE_AGGREGATION)  # nobody got a task since: no round
    assert len(job.metrics) == 1


def test_results_beyond_the_cap_and_odd_settings_are_refused(tmp_path) -> None:
    with pytest.raises(errors.CepamError, match="beyond the 4 clients"):
        compensated(tmp_path, "more", sites=5).scatter(start(), set())
    for options in (
        {"dropouts": Dropouts("compensate"), "clients": 3},
        {"dropouts": Dropouts("compensate"), "released": "average"},
        {"dropouts": Dropouts("compensate"), "released": "average", "clients": 3, "noise": cepam.Laplace(1.0)},
        {"dropouts": Dropouts(least_replies=2)},
        {"clients": 3},
        {"compression": Compression(cepam.E8)},
        {"noise": None, "epsilon": 2.0},
    ):
        with pytest.raises(ValueError, match=r"compensat|least_replies|clients|lattice|rounds"):
            ServerFilter(**flat(**{"clip": cepam.L2(1.0), "noise": cepam.Gaussian(1.0), **options}))


def test_noise_is_calibrated_to_a_target_which_is_the_budget(tmp_path) -> None:
    target = {"noise": None, "epsilon": Target(3.0, rounds=3)}
    job = compensated(tmp_path, "target", **target)
    weights = start()
    for _ in range(3):
        _, weights = job.scatter(weights, {1})
    spent = [value for _, value in job.metrics]
    assert len(spent) == 3
    assert 2.99 < spent[-1] <= 3.0
    with pytest.raises(errors.BudgetSpent):
        job.sites[0].task(weights, job.engine)


def test_no_task_goes_out_for_a_round_that_the_budget_cannot_pay(tmp_path) -> None:
    one = privacy.Mechanism.uniform(SITES, cepam.Gaussian(SIGMA), cepam.L2(1.0), privacy.Sampling("all"), 1)
    job = compensated(tmp_path, "one round", budget=privacy.epsilon(one, DELTA) * 1.01)
    _, weights = job.scatter(start(), set())
    with pytest.raises(errors.BudgetSpent):
        job.sites[0].task(weights, job.engine)
    assert len(job.panics) == 1
