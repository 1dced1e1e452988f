"""`cepam policy`: what a node enforces, and what it has spent."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from cepam.cli.command import OneLineErrors, help_alone
from cepam.cli.options import JsonOption
from cepam.policy import ClientPolicy, FileAccount, read_policy

app = typer.Typer(
    cls=OneLineErrors,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="A node's own privacy policy, and the account of all that it has answered.\n\n"
    "The node's operator writes the policy; no server changes it. Flower: `cepam-policy` and `cepam-account` in a "
    "SuperNode's `--node-config`. FLARE: `policy` and `account` of `cepam.flare.ClientFilter` in the site's "
    "`local/privacy.json`.\n\n"
    "Start:\n\n`cepam policy new policy.toml --noise-scale 4 --clipping-norm 1 --rounds 100 --epsilon 20`\n\n"
    "`cepam policy open account.json`\n\n`cepam policy show policy.toml --account account.json`",
)

TEMPLATE = """\
# What this node enforces, whatever a server asks. A misspelt name or a value of another type is an error.
noise_scale = {noise_scale}  # least noise of its own (deviation of a Gaussian, b of a Laplace law)
clipping_norm = {clipping_norm}  # largest clipping norm
rounds = {rounds}  # most answers, over all runs and modes
{epsilon}  # most epsilon for one record by the node's own account, over all runs and modes
delta = {delta}
trust = "{trust}"  # "secure-aggregation": never send what a server can decode; "server": both
metrics = false  # true lets plain numbers leave, which no epsilon covers

# Secure aggregation:
quorum = 3  # fewest clients in a sum
honest = 2  # fewest honest clients in any sum that a lying server can open
colluders = 0  # how many of the clients collude with it

# Where training clips each example: the least divisor of their sum, and the most examples in one update.
# divisor = 64.0
# records = 2000
# record_sampling_rate = 1.0  # largest share of its records that a round draws, in secret

# Correlated noise: into how many slices training splits its records, where it reads only the round's slice.
# slices = 20
"""

UNITS = {
    "noise_scale": "per coordinate of this node's update, in the unit of the update",
    "clipping_norm": "in the unit of the update",
    "least_noise_multiplier": "this node's own noise_scale over clipping_norm: of its update alone, not of the sum",
}
"""What the figures of a policy are measured in."""

PolicyFile = Annotated[Path, typer.Argument(help="The policy, a TOML file.")]
AccountFile = Annotated[Path, typer.Argument(help="The account, a file of this node alone.")]


@app.callback(invoke_without_command=True)
def _top(ctx: typer.Context) -> None:
    help_alone(ctx)


@app.command()
def new(
    file: PolicyFile,
    noise_scale: Annotated[
        float, typer.Option(help="Smallest noise scale of this node, per coordinate, in the unit of the update.")
    ],
    clipping_norm: Annotated[float, typer.Option(help="Largest clipping norm, in the unit of the update.")],
    rounds: Annotated[int, typer.Option(help="Largest number of answers over all runs.")],
    epsilon: Annotated[
        float | None, typer.Option(help="Largest epsilon for one record over all runs. Default: no limit.")
    ] = None,
    delta: Annotated[float, typer.Option(help="delta of that epsilon, in (0, 1).")] = 1e-5,
    trust: Annotated[
        Literal["server", "secure-aggregation"],
        typer.Option(help="server: also answer a server that decodes single updates. secure-aggregation: sums alone."),
    ] = "secure-aggregation",
) -> None:
    """Write a policy with comments, to be edited. A file that exists is left alone.

    Example: `cepam policy new policy.toml --noise-scale 4 --clipping-norm 1 --rounds 100 --epsilon 20 --trust server`
    """
    limit = "# epsilon = 8.0" if epsilon is None else f"epsilon = {epsilon!r}"
    text = TEMPLATE.format(
        noise_scale=noise_scale, clipping_norm=clipping_norm, rounds=rounds, epsilon=limit, delta=delta, trust=trust
    )
    policy = read_policy(text.encode())
    with file.open("x") as out:
        out.write(text)
    typer.echo(f"wrote {file}")
    _print_largest(policy)


@app.command("open")
def open_account(account: AccountFile) -> None:
    """Open an empty account, once, before the node's first start.

    A node whose account is missing, damaged or restored from a backup answers nothing: this command alone makes one.
    It refuses where there is one.

    Example: `cepam policy open /var/lib/cepam/account.json`
    """
    FileAccount.create(account)
    typer.echo(f"opened {account}; keep it with {account.name}.mark, and restore neither from a backup")


@app.command()
def show(
    file: PolicyFile,
    account: Annotated[Path | None, typer.Option(help="Also show what this account has spent.")] = None,
    json_out: JsonOption = False,
) -> None:
    """Check a policy, and show its floors, the epsilon that they alone allow, and what was spent.

    Against a trusted server's outsiders epsilon counts the node's own noise alone, so it is large where many nodes'
    noise adds up. The server itself holds the keys: no epsilon is for it. In secure aggregation epsilon is for a server
    that lies about dropouts. Both are for one record, replaced by another.

    Example: `cepam policy show policy.toml --account account.json`
    """
    policy = read_policy(file.read_bytes())
    values = {field.name: getattr(policy, field.name) for field in fields(policy) if field.name != "cohort"}
    found: dict[str, object] = {"policy": values, "least_noise_multiplier": policy.noise_scale / policy.clipping_norm}
    found |= {"units": UNITS, "largest_epsilon": policy.largest_epsilon()}
    if account is not None:
        with FileAccount(account).hold() as held:
            answered = held.answered
        found["spent"] = {"rounds": answered.rounds, "epsilon": policy.spent(answered)}
    if json_out:
        typer.echo(json.dumps(found))
        return
    for name, value in values.items():
        typer.echo(f"{name} = {value}{f'  # {UNITS[name]}' if name in UNITS else ''}")
        if name == "clipping_norm":
            typer.echo(
                f"least_noise_multiplier = {found['least_noise_multiplier']:g}  # {UNITS['least_noise_multiplier']}"
            )
    _print_largest(policy)
    if account is not None:
        typer.echo(
            f"spent: {answered.rounds} of {policy.rounds} rounds, epsilon {policy.spent(answered):.4g}"
            f" of {'no limit' if policy.epsilon is None else f'{policy.epsilon:.4g}'} at delta {policy.delta:g}"
        )


def _print_largest(policy: ClientPolicy) -> None:
    for trust, epsilon in policy.largest_epsilon().items():
        whom = "everybody but the key holders" if trust == "server" else "a lying server"
        typer.echo(
            f"floors alone, {policy.rounds} rounds of trust {trust}: epsilon {epsilon:.4g} at delta {policy.delta:g} "
            f"against {whom}"
        )
