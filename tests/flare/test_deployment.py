"""A provisioned deployment: a server and two sites as processes with certificates, on loopback.

`make test-flower` runs these; the ordinary suite leaves them out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import cepam
from cepam import privacy
from cepam.policy import FileAccount
from cepam.policy.account import NodeAccount
from flare_loopback import Deployment, Ended

from .jobs import known_job
from .test_filters import follows

pytestmark = pytest.mark.flower
SIGMA, LOUD = 0.01, 4.0
FILTER = '{"path": "cepam.flare.ClientFilter", "args": {"policy": "POLICY", "account": "ACCOUNT"}}'


def test_a_provisioned_deployment_trains_privately_and_its_budget_ends_a_job(tmp_path: Path) -> None:
    # Two clients add 0.02 to 20,000 weights a round; after r rounds the noise of the averages has variance r/2 sigma^2.
    # The first job has so little noise that the updates show, the second so much that it has a budget worth the name.
    loud = privacy.Mechanism.uniform(2, cepam.Gaussian(LOUD), cepam.L2(3.0), privacy.Sampling("all"), 1, rounds=2)
    budget = 1.01 * privacy.epsilon(loud, 1e-5)
    with Deployment(tmp_path / "deployment", sites=2) as deployment:
        exported = {}
        # A budget counts what earlier jobs of its folder spent, and the first one has spent everything.
        own = {"sigma": LOUD, "budget": budget, "folder": str(tmp_path / "accounts")}
        jobs = (("whole", 150, 3, {}), ("ended", 85, 4, own))
        for name, seconds, rounds, options in jobs:
            known_job(rounds, released="average", **options).export_job(str(tmp_path / name))
            exported[name] = deployment.run(tmp_path / name / "cepam", seconds)
        log = deployment.log()
    assert exported["whole"].status == "FINISHED:COMPLETED"
    assert exported["ended"].status != "FINISHED:COMPLETED"
    assert log.count("2 results used, epsilon so far") >= 3 + 2
    assert "the job ends, the round is not published" in log
    for name, rounds, sigma in (("whole", 3, SIGMA), ("ended", 2, LOUD)):
        noise = model_of(exported[name].results) - 0.02 * rounds
        assert follows(noise, sigma * np.sqrt(rounds / 2))
        assert not follows(noise, 1.25 * sigma * np.sqrt(rounds / 2))


def test_a_sites_own_filter_limits_what_any_job_may_take(tmp_path: Path) -> None:
    """`local/privacy.json` names the filter; the jobs bring none for their clients."""
    site = FILTER.replace("POLICY", str(tmp_path / "policy.toml")).replace("ACCOUNT", str(tmp_path / "{site}.json"))
    scope = f'{{"name": "own", "task_data_filters": [{site}], "task_result_filters": [{site}]}}'
    component = site.replace('{"path"', '{"id": "cepam", "path"')
    own = f'{{"scopes": [{scope}], "default_scope": "own", "components": [{component}]}}'
    (tmp_path / "policy.toml").write_text('noise_scale = 1.0\nclipping_norm = 3.0\nrounds = 3\ntrust = "server"\n')
    for k in (1, 2):
        FileAccount.create(tmp_path / f"site-{k}.json")
    accounts = [tmp_path / f"site-{k}.json" for k in (1, 2)]

    def answered() -> list[int]:
        return [NodeAccount.decode(path.read_bytes()).answered.rounds for path in accounts]

    with Deployment(tmp_path / "deployment", sites=2, local={"privacy.json": own}) as deployment:

        def run(name: str, rounds: int, sigma: float) -> Ended:
            known_job(rounds, sigma=sigma, filtered=False).export_job(str(tmp_path / name))
            return deployment.run(tmp_path / name / "cepam", 150)

        assert run("quiet", 1, SIGMA).status != "FINISHED:COMPLETED"  # too little noise
        assert answered() == [0, 0]
        two = run("two", 2, LOUD)
        assert two.status == "FINISHED:COMPLETED"
        assert answered() == [2, 2]
        for attempt in range(3):  # on a busy machine a job may end before its sites were asked
            assert run(f"more-{attempt}", 4, LOUD).status != "FINISHED:COMPLETED"
            if max(answered()) == 3:
                break
        assert max(answered()) == 3  # a third answer is all that was left of three
    assert follows(model_of(two.results) - 0.04, LOUD * np.sqrt(2 / 2))


def model_of(results: Path) -> np.ndarray:
    return np.load(next(results.rglob("server.npy"))).ravel().astype(np.float64)
