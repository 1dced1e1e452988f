"""The `cepam` command: parses and prints; computes nothing.

One module a group. A group whose module does not exist is not shown; one that exists and is broken raises.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from cepam.cli.guard import OneLineErrors

_COMMANDS = ("keys", "messages", "certificate", "bench")
_GROUPS = ("privacy",)

_TRAINING = {
    "train": "Train a model with federated clients whose every update goes through encode, bytes and decode.",
    "compare": "Compare schemes on the same data, starts and draws: means with 95 % intervals, differences by seed.",
    "data": "The public data sets: fetch and check.",
}

OneLineErrors.later.update({name: (f"cepam.cli.{name}", about) for name, about in _TRAINING.items()})
if find_spec("cepam_paper") is not None:
    about = "Redo every table, figure and bound of the paper and say which of its claims hold."
    OneLineErrors.later["reproduce"] = ("cepam_paper.command", about)

app = typer.Typer(
    name="cepam",
    cls=OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Client updates that are private and small: exact-noise lattice quantization for federated learning."
    "\n\n"
    "Try it:\n\n"
    "`cepam keygen alice.key`\n\n"
    "`cepam encode update.npy message.cepam --key alice.key --round 1 --sigma 0.01`\n\n"
    "`cepam decode message.cepam vector.npy --key alice.key --round 1 --sigma 0.01`\n\n"
    "`cepam verify --law gaussian --sigma 0.01 --lattice E8`",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from cepam import __version__

        typer.echo(f"cepam {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    pass


def mount(onto: typer.Typer) -> None:
    """Nothing; the commands and groups whose modules exist are added."""
    for name in _COMMANDS:
        if find_spec(f"cepam.cli.{name}") is not None:
            import_module(f"cepam.cli.{name}").register(onto)
    for name in _GROUPS:
        if find_spec(f"cepam.cli.{name}") is not None:
            onto.add_typer(import_module(f"cepam.cli.{name}").app, name=name)


mount(app)
