"""A FLARE job in which no result could be used fails, also where its workflow ignores errors."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.app_event_type import AppEventType

from cepam import errors
from cepam.flare import Dropouts
from cepam.policy import FileAccount

from .jobs import known_job
from .test_account import Workflow, start
from .test_filters import context

MODES = {
    "charge": {},
    "compensate": {"released": "average", "clients": 3, "dropouts": Dropouts("compensate")},
}


def spoiled(workflow: Workflow) -> None:
    """A round whose results do not open: each raises, and FLARE hands the workflow an error in its place."""
    for site in workflow.sites:
        site.task(start(), workflow.engine)
        result = DXO(DataKind.WEIGHTS, data=start()).to_shareable()  # plain, as without a filter on the site
        with pytest.raises(errors.WrongAddress):
            site.open(result)
    workflow.event(AppEventType.BEFORE_AGGREGATION)


@pytest.mark.parametrize("mode", MODES)
def test_a_job_without_a_usable_result_fails_once_with_its_reasons(tmp_path, mode: str) -> None:
    workflow = Workflow(tmp_path, f"spoiled {mode}", **MODES[mode])
    spoiled(workflow)
    spoiled(workflow)
    assert not workflow.panics  # a round without a result may be a fault that passes
    workflow.event(EventType.ABOUT_TO_END_RUN)
    assert workflow.panics == ["cepam: nothing was trained: no result of 6 tasks could be used: 6 times WrongAddress"]


@pytest.mark.parametrize("mode", MODES)
def test_sites_that_reply_with_errors_or_not_at_all_are_named(tmp_path, mode: str) -> None:
    workflow = Workflow(tmp_path, f"errors {mode}", **MODES[mode])
    for site, code in zip(workflow.sites, (ReturnCode.TASK_RESULT_FILTER_ERROR, "the patient is called Ada", None)):
        site.task(start(), workflow.engine)
        if code is not None:
            site.server[1].process(make_reply(code), context(FilterKey.IN, site.job, "server", site.client))
    workflow.event(AppEventType.BEFORE_AGGREGATION)
    workflow.event(EventType.ABOUT_TO_END_RUN)
    (said,) = workflow.panics
    assert "no result of 3 tasks could be used" in said
    assert f"1 times the site replied {ReturnCode.TASK_RESULT_FILTER_ERROR}" in said
    assert "an unknown code" in said
    assert "Ada" not in said


def test_results_that_the_workflow_rejects_train_nothing(tmp_path) -> None:
    workflow = Workflow(tmp_path, "all rejected")
    for site in workflow.sites:
        workflow.train(site, start(), accepted=False)
    workflow.event(AppEventType.BEFORE_AGGREGATION)
    workflow.event(EventType.ABOUT_TO_END_RUN)
    assert "3 times the workflow did not accept the result" in workflow.panics[0]


@pytest.mark.parametrize("mode", MODES)
def test_one_good_round_is_a_result_and_so_is_a_job_without_tasks(tmp_path, mode: str) -> None:
    workflow = Workflow(tmp_path, f"good {mode}", **MODES[mode])
    spoiled(workflow)
    moved = workflow.round(start())
    assert np.abs(moved["w"]).max() > 0
    workflow.event(EventType.ABOUT_TO_END_RUN)
    Workflow(tmp_path / "idle", f"idle {mode}", **MODES[mode]).event(EventType.ABOUT_TO_END_RUN)
    assert not workflow.panics


@pytest.mark.slow
def test_in_flares_simulator_a_job_whose_sites_all_refuse_fails(tmp_path, capfd) -> None:
    """The workflow ignores errors; the sites' policy asks for more noise than the server offers."""
    (tmp_path / "policy.toml").write_text('noise_scale = 5.0\nclipping_norm = 3.0\nrounds = 9\ntrust = "server"\n')
    FileAccount.create(tmp_path / "account.json")
    site = {"policy": str(tmp_path / "policy.toml"), "account": str(tmp_path / "account.json")}
    assert known_job(2, site=site).simulator_run(str(tmp_path / "refused"), n_clients=2, threads=2) != 0
    assert "nothing was trained: no result of 4 tasks could be used" in "".join(capfd.readouterr())
    assert known_job(2, sigma=6.0, site=site).simulator_run(str(tmp_path / "good"), n_clients=2, threads=2) == 0
