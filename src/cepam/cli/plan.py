"""`cepam plan`: from who takes part to what to run. Asks, computes, prints."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from cepam import privacy
from cepam.cli.options import JsonOption
from cepam.cli.privacy_options import noise_of, observers_of, values_of
from cepam.cli.tables import as_plain_json

QUESTIONS = {
    "unit": ("What must be protected: one record, or a client with all its records?", "record"),
    "clients": ("How many clients (sites, phones) are there?", 10),
    "records": ("How many records does a client hold? One number, or one per client with commas", "1000"),
    "rounds": ("How many rounds of training?", 100),
    "trust": ("Who may see a single update: server, secure-aggregation (only sums), or nobody?", "server"),
    "coordinates": ("How many weights does the model train?", 10_000),
    "epsilon": ("Target epsilon of the whole run", 2.0),
}
NEEDED = ("clients", "coordinates", "epsilon")


def plan(
    unit: Annotated[
        Literal["record", "client"] | None, typer.Option("--unit", help="What is protected (default: record).")
    ] = None,
    clients: Annotated[int | None, typer.Option("--clients", help="Number of clients: sites, phones, users.")] = None,
    records: Annotated[
        str | None, typer.Option("--records", help="Records of a client: one value, or one per client.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds of training (default: 100).")] = None,
    trust: Annotated[
        Literal["server", "secure-aggregation", "nobody"] | None,
        typer.Option("--trust", help="Who may see a single update (default: the server)."),
    ] = None,
    coordinates: Annotated[int | None, typer.Option("--coordinates", help="Weights that the model trains.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Target epsilon of the whole run.")] = None,
    delta: Annotated[
        float, typer.Option("--delta", help="delta (default: a tenth of one over the protected units, rounded down).")
    ] = 0.0,
    clipping_norm: Annotated[
        float, typer.Option("--clipping-norm", help="Bound on an example's gradient, or on a client's update.")
    ] = 1.0,
    colluders: Annotated[
        int, typer.Option("--colluders", help="Other clients who pool what they know; the target holds against them.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Recommend what to run: unit, sampling, clipping, noise, mode, and what to expect.

    On a terminal it asks for what is missing. Three hospitals that trust the server, but not one another:

      cepam plan --clients 3 --records 500,4000,20000 --rounds 200 --coordinates 10000 --epsilon 2 --colluders 1

    Phones, each protected with all its data:

      cepam plan --unit client --clients 100000 --rounds 500 --coordinates 10000 --epsilon 4

    Nobody but sums may be seen:

      cepam plan --clients 40 --records 2000 --trust secure-aggregation --coordinates 10000 --epsilon 2
    """
    given: dict[str, Any] = {
        "unit": unit, "clients": clients, "records": records, "rounds": rounds, "trust": trust,
        "coordinates": coordinates, "epsilon": epsilon,
    }  # fmt: skip
    told = answers(given, ask=sys.stdin.isatty() and not as_json)
    if told["unit"] == "client" and not told["records"]:
        held: tuple[int, ...] = ()
    else:
        many = int(told["clients"])
        held = tuple(int(each) for each in values_of("records", str(told["records"] or ""), many))
    federation = privacy.Federation(
        int(told["coordinates"]), float(told["epsilon"]), told["unit"], int(told["clients"]), held,
        int(told["rounds"]), told["trust"], delta, clipping_norm, colluders,
    )  # fmt: skip
    made = privacy.plan(federation)
    found = answer(made)
    if as_json:
        typer.echo(as_plain_json(found))
        return
    print_plan(found)


def answers(given: dict[str, Any], ask: bool) -> dict[str, Any]:
    """What was given, asked for where it is missing, else its default.

    Raises:
        ValueError: Nobody can be asked and something has no default.
    """
    told = dict(given)
    for name, (question, default) in QUESTIONS.items():
        if told[name] is None and name == "records" and told["unit"] == "client":
            continue
        if told[name] is None and ask:
            told[name] = typer.prompt(question, default=default)
    needed = [*NEEDED, *(["records"] if told["unit"] != "client" else [])]
    if missing := [f"--{name}" for name in needed if told[name] is None]:
        raise ValueError(f"{', '.join(missing)} must be given (on a terminal, without --json, it is asked for)")
    for name in ("unit", "rounds", "trust"):
        told[name] = QUESTIONS[name][1] if told[name] is None else told[name]
    for name, choices in (("unit", ("record", "client")), ("trust", ("server", "secure-aggregation", "nobody"))):
        if told[name] not in choices:
            raise ValueError(f"--{name} must be one of {', '.join(choices)}, got {told[name]!r}")
    return told


def answer(made: privacy.Plan) -> dict[str, Any]:
    """The plan as figures and texts."""
    asked, mechanism = made.federation, made.mechanism
    sampling = {"expected_batch_size": made.batch} if made.mode == "per-example" else {"batch_size": made.batch}
    least = made.least_bytes
    return {
        "mode": made.mode,
        "unit": asked.unit,
        "clients": asked.clients,
        "rounds": asked.rounds,
        "trust": asked.trust,
        "epsilon": made.epsilon,
        "delta": asked.delta,
        "adjacency": mechanism.adjacency,
        "clipping_norm": asked.clipping_norm,
        **(sampling if made.batch else {}),
        "sampling_rate": made.sampling_rate,
        "server_learning_rate": _rate(made),
        **noise_of(mechanism),
        "observers": _observers(made),
        "numerics": "charged" if made.rounding_charged else "not charged: no finite bound for so large a model",
        "reasons": list(made.reasons),
        "expectation": made.expectation,
        "bytes_up_at_least": least,
        "bytes_float32": 4 * asked.coordinates,
        "train": train_command(made),
        "flower": flower_snippet(made),
        "paragraph": paragraph(made),
    }


def _observers(made: privacy.Plan) -> dict[str, float]:
    """epsilon against every adversary; with secure aggregation at the quorum."""
    asked = made.federation
    if asked.trust != "secure-aggregation":
        return observers_of(made.mechanism, asked.delta)
    from cepam.secure_aggregation import epsilons

    quorum, plain = math.ceil(0.8 * asked.clients), replace(made.mechanism, colluders=0)
    return epsilons(plain, asked.delta, quorum, asked.colluders, survivors=quorum)


def _rate(made: privacy.Plan) -> float | None:
    """The server learning rate to start with, where one is known."""
    if made.mode != "per-example":
        return None
    from cepam.privacy.reports.learning_rate import rate_for_target

    return rate_for_target("private", made.federation.epsilon)


def train_command(made: privacy.Plan) -> str:
    """The command that trains it in the simulation engine, on data and a model of one's own."""
    asked = made.federation
    words = ["cepam train --data my_module:load --model my_module:build"]
    if made.mode == "per-example":
        words.insert(1, "--preset private")
    if made.mode in ("client-sampling", "all-clients"):
        words.insert(1, "--preset users")
    words += [f"--clients {asked.clients} --rounds {asked.rounds} --epsilon {asked.epsilon:g} --delta {asked.delta:g}"]
    words += [f"--clipping-norm {asked.clipping_norm:g}"]
    if made.mode == "per-example":
        words.append(f"--set training.expected_batch_size={made.batch:.6g}")
        words.append(f"--server-learning-rate {_rate(made):.3g}")
    elif made.mode == "local-dp-sgd":
        words.append("--scheme fl+sdq --set training.update=dp-sgd --set training.record_sampling=poisson")
        words.append("--set privacy.adjacency=add-remove")
        words.append(f"--set training.batch_size={made.batch:g}")
    else:
        words.append(f"--set clients.sampling_rate={made.sampling_rate:g}")
        if made.mode == "all-clients":
            words.append("--set clients.sampling=fixed")
    if asked.trust == "secure-aggregation":
        words.append("--set privacy.trust=secure-aggregation")
    return " ".join(words)


def flower_snippet(made: privacy.Plan) -> str:
    """The lines of a Flower ServerApp."""
    asked, scale = made.federation, made.mechanism.clients[0].law.scale
    clip = f"clip=cepam.L2({asked.clipping_norm:g})"
    if made.mode == "local-dp-sgd":
        return (
            "# Each client noises its own steps (Opacus or cepam.torch); the server needs no wrapper.\n"
            f"# noise multiplier per client: {', '.join(f'{each:.4g}' for each in _local_multipliers(made)[:12])}"
        )
    if made.mode == "per-example":
        drawn = f'record_sampling=cepam.privacy.Sampling("poisson", {made.batch / asked.clients:.6g})'
        held = f"records={sum(asked.records) // asked.clients}"
        exact = (
            "" if len(set(asked.records)) == 1 else "  # a client of n records draws its share, n/total of the batch"
        )
        count = f'accounting=cepam.flower.Accounting(delta={asked.delta:g}, clipped="example", {held}, {drawn})'
        parts = ["FedAvg()", clip, f"noise=cepam.Gaussian({scale:.6g})", f'{count[:-1]}, adjacency="add-remove")']
        return _strategy(made, parts) + exact
    count = f'accounting=cepam.flower.Accounting(delta={asked.delta:g}, unit="client", adjacency="add-remove")'
    parts = ["FedAvg()", clip, f"noise=cepam.Gaussian({scale:.6g})", count]
    if made.mode == "client-sampling":
        parts.append(f"sampling=cepam.flower.Poisson({made.sampling_rate:g})")
    return _strategy(made, parts)


def _strategy(made: privacy.Plan, parts: list[str]) -> str:
    kind = "SecureAggregation" if made.federation.trust == "secure-aggregation" else "Private"
    inside = "".join(f"\n    {part}," for part in parts)
    return f"strategy = cepam.flower.{kind}({inside}\n)\n# in the ClientApp: mods=[cepam.flower.Uplink()]"


def _local_multipliers(made: privacy.Plan) -> list[float]:
    mechanism = made.mechanism
    assert isinstance(mechanism, privacy.LocalMechanism)
    return [mechanism.multiplier(j) for j in range(len(mechanism.clients))]


def paragraph(made: privacy.Plan) -> str:
    """A paragraph for the data-protection officer."""
    asked = made.federation
    whose = "one record" if asked.unit == "record" else "all records of one participant"
    trusted = {
        "server": "The central server is trusted: it can see each participant's update, and there is no guarantee "
        "against it.",
        "secure-aggregation": "By secure aggregation the central server sees sums of updates only, and the guarantee "
        "holds against it too.",
        "nobody": "Nobody is trusted: each participant adds its noise before anything leaves it, and the guarantee "
        "holds against the server too.",
    }[asked.trust]
    return (
        f"The model is trained with differential privacy for {whose}: epsilon {made.epsilon:.3g} at delta "
        f"{asked.delta:g} over all {asked.rounds} rounds ({made.mechanism.adjacency} adjacency). Whoever sees every "
        f"published model and knows all other data can raise the odds of a guess about {whose} by a factor of at most "
        f"e^{made.epsilon:.3g}, except with probability {asked.delta:g}. {trusted} Raw data stay where they are. "
        "Not covered: statistics of training that look at raw data, and settings tuned on the same data."
    )


def print_plan(found: dict[str, Any]) -> None:
    """Print the plan as a page of text."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    texts = ("reasons", "expectation", "train", "flower", "paragraph", "units", "opacus", "observers", "numerics")
    for name, value in found.items():
        if name not in texts and value is not None:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            many = isinstance(value, list) and len(value) > 6
            console.print(f"{name} {shown if not many else f'{min(value):.4g} to {max(value):.4g}, one per client'}")
    for name, unit in found["units"].items():
        console.print(f"{name}: {unit}")
    for who, spent in found["observers"].items():
        console.print(f"against {who}: {'no guarantee' if spent == float('inf') else f'{spent:.4g}'}")
    console.print(f"rounding: {found['numerics']}")
    console.print(f"Opacus: {found['opacus']}")
    console.print("\nWhy:")
    for reason in found["reasons"]:
        console.print(f"- {reason}")
    console.print(f"\nWhat to expect: {found['expectation']}.")
    console.print(f"\nTrain in simulation:\n\n  {found['train']}", soft_wrap=True)
    console.print(f"\nFlower:\n\n{found['flower']}", soft_wrap=True)
    console.print(f"\nFor the data-protection officer:\n\n{found['paragraph']}")
