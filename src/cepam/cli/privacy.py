"""`cepam privacy`: what a run guarantees, what noise a target needs, and an audit. Parses and prints."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cepam import privacy
from cepam.cli.command import help_alone
from cepam.cli.options import JsonOption, spread
from cepam.cli.privacy_options import (
    MechanismOptions,
    noise_of,
    observers_of,
    opacus_of,
    secure_aggregation_observers,
    secure_aggregation_rows,
    secure_aggregation_views,
    values_of,
)
from cepam.cli.tables import print_figures
from cepam.privacy.composition.accountant import affordable
from cepam.privacy.reports.guarantee import noise_units

app = typer.Typer(
    help="Account for privacy: epsilon of a run, noise for a target, a page that explains both, an audit.",
    rich_markup_mode="rich",
)
app.callback(invoke_without_command=True)(help_alone)


Delta = Annotated[float, typer.Option("--delta", help="delta of the guarantee, in [0, 1); 0 asks for pure DP.")]


@app.command("epsilon")
@spread
def print_epsilon(
    options: MechanismOptions,
    delta: Delta = 1e-5,
    per_client: Annotated[
        bool, typer.Option("--per-client", help="Print epsilon of every client, against each adversary.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """epsilon of a whole run.

    Eighty rounds of 30 clients, each sampling 15 of its 2000 records per round (prints 2.05172):

      cepam privacy epsilon --clients 30 --noise-scale 0.25 --local-steps 15 --records 2000 --rounds 80 --delta 1e-5

    Per-example clipping with Poisson batches (prints 1.96637):

      cepam privacy epsilon --expected-batch-size 960 --records-total 60000 --noise-multiplier 1.1 --rounds 600

    Whole clients: each of 100,000 is sampled with probability 0.01, in secret (prints 1.82824):

      cepam privacy epsilon --unit client --clients 100000 --sampling-rate 0.01 --noise-multiplier 1 --rounds 1000
      --adjacency add-remove

    Secure aggregation: with all clients in each sum, at the quorum, and with a server that lies about who dropped out
    (prints 1.99 to 3.42, by observer):

      cepam privacy epsilon --expected-batch-size 1920 --records-total 60000 --noise-multiplier 1.658 --rounds 500
      --trust secure-aggregation --quorum 24 --colluders 3

    Correlated noise (DP-FTRL): 31 fixed slices of records used in turn, no secret sampling (prints 2):

      cepam privacy epsilon --noise-correlation matrix --clipped example --clipping-norm 0.1 --records-total 60000
      --slices 31 --rounds 496 --decay 0.9617 --noise-scale 0.0109301
    """
    mechanism = affordable(options.mechanism(), delta)
    spent = privacy.epsilon(mechanism, delta)
    found = {
        "epsilon": spent,
        **noise_of(mechanism),
        **_figures(mechanism, spent, delta, options.practice()),
        **secure_aggregation_observers(options, delta),
    }
    if per_client:
        found["per_client" if "clients" in found else "clients"] = [vars(g) for g in privacy.report(mechanism, delta)]
    print_figures(found, as_json)


@app.command("calibrate")
@spread
def print_noise(
    options: MechanismOptions,
    epsilon: Annotated[
        str, typer.Option("--epsilon", help="Target epsilon of the whole run: one value, or one per client.")
    ],
    delta: Delta = 1e-5,
    per_client: Annotated[
        bool, typer.Option("--per-client", help="Calibrate each client's noise to its own target.")
    ] = False,
    names: Annotated[str, typer.Option("--names", help="Names of the clients, comma-separated.")] = "",
    as_json: JsonOption = False,
) -> None:
    """The noise that a target needs over a whole run.

    For epsilon 1 (prints noise_scale 0.303668):

      cepam privacy calibrate --clients 30 --local-steps 15 --records 2000 --rounds 80 --delta 1e-5 --epsilon 1

    Without secret sampling, with the best decay (prints noise_scale 0.0109332, decay 0.961712):

      cepam privacy calibrate --noise-correlation matrix --clipped example --clipping-norm 0.1 --records-total 60000
      --slices 31 --rounds 496 --server-momentum 0.9 --schedule linear --epsilon 2

    Three hospitals, five local epochs of DP-SGD with batches of 64 in each of 50 rounds, each its own noise:

      cepam privacy calibrate --per-client --clients 3 --records 500,4000,20000 --local-epochs 5 --batch-size 64
      --rounds 50 --epsilon 3 --delta 1e-6

    Laplace noise, pure DP, l1 clipping:

      cepam privacy calibrate --law laplace --norm-type l1 --local-steps 15 --records 2000 --rounds 1 --delta 0
      --epsilon 1
    """
    given = options.mechanism(default_noise=1.0)
    if per_client:
        if options.trust == "secure-aggregation":
            raise ValueError("--per-client goes without --trust secure-aggregation: clients of one sum have one noise")
        targets = values_of("epsilon", epsilon, len(given.clients))
        met = privacy.calibrate_each(given, targets, [delta] * len(targets))
        print_figures(_each(met, targets, delta, names), as_json)
        return
    if names:
        raise ValueError("--names goes with --per-client")
    (target,) = values_of("epsilon", epsilon, 1)
    mechanism = privacy.calibrate(given, target, delta)
    spent = privacy.epsilon(mechanism, delta)
    found = {**noise_of(mechanism), "epsilon": spent, **_figures(mechanism, spent, delta, options.practice())}
    scales = ",".join(repr(client.law.scale) for client in mechanism.clients)
    calibrated = replace(options, noise_scale=scales, noise_multiplier=0.0)
    print_figures({**found, **secure_aggregation_observers(calibrated, delta), **_use(mechanism)}, as_json)


@app.command("explain")
@spread
def write_page(
    options: MechanismOptions,
    delta: Delta = 1e-5,
    out: Annotated[Path, typer.Option("--out", help="File for the page.")] = Path("privacy.html"),
    as_json: JsonOption = False,
) -> None:
    """A readable page about a run: figures, warnings, epsilon against rounds, delta against epsilon.

    Example:

      cepam privacy explain --noise-scale 0.25 --local-steps 15 --records 2000 --rounds 80 --delta 1e-5
      --out privacy.html
    """
    mechanism = options.mechanism()
    sums = secure_aggregation_observers(options, delta)
    page = privacy.explain(mechanism, delta, out, options.practice(), secure_aggregation_rows(sums))
    found = {"page": str(page), "epsilon": privacy.epsilon(mechanism, delta), "delta": delta, **noise_of(mechanism)}
    print_figures({**found, "observers": observers_of(mechanism, delta), **sums}, as_json)


@app.command("audit")
@spread
def print_audit(
    options: MechanismOptions,
    delta: Delta = 1e-2,
    trials: Annotated[
        int, typer.Option("--trials", help="Number of trials on each of the two neighbouring data sets.")
    ] = 500_000,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the lower bound, in (0, 1).")] = 0.99,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulated draws.")] = 0,
    actual: Annotated[
        float,
        typer.Option("--actual", help="Noise that is really added, as a factor of the claimed noise; 0.5 must fail."),
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """An attack on the real encode and decode: a lower bound on epsilon, and the claim.

    Exit code 1 if the claim is refuted.

    One client, its update at one end or the other of the clip, no sampling:

      cepam privacy audit --clients 1 --clipping-norm 0.5 --noise-scale 1 --record-sampling all --delta 1e-2

    The same claim with half the noise, which must be refuted:

      cepam privacy audit --clients 1 --clipping-norm 0.5 --noise-scale 1 --record-sampling all --delta 1e-2
      --actual 0.5

    Secure aggregation, as each kind of observer sees it:

      cepam privacy audit --clients 5 --clipping-norm 0.5 --noise-scale 0.5 --record-sampling all --delta 1e-2
      --trust secure-aggregation --quorum 4
    """
    attacks, options = Attack(delta, trials, confidence, seed), replace(options, rounds=options.rounds or 1)
    if options.trust == "secure-aggregation":
        each = {who: attacks.on(*view) for who, view in secure_aggregation_views(options, actual).items()}
        refuted = any(found["refuted"] for found in each.values())
        shown = {"views": each} if as_json else {f"{who}: {k}": v for who, row in each.items() for k, v in row.items()}
        print_figures({**shown, "refuted": refuted}, as_json)
    else:
        mechanism = options.mechanism(sampling="all")
        found = attacks.on(privacy.RoundTrip.of_mechanism(mechanism, actual), mechanism)
        print_figures({**found, **noise_of(mechanism)}, as_json)
        refuted = found["refuted"]
    if refuted:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Attack:
    """How an audit goes about it."""

    delta: float
    trials: int
    confidence: float
    seed: int

    def on(self, attacked: privacy.AuditedMechanism, mechanism: privacy.Mechanism) -> dict[str, Any]:
        """What it found of a mechanism that is said to release this."""
        found = privacy.audit(attacked, mechanism, self.delta, self.trials, self.confidence, seed=self.seed)
        return {**vars(found), "refuted": found.refuted}


def _each(mechanism: privacy.Mechanism, targets: list[float], delta: float, names: str) -> dict[str, Any]:
    """A row for each client: its name, what it aimed at, what that takes and what it spends; and what covers all."""
    called = names.split(",") if names else [str(j) for j in range(len(targets))]
    if len(called) != len(targets):
        raise ValueError(f"--names must give {len(targets)} names, got {len(called)}")
    rows = []
    for j, (who, target) in enumerate(zip(called, targets)):
        alone = mechanism.alone(j)
        row = {"name": who.strip(), "records": alone.clients[0].records, "noise_scale": alone.clients[0].law.scale}
        row["noise_multiplier"] = privacy.noise_multiplier(alone)
        if isinstance(alone, privacy.LocalMechanism):
            row["steps"] = alone.events
        rows.append({**row, "target": target, "epsilon": privacy.epsilon(alone, delta)})
    worst = privacy.epsilon(mechanism, delta)
    found: dict[str, Any] = {
        "clients": rows,
        "delta": delta,
        "adjacency": mechanism.adjacency,
        "rounds": mechanism.rounds,
    }
    found["observers"] = observers_of(mechanism, delta)
    found |= {"units": noise_units(mechanism), "opacus": opacus_of(mechanism), "numerics": _numerics(mechanism)}
    return {
        **found,
        **_use(mechanism),
        "warnings": [vars(one) for one in privacy.privacy_warnings(mechanism, worst, delta)],
    }


def _use(mechanism: privacy.Mechanism) -> dict[str, Any]:
    """What the noise that was found means for a model."""
    found = privacy.noise_ratio(mechanism)
    whole = {} if found.ratio is None else {"noise_ratio": found.ratio}
    return {"noise_of_average": found.noise, **whole, "advice": found.advice}


def _numerics(mechanism: privacy.Mechanism) -> str:
    """Whether the figure includes what the mechanism's own rounding costs."""
    if mechanism.coordinates is None:
        return "not charged: the figure is the ideal law's; give --coordinates (trained weights) to charge the rounding"
    return f"charged: the rounding of {mechanism.coordinates:,} coordinates per vector is in the figure"


def _figures(mechanism: privacy.Mechanism, spent: float, delta: float, practice: privacy.Practice) -> dict[str, Any]:
    """What stands next to epsilon."""
    found: dict[str, Any] = {
        "delta": delta,
        "unit": mechanism.unit,
        "adjacency": mechanism.adjacency,
        "record_sampling": mechanism.sampling.kind,
        "rounds": mechanism.rounds,
        "colluders": mechanism.colluders,
        "delta_without_noise": privacy.delta_without_noise(mechanism),
    }
    if isinstance(mechanism, privacy.CohortMechanism):
        found |= _about_cohorts(mechanism)
    if isinstance(mechanism, privacy.LocalMechanism):
        found["steps"] = max(mechanism.steps)
    if isinstance(mechanism, privacy.MatrixMechanism):
        shape = {"decay": mechanism.link.decay} if mechanism.link.bands is None else {"bands": mechanism.link.bands}
        found |= {**shape, "slices": mechanism.link.slices, "events": mechanism.events}
        found |= {
            "sensitivity": mechanism.sensitivity,
            "mu": max(mechanism.mu(j) for j in range(len(mechanism.clients))),
        }
    if not mechanism.law_is_gaussian:
        if mechanism.clip.norm == "l1" or mechanism.coordinates:
            found["pure_epsilon"] = privacy.pure_epsilon(mechanism, 0)
        found["zcdp_rho"] = privacy.zcdp_rho(mechanism, 0)
    if (mechanism.coordinates or mechanism.exceeded) and delta > 0:
        slack = privacy.slack(mechanism, delta)
        if math.isinf(spent) and (excess := slack.excess(spent, delta)) is not None:
            raise ValueError(f"no finite bound, for the mechanism's own slack: {excess[0]}. {excess[1]}")
        found |= {"slack_epsilon": slack.epsilon, "slack_delta": slack.at(spent)}
    found |= {"observers": observers_of(mechanism, delta), "numerics": _numerics(mechanism)}
    found["warnings"] = [vars(one) for one in privacy.privacy_warnings(mechanism, spent, delta, practice)]
    return found


def _about_cohorts(mechanism: privacy.CohortMechanism) -> dict[str, Any]:
    """Who is sampled, and what noise the clients and the server bring together."""
    cohort, sampling = mechanism.cohort, "poisson" if mechanism.cohort.kind == "poisson" else "fixed"
    found: dict[str, Any] = {"sampling": sampling, "sampling_rate": cohort.rate, "clients": cohort.population}
    found |= {"expected_cohort": cohort.size, "max_cohort": cohort.cap, "sampling_rate": mechanism.sampling_rate(0)}
    found["max_cohort_exceeded"] = mechanism.rounds * cohort.exceeded
    if cohort.participations is not None:
        found["max_participations"] = cohort.participations
    return {**found, "mu": mechanism.mu(0), "noise_of_sum": mechanism.compensation.total}
