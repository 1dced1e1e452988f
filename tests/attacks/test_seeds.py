"""Several models of the same records under the epsilon of one: refused, and no seed without a bound is hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cepam import fl
from cepam.cli import app
from cepam.fl.config import toml
from cepam.fl.runs.summary import series, summarise
from cepam.fl.simulation import Simulation

VALUES: dict[str, Any] = {
    "data.name": "synthetic",
    "model.name": "linear",
    "clients.count": 4,
    "training.rounds": 2,
    "training.local_steps": 1,
    "privacy.noise_scale": 0.5,
    "run.device": "cpu-torch",
}


def published(**changes: Any) -> tuple[float, int]:
    """The epsilon that a run shows, and how many models of its records it publishes."""
    run = Simulation(fl.Settings.of({**VALUES, **changes}), fl.synthetic(80, 20))
    while not run.done:
        lines = run.step()
    return max(line["epsilon"] for line in lines), len(run.reported)


def test_one_figure_covers_one_model() -> None:
    """Five models of the same records, each under noise of its own, at the epsilon of one: no such run exists."""
    epsilon, models = published()
    assert models == 1
    with pytest.raises(ValueError, match=r"seeds must be 1 without run\.simulate"):
        published(**{"run.seeds": 5})
    assert published(**{"run.seeds": 2, "run.simulate": True}) == (pytest.approx(epsilon), 2)


def test_settings_cannot_be_turned_into_such_a_run(tmp_path: Path) -> None:
    settings = fl.Settings.of({**VALUES, "run.seeds": 2, "run.simulate": True})
    with pytest.raises(ValueError, match="--simulate"):
        settings.updated({"run.simulate": False})
    (tmp_path / "mine.toml").write_text("[run]\nseeds = 3\n[privacy]\nnoise_scale = 0.5\n")
    with pytest.raises(ValueError, match="one run per seed"):
        fl.Settings.of(toml.read(tmp_path / "mine.toml"))


def test_the_command_names_the_remedy(tmp_path: Path) -> None:
    flags = [word for name, value in VALUES.items() for word in ("--set", f"{name}={value}")]
    ended = CliRunner().invoke(app, ["train", *flags, "--seeds", "2", "--runs", str(tmp_path)])
    assert ended.exit_code == 2
    assert "--simulate" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_seed_without_a_bound_leaves_the_summary_without_one(tmp_path: Path) -> None:
    settings = fl.Settings.of({**VALUES, "run.seeds": 2, "run.simulate": True})
    run, lines = Simulation(settings, fl.synthetic(80, 20)), []
    while not run.done:
        lines += run.step()
    shown = summarise(run, lines, 1.0)["epsilon"]
    assert shown == max(line["epsilon"] for line in lines[-2:])
    for place in (-2, -1):
        broken = [*lines[:-2], *({**line} for line in lines[-2:])]
        broken[place]["epsilon"] = None
        assert summarise(run, broken, 1.0)["epsilon"] is None
        assert json.loads(json.dumps(summarise(run, broken, 1.0)))["epsilon"] is None
        assert series(broken, "epsilon")[0].tolist() == [1]
