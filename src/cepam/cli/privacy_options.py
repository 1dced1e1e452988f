"""Options that describe a mechanism, shared by every `cepam privacy` command."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
import typer

from cepam import privacy
from cepam.clip import CLIPS, L2, Adjacency, ClippedUnit, Unit
from cepam.distributions.laws import Gaussian, Laplace, Law, Norm
from cepam.privacy import (
    Client,
    Cohort,
    CohortMechanism,
    CorrelatedNoise,
    LocalMechanism,
    MatrixMechanism,
    Mechanism,
    Practice,
    Sampling,
    best_decay,
)
from cepam.privacy.cohorts.cohort import CohortKind
from cepam.privacy.mechanisms.subsampled import SamplingKind


def local_mechanism(options: Any, default_noise: float | None) -> LocalMechanism:
    """The release of local DP-SGD: every step of every client drawn, clipped and noised by itself."""
    if options.batch or options.unit == "client" or options.noise == "matrix" or options.colluders:
        raise ValueError(
            "--epochs goes with --draws (a local step's batch), and not with --batch, --unit or --colluders"
        )
    if options.law != "gaussian" or options.sampling not in (None, "poisson"):
        raise ValueError("--epochs goes with Gaussian noise and poisson draws")
    if not options.draws:
        raise ValueError("--draws is needed: the records that a local step draws, in expectation")
    if not (options.noise_multiplier or options.sigma or default_noise):
        raise ValueError("--noise-multiplier is needed (a step's noise, in clips over the batch), or --sigma")
    total = options.records_total / options.clients if options.records_total else None
    adjacency: Adjacency = "replace" if options.adjacency == "replace" else "add-remove"
    sigma = values_of("sigma", options.sigma, options.clients) if options.sigma else None
    made = LocalMechanism.of(
        [int(many) for many in values_of("records", options.records, options.clients, total)],
        CLIPS[options.clip_norm](options.clip),
        options.noise_multiplier or default_noise or 1.0, options.draws, options.epochs, rounds=options.rounds,
        adjacency=adjacency, coordinates=options.coordinates or None,
    )  # fmt: skip
    return made if sigma is None else made.with_noise(sigma)


def values_of(name: str, text: str, count: int, default: float | None = None) -> list[float]:
    """One number for each client, from 'x' or 'x,y,…'."""
    if not text:
        if default is None:
            raise ValueError(f"--{name} is needed")
        return [default] * count
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--{name} must be a number or a comma-separated list, got {text!r}") from None
    if len(numbers) not in (1, count):
        raise ValueError(f"--{name} must give 1 or {count} values, got {len(numbers)}")
    return numbers * count if len(numbers) == 1 else numbers


def _panel(name: str, text: str, panel: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel)


NOISE, DATA, RUN, PRACTICE = "Noise and clip", "Records", "Run and adversary", "How it was really run"
WHOLE = "Whole clients (--unit client)"
MATRIX = "Noise that cancels over rounds (--noise matrix)"


@dataclass(frozen=True)
class ReleaseOptions:
    """What the command line says about a release; every field is an option."""

    clients: Annotated[int, _panel("--clients", "Number of clients, K.", RUN)] = 30
    law: Annotated[Literal["gaussian", "laplace"], _panel("--law", "Family of the noise.", NOISE)] = "gaussian"
    sigma: Annotated[str, _panel("--sigma", "Gaussian noise of a client: one value, or one per client.", NOISE)] = ""
    b: Annotated[str, _panel("--b", "Laplace scale of a client: one value, or one per client.", NOISE)] = ""
    noise_multiplier: Annotated[
        float, _panel("--noise-multiplier", "All noise over one example's (--batch) or client's (--unit) share.", NOISE)
    ] = 0.0
    noise: Annotated[
        Literal["independent", "matrix"],
        _panel("--noise", "From round to round: independent, or correlated by a matrix.", MATRIX),
    ] = "independent"
    carry: Annotated[str, _panel("--carry", "What a message keeps of the one before: a number or auto.", MATRIX)] = ""
    bands: Annotated[int, _panel("--bands", "Cut the carry after so many messages (with poisson).", MATRIX)] = 0
    matrix: Annotated[str, _panel("--matrix", "A matrix of your own, .npy: a column or a square.", MATRIX)] = ""
    slices: Annotated[int, _panel("--slices", "Fixed slices of a client's records, used in turn.", MATRIX)] = 0
    momentum: Annotated[float, _panel("--momentum", "The server's momentum, for --carry auto.", MATRIX)] = 0.0
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        _panel("--schedule", "The server's learning rates, for --carry auto.", MATRIX),
    ] = "constant"
    unit: Annotated[Unit, _panel("--unit", "What is protected: a record or a whole client.", WHOLE)] = "record"
    cohort: Annotated[float, _panel("--cohort", "Clients asked a round, of --clients (poisson: expected).", WHOLE)] = (
        0.0
    )
    cap: Annotated[int, _panel("--cap", "The most clients asked a round (default: never met in practice).", WHOLE)] = 0
    participations: Annotated[
        int, _panel("--participations", "The most rounds a client is asked in, if the server enforces it.", WHOLE)
    ] = 0
    bit_multiplier: Annotated[
        float, _panel("--bit-multiplier", "Noise of an adaptive clip's bits, over a half.", WHOLE)
    ] = 0.0
    clip: Annotated[float, _panel("--clip", "Clipping bound, gamma.", NOISE)] = 1.0
    clipped: Annotated[
        ClippedUnit | None, _panel("--clipped", "What is clipped (default: update; example with --batch).", NOISE)
    ] = None
    clip_norm: Annotated[Norm, _panel("--clip-norm", "Norm that is clipped.", NOISE)] = "l2"
    weights: Annotated[str, _panel("--weights", "Aggregation weights, one per client (default 1/K).", RUN)] = ""
    sampling: Annotated[SamplingKind | None, _panel("--sampling", "How records are drawn.", DATA)] = None
    draws: Annotated[float, _panel("--draws", "Records a client draws a round, tau.", DATA)] = 0.0
    epochs: Annotated[int, _panel("--epochs", "Local epochs a round, each step noised: --draws is a step's.", DATA)] = 0
    records: Annotated[str, _panel("--records", "Records of a client: one value, or one per client.", DATA)] = ""
    batch: Annotated[
        float, _panel("--batch", "Expected batch over all clients: per-example clipping (poisson).", DATA)
    ] = 0.0
    records_total: Annotated[int, _panel("--records-total", "Records of all clients together.", DATA)] = 0
    rounds: Annotated[int, _panel("--rounds", "All rounds of the run, R: needed (an audit takes 1).", RUN)] = 0
    colluders: Annotated[int, _panel("--colluders", "Other clients who pool what they know.", RUN)] = 0
    adjacency: Annotated[
        Adjacency | None,
        _panel("--adjacency", "What may differ (default: replace; add-remove with --batch).", RUN),
    ] = None
    coordinates: Annotated[int, _panel("--coordinates", "Length of an update, m: charges the numerics.", RUN)] = 0
    trust: Annotated[
        Literal["server", "sum"], _panel("--trust", "Who sees an update: the server, or nobody (sums).", RUN)
    ] = "server"
    quorum: Annotated[int, _panel("--quorum", "Clients in every sum (--trust sum; default 0.8 of them).", RUN)] = 0
    run_rounds: Annotated[int, _panel("--run-rounds", "Rounds the figure will be quoted for.", PRACTICE)] = 0
    clip_tensors: Annotated[int, _panel("--clip-tensors", "Tensors clipped one by one.", PRACTICE)] = 1
    sampler_persists: Annotated[
        bool, _panel("--sampler-persists", "The data loader goes on across rounds.", PRACTICE)
    ] = False
    state_persists: Annotated[
        bool, _panel("--state-persists", "Momentum or batch norm survives a round.", PRACTICE)
    ] = False

    def practice(self) -> Practice:
        """How the run was really done."""
        return Practice(self.run_rounds or None, self.clip_tensors, self.sampler_persists, self.state_persists)

    def mechanism(self, default_noise: float | None = None, sampling: SamplingKind | None = None) -> Mechanism:
        """The record of what was released; `default_noise` stands in where noise is still to be found."""
        if self.clients < 1:
            raise ValueError(f"--clients must be at least 1, got {self.clients}")
        if self.rounds < 1:
            raise ValueError(
                f"--rounds must be given, at least 1, got {self.rounds}: every figure is that of all rounds of a run"
            )
        if self.quorum and self.trust != "sum":
            raise ValueError("--quorum goes with --trust sum")
        if self.cohort:
            return self._of_cohorts(default_noise)
        if self.epochs:
            return local_mechanism(self, default_noise)
        for name in [name for name in ("cap", "participations", "bit_multiplier") if getattr(self, name)]:
            raise ValueError(f"--{name.replace('_', '-')} goes with --cohort")
        noise, matrix = self._noise(default_noise), self.noise == "matrix"
        plain = "poisson" if self.batch else sampling or "replacement"
        every = matrix or self.unit == "client"
        kind = self.sampling or ("all" if every else plain)
        records, draws = self._records(kind), self._draws(kind)
        weights = values_of("weights", self.weights, self.clients, 1.0 / self.clients)
        family: type[Gaussian] | type[Laplace] = Gaussian if self.law == "gaussian" else Laplace
        laws: list[Law] = [family(scale) for scale in noise]
        clipped = self.clipped or ("example" if self.batch else "update")
        by_example = clipped == "example"
        adjacency = self.adjacency or ("add-remove" if by_example else "replace")
        share = self.batch / self.clients if matrix and self.batch else None
        made = Mechanism(
            tuple(Client(law, int(n), w, share) for law, n, w in zip(laws, records, weights)),
            CLIPS[self.clip_norm](self.clip),
            Sampling(kind, draws),
            self.rounds,
            self.colluders,
            adjacency,
            clipped,
            self.coordinates or None,
            unit=self.unit,
        )
        return self._correlated(made) if matrix else self._independent(made)

    def _of_cohorts(self, default_noise: float | None) -> CohortMechanism:
        """The release of cohorts of whole clients: nothing in it is as long as the population."""
        if self.unit != "client" or self.noise == "matrix":
            raise ValueError("--cohort goes with --unit client and independent noise")
        for name in [
            name for name in ("records", "draws", "batch", "records_total", "weights", "b") if getattr(self, name)
        ]:
            raise ValueError(
                f"--{name.replace('_', '-')} does not go with --cohort: clients are drawn, with all their data"
            )
        kind: CohortKind = "without" if self.sampling == "without" else "poisson"
        if (self.sampling or kind) != kind or self.law != "gaussian" or self.clip_norm != "l2":
            raise ValueError("--cohort goes with --sampling poisson or without, Gaussian noise and an l2 clip")
        cohort = Cohort(self.clients, self.cohort, kind, self.cap, self.participations or None)
        if self.sigma and self.noise_multiplier:
            raise ValueError("--noise-multiplier goes without --sigma")
        (share,) = values_of("sigma", self.sigma, 1, 0.0)
        multiplier = self.noise_multiplier or share * math.sqrt(cohort.cap) / self.clip or default_noise
        if not multiplier:
            raise ValueError("--noise-multiplier is needed (or --sigma, a client's share of the noise)")
        return CohortMechanism.of(
            cohort,
            L2(self.clip),
            multiplier,
            rounds=self.rounds,
            colluders=self.colluders,
            adjacency=self.adjacency or "replace",
            coordinates=self.coordinates or None,
            bit=self.bit_multiplier or None,
        )

    def _independent(self, mechanism: Mechanism) -> Mechanism:
        """The release, or a ValueError where an option speaks of a matrix."""
        given = {"carry": self.carry, "bands": self.bands, "matrix": self.matrix, "slices": self.slices}
        for name in [name for name, value in given.items() if value]:
            raise ValueError(f"--{name} goes with --noise matrix")
        return mechanism

    def _correlated(self, mechanism: Mechanism) -> MatrixMechanism:
        """The same release with noise that cancels over rounds."""
        if self.slices < 1:
            raise ValueError(f"--slices must be at least 1 with --noise matrix, got {self.slices}")
        known = {field.name: getattr(mechanism, field.name) for field in fields(mechanism)}
        return MatrixMechanism(**known, link=self._link())

    def _link(self) -> CorrelatedNoise:
        if self.matrix:
            if self.carry or self.bands:
                raise ValueError("--matrix goes without --carry and --bands")
            return CorrelatedNoise.from_matrix(self.matrix, self.slices)
        carry = self._carry()
        if self.bands:
            return CorrelatedNoise.from_matrix(carry ** np.arange(self.bands), self.slices)
        return CorrelatedNoise(carry, self.slices)

    def _carry(self) -> float:
        if self.carry in ("", "auto"):
            from cepam.fl.optim import schedule

            rates = schedule(self.schedule, 1.0, self.rounds)
            steps = [rates.at(t) for t in range(self.rounds)]
            return best_decay(self.rounds, self.slices, self.momentum, steps, self.bands or None)
        try:
            return float(self.carry)
        except ValueError:
            raise ValueError(f"--carry must be auto or a number, got {self.carry!r}") from None

    def _noise(self, default: float | None) -> list[float]:
        name, given = ("sigma", self.sigma) if self.law == "gaussian" else ("b", self.b)
        if self.noise_multiplier:
            whole = self.unit == "client"
            if not (self.batch or whole) or given:
                raise ValueError("--noise-multiplier goes with --batch or --unit client, and without --sigma or --b")
            default = self.noise_multiplier * self.clip * math.sqrt(self.clients)
            default /= self.clients if whole else self.batch
        if not given and default is None:
            raise ValueError(f"--{name} is needed (or --noise-multiplier with --batch)")
        return values_of(name, given, self.clients, default)

    def _records(self, kind: SamplingKind) -> list[float]:
        total = self.records_total / self.clients if self.records_total else None
        if total is not None and total != int(total):
            raise ValueError(f"--records-total {self.records_total} does not divide by {self.clients} clients")
        if total is None and not self.records and kind == "all":
            total = 1.0
        return values_of("records", self.records, self.clients, total)

    def _draws(self, kind: SamplingKind) -> float:
        if kind == "all":
            return 1.0
        if self.batch:
            return self.batch / self.clients
        if not self.draws:
            raise ValueError("--draws is needed (the records a client draws a round), or --batch with poisson")
        return self.draws


def observers_of_sums(options: ReleaseOptions, delta: float) -> dict[str, Any]:
    """epsilon of each observer where the server learns sums only; nothing where it is trusted.

    `observers` is for rounds in which nobody dropped out, `observers_at_quorum` for rounds with no more clients than
    the quorum, the fewest that a sum is opened for. Against a server that lies both are the same.
    """
    if options.trust != "sum":
        return {}
    quorum, mechanism = _quorum(options), replace(options, colluders=0).mechanism()
    from cepam.secure_aggregation import epsilons  # with its kernels: other questions need none of it

    return {
        "quorum": quorum,
        "observers": epsilons(mechanism, delta, quorum, options.colluders),
        "observers_at_quorum": epsilons(mechanism, delta, quorum, options.colluders, survivors=quorum),
    }


def rows_of_sums(found: dict[str, Any]) -> dict[str, float] | None:
    """The observers of a page: each as if nobody dropped out, and at the quorum where that is more."""
    if not found:
        return None
    rows: dict[str, float] = {}
    for who, spent in found["observers"].items():
        least = found["observers_at_quorum"][who]
        rows |= {who: spent} if least == spent else {
            f"{who}, nobody dropped out": spent, f"{who}, at the quorum of {found['quorum']}": least
        }  # fmt: skip
    return rows


def _quorum(options: ReleaseOptions) -> int:
    """Clients in every sum; ValueError for what no sum carries."""
    if options.cohort or options.noise != "independent" or options.law != "gaussian":
        raise ValueError("--trust sum goes with Gaussian noise, independent from round to round, and no --cohort")
    return options.quorum or math.ceil(0.8 * options.clients)


def views_of_sums(
    options: ReleaseOptions, actual: float
) -> dict[str, tuple[privacy.AuditedMechanism, privacy.Mechanism]]:
    """By observer: sums as the server opens them, of as many clients as hide one from it, and the account of that."""
    quorum, mechanism = _quorum(options), replace(options, colluders=0).mechanism(sampling="all")
    from cepam.secure_aggregation.channel import OpenedSum
    from cepam.secure_aggregation.observers import mechanism_for, views

    law = Gaussian(mechanism.clients[0].law.scale * actual)
    _, *known = views(options.clients, quorum, options.colluders)  # an outsider sees what the server sees
    return {view.observer: (OpenedSum(law, view.shares), mechanism_for(view, mechanism)) for view in known}
