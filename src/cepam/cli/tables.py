"""Figures on the terminal: one line each, clients as a table of the first few, sentences that wrap."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from cepam._internal.page import joined

if TYPE_CHECKING:
    from rich.table import Table

MOST_CLIENTS = 12
"""How many clients are shown of many."""

SENTENCES = ("advice", "warnings", "units", "opacus", "numerics")


def print_figures(found: dict[str, Any], as_json: bool) -> None:
    """Print one JSON object, or one line for each figure, clients in a table with advice and warnings at the end."""
    if as_json:
        typer.echo(as_plain_json(found))
        return

    console = Console(highlight=False, markup=False)
    for name, value in found.items():
        if name == "observers":
            least = found.get("observers_at_quorum", value)
            for who, spent in value.items():
                both = f" if nobody drops out, {_shown(least[who])} at the quorum" if least[who] != spent else ""
                typer.echo(f"against {who}: {_guarantee(spent)}{both}")
        elif name == "observers_at_quorum":
            continue
        elif name in ("clients", "per_client") and isinstance(value, list):
            table, left_out = _clients(value, found)
            console.print(table)
            if left_out:
                console.print(f"and {left_out:,} more clients: --json has them all")
        elif name not in SENTENCES:
            typer.echo(f"{name} {_shown(value)}")
    for name, unit in found.get("units", {}).items():
        console.print(f"{name}: {unit}")
    if "opacus" in found:
        console.print(f"Opacus: {found['opacus']}")
    if "numerics" in found:
        console.print(f"rounding: {found['numerics']}")
    if "advice" in found:
        console.print(f"advice: {found['advice']}")
    for one in found.get("warnings", ()):
        console.print(f"warning {one['code']}: {one['reason']}. {one['remedy']}.")


def as_plain_json(found: dict[str, Any]) -> str:
    """The figures as one JSON object; infinities, which JSON has no number for, are null."""
    return json.dumps(_plain(found))


def _clients(rows: list[dict[str, Any]], said: dict[str, Any]) -> tuple[Table, int]:
    """A row for each kind of client, without what is said once for all; and how many clients are left out."""
    from rich import box
    from rich.table import Table

    names = [name for name in rows[0] if any(row[name] not in (None, said.get(name)) for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for k, name in enumerate(names):
        table.add_column(name.replace("_", " "), justify="left" if k == 0 else "right")
    shown = joined([[_shown(row[name]) for name in names] for row in rows])
    for cells, _ in shown[:MOST_CLIENTS]:
        table.add_row(*cells)
    return table, sum(many for _, many in shown[MOST_CLIENTS:])


def _plain(value: Any) -> Any:
    """A value that JSON can hold: infinities have no number there."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _guarantee(epsilon: Any) -> str:
    return "no guarantee" if epsilon is None or epsilon == math.inf else _shown(epsilon)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        cut = value if len(value) <= MOST_CLIENTS else [*value[: MOST_CLIENTS - 1], f"… {len(value):,} in all"]
        return " ".join(_shown(one) for one in cut)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def fitting(width: int, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> list[Table]:
    """The rows as one table; where it is wider than the terminal, turned: a column each, as many tables as it takes."""
    from rich.table import Column, Table

    frame = 3  # a border and a space on each side of a cell
    columns = list(zip(headings, *rows))
    if sum(max(map(len, column)) + frame for column in columns) < width:
        table = Table(*(Column(name, no_wrap=True) for name in headings), title=title)
        for row in rows:
            table.add_row(*row)
        return [table]
    made, left = list[Table](), list(rows)
    while left:
        room = width - max(map(len, headings)) - frame - 1
        taken = 0
        while taken < len(left) and (room := room - max(map(len, left[taken])) - frame) >= 0:
            taken += 1
        taken = max(1, taken)
        table = Table(headings[0], *(row[0] for row in left[:taken]), title=title)
        for k, name in enumerate(headings[1:], 1):
            table.add_row(name, *(row[k] for row in left[:taken]))
        made, left = [*made, table], left[taken:]
    return made
