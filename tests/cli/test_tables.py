"""Tables fit the terminal: as they are, or turned, with every figure whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cepam.cli.tables import fitting

HEADINGS = ("scheme", "accuracy %", "against first", "epsilon", "bits up", "bits down", "MB both", "seconds")
ROWS = [
    [name, "98.54 ± 0.09", "+0.02 ± 0.11", "1.99 (simulated)", "0.041", "0.310", "31.40", "49"]
    for name in ("fl+gaussian", "fl+gaussian+sdq", "cepam-gaussian", "cepam-gaussian-E8", "cepam-laplace")
]


@pytest.mark.parametrize(("width", "tables"), [(120, 1), (80, 2), (60, 3), (40, 5)])
def test_every_figure_is_whole_at_every_width(width: int, tables: int) -> None:
    made = fitting(width, HEADINGS, ROWS, "compared")
    assert len(made) == tables
    said = io.StringIO()
    console = Console(file=said, width=width)
    for table in made:
        console.print(table)
    assert "…" not in said.getvalue()
    assert said.getvalue().count("98.54 ± 0.09") == len(ROWS)
    assert said.getvalue().count("1.99 (simulated)") == len(ROWS)
    assert all(row[0] in said.getvalue() for row in ROWS)
    assert max(map(len, said.getvalue().splitlines())) <= width
