"""`cepam plan`: from who takes part to what to run. Asks, computes, prints."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from cepam import privacy
from cepam.cli.downlink_size import downlink_bytes
from cepam.cli.options import JsonOption
from cepam.cli.privacy_options import COLLUDERS, noise_of, observers_of, secure_aggregation_rows, values_of
from cepam.cli.tables import as_plain_json
from cepam.cli.uplink_size import uplink_bytes
from cepam.privacy.reports.guarantee import ADAM_RATE
from cepam.privacy.reports.page import impact_paragraph
from cepam.privacy.reports.planning import COMPLETE_GRAPH, QUORUM, rounded_up

QUESTIONS = {
    "unit": ("What must be protected: one record, or a client with all its records?", "record"),
    "clients": ("How many clients (sites, phones) are there?", 10),
    "records": ("How many records does a client hold? One number, or one per client with commas", "1000"),
    "rounds": ("How many rounds of training?", 100),
    "trust": ("Who may see a single update: server, secure-aggregation (only sums), or nobody?", "server"),
    "coordinates": ("How many weights does the model train?", 10_000),
    "epsilon": ("Target epsilon of the whole run", 2.0),
}
ADAM = (
    "Adam on the server divides by the noise, so that its steps follow epsilon: one rate to start with, chosen on "
    "held-out records of MNIST, not on yours"
)
NEEDED = ("clients", "coordinates", "epsilon")


def plan(
    unit: Annotated[
        Literal["record", "client"] | None,
        typer.Option(
            "--unit", help="What the guarantee protects: one record, or all records of one client. Default: record."
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option("--clients", help="Number of clients: sites, phones. Default: as many as --records lists."),
    ] = None,
    records: Annotated[
        str | None, typer.Option("--records", help="Number of records of a client: one value, or one per client.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Number of rounds. Default: 100.")] = None,
    trust: Annotated[
        Literal["server", "secure-aggregation", "nobody"] | None,
        typer.Option("--trust", help="Who sees single updates. Default: server."),
    ] = None,
    coordinates: Annotated[int | None, typer.Option("--coordinates", help="Number of trained weights.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Target epsilon of the whole run.")] = None,
    delta: Annotated[
        float,
        typer.Option(
            "--delta",
            help="delta of the guarantee, in (0, 1). Default: a tenth of one over the protected units, rounded down.",
            show_default=False,
        ),
    ] = 0.0,
    clipping_norm: Annotated[
        float,
        typer.Option("--clipping-norm", help="Clipping norm: the bound on an update, or on an example's gradient."),
    ] = 1.0,
    colluders: Annotated[int, typer.Option("--colluders", help=f"{COLLUDERS} The target holds against them.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Recommend what to run: unit, sampling, clipping, noise, mode, and what to expect.

    On a terminal it asks for what is missing. Three hospitals that trust the server, but not one another:

      cepam plan --clients 3 --records 500,4000,20000 --rounds 200 --coordinates 10000 --epsilon 2 --colluders 1

    Phones, each protected with all its data:

      cepam plan --unit client --clients 100000 --rounds 500 --coordinates 10000 --epsilon 4

    The server may see sums of updates only:

      cepam plan --clients 40 --records 2000 --trust secure-aggregation --coordinates 10000 --epsilon 2
    """
    given: dict[str, Any] = {
        "unit": unit, "clients": clients, "records": records, "rounds": rounds, "trust": trust,
        "coordinates": coordinates, "epsilon": epsilon,
    }  # fmt: skip
    values = answers(given, ask=sys.stdin.isatty() and not as_json)
    if values["unit"] == "client" and not values["records"]:
        held: tuple[int, ...] = ()
    else:
        many = int(values["clients"])
        held = tuple(int(each) for each in values_of("records", str(values["records"] or ""), many))
    federation = privacy.Federation(
        int(values["coordinates"]), float(values["epsilon"]), values["unit"], int(values["clients"]), held,
        int(values["rounds"]), values["trust"], delta, clipping_norm, colluders,
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
    values = dict(given)
    listed = values["records"].count(",") + 1 if values["records"] else 0
    if values["clients"] is None and listed > 1:
        values["clients"] = listed
    for name, (question, default) in QUESTIONS.items():
        if values[name] is None and name == "records" and values["unit"] == "client":
            continue
        if values[name] is None and ask:
            values[name] = typer.prompt(question, default=default)
    needed = [*NEEDED, *(["records"] if values["unit"] != "client" else [])]
    if missing := [f"--{name}" for name in needed if values[name] is None]:
        raise ValueError(f"{', '.join(missing)} must be given (on a terminal, without --json, it is asked for)")
    for name in ("unit", "rounds", "trust"):
        values[name] = QUESTIONS[name][1] if values[name] is None else values[name]
    for name, choices in (("unit", ("record", "client")), ("trust", ("server", "secure-aggregation", "nobody"))):
        if values[name] not in choices:
            raise ValueError(f"--{name} must be one of {', '.join(choices)}, got {values[name]!r}")
    return values


def answer(made: privacy.Plan) -> dict[str, Any]:
    """The plan as figures and texts."""
    federation, mechanism = made.federation, made.mechanism
    sampling = {"expected_batch_size": made.batch} if made.mode == "per-example" else {"batch_size": made.batch}
    sizes, of_what = uplink_bytes(made)
    down, down_of = downlink_bytes(made)
    if _masked(made):
        uploaded: dict[str, float | list[float]] = {"bytes_up": max(sizes), "bytes_up_later": min(sizes)}
    else:
        alike = len(sizes) == 1
        uploaded = {"bytes_up": sizes[0] if alike else sizes, "bytes_up_mean": sum(sizes) / len(sizes)}
    return {
        "mode": made.mode,
        "unit": federation.unit,
        "clients": federation.clients,
        "rounds": federation.rounds,
        "trust": federation.trust,
        "epsilon": made.epsilon,
        "delta": federation.delta,
        "adjacency": mechanism.adjacency,
        "clipping_norm": federation.clipping_norm,
        **({"quorum": federation.quorum} if federation.trust == "secure-aggregation" else {}),
        **(sampling if made.batch else {}),
        "client_sampling_rate": made.sampling_rate,
        **_record_sampling(made),
        "server_optimizer": "adam" if made.mode == "per-example" else None,
        "server_learning_rate": _rate(made),
        **noise_of(mechanism),
        **({"noise_multiplier": _local_multipliers(made)} if made.mode == "local-dp-sgd" else {}),
        **_observers(made),
        "numerics": "charged" if made.rounding_charged else "not charged: no finite bound for so large a model",
        "reasons": [*made.reasons, *([ADAM] if made.mode == "per-example" else [])],
        "expectation": made.expectation,
        **uploaded,
        "bytes_up_of": of_what,
        "bytes_down": down,
        "bytes_down_of": down_of,
        "bytes_float32": 4 * federation.coordinates,
        "train": train_command(made),
        "train_note": train_note(made),
        "flower": flower_snippet(made),
        "check": check_command(made),
        "paragraph": paragraph(made),
    }


def _record_sampling(made: privacy.Plan) -> dict[str, float | list[float]]:
    """The probability that a record is drawn: per round, or per local step of local DP-SGD; nothing for whole users."""
    if made.federation.unit == "client":
        return {}
    mechanism = made.mechanism
    rates = [mechanism.sampling_rate(j) for j in range(len(mechanism.clients))]
    name = "record_sampling_rate_per_step" if made.mode == "local-dp-sgd" else "record_sampling_rate"
    alike = max(rates) - min(rates) <= 1e-12
    return {name: rates[0] if alike else rates}


def _observers(made: privacy.Plan) -> dict[str, dict[str, float]]:
    """epsilon against every adversary; with secure aggregation also where only the quorum is in each sum."""
    federation, mechanism = made.federation, made.mechanism
    if federation.trust == "secure-aggregation":
        return {"observers": _of_sums(made, federation.clients), "observers_at_quorum": _of_sums(made)}
    found = observers_of(mechanism, federation.delta)
    if made.mode != "local-dp-sgd" and 1 < federation.colluders < federation.clients - 1:
        first = {who: found[who] for who in ("outsider", "one curious client")}
        pooled = {f"{federation.colluders} other clients": privacy.epsilon(mechanism, federation.delta)}
        found = {**first, **pooled, **found}
    return {"observers": found}


def _of_sums(made: privacy.Plan, survivors: int = 0) -> dict[str, float]:
    """epsilon of each observer of sums with so many clients in each (default: the quorum)."""
    from cepam.secure_aggregation import epsilons
    from cepam.secure_aggregation.mechanism import LIES

    federation, plain = made.federation, replace(made.mechanism, colluders=0)
    present = survivors or federation.quorum
    others = federation.clients - 1
    found = epsilons(plain, federation.delta, federation.quorum, federation.colluders, survivors=present)
    if federation.clients > COMPLETE_GRAPH:
        found |= {who: math.inf for who in found if who.startswith(LIES)}
    knows = {"one curious client": federation.clients - present + 1, f"all {others} other clients": others}
    curious = {
        who: privacy.epsilon(replace(plain, colluders=many), federation.delta, client=0) for who, many in knows.items()
    }
    return {"outsider": found.pop("outsider"), **curious, **found}


def _rate(made: privacy.Plan) -> float | None:
    """The learning rate of Adam on the server to start with, where one is known."""
    return ADAM_RATE if made.mode == "per-example" else None


def _aim(made: privacy.Plan) -> float:
    """The engine's target, which is for an outsider: less than the plan's where that holds against colluders."""
    federation = made.federation
    if made.mode == "local-dp-sgd":
        return made.aim or federation.epsilon
    if not federation.colluders:
        return federation.epsilon
    found = observers_of(made.mechanism, federation.delta)["outsider"]
    unit = 10.0 ** (3 - math.floor(math.log10(found)))
    return math.floor(unit * found) / unit


def _shown(value: float) -> str:
    """A number with all the digits that matter to a run."""
    return f"{value:.12g}"


def _masked(made: privacy.Plan) -> bool:
    return made.federation.trust == "secure-aggregation"


def train_note(made: privacy.Plan) -> str | None:
    """Why there is no command that trains this plan in simulation; None where there is one."""
    federation = made.federation
    if not _masked(made):
        return None
    if federation.unit == "client":
        return (
            "no command: the simulation engine protects whole clients only where the server is trusted. Flower runs "
            "this plan"
        )
    if len(set(federation.records)) > 1:
        held = made.mechanism.clients[0].records
        return (
            "no command: the simulation engine divides the sum of each client by that client's own expected batch, "
            f"which is another mechanism with another epsilon. Flower runs this plan; `--records {held}`, the average, "
            "gives a command for clients of one size"
        )
    return None


def train_command(made: privacy.Plan) -> str | None:
    """The command that trains it in the simulation engine, on data and a model of one's own; None: see `train_note`."""
    federation = made.federation
    if train_note(made):
        return None
    words = ["cepam train --data my_module:load --model my_module:build"]
    if made.mode == "per-example":
        words.insert(1, "--preset private")
    if made.mode in ("client-sampling", "all-clients"):
        words.insert(1, "--preset users")
    words += [f"--clients {federation.clients} --rounds {federation.rounds}"]
    if _masked(made):  # the engine's own target counts on all clients, the plan's on the quorum
        words[-1] += f" --noise-scale {_shown(made.mechanism.clients[0].law.scale)}"
    else:
        words[-1] += f" --epsilon {_shown(_aim(made))}"
    words[-1] += f" --delta {_shown(federation.delta)}"
    words += [f"--clipping-norm {_shown(federation.clipping_norm)}"]
    if made.mode == "per-example":
        words.append(f"--set training.expected_batch_size={_shown(made.batch)}")
        words.append(f"--set training.server_optimizer=adam --server-learning-rate {_rate(made):.3g}")
    elif made.mode == "local-dp-sgd":
        words.append("--scheme fl+sdq --set training.update=dp-sgd --set training.record_sampling=poisson")
        words.append("--set privacy.adjacency=add-remove")
        words.append(f"--set training.batch_size={made.batch:g}")
    else:
        words.append(f"--set clients.sampling_rate={_shown(made.sampling_rate)}")
        if made.mode == "all-clients":
            words.append("--set clients.sampling=fixed")
    if _masked(made):
        words.append(f"--set privacy.trust=secure-aggregation --set privacy.quorum={QUORUM:g}")
        words += [f"--set privacy.colluders={federation.colluders}"] if federation.colluders else []
    return " ".join(words)


def check_command(made: privacy.Plan) -> str:
    """The `cepam privacy epsilon` command that gives the plan's figures again, with the noise of every client."""
    federation, mechanism = made.federation, made.mechanism
    words = [f"cepam privacy epsilon --clients {federation.clients} --rounds {federation.rounds}"]
    words += [f"--delta {_shown(federation.delta)} --clipping-norm {_shown(federation.clipping_norm)}"]
    words += [f"--coordinates {federation.coordinates}"] if made.rounding_charged else []
    words += [f"--adjacency {mechanism.adjacency}"]
    if made.mode in ("per-example", "local-dp-sgd"):
        words.append(f"--records {_each(client.records for client in mechanism.clients)}")
    if made.mode == "per-example":
        words.append(f"--expected-batch-size {_shown(made.batch)}")
    if made.mode == "local-dp-sgd":
        words.append(f"--local-epochs 1 --batch-size {_shown(made.batch)}")
    if federation.unit == "client":
        words.append("--unit client")
    if made.mode == "client-sampling":
        words.append(f"--sampling-rate {_shown(made.sampling_rate)}")
        words.append(f"--noise-multiplier {_shown(privacy.noise_multiplier(mechanism))}")
    else:
        words.append(f"--noise-scale {_each(client.law.scale for client in mechanism.clients)}")
    if federation.colluders and made.mode != "local-dp-sgd":
        words.append(f"--colluders {federation.colluders}")
    if _masked(made):
        words.append(f"--trust secure-aggregation --quorum {federation.quorum}")
    return " ".join(words)


def _each(values: Iterable[float]) -> str:
    """One number per client, or the one that all share."""
    found = [f"{value:.9g}" for value in values]
    return found[0] if len(set(found)) == 1 else ",".join(found)


def flower_snippet(made: privacy.Plan) -> str:
    """The lines of a Flower ServerApp."""
    federation, scale = made.federation, rounded_up(made.mechanism.clients[0].law.scale)
    clip = f"clip=cepam.L2({_shown(federation.clipping_norm)})"
    if made.mode == "local-dp-sgd":
        return (
            "# cepam has no Flower lines for this plan: cepam.torch clips, and adds no noise in local steps.\n"
            "# The command `cepam train` above runs it in simulation. In a ClientApp of your own Opacus does nearly\n"
            "# the same, and accounts for it; the server needs no wrapper:\n"
            "#   PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=loader,\n"
            f"#       noise_multiplier=…, max_grad_norm={_shown(federation.clipping_norm)})  "
            f"# the loader's batch_size: {made.batch:g}\n"
            f"# noise multiplier per client: {', '.join(f'{rounded_up(each):g}' for each in _local_multipliers(made))}"
        )
    if made.mode == "per-example":
        batch = made.batch / federation.clients
        held = made.mechanism.clients[0].records if _masked(made) else sum(federation.records) // federation.clients
        alike = (
            len(set(made.mechanism.clients)) == 1
        )  # else Flower's equal weights need another noise than the engine's
        wanted = f"{_shown(federation.epsilon)}, rounds={federation.rounds}, nodes={federation.clients}"
        noise = f"noise=cepam.Gaussian({_shown(scale)})" if alike else f"epsilon=cepam.flower.Target({wanted})"
        counted = [f"records={held}", f"batch={_shown(batch)}", f"delta={_shown(federation.delta)}"]
        counted += [f"colluders={federation.colluders}"] if federation.colluders else []
        adam = f"FedAdam(eta={_rate(made):.3g}, beta_1=0.9, beta_2=0.999, tau=1e-8)"
        update = "update=cepam.flower.Gradient()"
        accounting = f"accounting=cepam.flower.Accounting.per_example({', '.join(counted)})"
        drawn = f".gradient(data, {_shown(batch)}, records={held})"
        return (
            f"{_strategy(made, [adam, clip, noise, update, accounting])}; the training function replies with\n"
            f"# cepam.torch.PerExampleGradients(model, loss, {clip[5:]}){drawn};\n"
            "# `cepam new flower-app NAME` writes such an app"
        )
    counted = [f"delta={_shown(federation.delta)}", 'unit="client"', 'adjacency="add-remove"']
    counted += [f"colluders={federation.colluders}"] if federation.colluders else []
    count = f"accounting=cepam.flower.Accounting({', '.join(counted)})"
    parts = ["FedAvg()", clip, f"noise=cepam.Gaussian({_shown(scale)})", count]
    if made.mode == "client-sampling":
        parts.append(f"sampling=cepam.flower.Poisson({_shown(made.sampling_rate)})")
    return _strategy(made, parts)


def _strategy(made: privacy.Plan, parts: list[str]) -> str:
    kind = "SecureAggregation" if _masked(made) else "Private"
    parts = [*parts, f"quorum={made.federation.quorum}"] if _masked(made) else parts
    inside = "".join(f"\n    {part}," for part in parts)
    return f"strategy = cepam.flower.{kind}({inside}\n)\n# in the ClientApp: mods=[cepam.flower.Uplink()]"


def _local_multipliers(made: privacy.Plan) -> list[float]:
    mechanism = made.mechanism
    assert isinstance(mechanism, privacy.LocalMechanism)
    return [mechanism.multiplier(j) for j in range(len(mechanism.clients))]


def paragraph(made: privacy.Plan) -> str:
    """A paragraph for the data-protection officer."""
    federation = made.federation
    return impact_paragraph(
        federation.unit,
        made.epsilon,
        federation.delta,
        federation.rounds,
        made.mechanism.adjacency,
        federation.trust,
        federation.colluders,
        list(_observers(made).values())[-1],
    )


def print_plan(found: dict[str, Any]) -> None:
    """Print the plan as a page of text."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for name, value in found.items():
        if name not in TEXTS and value is not None:
            console.print(f"{name} {_short(value)}")
    for name, unit in found["units"].items():
        console.print(f"{name}: {unit}")
    for name in ("bytes_up", "bytes_down"):
        console.print(f"{name}: per client and round, of {found[f'{name}_of']}")
    for who, spent in _rows(found).items():
        console.print(f"against {who}: {'no guarantee' if spent == float('inf') else f'{spent:.4g}'}")
    console.print(f"rounding: {found['numerics']}")
    console.print(f"Opacus: {found['opacus']}")
    console.print("\nWhy:")
    for reason in found["reasons"]:
        console.print(f"- {reason}")
    console.print(f"\nWhat to expect: {found['expectation']}.")
    console.print(f"\nTrain in simulation:\n\n  {found['train'] or found['train_note'] + '.'}", soft_wrap=True)
    console.print(f"\nFlower:\n\n{found['flower']}", soft_wrap=True)
    console.print(f"\nThe figures again, with the noise of each client:\n\n  {found['check']}", soft_wrap=True)
    console.print(f"\nFor the data-protection officer:\n\n{found['paragraph']}")


TEXTS = (
    "reasons", "expectation", "train", "train_note", "flower", "check", "paragraph", "units", "opacus", "observers",
    "observers_at_quorum", "numerics", "bytes_up_of", "bytes_down_of",
)  # fmt: skip
"""What `print_plan` does not print as a name and a value."""


def _short(value: Any) -> str:
    """A value in a few digits; of a list its range."""
    if isinstance(value, list):
        low, high = min(value), max(value)
        return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}, one per client (--json has them all)"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _rows(found: dict[str, Any]) -> dict[str, float]:
    """The observers; with secure aggregation as if nobody dropped out, and at the quorum where that is more."""
    if "observers_at_quorum" not in found:
        return dict(found["observers"])
    rows = secure_aggregation_rows(found)
    assert rows is not None
    return rows
