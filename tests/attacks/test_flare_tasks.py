"""Tasks that a FLARE job does not name beside its filters: a client's weights do not leave with their results."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from cepam.flare import ClientFilter

from ..flare.test_filters import Site, context

WEIGHTS = {"w": np.ones((5, 4), np.float32)}


def leaving(result: Shareable, job: str = "other tasks", required: bool = True) -> Shareable:
    """The result as it leaves a task without a filter of its own: FLARE fires this event for every task."""
    about = context(FilterKey.OUT, job, "site-1")
    about.set_prop(FLContextKey.TASK_RESULT, result, private=True, sticky=False)
    ClientFilter(required).handle_event(EventType.AFTER_TASK_RESULT_FILTER, about)
    return result


def spoiled_metrics() -> Shareable:
    return DXO(DataKind.METRICS, data={"accuracy": 0.5, "weights": WEIGHTS["w"].ravel().tolist()}).to_shareable()


@pytest.mark.parametrize(
    "made",
    [
        lambda: DXO(DataKind.WEIGHTS, data=dict(WEIGHTS)).to_shareable(),
        lambda: DXO(DataKind.WEIGHT_DIFF, data=dict(WEIGHTS)).to_shareable(),
        lambda: DXO(DataKind.WEIGHTS, data={"cepam.v1": np.ones(20, np.uint8)}).to_shareable(),
        spoiled_metrics,
        lambda: Shareable({"model": WEIGHTS["w"].tobytes()}),
    ],
)
def test_nothing_plain_leaves_with_a_task_that_is_not_named(made) -> None:
    left = leaving(made())
    assert left.get_return_code() != ReturnCode.OK
    assert "1.0" not in repr(left)
    assert left == make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
    assert set(leaving(made(), required=False)) == set(made())


def test_an_error_leaves_as_its_bare_code() -> None:
    result = DXO(DataKind.WEIGHTS, data=dict(WEIGHTS)).to_shareable()
    result.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    assert leaving(result) == make_reply(ReturnCode.EXECUTION_EXCEPTION)


def test_metrics_and_sealed_results_leave(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the account of a job without a workspace is kept
    metrics = DXO(DataKind.METRICS, data={"accuracy": np.float32(0.5), "loss": 2}).to_shareable()
    assert from_shareable(leaving(metrics)).data == {"accuracy": 0.5, "loss": 2}
    assert leaving(make_reply(ReturnCode.OK)).get_return_code() == ReturnCode.OK
    site = Site("sealed tasks")
    site.task(dict(WEIGHTS))
    sealed = leaving(site.seal(DXO(DataKind.WEIGHTS, data=dict(WEIGHTS))), "sealed tasks")
    assert sealed.get_return_code() == ReturnCode.OK
    assert np.isfinite(site.open(sealed).data["w"]).all()


SMUGGLED = ["entry", "header", "cookie", "meta", "inside", "empty"]


def smuggling(result: Shareable, where: str) -> Shareable:
    """The result with the weights beside what the filter looks at."""
    text = WEIGHTS["w"].tobytes().hex()
    if where == "entry":
        result["more"] = text
    elif where == "header":
        result.set_header("more", text)
    elif where == "cookie":
        result.set_cookie_jar({"more": text})
    elif where == "meta":
        result["DXO"]["meta"]["more"] = text
    elif where == "inside":
        result["DXO"]["more"] = text
    else:
        result = make_reply(ReturnCode.OK, {"cepam": text, "more": text})
    return result


@pytest.mark.parametrize("where", SMUGGLED)
@pytest.mark.parametrize("kind", ["metrics", "sealed"])
def test_nothing_leaves_beside_what_may(where: str, kind: str, tmp_path, monkeypatch) -> None:
    """Weights beside metrics or a sealed update, where a look at the metrics or the update alone does not find them."""
    monkeypatch.chdir(tmp_path)
    job = f"smuggled {where} {kind}"
    if kind == "sealed":
        site = Site(job)
        site.task(dict(WEIGHTS))
        result = site.seal(DXO(DataKind.WEIGHTS, data=dict(WEIGHTS)))
    else:
        result = DXO(DataKind.METRICS, data={"accuracy": 0.5}, meta={"steps": 7}).to_shareable()
    left = leaving(smuggling(result, where), job)
    assert left.get_return_code() == ReturnCode.OK
    assert WEIGHTS["w"].tobytes().hex() not in repr(left)
    if where != "empty" and kind == "sealed":
        assert np.isfinite(site.open(left).data["w"]).all()
    elif where != "empty":
        assert (from_shareable(left).data, from_shareable(left).meta) == ({"accuracy": 0.5}, {"steps": 7})
