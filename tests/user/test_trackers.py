"""A run followed by Weights & Biases and by MLflow: by stand-ins, and by the packages themselves where they are."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from cepam import fl

QUICK = {
    "data.name": "synthetic",
    "model.name": "linear",
    "clients.count": 2,
    "training.rounds": 3,
    "training.local_steps": 1,
    "privacy.noise_scale": 0.5,
    "run.simulate": True,
}


def followed(folder: Path, watch: Any, **changes: Any) -> list[dict[str, Any]]:
    fl.train(fl.Settings.of({**QUICK, **changes}), folder / "run", fl.synthetic(200, 50, side=8), watch=watch)
    return fl.read_metrics(folder / "run")


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    run = SimpleNamespace(log=lambda values, step: told.append((step, values)), finish=lambda: told.append("finished"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: told.append(given) or run))
    lines = followed(tmp_path, fl.to_wandb(project="mine"))
    assert told[0] == {"project": "mine"}
    assert [step for step, _ in told[1:-1]] == [1, 2, 3]
    assert told[-2][1]["accuracy"] == lines[-1]["accuracy"]
    assert "epsilon (simulated)" in told[-2][1] or lines[-1]["epsilon"] is None
    assert told[-1] == "finished"


def test_mlflow_with_two_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    stand_in = SimpleNamespace(
        set_experiment=told.append, start_run=lambda **given: told.append(given), end_run=lambda: told.append("ended"),
        log_metrics=lambda values, step: told.append((step, values)),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    lines = followed(tmp_path, fl.to_mlflow("mine", run_name="first"), **{"run.seeds": 2})
    assert told[:2] == ["mine", {"run_name": "first"}]
    assert len(told) == 2 + 2 * 3 + 1
    assert told[-2][1]["accuracy/seed-2"] == lines[-1]["accuracy"]
    assert "(" not in "".join(told[-2][1])
    assert told[-1] == "ended"


def test_the_packages_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("wandb")
    followed(tmp_path / "a", fl.to_wandb(project="mine", mode="offline", dir=str(tmp_path)))
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database or a server would take more packages
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    lines = followed(tmp_path / "b", fl.to_mlflow("mine"))
    (found,) = mlflow.search_runs(experiment_names=["mine"], output_format="list")
    assert found.data.metrics["accuracy"] == pytest.approx(lines[-1]["accuracy"])
