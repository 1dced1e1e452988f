"""Privacy questions as people ask them: hospitals, and phones asked about the wrong way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SITES = "500,1000,2000,3000,5000,8000,12000,20000"


def privacy(*words: str) -> str:
    command = [sys.executable, "-m", "cepam", "privacy", *words]
    done = subprocess.run(command, env=os.environ.copy(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hospitals_each_with_its_own_noise() -> None:
    question = f"calibrate --per-client --clients 8 --records {SITES} --epochs 5 --draws 64 --rounds 50 --epsilon 3"
    found = json.loads(privacy(*question.split(), "--delta", "1e-6", "--names", "A,B,C,D,E,F,G,H", "--json"))
    assert [row["name"] for row in found["clients"]] == list("ABCDEFGH")
    assert all(2.99 < row["epsilon"] <= row["target"] == 3.0 for row in found["clients"])
    multipliers = [row["noise_multiplier"] for row in found["clients"]]
    assert multipliers == sorted(multipliers, reverse=True)
    assert abs(multipliers[0] - 8.901) < 0.001
    assert set(found["observers"]) == {"outsider", "server", "server with all other clients"}
    assert found["cautions"] == []


def test_the_natural_misreading_of_phones_draws_a_caution() -> None:
    question = "epsilon --clients 100000 --draws 1000 --records 1 --rounds 1000 --sigma 1"
    said = privacy(*question.split())
    assert "caution draws-of-clients" in said
    assert "--unit client --cohort" in said


def test_the_hospitals_train(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).resolve().parents[2] / "examples" / "hospitals" / "hospitals.py"
    command = [sys.executable, str(script), "--rounds", "2", "--share", "0.13"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ.copy(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 3 at delta 1e-06") == 8
    assert "epsilon against server: 3.0000" in done.stdout
    assert float(re.search(r"test accuracy ([\d.]+)", done.stdout)[1]) > 55  # type: ignore[index]
