"""`cepam new`: write an app to start from."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cepam.cli.command import OneLineErrors, help_alone

app = typer.Typer(
    cls=OneLineErrors,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Write an app to start from.\n\nStart:\n\n`cepam new flower-app my-app`",
)
TEMPLATE, PACKAGE = "flower-app", "flower_app"


@app.callback(invoke_without_command=True)
def _top(ctx: typer.Context) -> None:
    help_alone(ctx)


@app.command(TEMPLATE)
def flower_app(
    name: Annotated[str, typer.Argument(help="The name of the app and of its new folder: letters, digits, - and _.")],
) -> None:
    """Write a Flower app: record-level differential privacy, a small model on MNIST, ready for `flwr run`.

    It runs in Flower's simulation and against a SuperLink; its README has the commands. Example:

      cepam new flower-app my-app
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(f"NAME must start with a letter and have letters, digits, - and _ alone, got {name!r}")
    folder = Path(name)
    if folder.exists():
        raise ValueError(f"{folder} is there already: choose another name")
    if find_spec(name.replace("-", "_")) is not None:
        raise ValueError(f"NAME {name} is the name of an installed module, which the app would hide: choose another")
    folder.mkdir()
    _write(files("cepam.cli") / "templates" / TEMPLATE, folder, name)
    typer.echo(f"{folder}: a Flower app. Next:")
    typer.echo(f"  cd {folder}\n  export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1")
    typer.echo('  flwr run . local --stream --federation-config "num-supernodes=4"')


def _write(source: Traversable, folder: Path, name: str) -> None:
    """Copy the template, its name replaced by the app's."""
    package = name.replace("-", "_")
    for entry in source.iterdir():
        if entry.name == "__pycache__":
            continue
        place = folder / entry.name.replace(PACKAGE, package)
        if entry.is_dir():
            place.mkdir()
            _write(entry, place, name)
        else:
            text = entry.read_text(encoding="utf-8")
            place.write_text(text.replace(PACKAGE, package).replace(TEMPLATE, name), encoding="utf-8")
