"""Privacy questions as people ask them: hospitals, and phones asked about the wrong way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cepam.cli import app
from tests.user.terminal import cepam

SITES = "500,1000,2000,3000,5000,8000,12000,20000"


def test_hospitals_each_with_its_own_noise() -> None:
    question = (
        f"calibrate --per-client --clients 8 --records {SITES} --local-epochs 5 --batch-size 64 --rounds 50 --epsilon 3"
    )
    found = json.loads(cepam("privacy", *question.split(), "--delta", "1e-6", "--names", "A,B,C,D,E,F,G,H", "--json"))
    assert [row["name"] for row in found["clients"]] == list("ABCDEFGH")
    assert all(2.99 < row["epsilon"] <= row["target"] == 3.0 for row in found["clients"])
    multipliers = [row["noise_multiplier"] for row in found["clients"]]
    assert multipliers == sorted(multipliers, reverse=True)
    assert abs(multipliers[0] - 8.901) < 0.001
    assert set(found["observers"]) == {"outsider", "server", "server with all other clients"}
    assert found["warnings"] == []


def test_phones_asked_in_secret_cohorts() -> None:
    """100,000 users, 1,000 a round, 1,000 rounds: what noise costs, and what noise a target needs."""
    users = "--unit client --clients 100000 --sampling-rate 0.01 --rounds 1000 --adjacency add-remove"
    said = cepam("privacy", *f"epsilon {users} --noise-multiplier 1 --delta 1e-6".split())
    assert "epsilon 2.12" in said
    assert "against an adversary who sees participation: " in said
    assert "caution" not in said
    found = json.loads(
        cepam("privacy", *f"calibrate {users} --epsilon 2 --delta 1e-6 --coordinates 4000 --json".split())
    )
    assert 1.99 < found["epsilon"] <= 2.0
    assert abs(found["noise_multiplier"] - 1.04) < 0.02
    # In the average of 1,000 users, over 4,000 weights: noise_multiplier / 1000 * sqrt(4000) clipping norms.
    assert abs(found["noise_ratio"] - found["noise_multiplier"] * 0.063246) < 1e-5
    assert found["advice"].endswith("a round's average is mostly update")


CALIBRATIONS = [
    "--clients 30 --local-steps 15 --records 2000 --rounds 80 --epsilon 1 --coordinates 6422",
    "--clients 30 --local-steps 15 --records 2000 --rounds 80 --epsilon 1",
    "--noise-correlation matrix --clipped example --clipping-norm 0.1 --records-total 60000 --slices "
    "31 --rounds 62 --epsilon 2",
    "--per-client --clients 2 --records 500,4000 --local-epochs 1 --batch-size 64 --rounds 5 --epsilon 3 --delta 1e-6",
]


@pytest.mark.parametrize("question", CALIBRATIONS)
def test_every_calibration_says_what_its_noise_means(question: str) -> None:
    said = " ".join(CliRunner().invoke(app, ["privacy", "calibrate", *question.split()]).output.split())
    assert "noise_of_average 0." in said
    assert ("noise_ratio 4.44" in said) == ("--coordinates" in question)
    assert "advice: a round's average has noise of" in said
    assert "mostly" in said


def test_the_natural_misreading_of_phones_draws_a_caution() -> None:
    question = "epsilon --clients 100000 --local-steps 1000 --records 1 --rounds 1000 --noise-scale 1"
    said = " ".join(cepam("privacy", *question.split()).split())
    assert "warning draws-of-clients" in said
    assert "--unit client --sampling-rate" in said


def test_flower_finds_the_noise_for_a_target(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    import cepam
    from cepam.flower import Accounting, Private, Target
    from tests.flower.fakes import RUN, FakeGrid, Node, adding, start_arrays

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1  # as Flower's processes do
    grid = FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in range(1, 5)])
    strategy = Private(FedAvg(), clip=cepam.L2(1.0), epsilon=Target(3.0, rounds=4), accounting=Accounting(delta=1e-6))
    with caplog.at_level("INFO", logger="flwr"):
        strategy.start(grid, start_arrays(400), num_rounds=4)
    assert 2.99 < strategy.epsilon <= 3.0
    (said,) = {r.getMessage() for r in caplog.records if "meets epsilon 3 over 4 rounds of 4 replies" in r.getMessage()}
    assert "times the largest update: more noise than the rounds can average out" in said


def test_forty_hospitals_are_answered_as_the_page_says() -> None:
    """The page's command, and every line of the answer that it shows."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "choose.md").read_text(encoding="utf-8")
    ((command, shown),) = re.findall(r"^```\ncepam (plan [^`]*?)```\n[^`]*^```text\n(.*?)^```$", page, re.M | re.S)
    said = " ".join(cepam(*command.replace("\\\n", "").split()).split())
    assert [line for line in shown.splitlines() if line not in said] == []


def test_the_hospitals_train(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).resolve().parents[2] / "examples" / "hospitals" / "hospitals.py"
    command = [sys.executable, str(script), "--rounds", "2", "--share", "0.13"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ.copy(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 3 at delta 1e-06") == 8
    assert "epsilon against server: 3.0000" in done.stdout
    assert float(re.search(r"test accuracy ([\d.]+)", done.stdout)[1]) > 55  # type: ignore[index]
