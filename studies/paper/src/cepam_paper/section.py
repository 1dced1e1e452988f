"""A part of the reproduction: what one experiment found, as tables, figures and plain numbers, kept on disk.

A part is computed once and written as `parts/<name>.json` with its figures beside it in `figures/`; the page and the
document read those files and compute nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cepam._internal.files import write_atomically
from cepam_paper.run_size import Extent

Say = Callable[[str, int, int], None]
"""Told of progress: what is being done, how many steps are done, and of how many."""


@dataclass(frozen=True)
class Table:
    """Rows under column heads; cells are strings as they will be read."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture in the report's folder; `caption` says what to see in it."""

    name: str
    title: str
    file: str
    caption: str = ""


@dataclass(frozen=True)
class Part:
    """What one experiment found.

    `numbers` holds every measured value that a table, a caption or a verdict quotes, under names that the verdicts
    (`cepam_paper.claims`) read; `command` redoes this part alone; `made_by` names the date, machine and versions;
    `measured` is the mark of what the part measured (`cepam_paper.versions`).
    """

    name: str
    title: str
    summary: str
    command: str
    seeds: tuple[int, ...]
    seconds: float
    numbers: dict[str, Any]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = field(default=())
    extent: Extent = Extent.FULL
    made_by: dict[str, str] = field(default_factory=dict)
    measured: str = ""

    def save(self, report: Path) -> None:
        """Writes the part, whole or not at all."""
        path = file_of(report, self.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(asdict(self), indent=1) + "\n").encode())


def file_of(report: Path, name: str) -> Path:
    """Where a part of this name lies in the report's folder."""
    return report / "parts" / f"{name}.json"


def load(report: Path, name: str) -> Part | None:
    """The part as it was saved, or None where it has not been computed."""
    path = file_of(report, name)
    if not path.is_file():
        return None
    return part_of(json.loads(path.read_text()))


def part_of(kept: dict[str, Any]) -> Part:
    """The part that a JSON object holds."""
    kept = dict(kept)
    kept["tables"] = tuple(
        Table(**{**table, "columns": tuple(table["columns"]), "rows": tuple(tuple(row) for row in table["rows"])})
        for table in kept["tables"]
    )
    kept["figures"] = tuple(Figure(**figure) for figure in kept["figures"])
    kept["seeds"], kept["notes"] = tuple(kept["seeds"]), tuple(kept["notes"])
    kept["extent"] = Extent(kept["extent"])
    return Part(**kept)
