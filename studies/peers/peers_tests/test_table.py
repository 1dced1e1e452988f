"""The whole table on a small run: every row trains, is charged, and stands beside the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cepam import fl
from cepam_peers.__main__ import ROWS, measure, run
from cepam_peers.report import MISSING, NAMES, draw, table, tables

ROOT = Path(__file__).parents[3]
SMALL = {
    "data.name": "synthetic",
    "clients.count": 5,
    "training.rounds": 2,
    "training.local_steps": 1,
    "privacy.epsilon": 8.0,
    "run.simulate": True,
    "model.name": "linear",
    "run.evaluate_every": 2,
}


def test_every_row_of_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    base = fl.Settings.of(SMALL)
    rows = [name for name in ROWS if not name.endswith(("-16", "-8"))]
    found = [run(name, base) for name in rows]
    by_name = {each["row"]: each for each in found}
    for name, each in by_name.items():
        assert 0.0 <= each["accuracy"] <= 1.0
        assert each["epsilon"]["outsider"] <= 8.0 + 1e-6, name
    # A trusted server has no figure; of sums it has the outsider's; of local noise it alone has the target.
    assert by_name["server"]["epsilon"]["server"] is None
    assert by_name["sum"]["epsilon"]["server"] == by_name["sum"]["epsilon"]["outsider"]
    local = by_name["local"]["epsilon"]
    assert local["server"] == pytest.approx(8.0, rel=0.05)
    assert local["outsider"] < local["server"]
    assert by_name["sum-sketch"]["bits_up"] < by_name["sum"]["bits_up"] < by_name["secagg+"]["bits_up"]
    lines = table(found, []).splitlines()
    assert len(lines) == len(NAMES) + 2
    assert len({line.count("|") for line in lines}) == 1
    assert sum(MISSING in line for line in lines) == len(NAMES) - len(rows)
    draw(found, [], tmp_path / "sums.png")
    assert (tmp_path / "sums.png").stat().st_size > 1000


def test_drop_outs_leave_sums_of_the_others_and_are_kept_beside(tmp_path: Path) -> None:
    """Below the quorum a round is lost; noise counts on the quorum, so that the target holds whoever is missing."""
    bases = [
        fl.Settings.of({**SMALL, "training.rounds": 6, "run.evaluate_every": 6, "clients.dropout_rate": share})
        for share in (0.0, 0.4)
    ]
    found = measure(["sum", "secagg+"], bases, tmp_path / "sums.json")
    by_place = {(each["row"], each["dropout"]): each for each in found}
    assert len(by_place) == 4
    for name in ("sum", "secagg+"):
        whole, some = by_place[name, 0.0], by_place[name, 0.4]
        assert whole["lost"] == 0 < some["lost"] < 6, some
        assert some["bytes_up"] < whole["bytes_up"]
        assert some["epsilon"]["server"] <= 8.0 + 1e-6
    assert measure(["sum"], bases, tmp_path / "sums.json") == json.loads((tmp_path / "sums.json").read_text())
    assert tables(found, []).count("| secure aggregation |") == 2


def row(name: str, seed: int, accuracy: float) -> dict[str, object]:
    epsilon = {"outsider": 1.99, "server": None, "lying server": None}
    return {"row": name, "seed": seed, "accuracy": accuracy, "epsilon": epsilon, "bits_up": 2.0, "bytes_up": 10**6,
            "bytes_down": 10**6, "trips": 1}  # fmt: skip


def test_differences_are_paired_within_one_source() -> None:
    """The engine's bench and the study draw other secrets: a run is compared with the server's of its own source."""
    assert list(NAMES) == list(ROWS)
    study = [row("server", 1, 0.90), row("ddg-8", 1, 0.89)]
    engine = [row("server", 1, 0.80), row("server", 2, 0.84), row("sum", 1, 0.79), row("sum", 2, 0.85)]
    lines = {line.split(" | ")[0].strip("| "): line for line in table(study, engine).splitlines()}
    assert "| 1 | 89.00 | -1.00 |" in lines["discrete Gaussian, 8 bits"]
    assert "| 2 | 82.00 ± " in lines["secure aggregation"]
    assert "| +0.00 ± " in lines["secure aggregation"]


def test_sketches_of_several_sizes_have_a_table_of_their_own() -> None:
    engine = [row("server", 1, 0.90) | {"numbers": None}, row("sum-sketch", 1, 0.89) | {"numbers": 1600}]
    assert "Sketches" not in tables([], engine)
    said = tables([], [*engine, row("sum-sketch-400", 1, 0.87) | {"numbers": 400}])
    assert "| 400 | 1 | 87.00 | -3.00 | 2.00 |" in said
    assert "| 1,600 | 1 | 89.00 | -1.00 | 2.00 |" in said
