"""The whole table on a small run: every row trains, is charged, and stands beside the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cepam import fl
from cepam_sums.__main__ import ROWS, draw, run, table


def test_every_row_of_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    base = fl.settings_from(
        {"data": "synthetic", "clients": 5, "rounds": 2, "tau": 1, "epsilon": 8.0, "simulate": True, "model": "linear",
         "evaluate_every": 2}
    )  # fmt: skip
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
    lines = table(found).splitlines()
    assert len(lines) == len(rows) + 2
    assert len({line.count("|") for line in lines}) == 1
    draw(found, tmp_path / "sums.png")
    assert (tmp_path / "sums.png").stat().st_size > 1000
