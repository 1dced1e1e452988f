"""The account of a FLARE job: the results that were used, in the log and the metrics, and an end at the budget."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

import cepam
from cepam import errors, privacy
from cepam.flare import ServerFilter
from tests.deployment import flat

from .test_filters import Site

SIZE, SIGMA, DELTA = 400, 2.0, 1e-5


class Engine:
    """What FLARE's engine gives a component: contexts, events to all handlers, a workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.handlers = folder, []
        self.fired: list[tuple[str, FLContext]] = []

    @contextmanager
    def new_context(self):
        yield self.context("job")

    def get_workspace(self) -> SimpleNamespace:
        return SimpleNamespace(get_root_dir=lambda: str(self.folder))

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self.fired.append((event_type, fl_ctx.get_prop(FLContextKey.EVENT_DATA)))
        for handler in self.handlers:
            handler.handle_event(event_type, fl_ctx)

    def context(self, job: str, peer: str | None = None) -> FLContext:
        made = FLContext()
        made.set_prop(ReservedKey.ENGINE, self, private=True, sticky=False)
        made.set_prop(ReservedKey.RUN_NUM, job, private=False, sticky=False)
        made.set_prop(ReservedKey.IDENTITY_NAME, peer or "server", private=False, sticky=False)
        if peer:
            made.set_peer_context(self.context(job, None))
            made.get_peer_context().set_prop(ReservedKey.IDENTITY_NAME, peer, private=False, sticky=False)
        return made


class Workflow:
    """A scatter-and-gather workflow of some sites, event by event as FLARE's own fires them."""

    def __init__(self, folder: Path, job: str, sites: int = 3, **options) -> None:
        self.engine, self.job = Engine(folder), job
        self.sites = [Site(job, f"site-{k}") for k in range(sites)]
        given = flat(**{"noise": cepam.Gaussian(SIGMA), "delta": DELTA, **options})
        filters = [ServerFilter(clip=cepam.L2(1.0), **given) for _ in range(2)]
        self.engine.handlers = filters
        for site in self.sites:
            site.server = filters

    def event(self, name: str, peer: str | None = None, **props: object) -> None:
        fl_ctx = self.engine.context(self.job, peer)
        for key, value in props.items():
            fl_ctx.set_prop(key, value, private=True, sticky=False)
        self.engine.fire_event(name, fl_ctx)

    def train(self, site: Site, weights: dict[str, np.ndarray], accepted: bool = True) -> DXO:
        site.task(weights, self.engine)
        got = site.open(site.seal(DXO(DataKind.WEIGHTS, data={k: v + 0.01 for k, v in weights.items()})))
        props = {AppConstants.AGGREGATION_ACCEPTED: accepted}
        self.event(AppEventType.AFTER_CONTRIBUTION_ACCEPT, site.client, **props)
        return got

    def round(self, weights: dict[str, np.ndarray], rejected: set[int] = frozenset()) -> dict[str, np.ndarray]:
        got = [self.train(site, weights, k not in rejected) for k, site in enumerate(self.sites)]
        self.event(AppEventType.BEFORE_AGGREGATION)
        used = [one.data for k, one in enumerate(got) if k not in rejected]
        mean = {name: sum(one[name] for one in used) / len(used) for name in weights}
        result = DXO(DataKind.WEIGHTS, data=mean).to_shareable()
        self.event(AppEventType.AFTER_AGGREGATION, **{AppConstants.AGGREGATION_RESULT: result})
        return from_shareable(result).data

    @property
    def panics(self) -> list[str]:
        return [data for name, data in self.engine.fired if name == EventType.FATAL_SYSTEM_ERROR]

    @property
    def metrics(self) -> list[tuple[str, float]]:
        sent = [from_shareable(data) for name, data in self.engine.fired if name == ANALYTIC_EVENT_TYPE]
        return [(dxo.data["track_key"], dxo.data["track_value"]) for dxo in sent]


def start() -> dict[str, np.ndarray]:
    return {"w": np.zeros((SIZE // 4, 4), np.float32)}


def epsilon(replies: int, rounds: int = 1, released: str = "average") -> float:
    mechanism = privacy.Mechanism.uniform(
        replies if released == "average" else 1, cepam.Gaussian(SIGMA), cepam.L2(1.0), privacy.Sampling("all"), 1,
        rounds=rounds,
    )  # fmt: skip
    return privacy.epsilon(mechanism, DELTA)


@pytest.mark.parametrize("released", ["average", "vectors"])
def test_epsilon_is_in_the_log_and_in_the_metrics_after_every_round(tmp_path, caplog, released) -> None:
    workflow = Workflow(tmp_path, f"rounds {released}", released=released)
    weights = start()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            weights = workflow.round(weights)
    said = [record.getMessage() for record in caplog.records if "epsilon so far" in record.getMessage()]
    assert sum("3 results used" in text for text in said) == 3
    names, values = zip(*workflow.metrics)
    assert set(names) == {"cepam-epsilon"}
    assert values == pytest.approx([epsilon(3, r, released) for r in (1, 2, 3)], rel=1e-3)


def test_results_that_the_workflow_did_not_accept_are_not_charged_and_their_noise_is_missed(tmp_path) -> None:
    workflow = Workflow(tmp_path, "rejected", released="average")
    workflow.round(start(), rejected={1})
    assert workflow.metrics[0][1] == pytest.approx(epsilon(2), rel=1e-3)


def test_a_workflow_that_says_nothing_is_charged_for_every_result_that_opened(tmp_path) -> None:
    workflow = Workflow(tmp_path, "silent")
    site = workflow.sites[0]
    for _ in range(2):
        site.task(start(), workflow.engine)
        site.open(site.seal(DXO(DataKind.WEIGHTS, data=start())))
    assert workflow.metrics[0][1] == pytest.approx(epsilon(1), rel=1e-3)


def test_the_budget_ends_the_job_and_the_round_is_not_published(tmp_path) -> None:
    budget = epsilon(3, 2) * 1.01
    workflow = Workflow(tmp_path, "budget", released="average", budget=budget)
    first = workflow.round(start())
    second = workflow.round(first)
    assert not np.array_equal(first["w"], second["w"])
    assert not workflow.panics
    third = workflow.round(second)
    assert len(workflow.panics) == 1
    assert "above" in workflow.panics[0]
    np.testing.assert_array_equal(third["w"], second["w"])
    with pytest.raises(errors.CepamError, match="budget"):
        workflow.sites[0].task(second, workflow.engine)
    assert len(workflow.panics) == 2
    assert [value for _, value in workflow.metrics][-1] <= budget


def test_a_job_that_starts_from_a_published_model_goes_on_with_its_account(tmp_path) -> None:
    budget = epsilon(3, 2) * 1.01
    first = Workflow(tmp_path, "first", released="average", budget=budget)
    model = first.round(first.round(start()))
    learned = {AppConstants.GLOBAL_MODEL: make_model_learnable(model, {})}
    first.event(AppEventType.AFTER_SHAREABLE_TO_LEARNABLE, **learned)  # the last model is never sent out
    first.event(EventType.END_RUN)
    again = Workflow(tmp_path, "second", released="average", budget=budget)
    third = again.round(model)
    np.testing.assert_array_equal(third["w"], model["w"])
    assert len(again.panics) == 1


def test_a_job_from_the_same_start_has_an_account_of_its_own(tmp_path) -> None:
    for job in ("one", "two"):
        workflow = Workflow(tmp_path, job, released="average")
        workflow.round(start())
        assert workflow.metrics[0][1] == pytest.approx(epsilon(3), rel=1e-3)


def test_a_job_from_the_same_start_goes_on_under_a_budget_and_one_from_other_weights_is_refused(tmp_path) -> None:
    budget = epsilon(3, 2) * 1.01
    Workflow(tmp_path, "start one", released="average", budget=budget).round(start())
    again = Workflow(tmp_path, "start two", released="average", budget=budget)
    model = again.round(start())
    assert again.metrics[0][1] == pytest.approx(epsilon(3, 2), rel=1e-3)
    np.testing.assert_array_equal(again.round(model)["w"], model["w"])
    other = Workflow(tmp_path, "start three", released="average", budget=budget)
    with pytest.raises(errors.CepamError, match="in none of them"):
        other.sites[0].task({"w": np.ones((SIZE // 4, 4), np.float32)}, other.engine)
    assert "in none of them" in other.panics[0]


def test_a_round_that_cannot_be_charged_is_not_published(tmp_path, monkeypatch) -> None:
    workflow = Workflow(tmp_path, "full disk")
    first = workflow.round(start())
    monkeypatch.setattr("cepam.protocol.account.write_atomically", lambda *_: (_ for _ in ()).throw(OSError()))
    second = workflow.round(first)
    np.testing.assert_array_equal(second["w"], first["w"])
    assert "could not be charged" in workflow.panics[0]


def test_variances_stay_positive_and_models_of_the_model_controller_are_covered(tmp_path) -> None:
    workflow = Workflow(tmp_path, "variance", sites=1)
    weights = {"w": np.zeros(SIZE, np.float32), "bn.running_var": np.ones(8, np.float32), "n": np.array(3)}
    workflow.sites[0].task(weights, workflow.engine)
    aggregated = FLModel(params={**weights, "bn.running_var": np.full(8, -2.0, np.float32), "n": np.array(3.0)})
    workflow.event(AppEventType.AFTER_AGGREGATION, **{AppConstants.AGGREGATION_RESULT: aggregated})
    np.testing.assert_allclose(aggregated.params["bn.running_var"], 0.1)
    assert aggregated.params["n"].dtype == np.int64


def test_the_keys_of_a_job_are_forgotten_when_it_ends(tmp_path) -> None:
    from cepam.flare import job

    workflow = Workflow(tmp_path, "ends")
    workflow.round(start())
    assert any(key[0] == "ends" for key in job._jobs)
    workflow.event(EventType.END_RUN)
    assert not any(key[0] == "ends" for key in job._jobs)
