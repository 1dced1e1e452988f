"""`cepam keygen`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from cepam.cli.options import JsonOption


def keygen(
    path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    json_out: JsonOption = False,
) -> None:
    """Make a fresh key for ONE client and the server, in a file that only you can read (mode 600).

    Whoever holds a key and the traffic can strip the noise: never share one between clients. `cepam encode` notes the
    addresses that it used beside it, in KEY.used: keep the two files together.

    Example: `cepam keygen alice.key`
    """
    from cepam import Key

    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ValueError(f"{path} exists: a key is never overwritten") from None
    with os.fdopen(handle, "w") as file:
        file.write(Key.generate().secret.hex() + "\n")
    typer.echo(json.dumps({"key_file": str(path), "bytes": 32}) if json_out else f"a fresh key is in {path} (mode 600)")
