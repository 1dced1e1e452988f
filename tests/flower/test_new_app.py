"""The app that `cepam new flower-app` writes: it learns within its epsilon, in one process and in Flower's own."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from flwr.app import Context, Message, RecordDict
from typer.testing import CliRunner

from cepam.cli import app as cepam_command
from cepam.errors import BudgetSpent

from .fakes import RUN, FakeGrid, Node

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
NODES, ROUNDS = 4, 20


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cepam_command, ["new", "flower-app", "figure-study"]).exit_code == 0
    return tmp_path / "figure-study"


def settings_of(folder: Path) -> dict[str, Any]:
    return {
        "dataset": "synthetic", "nodes": NODES, "num-server-rounds": ROUNDS, "epsilon": 20.0, "batch": 256,
        "account": str(folder / "account"), "report": str(folder / "report.json"),
    }  # fmt: skip


def accuracies(folder: Path, rounds: int, target: float = 20.0) -> list[float]:
    """Accuracy after each round, the first before training; the target is met and not exceeded."""
    report = json.loads((folder / "report.json").read_text())
    assert 0.95 * target < report["epsilon"] <= target
    assert list(report["accuracy"]) == [str(number) for number in range(rounds + 1)]
    return list(report["accuracy"].values())


class AppNode(Node):
    """A node that calls the ClientApp as Flower does, mods and all."""

    def __init__(self, node_id: int, app: Any, context: Context) -> None:
        super().__init__(node_id, app)
        self.app, self.context = app, context

    def handle(self, message: Message) -> Message:
        return self.app(message, self.context)


def test_it_learns_within_its_epsilon_and_a_second_run_finds_the_budget_spent(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(made)
    client, server = (importlib.import_module(f"figure_study.{name}") for name in ("client_app", "server_app"))
    config = tomllib.loads((made / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= settings_of(tmp_path)
    contexts = [
        Context(RUN, k + 1, {"partition-id": k, "num-partitions": NODES}, RecordDict(), config) for k in range(NODES)
    ]
    grid = FakeGrid([AppNode(context.node_id, client.app, context) for context in contexts])
    server.main(grid, Context(RUN, 1, {}, RecordDict(), config))
    before, *_, after = accuracies(tmp_path, ROUNDS)
    assert before < 0.3
    assert after > 0.5  # 0.78 to 0.86 in the simulation engine
    with pytest.raises(BudgetSpent):
        server.main(grid, Context(RUN, 1, {}, RecordDict(), config))


@pytest.mark.flower
def test_in_flowers_simulation(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    from loopback_simulation import simulate

    simulate(tmp_path / "simulation", made, NODES, {**settings_of(tmp_path), "num-server-rounds": 5}, 280)
    assert len(set(accuracies(tmp_path, 5))) > 1


@pytest.mark.flower
def test_against_a_superlink(made: Path, tmp_path: Path) -> None:
    from loopback import Federation

    with Federation(tmp_path / "federation", nodes=2) as federation:
        federation.run(made, {**settings_of(tmp_path), "nodes": 2, "num-server-rounds": 3, "epsilon": 4.0}, 280)
    assert len(set(accuracies(tmp_path, 3, target=4.0))) > 1
