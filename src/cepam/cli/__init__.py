"""The `cepam` command: parses and prints; computes nothing. A command's module is imported when it is called.

Internal: users type `cepam`; other distributions add commands by an entry point.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cepam.cli.command import Command, OneLineErrors, brought, help_alone, mount

COMMANDS = (
    Command(
        "keygen",
        "cepam.cli.messages:keygen",
        "Make a fresh key for ONE client and the server, in a file that only you can read (mode 600).",
    ),
    Command(
        "encode",
        "cepam.cli.messages:encode",
        "Turn an update into a sealed message: small, and with `--clipping-norm` private once decoded.",
    ),
    Command(
        "decode",
        "cepam.cli.messages:decode",
        "Turn a message back into the update plus noise of exactly the law. All options must be the encoder's.",
    ),
    Command(
        "inspect",
        "cepam.cli.messages:inspect",
        "Show what a message is. Without a key: what anyone on the wire sees. With one: what is inside.",
    ),
    Command(
        "verify",
        "cepam.cli.verify:verify",
        "Test on fresh randomness that decoded vectors have exactly the stated noise; print a certificate.",
    ),
    Command(
        "bench",
        "cepam.cli.verify:bench",
        "Time encode and decode beside `x + sigma * randn` in one run. Look at the ratios: machines are noisy.",
    ),
    Command(
        "privacy",
        "cepam.cli.privacy:app",
        "Account for privacy: epsilon of a run, noise for a target, a page that explains both, an audit.",
    ),
    Command(
        "plan",
        "cepam.cli.plan:plan",
        "Recommend what to run: unit, sampling, clipping, noise, mode, and what to expect.",
    ),
    Command("new", "cepam.cli.new:app", "Write an app to start from."),
    Command(
        "policy",
        "cepam.cli.policy:app",
        "A node's own privacy policy, and the account of all that it has answered.",
    ),
    Command(
        "train",
        "cepam.cli.train:train",
        "Train a model with federated clients whose every update goes through encode, bytes and decode.",
    ),
    Command(
        "compare",
        "cepam.cli.compare:compare",
        "Compare schemes on the same data, starts and draws: mean with 95 % confidence interval, differences by seed.",
    ),
    Command("data", "cepam.cli.data:app", "The public data sets: list, fetch, compute frozen features."),
)

app = typer.Typer(
    name="cepam",
    cls=OneLineErrors,
    add_completion=False,  # options belong to modules that are imported when they are called: there is nothing to offer
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Client updates that are private and small: exact-noise lattice quantization for federated learning."
    "\n\n"
    "Try it:\n\n"
    "`cepam keygen alice.key`\n\n"
    "`cepam encode update.npy message.cepam --key alice.key --round 1 --noise-scale 0.01 --clipping-norm 1`\n\n"
    "`cepam decode message.cepam vector.npy --key alice.key --round 1 --noise-scale 0.01`\n\n"
    "`cepam verify --law gaussian --noise-scale 0.01 --lattice E8`",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from cepam import __version__

        typer.echo(f"cepam {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    help_alone(ctx)


mount(app, [*COMMANDS, *brought()])
