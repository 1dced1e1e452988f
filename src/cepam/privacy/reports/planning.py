"""A plan for a federation: what to protect and how, what noise that takes, and what it means for the model.

    federation = privacy.Federation(records=(500, 2000, 9000), coordinates=10_000, epsilon=2.0)
    privacy.plan(federation).mechanism

The choices are rules of thumb; every figure is the accountant's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cepam._internal.quorum import quorum_count
from cepam.clip import L2, Unit
from cepam.distributions.laws import Gaussian
from cepam.privacy.cohorts.cohort import Cohort, CohortMechanism
from cepam.privacy.composition.accountant import epsilon as epsilon_of
from cepam.privacy.composition.calibration import calibrate, calibrate_each
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Client, Mechanism, Sampling, check_count
from cepam.privacy.reports.guarantee import NoiseRatio, noise_ratio

Trust = Literal["server", "secure-aggregation", "nobody"]
Mode = Literal["per-example", "local-dp-sgd", "client-sampling", "all-clients"]

BATCH_SHARE = 1 / 16
"""The share of all records in a round's expected batch: that of the preset `private`, about."""
LOCAL_BATCH = 64
TRIES = 5
SAMPLED_SHARE, LEAST_SAMPLED, MOST_SAMPLED = 0.05, 50, 1000
"""Clients sampled per round, of how many; under the least, all take part."""
QUORUM = 0.8
"""Of all clients, the share that every opened sum of secure aggregation holds at least."""
COMPLETE_GRAPH = 100
"""Of more clients than that the engine shares masks on a sparse graph: no bound is known if the server lies."""
LEAST_SUMMED = 3
"""Clients that secure aggregation needs at least."""
DIGITS = 6
"""Significant digits of a noise scale that a plan prints for secure aggregation, and counts with."""


@dataclass(frozen=True)
class Federation:
    """Who takes part, what must be protected, and from whom.

    Args:
        unit: What is protected: one record, or a client with all its records.
        clients: How many clients there are; default: as many as `records` names.
        records: Records of each client, or one number for all; needed to protect records.
        rounds: Rounds of training.
        trust: Who may see a single update: the server; nobody, with secure aggregation; nobody at all, not even a sum.
        coordinates: Trained weights of the model.
        epsilon: The target of the whole run.
        delta: Default: a tenth of one over the protected units, rounded down to a power of ten.
        clipping_norm: The bound on an example's gradient, or on a client's update.
        colluders: Other clients who pool what they know, and against whom the target must hold too.

    Raises:
        ValueError: For a value outside its range, or a combination that no mode serves.
    """

    coordinates: int
    epsilon: float
    unit: Unit = "record"
    clients: int = 0
    records: tuple[int, ...] = ()
    rounds: int = 100
    trust: Trust = "server"
    delta: float = 0.0
    clipping_norm: float = 1.0
    colluders: int = 0

    def __post_init__(self) -> None:
        for name in ("coordinates", "rounds"):
            check_count(name, getattr(self, name))
        if self.unit not in get_args(Unit) or self.trust not in get_args(Trust):
            raise ValueError(f"unit must be record or client and trust one of {', '.join(get_args(Trust))}")
        many = self.clients or len(self.records)
        if many < 1:
            raise ValueError("clients must be at least 1, or records name them")
        if len(self.records) not in (0, 1, many):
            raise ValueError(f"records must give 1 or {many} numbers, got {len(self.records)}")
        if self.unit == "record" and not self.records:
            raise ValueError("records is needed to protect records: how many each client holds")
        if self.unit == "client" and self.trust == "nobody":
            raise ValueError(
                "to protect whole clients from the server itself use secure aggregation (trust secure-aggregation): "
                "noise that hides a client by itself leaves no model"
            )
        held = self.records * many if len(self.records) == 1 else self.records
        if not 0 <= self.colluders < many:
            raise ValueError(f"colluders must be from 0 to {many - 1}, the other clients, got {self.colluders!r}")
        units = sum(held) if self.unit == "record" else many
        object.__setattr__(self, "clients", many)
        object.__setattr__(self, "records", held)
        object.__setattr__(self, "delta", self.delta or 10.0 ** -math.ceil(math.log10(units) + 1.0))
        if self.trust == "secure-aggregation":
            self._check_sums()

    @property
    def quorum(self) -> int:
        """The clients that every opened sum of secure aggregation holds at least."""
        return quorum_count(QUORUM, self.clients)

    def _check_sums(self) -> None:
        if self.clients < LEAST_SUMMED:
            raise ValueError(f"clients must be at least {LEAST_SUMMED} for secure aggregation, got {self.clients}")
        most = 2 * self.quorum - self.clients - 1
        if self.colluders > most:
            raise ValueError(
                f"colluders must be at most {most} for secure aggregation of {self.clients} clients with a quorum of "
                f"{self.quorum}, got {self.colluders}"
            )


@dataclass(frozen=True)
class Plan:
    """What to run: a mode, its mechanism with calibrated noise, its epsilon, and the reasons.

    Args:
        federation: What was asked for.
        mode: How the run is made private.
        mechanism: The run, with the noise that meets the target.
        epsilon: epsilon of the whole run.
        batch: The expected batch over all clients (per-example), or a client's per local step (local-dp-sgd).
        sampling_rate: Probability that a client is sampled in a round.
        reasons: Why this mode, in one sentence each.
        rounding_charged: False where charging the mechanism's rounding leaves no finite bound for so large a model:
            epsilon is then that of the ideal law.
        aim: The target with which each client's noise was calibrated (local-dp-sgd): slightly less than the
            federation's where the rounding of unlike clients is charged to all of them.
    """

    federation: Federation
    mode: Mode
    mechanism: Mechanism
    epsilon: float
    batch: float
    sampling_rate: float
    reasons: tuple[str, ...]
    rounding_charged: bool = True
    aim: float | None = None

    @property
    def noise(self) -> NoiseRatio:
        """The noise of a round's average beside the largest update."""
        return noise_ratio(replace(self.mechanism, coordinates=self.federation.coordinates))

    @property
    def expectation(self) -> str:
        """What the noise means for the model, in words: no accuracy is promised."""
        found = self.noise
        ratio = found.ratio or 0.0
        run = ratio / found.averaging
        said = (
            f"the noise of one round's average is {ratio:.3g} times the largest update, and {run:.3g} times what "
            f"{self.mechanism.rounds} rounds that agree add up to"
        )
        if run <= 0.1:
            return f"{said}: expect nearly the accuracy of training without privacy"
        if run <= 1.0:
            return f"{said}: expect some loss; small steps, momentum and frozen features help"
        return f"{said}: expect a model that learns little, unless few directions matter: {_remedies(self)}"


def plan(federation: Federation) -> Plan:
    """Recommend a mode for a federation and calibrate its noise.

    Args:
        federation: Who takes part, what is protected, from whom, and the target.

    Returns:
        The plan; its epsilon is at most the target.

    Raises:
        ValueError: No noise meets the target, or the federation is too small for the mode.
    """
    make = _of_clients if federation.unit == "client" else _of_records
    try:
        return make(federation, federation.coordinates)
    except ValueError as refused:
        if "roundings" not in str(refused) and "64-bit" not in str(refused):
            raise
        return replace(make(federation, None), rounding_charged=False)


def _of_records(given: Federation, coordinates: int | None) -> Plan:
    total, clip = sum(given.records), L2(given.clipping_norm)
    if given.trust == "nobody":
        batch = min(LOCAL_BATCH, *given.records)
        start = LocalMechanism.of(given.records, clip, 1.0, batch, rounds=given.rounds, coordinates=coordinates)
        made, aim = _each_calibrated(start, given.epsilon, given.delta)
        why = (
            "nobody is trusted, so each client clips and noises every local step itself (local DP-SGD)",
            "each client has the noise that its own target needs: small clients need more",
        )
        return Plan(given, "local-dp-sgd", made, epsilon_of(made, given.delta), batch, 1.0, why, aim=aim)
    share = min(1.0, max(BATCH_SHARE, 1.0 / min(given.records)))
    if given.trust == "secure-aggregation":
        return _of_masked_records(given, share, coordinates)
    clients = tuple(  # each adds an equal share of the sum's noise, as in the engine
        Client(Gaussian(given.clipping_norm * total / (given.clients * many)), many, many / total, share * many)
        for many in given.records
    )
    summed = Mechanism(
        clients, clip, Sampling("poisson", share * min(given.records)), given.rounds, given.colluders, "add-remove",
        "example", coordinates,
    )  # fmt: skip
    met = calibrate(summed, given.epsilon, given.delta)
    found = epsilon_of(met, given.delta)
    return Plan(given, "per-example", met, found, share * total, 1.0, _drawn_reasons(share))


def _of_masked_records(given: Federation, share: float, coordinates: int | None) -> Plan:
    """Sums that nobody can weigh: every client draws at one rate and divides by one public number."""
    held = sum(given.records) // given.clients
    one = Client(Gaussian(given.clipping_norm), held, 1.0 / given.clients, share * held, searched=False)
    everyone = (one,) * given.clients
    summed = Mechanism(
        everyone, L2(given.clipping_norm), Sampling("poisson", share * held), given.rounds, given.colluders,
        "add-remove", "example", coordinates,
    )  # fmt: skip
    made, found = _met_at_quorum(summed, given)
    reasons = (*_drawn_reasons(share), QUORUM_REASON.format(quorum=given.quorum, clients=given.clients))
    if len(set(given.records)) > 1:
        reasons = (
            *reasons,
            f"nobody can weigh a masked update, so every client divides its sum by {share * held:.6g}, the expected "
            "batch of an average client: every record counts alike, whichever client holds it",
        )
    return Plan(given, "per-example", made, found, share * held * given.clients, 1.0, reasons)


QUORUM_REASON = (
    "the noise meets the target where only the quorum of {quorum} of {clients} clients is in each sum; with all "
    "clients epsilon is smaller"
)


def _drawn_reasons(share: float) -> tuple[str, ...]:
    return (
        f"each record is drawn with probability {share:.3g} per round, in secret, whichever client holds it: sampling "
        "makes the noise smaller",
        "each example's gradient is clipped, so that one record moves the sum by one clipping norm at most",
    )


def _met_at_quorum(summed: Mechanism, given: Federation) -> tuple[Mechanism, float]:
    """The mechanism of all clients with noise that the quorum alone suffices with, rounded up; epsilon at the quorum.

    A run states this noise itself, so the figures are those of the digits that are printed.
    """
    absent = range(given.quorum, given.clients)
    scale = calibrate(summed.without(absent), given.epsilon, given.delta).clients[0].law.scale
    made = summed.with_noise([rounded_up(scale)] * given.clients)
    return made, epsilon_of(made.without(absent), given.delta)


def rounded_up(scale: float) -> float:
    """The scale with `DIGITS` significant digits, never smaller."""
    unit = 10.0 ** (DIGITS - 1 - math.floor(math.log10(scale)))
    for steps in range(3):
        found = float(f"{(math.ceil(scale * unit) + steps) / unit:.{DIGITS}g}")
        if found >= scale:
            return found
    raise AssertionError(f"no rounding of {scale!r}")


def _each_calibrated(start: LocalMechanism, target: float, delta: float) -> tuple[Mechanism, float]:
    """Each client with the noise that its own target needs, and that target.

    epsilon of the whole, as reported, is at most the target.

    Raises:
        ValueError: No noise meets the target.
    """
    many, aim = len(start.clients), target
    for _ in range(TRIES):
        made = calibrate_each(start, [aim] * many, [delta] * many)
        found = epsilon_of(made, delta)
        if found <= target:
            return made, aim
        aim = math.floor(1e5 * aim * (1.0 - 1e-5) * target / found) / 1e5
    raise ValueError(f"no noise meets epsilon {target!r}: the least figure is {found!r}")


def _of_clients(given: Federation, coordinates: int | None) -> Plan:
    clip, many = L2(given.clipping_norm), given.clients
    size = min(float(MOST_SAMPLED), max(float(LEAST_SAMPLED), SAMPLED_SHARE * many))
    if given.trust == "server" and size < many:
        start: Mechanism = CohortMechanism.of(
            Cohort(many, size), clip, 1.0, rounds=given.rounds, colluders=given.colluders, adjacency="add-remove",
            coordinates=coordinates,
        )  # fmt: skip
        met = calibrate(start, given.epsilon, given.delta)
        sampled = (
            f"each client is sampled with probability {size / many:.3g} per round, in secret: this makes noise smaller",
            "a client's whole update is clipped; the server adds the noise of those who drop out",
        )
        return Plan(given, "client-sampling", met, epsilon_of(met, given.delta), 0.0, size / many, sampled)
    searched = given.trust != "secure-aggregation"
    everyone = (Client(Gaussian(given.clipping_norm), 1, 1.0 / many, searched=searched),) * many
    start = Mechanism(
        everyone, clip, Sampling("all"), given.rounds, given.colluders, "add-remove", "update", coordinates,
        unit="client",
    )  # fmt: skip
    reasons: tuple[str, ...] = (
        "all clients take part in every round: there are too few to sample, or no sampling is claimed with secure "
        "aggregation",
        "a client's whole update is clipped",
    )
    if given.trust == "secure-aggregation":
        made, found = _met_at_quorum(start, given)
        reasons = (*reasons, QUORUM_REASON.format(quorum=given.quorum, clients=given.clients))
        return Plan(given, "all-clients", made, found, 0.0, 1.0, reasons)
    met = calibrate(start, given.epsilon, given.delta)
    return Plan(given, "all-clients", met, epsilon_of(met, given.delta), 0.0, 1.0, reasons)


def _remedies(made: Plan) -> str:
    protect = "protecting records instead of clients, " if made.federation.unit == "client" else ""
    return f"{protect}more clients or records, a larger epsilon, or fewer trained weights (a head, adapters) help"
