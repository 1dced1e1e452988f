"""Options that describe a mechanism, shared by every `cepam privacy` command."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
import typer

from cepam import privacy
from cepam._internal.quorum import QUORUM_RULE, quorum_count
from cepam.clip import CLIPS, L2, Adjacency, ClippedUnit, Unit
from cepam.distributions.laws import PRIVATE_LAWS, Gaussian, Norm
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
from cepam.privacy.composition.accountant import SEES_PARTICIPATION
from cepam.privacy.mechanisms.mechanism import SamplingKind
from cepam.privacy.reports.guarantee import noise_units


def local_mechanism(options: Any, default_noise: float | None) -> LocalMechanism:
    """The release of local DP-SGD: every step of every client drawn, clipped and noised by itself."""
    others = (options.expected_batch_size, options.local_steps > 1, options.colluders, options.unit == "client")
    if any(others) or options.noise_correlation == "matrix":
        raise ValueError(
            "--local-epochs goes with --batch-size (records per local step), and not with --expected-batch-size, "
            "--local-steps, --unit client or --colluders"
        )
    if options.law != "gaussian" or options.record_sampling not in (None, "poisson"):
        raise ValueError("--local-epochs goes with Gaussian noise and --record-sampling poisson")
    if not options.batch_size:
        raise ValueError("--batch-size is needed: the records that a local step draws, in expectation")
    if not (options.noise_multiplier or options.noise_scale or default_noise):
        raise ValueError("--noise-multiplier is needed (of a step's sum of clipped gradients), or --noise-scale")
    total = options.records_total / options.clients if options.records_total else None
    adjacency: Adjacency = "replace" if options.adjacency == "replace" else "add-remove"
    scales = values_of("noise-scale", options.noise_scale, options.clients) if options.noise_scale else None
    made = LocalMechanism.of(
        [int(many) for many in values_of("records", options.records, options.clients, total)],
        CLIPS[options.norm_type](options.clipping_norm),
        options.noise_multiplier or default_noise or 1.0, options.batch_size, options.local_epochs,
        rounds=options.rounds, adjacency=adjacency, coordinates=options.coordinates or None,
    )  # fmt: skip
    return made if scales is None else made.with_noise(scales)


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


def flag(name: str) -> str:
    """The option of a field."""
    return f"--{name.replace('_', '-')}"


def _panel(name: str, text: str, panel: str, default: bool = False) -> Any:
    """An option of a panel; most have 0 or nothing for "not given", which the text says and no default shows."""
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=default)


NOISE, DATA, RUN, PRACTICE = "Noise and clipping", "Records", "Run and adversary", "How it was really run"
WHOLE = "Whole clients (--unit client)"
MATRIX = "Correlated noise (--noise-correlation matrix)"
COLLUDERS = (
    "Number of clients who share all they know with the adversary. The adversary is another client, or with --trust "
    "secure-aggregation the server."
)
CLIENTS = 30
"""Clients where neither --clients nor --records says how many; `cepam train` has as many by default."""


@dataclass(frozen=True)
class MechanismOptions:
    """What the command line says about a run; every field is an option."""

    clients: Annotated[
        int,
        _panel(
            "--clients",
            f"Number of clients. Default: as many as --records lists, else {CLIENTS}.",
            RUN,
        ),
    ] = None  # type: ignore[assignment]  # a number once made: see __post_init__
    law: Annotated[Literal["gaussian", "laplace"], _panel("--law", "Distribution of the noise.", NOISE, True)] = (
        "gaussian"
    )
    noise_scale: Annotated[
        str,
        _panel(
            "--noise-scale",
            "Noise scale per coordinate and client, in the unit of the update: sigma of Gaussian or b of Laplace "
            "noise. One value, or one per client.",
            NOISE,
        ),
    ] = ""
    noise_multiplier: Annotated[
        float,
        _panel(
            "--noise-multiplier",
            "Noise multiplier, instead of --noise-scale: standard deviation of the noise of the sum over all clients, "
            "in units of the clipping norm. With --expected-batch-size (clients add equal shares), --unit client or "
            "--local-epochs.",
            NOISE,
        ),
    ] = 0.0
    noise_correlation: Annotated[
        Literal["independent", "matrix"],
        _panel(
            "--noise-correlation",
            "Noise independent across rounds, or correlated by a matrix mechanism (DP-FTRL).",
            MATRIX,
            True,
        ),
    ] = "independent"
    decay: Annotated[
        str,
        _panel("--decay", "Decay of the correlated noise per message, in [0, 1), or auto for the best one.", MATRIX),
    ] = ""
    bands: Annotated[
        int,
        _panel("--bands", "Messages after which the decay is cut to 0, for poisson sampling. Default: never.", MATRIX),
    ] = 0
    matrix: Annotated[
        str,
        _panel(
            "--matrix",
            "A .npy file with a matrix of your own instead of --decay: its first column, or all of it.",
            MATRIX,
        ),
    ] = ""
    slices: Annotated[
        int,
        _panel(
            "--slices",
            "Number of fixed slices of a client's records, used in turn; required (cepam train has 30 by default).",
            MATRIX,
        ),
    ] = 0
    server_momentum: Annotated[
        float,
        _panel("--server-momentum", "Momentum of the server optimizer, in [0, 1), for --decay auto.", MATRIX, True),
    ] = 0.0
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        _panel("--schedule", "Learning-rate schedule, for --decay auto.", MATRIX, True),
    ] = "constant"
    unit: Annotated[
        Unit, _panel("--unit", "What the guarantee protects: one record, or all records of one client.", WHOLE, True)
    ] = "record"
    sampling_rate: Annotated[
        float,
        _panel(
            "--sampling-rate",
            "Client sampling rate: probability that a client is sampled in a round, in secret, in (0, 1]. Default: all "
            "take part.",
            WHOLE,
        ),
    ] = 0.0
    sampling: Annotated[
        Literal["poisson", "fixed"],
        _panel(
            "--sampling",
            "Client sampling: each by itself (poisson), or a fixed number per round; cepam train has fixed by default, "
            "since poisson is for whole clients only.",
            WHOLE,
            True,
        ),
    ] = "poisson"
    max_cohort: Annotated[
        int,
        _panel(
            "--max-cohort",
            "Largest number of clients sampled in a round. Default: exceeded with probability 2^-100.",
            WHOLE,
        ),
    ] = 0
    max_participations: Annotated[
        int,
        _panel(
            "--max-participations",
            "Largest number of rounds that a client takes part in, where it is enforced. Default: all.",
            WHOLE,
        ),
    ] = 0
    bit_multiplier: Annotated[
        float,
        _panel("--bit-multiplier", "Noise multiplier of adaptive clipping's bits. Default: the clip is fixed.", WHOLE),
    ] = 0.0
    clipping_norm: Annotated[
        float,
        _panel("--clipping-norm", "Clipping norm: the bound on an update, or on an example's gradient.", NOISE, True),
    ] = 1.0
    clipped: Annotated[
        ClippedUnit | None,
        _panel("--clipped", "What is clipped. Default: update; example with --expected-batch-size.", NOISE),
    ] = None
    norm_type: Annotated[Norm, _panel("--norm-type", "Norm that is clipped.", NOISE, True)] = "l2"
    weights: Annotated[
        str,
        _panel(
            "--weights",
            "Aggregation weights, one per client. Default: equal; by records with --expected-batch-size.",
            RUN,
        ),
    ] = ""
    record_sampling: Annotated[
        SamplingKind | None,
        _panel(
            "--record-sampling",
            "How a client samples its records, afresh in every round. Default: replacement; poisson with "
            "--expected-batch-size.",
            DATA,
        ),
    ] = None
    batch_size: Annotated[
        float,
        _panel("--batch-size", "Minibatch size: records per local step. Default: 1.", DATA),
    ] = 0.0
    local_steps: Annotated[
        int,
        _panel("--local-steps", "Local steps per round, of --batch-size records each. Default: 1.", DATA),
    ] = 0
    local_epochs: Annotated[
        int,
        _panel(
            "--local-epochs",
            "Local epochs per round of local DP-SGD, which adds noise in each step. Default: none.",
            DATA,
        ),
    ] = 0
    records: Annotated[
        str, _panel("--records", "Number of records of a client: one value, or one per client.", DATA)
    ] = ""
    expected_batch_size: Annotated[
        float,
        _panel(
            "--expected-batch-size",
            "Expected records per round over all clients. Each example is clipped; each record is sampled with the "
            "same probability (poisson), whichever client holds it.",
            DATA,
        ),
    ] = 0.0
    records_total: Annotated[
        int,
        _panel(
            "--records-total", "Number of records of all clients together, in equal parts; instead of --records.", DATA
        ),
    ] = 0
    rounds: Annotated[
        int, _panel("--rounds", "Number of rounds of the whole run; required, but for an audit, which takes 1.", RUN)
    ] = 0
    colluders: Annotated[int, _panel("--colluders", COLLUDERS, RUN, True)] = 0
    adjacency: Annotated[
        Adjacency | None,
        _panel(
            "--adjacency",
            "Neighbouring data sets: replace one unit, or add or remove one. Default: replace; add-remove with "
            "--expected-batch-size.",
            RUN,
        ),
    ] = None
    coordinates: Annotated[
        int,
        _panel("--coordinates", "Number of trained weights; with it, the rounding of the noise is charged too.", RUN),
    ] = 0
    trust: Annotated[
        Literal["server", "secure-aggregation"],
        _panel("--trust", "Who sees single updates: the server, or with secure-aggregation nobody.", RUN, True),
    ] = "server"
    quorum: Annotated[
        float,
        _panel(
            "--quorum",
            f"Fewest clients in a sum, for --trust secure-aggregation: {QUORUM_RULE}. Default: 0.8.",
            RUN,
        ),
    ] = 0.0
    run_rounds: Annotated[
        int,
        _panel(
            "--run-rounds",
            "Rounds that the figure will be quoted for; warns where --rounds is less. Default: the same.",
            PRACTICE,
        ),
    ] = 0
    clip_tensors: Annotated[
        int, _panel("--clip-tensors", "Number of tensors that are clipped one by one; warns above 1.", PRACTICE, True)
    ] = 1
    sampler_persists: Annotated[
        bool,
        _panel(
            "--sampler-persists",
            "Warn that the data loader continues across rounds: samples are not fresh, so sampling does not amplify.",
            PRACTICE,
        ),
    ] = False
    state_persists: Annotated[
        bool, _panel("--state-persists", "Warn that momentum or batch statistics of clients survive a round.", PRACTICE)
    ] = False

    def __post_init__(self) -> None:
        if self.clients is None:
            listed = 1 + self.records.count(",")
            object.__setattr__(self, "clients", listed if listed > 1 else CLIENTS)

    @property
    def draws(self) -> float:
        """Records that a client draws per round."""
        return (self.batch_size or 1.0) * (self.local_steps or 1) if self.batch_size or self.local_steps else 0.0

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
        if self.quorum and self.trust != "secure-aggregation":
            raise ValueError("--quorum goes with --trust secure-aggregation")
        if self.sampling_rate:
            return self._of_cohorts(default_noise)
        if self.local_epochs:
            return local_mechanism(self, default_noise)
        for name in [name for name in ("max_cohort", "max_participations", "bit_multiplier") if getattr(self, name)]:
            raise ValueError(f"{flag(name)} goes with --sampling-rate")
        matrix = self.noise_correlation == "matrix"
        plain = "poisson" if self.expected_batch_size else sampling or "replacement"
        every = matrix or self.unit == "client"
        kind = self.record_sampling or ("all" if every else plain)
        records, draws = self._records(kind), self._draws(kind)
        unequal = bool(self.expected_batch_size) and len(set(records)) > 1
        parts = [many / sum(records) for many in records] if unequal else [1.0 / self.clients] * self.clients
        weights = values_of("weights", self.weights, self.clients) if self.weights else parts
        family = PRIVATE_LAWS[self.law]
        clipped = self.clipped or ("example" if self.expected_batch_size else "update")
        by_example = clipped == "example"
        adjacency = self.adjacency or ("add-remove" if by_example else "replace")
        each = [self.expected_batch_size * part for part in parts] if unequal or matrix else [0.0] * self.clients
        rows = list(zip(self._noise(default_noise, weights), records, weights, each))
        kinds = {  # equal clients are one object, so that millions take little time
            (scale, n, w, own): Client(
                family(scale), int(n), w, own or None, searched=self.trust != "secure-aggregation"
            )
            for scale, n, w, own in set(rows)
        }
        made = Mechanism(
            tuple(kinds[row] for row in rows),
            CLIPS[self.norm_type](self.clipping_norm),
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
        if self.unit != "client" or self.noise_correlation == "matrix":
            raise ValueError("--sampling-rate goes with --unit client and independent noise")
        drawn = ("records", "batch_size", "local_steps", "local_epochs", "expected_batch_size", "records_total")
        for name in [name for name in (*drawn, "weights", "record_sampling") if getattr(self, name)]:
            raise ValueError(f"{flag(name)} does not go with --sampling-rate: clients are sampled, with all their data")
        if self.law != "gaussian" or self.norm_type != "l2":
            raise ValueError("--sampling-rate goes with Gaussian noise and --norm-type l2")
        cohort = Cohort(
            self.clients, self._cohort_size(), "without" if self.sampling == "fixed" else "poisson", self.max_cohort,
            self.max_participations or None,
        )  # fmt: skip
        if self.noise_scale and self.noise_multiplier:
            raise ValueError("--noise-multiplier goes without --noise-scale")
        (share,) = values_of("noise-scale", self.noise_scale, 1, 0.0)
        multiplier = self.noise_multiplier or share * math.sqrt(cohort.cap) / self.clipping_norm or default_noise
        if not multiplier:
            raise ValueError("--noise-multiplier is needed (or --noise-scale, one client's share of the noise)")
        return CohortMechanism.of(
            cohort,
            L2(self.clipping_norm),
            multiplier,
            rounds=self.rounds,
            colluders=self.colluders,
            adjacency=self.adjacency or "replace",
            coordinates=self.coordinates or None,
            bit=self.bit_multiplier or None,
        )

    def _cohort_size(self) -> float:
        """Clients per round: a whole number where the size is fixed."""
        if not (0.0 < self.sampling_rate <= 1.0):
            raise ValueError(f"--sampling-rate must lie in (0, 1], got {self.sampling_rate!r}")
        size = self.sampling_rate * self.clients
        whole = round(size)
        if abs(size - whole) <= 1e-9 * size:
            return float(whole)
        if self.sampling == "fixed":
            raise ValueError(f"--sampling fixed needs a whole number of clients per round, got {size:g}")
        return size

    def _independent(self, mechanism: Mechanism) -> Mechanism:
        """The release, or a ValueError where an option speaks of a matrix."""
        given = {"decay": self.decay, "bands": self.bands, "matrix": self.matrix, "slices": self.slices}
        for name in [name for name, value in given.items() if value]:
            raise ValueError(f"--{name} goes with --noise-correlation matrix")
        return mechanism

    def _correlated(self, mechanism: Mechanism) -> MatrixMechanism:
        """The same release with noise that cancels over rounds."""
        if self.slices < 1:
            raise ValueError(f"--slices must be at least 1 with --noise-correlation matrix, got {self.slices}")
        known = {field.name: getattr(mechanism, field.name) for field in fields(mechanism)}
        return MatrixMechanism(**known, link=self._link())

    def _link(self) -> CorrelatedNoise:
        if self.matrix:
            if self.decay or self.bands:
                raise ValueError("--matrix goes without --decay and --bands")
            return CorrelatedNoise.from_matrix(self.matrix, self.slices)
        decay = self._decay()
        if self.bands:
            return CorrelatedNoise.from_matrix(decay ** np.arange(self.bands), self.slices)
        return CorrelatedNoise(decay, self.slices)

    def _decay(self) -> float:
        if self.decay in ("", "auto"):
            from cepam.fl.optim import schedule

            rates = schedule(self.schedule, 1.0, self.rounds)
            steps = [rates.at(t) for t in range(self.rounds)]
            return best_decay(self.rounds, self.slices, self.server_momentum, steps, self.bands or None)
        try:
            found = float(self.decay)
        except ValueError:
            raise ValueError(f"--decay must be auto or a number, got {self.decay!r}") from None
        if not (0.0 <= found < 1.0):
            raise ValueError(f"--decay must lie in [0, 1), got {found!r}")
        return found

    def _noise(self, default: float | None, weights: list[float]) -> list[float]:
        """The noise scale of each client.

        Of per-example sums every client adds an equal share of the sum's noise, as in the simulation engine: its scale
        is in inverse proportion to its weight. Elsewhere all clients have one scale.
        """
        if self.noise_multiplier:
            whole = self.unit == "client"
            if not (self.expected_batch_size or whole) or self.noise_scale:
                raise ValueError(
                    "--noise-multiplier goes with --expected-batch-size, --unit client or --local-epochs, and without "
                    "--noise-scale"
                )
            # The sum over all clients is the weighted average times the clients, or times the expected batch.
            times = self.clients if whole else self.expected_batch_size
            default = self.noise_multiplier * self.clipping_norm / times / math.hypot(*weights) * sum(weights)
        if not self.noise_scale and default is None:
            raise ValueError("--noise-scale is needed (or --noise-multiplier with --expected-batch-size)")
        if self.noise_scale or default is None or not self.expected_batch_size:
            return values_of("noise-scale", self.noise_scale, self.clients, default)
        if min(weights) <= 0.0:
            raise ValueError(f"--weights must be positive, got {min(weights):g}")
        share = default * math.hypot(*weights) / math.sqrt(self.clients)
        return [share / weight for weight in weights]

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
        if self.expected_batch_size:
            return self.expected_batch_size / self.clients
        if not self.draws:
            raise ValueError(
                "--batch-size or --local-steps is needed (the records that a client draws per round), or "
                "--expected-batch-size"
            )
        return self.draws


def noise_of(mechanism: Mechanism) -> dict[str, Any]:
    """The noise in both units, what each is measured in, and what neither may be taken for."""
    scales = [client.law.scale for client in mechanism.clients]
    return {
        "noise_scale": scales[0] if len(set(scales)) == 1 else scales,
        "noise_multiplier": privacy.noise_multiplier(mechanism),
        "units": noise_units(mechanism),
        "opacus": opacus_of(mechanism),
    }


def opacus_of(mechanism: Mechanism) -> str:
    """Which of the numbers Opacus's `noise_multiplier` is, and which it is not."""
    if isinstance(mechanism, LocalMechanism):
        batch, bound = mechanism.sampling_of(0).draws, mechanism.clip.bound
        return (
            f"noise_multiplier is Opacus's own at each client, with expected_batch_size {batch:g} and max_grad_norm "
            f"{bound:g}; noise_scale is not"
        )
    if mechanism.clipped == "update":
        return (
            "neither number is Opacus's noise_multiplier: Opacus clips and noises every example's gradient in every "
            "step, here one whole update per round is clipped"
        )
    return (
        "noise_multiplier is Opacus's only for one optimizer that sees the batches of all clients; at one client by "
        "itself, and for noise_scale anywhere, it is another number"
    )


def observers_of(mechanism: Mechanism, delta: float) -> dict[str, float]:
    """epsilon against every kind of adversary over the whole run; infinite where there is no guarantee."""
    if delta == 0.0 and isinstance(mechanism, CohortMechanism):
        return {}
    found = privacy.Accountant((mechanism,)).observers(delta)
    if "server" in found:
        return found
    others = max(1, mechanism.enrolled - 1)
    named = {(f"all {others} other clients" if who == f"{others} colluders" else who): e for who, e in found.items()}
    if others == 1 and mechanism.enrolled > 1:
        named = {who: e for who, e in named.items() if who != "all 1 other clients"}
    if mechanism.enrolled == 1:
        named = {"outsider": found["outsider"]}
    named.setdefault(SEES_PARTICIPATION, found["outsider"])  # all take part: there is nothing to see
    return {**named, "server": math.inf}


def secure_aggregation_observers(options: MechanismOptions, delta: float) -> dict[str, Any]:
    """epsilon of each observer where the server learns sums only; nothing where it is trusted.

    `observers` is for rounds in which nobody dropped out, `observers_at_quorum` for rounds with no more clients than
    the quorum, the fewest that a sum is opened for. Against a server that lies both are the same.
    """
    if options.trust != "secure-aggregation":
        return {}
    quorum, mechanism = _quorum(options), replace(options, colluders=0).mechanism()
    from cepam.secure_aggregation import epsilons  # with its kernels: other questions need none of it

    return {
        "quorum": quorum,
        "observers": epsilons(mechanism, delta, quorum, options.colluders),
        "observers_at_quorum": epsilons(mechanism, delta, quorum, options.colluders, survivors=quorum),
    }


def secure_aggregation_rows(found: dict[str, Any]) -> dict[str, float] | None:
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


def _quorum(options: MechanismOptions) -> int:
    """Clients in every sum; ValueError for what no sum carries."""
    if options.sampling_rate or options.noise_correlation != "independent" or options.law != "gaussian":
        raise ValueError(
            "--trust secure-aggregation goes with Gaussian noise, independent from round to round, and no "
            "--sampling-rate"
        )
    return quorum_count(options.quorum or 0.8, options.clients, "--quorum")


def secure_aggregation_views(
    options: MechanismOptions, actual: float
) -> dict[str, tuple[privacy.AuditedMechanism, privacy.Mechanism]]:
    """By observer: sums as the server opens them, of as many clients as hide one from it, and the account of that."""
    quorum, mechanism = _quorum(options), replace(options, colluders=0).mechanism(sampling="all")
    from cepam.secure_aggregation.channel import OpenedSum
    from cepam.secure_aggregation.mechanism import mechanism_for, views

    law = Gaussian(mechanism.clients[0].law.scale * actual)
    _, *known = views(options.clients, quorum, options.colluders)  # an outsider sees what the server sees
    return {view.observer: (OpenedSum(law, view.shares), mechanism_for(view, mechanism)) for view in known}
