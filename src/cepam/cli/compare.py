"""`cepam compare`: schemes side by side, paired by seed, as a table, a figure and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cepam import fl
from cepam.cli.options import JsonOption
from cepam.cli.progress import Watch, wide
from cepam.cli.settings import (
    Config,
    HelpAll,
    Name,
    Preset,
    Runs,
    Set,
    chosen_settings,
    fresh_folder,
    set_values,
    takes_settings,
)
from cepam.cli.tables import fitting
from cepam.fl.runs.comparison import HEADINGS, cells, verdicts, warnings_of

Schemes = Annotated[
    str,
    typer.Option(
        rich_help_panel="Compression",
        help="Comma-separated: fl, fl+sdq, fl+gaussian, …, cepam-gaussian, cepam-gaussian-n2, …-E8, "
        "cepam-gaussian-secure-aggregation.",
    ),
]
DEFAULT = "fl,fl+gaussian,fl+gaussian+sdq,cepam-gaussian"


@takes_settings(
    "scheme",
    "simulate",
    seed="First seed of the data split, the initial weights, keys and draws.",
    seeds="Number of seeds; schemes are compared seed by seed. Intervals need at least two.",
)
def compare(
    schemes: Schemes = DEFAULT,
    preset: Preset = None,
    config: Config = None,
    sets: Set = None,
    name: Name = None,
    runs: Runs = Path("runs"),
    as_json: JsonOption = False,
    help_all: HelpAll = False,
    **flags: Any,
) -> None:
    """Compare schemes on the same data, starts and draws: mean with 95 % confidence interval, differences by seed.

    Keys and draws come from the seeds, so this is a simulation and every epsilon says so.

    The paper's first table, as the published code trains, on ten seeds:

      cepam compare --preset published --schemes fl,fl+gaussian,cepam-gaussian,cepam-gaussian-n2 --seeds 10

    CEPAM against plain noise at the same privacy:

      cepam compare --preset private --schemes fl+gaussian,cepam-gaussian --seeds 5
    """
    console = wide(stderr=as_json)
    if set_values(sets or []).get("run.simulate") is False:
        raise ValueError("compare pairs schemes by seed, so it is always a simulation: run.simulate must be true")
    settings = chosen_settings(preset, config, [*(sets or []), "run.simulate=true"], flags)
    folder = runs / name if name else fresh_folder(runs, "compare", "comparison.json")
    wanted = [word.strip() for word in schemes.split(",") if word.strip()]
    with Watch(console, shown=not as_json, simulated=True) as watch:
        fl.prepared(settings, watch.fetch)
        rows = fl.compare(settings, wanted, folder, watch.follow, progress=False)
    if as_json:
        print(
            json.dumps({"folder": str(folder), "page": str(folder / "index.html"), "rows": [vars(row) for row in rows]})
        )
        return
    seeds = f"{settings.run.seeds} seed{'s' if settings.run.seeds > 1 else ''}"
    title = f"{settings.data.name}, {settings.training.rounds} rounds, {seeds}"
    for table in fitting(console.width, HEADINGS, [cells(row) for row in rows], title):
        console.print(table)
    for text in verdicts(settings, rows):
        console.print(text)
    for text in warnings_of(rows):
        console.print(f"[yellow]warning[/] {text}")
    console.print(f"page: {folder / 'index.html'}")
