"""`cepam reproduce`: the paper's tables, figures and bounds, redone, with a verdict on every claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cepam.cli.progress import wide
from cepam_paper import claims, reproduction
from cepam_paper.run_size import Extent
from cepam_paper.verdict import Label

WRITERS = ("page", "document")
FOLDERS = {Extent.FULL: "report", Extent.QUICK: "report-quick", Extent.ONE_SEED: "report-experiment"}
HELP = (
    "Redo every table, figure and bound of the paper and say which of its claims hold.\n\n"
    "Everything is kept in the report's folder as it is done: stop at any time and call again to go on.\n\n"
    "`cepam reproduce experiment`: the paper's experiment with one seed (Tables I and II, Figures 2 to 5), minutes\n\n"
    "`cepam reproduce all --quick`: a look at everything, no verdict on accuracy, five minutes on two cores\n\n"
    "`cepam reproduce all`: the whole of it, an hour or more\n\n"
    "`cepam reproduce gaussian gain`: one table and the experiment that explains it\n\n"
    "Parts:\n\n" + "\n\n".join(f"`{name}`: {told}" for name, told in reproduction.TOLD.items()) + "\n\n"
    "`all`: every part\n\n"
    "`experiment`: gaussian, laplace and grid with one seed and no verdict on accuracy\n\n"
    "`page`: write the page anew from what is there\n\n"
    "`document`: write docs/paper/reproduction.md, with the parts that only it has\n\n"
    "The page opens without a network. It cites for each verdict the command that shows the evidence."
)
Parts = Annotated[list[str] | None, typer.Argument(help="Parts to redo, as listed above.", show_default="all")]


def reproduce(
    parts: Parts = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, rounds and grid points: five minutes.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The report's folder.", show_default="report, report-quick with --quick, report-experiment"),
    ] = None,
    docs: Annotated[Path, typer.Option(help="Where `document` writes.")] = Path("docs/paper"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdicts and paths as JSON, nothing else.")
    ] = False,
) -> None:
    """Do the parts, write the page and print the verdicts."""
    console = wide(stderr=as_json)
    wanted = list(parts or ["all"])
    extra = [name for name in wanted if name in WRITERS]
    names = [name for name in wanted if name not in WRITERS]
    extent = Extent.QUICK if quick else Extent.FULL
    if "experiment" in names:
        if quick or len(names) > 1:
            raise ValueError("`experiment` stands alone: one seed of the paper's tables and figures, without --quick")
        names, extent = list(reproduction.EXPERIMENT), Extent.ONE_SEED
    names = list(reproduction.PARTS) if "all" in names else names
    report = out or Path(FOLDERS[extent])
    if names and extent is not Extent.FULL:
        console.print(f"Not a full run ({extent.value}): too few seeds for a verdict on accuracy.")
    if names:
        _watched(names, report, extent, console)
    written: dict[str, str] = {}
    if names or "page" in extra:
        written["page"] = str(reproduction.write_page(report))
    if "document" in extra:
        written["document"] = str(reproduction.write_document(report, docs))
    if as_json:
        shown = _values(report) if "page" in written else {}
        print(json.dumps(shown | written, indent=1))
        return
    if "page" in written:
        _told(report, console)
    for kind, path in written.items():
        console.print(f"{kind}: {path}")


reproduce.__doc__ = HELP  # what `cepam reproduce --help` shows: the parts are listed from one table


def _watched(names: list[str], report: Path, extent: Extent, console: Console) -> None:
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
            reproduction.reproduce([name], report, extent, say)
            if name in tasks:
                bar.update(tasks[name], completed=bar.tasks[tasks[name]].total or 1, doing="done")


def _values(report: Path) -> dict[str, Any]:
    """What the folder holds as plain values: which parts, the verdicts that follow from them, and how many of each."""
    parts, verdicts = reproduction.found(report)
    made = [verdict for verdict in verdicts if verdict.label is not Label.UNTESTED]
    return {
        "parts": [part.name for part in parts],
        "mode": reproduction.about(parts)["mode"],
        "claims": len(verdicts),
        "tally": {label.value: count for label, count in claims.tally(verdicts).items()},
        "verdicts": reproduction.listed(made),
    }


def _told(report: Path, console: Console) -> None:
    """The verdicts that the parts allow in a table, and how many there are of each, "not tested" among them."""
    parts, verdicts = reproduction.found(report)
    mode = reproduction.about(parts)["mode"]
    short = "" if mode == Extent.FULL else f" ({mode}: none on accuracy)"
    table = Table("claim", "where", "the scheme", "the published program", title=f"Verdicts{short}")
    for verdict in verdicts:
        if verdict.label is not Label.UNTESTED:
            program = "–" if verdict.program is None else verdict.program.value
            table.add_row(verdict.claim.name, verdict.claim.where, verdict.label.value, program)
    console.print(table)
    counts = {label: count for label, count in claims.tally(verdicts).items() if count}
    listed = ", ".join(f"{label.value}: {count}" for label, count in counts.items())
    console.print(f"{len(verdicts)} claims{short}. {listed}")
    untested = [verdict.claim.name for verdict in verdicts if verdict.label is Label.UNTESTED]
    if mode != Extent.FULL and untested:
        console.print(f"Not a full run ({mode}). Not tested: {', '.join(untested)}. `cepam reproduce all` tests them.")
    missing = [name for name in reproduction.PARTS if name not in {part.name for part in parts}]
    if missing:
        console.print(f"parts not done yet: {', '.join(missing)}")
