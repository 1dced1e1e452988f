"""`cepam bench`: what encoding and decoding cost on this machine, beside drawing the noise."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cepam.cli.options import JsonOption


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="One million coordinates instead of ten.")] = False,
    coordinates: Annotated[int | None, typer.Option(min=1000, help="How many coordinates to time.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time encode and decode beside `x + sigma * randn` in one run. Look at the ratios: machines are noisy.

    Example:

    `cepam bench --quick`
    """
    from rich.console import Console
    from rich.table import Table

    from cepam.verify.benchmark import machine, speed_table

    console = Console(stderr=True, quiet=as_json)
    with console.status("timing; the first run on a machine also compiles"):
        rows = speed_table(coordinates or (1_000_000 if quick else 10_000_000))
    if as_json:
        typer.echo(json.dumps({"machine": machine(), "speed": [vars(row) for row in rows]}))
        return
    table = Table("what", "ns per coordinate", "times the noise alone", "bits per coordinate")
    for row in rows:
        bits = "" if row.bits_per_coordinate is None else f"{row.bits_per_coordinate:.3f}"
        table.add_row(row.what, f"{row.nanoseconds:.2f}", f"{row.ratio:.2f}", bits)
    Console().print(table)
    typer.echo("; ".join(f"{name} {value}" for name, value in machine().items()))
