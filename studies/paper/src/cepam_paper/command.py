"""`cepam reproduce`: the paper's tables, figures and bounds, redone, with a verdict on every claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cepam.cli.live import wide
from cepam_paper import claims, reproduction

Parts = Annotated[
    list[str] | None,
    typer.Argument(
        help="Parts to redo: exactness, privacy, rate, convergence, gaussian, laplace, gain, grid, tradeoff, "
        "variations; or `all`; "
        "`page` writes the page anew from what is there; `document` writes docs/reproduction.md.",
        show_default="all",
    ),
]


def reproduce(
    parts: Parts = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, rounds and grid points: five minutes.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The report's folder.", show_default="report, or report-quick with --quick")
    ] = None,
    docs: Annotated[Path, typer.Option(help="Where `document` writes.")] = Path("docs"),
) -> None:
    """Redo every table, figure and bound of the paper and say which of its claims hold.

    Everything is kept in the report's folder as it is done: stop at any time and call again to go on.

      cepam reproduce all --quick          a look, five minutes on two cores

      cepam reproduce all                  the whole of it, an hour or more

      cepam reproduce gaussian gain        one table and the experiment that explains it

    The page opens without a network. It cites for each verdict the command that shows the evidence.
    """
    console = wide()
    report = out or Path("report-quick" if quick else "report")
    wanted = list(parts or ["all"])
    extra = [name for name in wanted if name in ("page", "document")]
    names = [name for name in wanted if name not in ("page", "document")]
    names = list(reproduction.PARTS) if "all" in names else names
    if names:
        _watched(names, report, quick, console)
    path = reproduction.write_page(report)
    if "document" in extra:
        console.print(f"document: {reproduction.write_document(report, docs)}")
    _told(report, console)
    console.print(f"page: {path}")


def _watched(names: list[str], report: Path, quick: bool, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(),
        TextColumn("{task.fields[doing]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def say(name: str, doing: str, done: int, of: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=of, doing="")
            bar.update(tasks[name], completed=done, total=of, doing=doing)

        for name in names:
            reproduction.reproduce([name], report, quick, say)
            if name in tasks:
                bar.update(tasks[name], completed=bar.tasks[tasks[name]].total or 1, doing="done")


def _told(report: Path, console: Console) -> None:
    """The verdicts in a table, and how many there are of each."""
    parts, verdicts = reproduction.found(report)
    table = Table("claim", "where", "verdict", title="Verdicts")
    for verdict in verdicts:
        table.add_row(verdict.claim.name, verdict.claim.where, verdict.label.value)
    console.print(table)
    counts = claims.tally(verdicts)
    console.print(", ".join(f"{label.value}: {count}" for label, count in counts.items()))
    missing = [name for name in reproduction.PARTS if name not in {part.name for part in parts}]
    if missing:
        console.print(f"parts not done yet: {', '.join(missing)}")
