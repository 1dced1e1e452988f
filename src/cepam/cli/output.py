"""What commands print: live progress, figures, tables of clients, sentences that wrap."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cepam._internal.page import joined
from cepam.fl import Progress as Done
from cepam.fl.aggregation.warnings import told
from cepam.fl.data.fetch import Report

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 120


def wide(stderr: bool = False) -> Console:
    """A console as wide as its tables need where no terminal sets the width: in a pipe, a log, a file."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=max(WIDE, console.width))


class Watch:
    """A progress bar that follows a run; `shown=False` follows silently."""

    def __init__(self, console: Console, shown: bool = True, simulated: bool = False) -> None:
        self.simulated = simulated
        self.round = self.rounds = 0
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"), TimeElapsedColumn(), console=console, disable=not shown, transient=True,
        )  # fmt: skip
        self.tasks: dict[str, Any] = {}
        self.known: dict[str, dict[str, float]] = {}

    def __enter__(self) -> Watch:
        self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.bar.stop()

    def follow(self, name: str, done: Done) -> None:
        """Shows a round that was just done."""
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=done.rounds, told="")
            self.known[name] = {}
        for key in ("accuracy", "loss", "bits_per_coordinate", "bits_per_coordinate_down"):
            values = [line[key] for line in done.lines if line.get(key) is not None]
            if values:
                self.known[name][key] = float(np.mean(values))
        if "epsilon" in done.lines[0]:  # the worst of the seeds; none where a seed has none
            spent = [line["epsilon"] for line in done.lines]
            self.known[name].pop("epsilon", None)
            if None not in spent:
                self.known[name]["epsilon"] = float(max(spent))
        number = int(done.lines[0]["round"])
        self.round, self.rounds = number, done.rounds
        left = done.seconds / max(1, number - done.started_at) * (done.rounds - number)
        self.bar.update(
            self.tasks[name],
            completed=number,
            told=f"{in_words(self.known[name], self.simulated)} · {clock(left)} left",
        )

    def fetch(self, report: Report) -> None:
        """Shows data on its way."""
        if report.text not in self.tasks:
            self.tasks[report.text] = self.bar.add_task(report.text, total=report.total or None, told="")
        self.bar.update(self.tasks[report.text], completed=report.done, told=f"{report.done / 1e6:.1f} MB")


def in_words(known: dict[str, float], simulated: bool) -> str:
    """The known figures in a few words."""
    words = []
    if "accuracy" in known:
        words.append(f"accuracy {100 * known['accuracy']:.2f} %")
    elif "loss" in known:
        words.append(f"loss {known['loss']:.4g}")
    if "epsilon" in known:
        words.append(f"eps {told(known['epsilon'], simulated, '.2f')}")
    if "bits_per_coordinate" in known:
        words.append(f"{known['bits_per_coordinate']:.3f} bit/coordinate up")
    if "bits_per_coordinate_down" in known:
        words.append(f"{known['bits_per_coordinate_down']:.3f} down")
    return " · ".join(words)


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds."""
    return time.strftime("%M:%S" if seconds < 3600 else "%H:%M:%S", time.gmtime(max(0.0, seconds)))


MOST_CLIENTS = 12
"""How many clients are shown of many."""

SENTENCES = ("advice", "warnings")


def print_figures(found: dict[str, Any], as_json: bool) -> None:
    """Nothing; one JSON object, or one line for each figure, clients in a table with advice and warnings at the end."""
    if as_json:
        typer.echo(json.dumps(_plain(found)))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for name, value in found.items():
        if name == "observers":
            least = found.get("observers_at_quorum", value)
            for who, spent in value.items():
                both = f" if nobody drops out, {_shown(least[who])} at the quorum" if least[who] != spent else ""
                typer.echo(f"against {who}: {_shown(spent)}{both}")
        elif name == "observers_at_quorum":
            continue
        elif name in ("clients", "per_client") and isinstance(value, list):
            table, left_out = _clients(value, found)
            console.print(table)
            if left_out:
                console.print(f"and {left_out:,} more clients: --json has them all")
        elif name not in SENTENCES:
            typer.echo(f"{name} {_shown(value)}")
    if "advice" in found:
        console.print(f"advice: {found['advice']}")
    for one in found.get("warnings", ()):
        console.print(f"caution {one['code']}: {one['reason']}. {one['remedy']}.")


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
