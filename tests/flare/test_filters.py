"""The filter pair of NVIDIA FLARE, with FLARE's own task, result and context objects."""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from scipy import stats

import cepam
from cepam import errors
from cepam.flare import PAYLOAD, ClientFilter, Compression, ServerFilter
from cepam.protocol.agreement import Declined

SIZE = 20_000
SIGMA = 0.1


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def context(direction: str, job: str, me: str, peer: str | None = None) -> FLContext:
    made = FLContext()
    made.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
    made.set_prop(FLContextKey.CURRENT_RUN, job, private=False, sticky=False)
    made.set_prop(ReservedKey.RUN_NUM, job, private=False, sticky=False)
    made.set_prop(ReservedKey.IDENTITY_NAME, me, private=False, sticky=False)
    if peer:
        made.set_peer_context(context(direction, job, peer))
    return made


class Site:
    """A server and a client with filter objects of their own in each chain, as FLARE makes them."""

    def __init__(self, job: str, client: str = "site-1") -> None:
        self.job, self.client = job, client
        self.server = [ServerFilter(clip=cepam.L2(1.0), noise=cepam.Gaussian(SIGMA)) for _ in range(2)]
        self.mine = [ClientFilter(), ClientFilter()]

    def task(self, weights: dict[str, np.ndarray], engine: object = None):
        task = DXO(DataKind.WEIGHTS, data=weights).to_shareable()
        out = context(FilterKey.OUT, self.job, "server", self.client)
        out.set_prop(ReservedKey.ENGINE, engine, private=True, sticky=False)
        task = self.server[0].process(task, out)
        return self.mine[0].process(copy.deepcopy(task), context(FilterKey.IN, self.job, self.client))

    def seal(self, dxo: DXO):
        return self.mine[1].process(dxo.to_shareable(), context(FilterKey.OUT, self.job, self.client))

    def open(self, result) -> DXO:
        return from_shareable(self.server[1].process(result, context(FilterKey.IN, self.job, "server", self.client)))


def update() -> np.ndarray:
    values = np.random.default_rng(3).normal(size=SIZE)
    return (0.5 * values / np.linalg.norm(values)).astype(np.float32).reshape(-1, 4)


def follows(noise: np.ndarray, scale: float) -> bool:
    """Whether the noise is Gaussian of this scale. Keys are fresh: false alarm 1e-9.

    At 20,000 draws a scale wrong by 25 % is missed with chance below 1e-15.
    """
    return bool(stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > 1e-9)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_results_arrive_with_exactly_the_noise_and_small(kind: str) -> None:
    site, start = Site(f"job {kind}"), np.ones((SIZE // 4, 4), np.float32)
    for _ in range(3):
        site.task({"w": start})
        sent = start + update() if kind == DataKind.WEIGHTS else update()
        sealed = site.seal(DXO(kind, data={"w": sent}, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 10**12}))
        assert from_shareable(sealed).data[PAYLOAD].nbytes * 30 < 4 * SIZE
        got = site.open(sealed)
        noise = (got.data["w"].astype(np.float64) - sent).ravel()
        assert follows(noise, SIGMA)
        assert not follows(noise, 1.25 * SIGMA)
        assert got.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND) == 1.0


def test_spoiled_replayed_and_plain_results_raise_and_the_next_round_works() -> None:
    site, start = Site("faults"), np.zeros((SIZE // 4, 4), np.float32)
    site.task({"w": start})
    first = site.seal(DXO(DataKind.WEIGHTS, data={"w": start + update()}))
    kept = copy.deepcopy(first)
    site.open(first)
    with pytest.raises(errors.CepamError):
        site.open(copy.deepcopy(kept))
    site.task({"w": start})
    with pytest.raises(errors.CepamError):
        site.open(DXO(DataKind.WEIGHTS, data={"w": start}).to_shareable())
    site.task({"w": start})
    spoiled = site.seal(DXO(DataKind.WEIGHTS, data={"w": start + update()}))
    dxo = from_shareable(spoiled)
    dxo.data[PAYLOAD] = dxo.data[PAYLOAD][:-3]
    with pytest.raises(errors.CepamError):
        site.open(dxo.update_shareable(spoiled))
    site.task({"w": start})
    assert np.isfinite(site.open(site.seal(DXO(DataKind.WEIGHTS, data={"w": start + update()}))).data["w"]).all()


def test_a_client_that_lost_its_key_agrees_again() -> None:
    from cepam.flare import job

    site, start = Site("restart"), np.zeros((SIZE // 4, 4), np.float32)
    for _ in range(2):
        site.task({"w": start})
        job._jobs["restart", f"client {site.client}"].chain = None
        site.open(site.seal(DXO(DataKind.WEIGHTS, data={"w": start + update()})))


def test_an_update_that_is_not_finite_leaves_as_zero_with_its_noise() -> None:
    site, start = Site("nan"), np.ones((SIZE // 4, 4), np.float32)
    site.task({"w": start})
    got = site.open(site.seal(DXO(DataKind.WEIGHTS, data={"w": start + np.nan})))
    assert follows((got.data["w"].astype(np.float64) - start).ravel(), SIGMA)


def plain() -> DXO:
    return DXO(DataKind.WEIGHTS, data={"w": np.ones((SIZE // 4, 4), np.float32)})


def test_without_an_offer_of_the_server_nothing_plain_leaves() -> None:
    site = Site("no server filter")
    with pytest.raises(Declined):
        site.seal(plain())
    site.mine[0].process(plain().to_shareable(), context(FilterKey.IN, site.job, site.client))
    with pytest.raises(Declined):
        site.seal(plain())


def test_a_second_result_under_one_offer_does_not_leave() -> None:
    site = Site("twice")
    site.task({"w": np.zeros((SIZE // 4, 4), np.float32)})
    site.seal(plain())
    with pytest.raises(Declined):
        site.seal(plain())


def test_a_user_may_let_plain_results_pass() -> None:
    site = Site("plain")
    site.mine = [ClientFilter(required=False), ClientFilter(required=False)]
    assert list(from_shareable(site.seal(plain())).data) == ["w"]


def test_a_result_with_an_error_code_leaves_as_the_bare_code() -> None:
    site = Site("error")
    for code, leaves in ((ReturnCode.EXECUTION_EXCEPTION, None), ("patient X", ReturnCode.EXECUTION_EXCEPTION)):
        site.task({"w": np.zeros((SIZE // 4, 4), np.float32)})
        failed = plain().to_shareable()
        failed.set_return_code(code)
        left = site.mine[1].process(failed, context(FilterKey.OUT, site.job, site.client))
        assert left.get_return_code() == (leaves or code)
        assert PAYLOAD not in left
        assert set(left) == set(make_reply(ReturnCode.ERROR))
    with pytest.raises(Declined):
        site.seal(plain())


def test_integers_do_not_travel_and_come_back_as_integers() -> None:
    site = Site("integers")
    counter = {"n": np.array([7]), "bn.num_batches_tracked": np.array(3)}
    floats = {"n": np.array([7.0]), "bn.num_batches_tracked": np.array(3.0)}
    for sent in (counter, floats):
        task = from_shareable(site.task({"w": np.zeros((SIZE // 4, 4), np.float32), **sent}))
        assert {name: task.data[name].dtype for name in counter} == {name: v.dtype for name, v in counter.items()}
        trained = {"w": update(), "n": np.array([5000]), "bn.num_batches_tracked": np.array(900.0)}
        got = site.open(site.seal(DXO(DataKind.WEIGHTS, data=trained)))
        assert {name: got.data[name].item() for name in counter} == {"n": 7, "bn.num_batches_tracked": 3}
        assert np.linalg.norm(got.data["w"] - update()) < SIGMA * (np.sqrt(SIZE) + 8)


def test_messages_are_padded() -> None:
    site = Site("padding")
    padded = {"clip": cepam.L2(1.0), "noise": cepam.Gaussian(SIGMA), "compression": Compression(padding=4096)}
    site.server = [ServerFilter(**padded) for _ in range(2)]
    site.task({"w": np.zeros((SIZE // 4, 4), np.float32)})
    assert from_shareable(site.seal(plain())).data[PAYLOAD].nbytes % 4096 == 0


@pytest.mark.flower
def test_a_job_in_flares_simulator_averages_the_clients_with_their_noise(tmp_path) -> None:
    # Two clients add 0.02 to 20,000 weights in each of three rounds; the average of the noise has variance 3/2 sigma^2.
    script = tmp_path / "job.py"
    repository = Path(__file__).resolve().parents[2]
    script.write_text(JOB.format(workspace=str(tmp_path / "workspace"), repository=str(repository)))
    source = repository / "src"
    environment = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{source}".lstrip(":")}
    # The simulator may lose a client at its start on a busy machine, and then waits for ever: one more try.
    finished = any(ended_well(script, tmp_path / f"log{turn}", environment, seconds=150) for turn in range(2))
    said = "".join(log.read_text(errors="replace") for log in tmp_path.glob("log?"))
    assert finished, said[-3000:]
    assert said.count("2 results used, epsilon so far") == 3
    model = np.load(next((tmp_path / "workspace").rglob("server.npy"))).ravel().astype(np.float64)
    assert follows(model - 0.06, 0.01 * np.sqrt(1.5))
    assert not follows(model - 0.06, 1.25 * 0.01 * np.sqrt(1.5))


def ended_well(script: Path, log: Path, environment: dict[str, str], seconds: float) -> bool:
    """Whether the job ended in time; whatever it started, in sessions of their own too, is gone."""
    import psutil

    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(script)], cwd=script.parent, env=environment, stdout=out, stderr=out
        )
        try:
            return process.wait(timeout=seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                started = psutil.Process(process.pid)
                for one in [*started.children(recursive=True), started]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
            process.wait(timeout=10)


JOB = """
import sys

sys.path.insert(0, {repository!r})
from tests.flare.jobs import known_job

if __name__ == "__main__":
    known_job(3).simulator_run({workspace!r}, n_clients=2, threads=2)
"""
