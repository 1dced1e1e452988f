"""A plan for a federation: what to protect and how, what noise that takes, and what it means for the model.

    federation = privacy.Federation(records=(500, 2000, 9000), coordinates=10_000, epsilon=2.0)
    privacy.plan(federation).mechanism

The choices are rules of thumb; every figure is the accountant's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cepam.clip import L2, Unit
from cepam.distributions.laws import Gaussian
from cepam.privacy.cohorts.cohort import Cohort, CohortMechanism
from cepam.privacy.composition.account import epsilon as epsilon_of
from cepam.privacy.composition.calibration import calibrate, calibrate_each
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Client, Mechanism, check_count
from cepam.privacy.mechanisms.subsampled import Sampling
from cepam.privacy.reports.noise_ratio import NoiseRatio, noise_to_clip

Trust = Literal["server", "secure-aggregation", "nobody"]
Mode = Literal["per-example", "local-dp-sgd", "client-sampling", "all-clients"]

BATCH_SHARE = 1 / 16
"""The share of all records in a round's expected batch: that of the preset `private`, about."""
LOCAL_BATCH = 64
SAMPLED_SHARE, LEAST_SAMPLED, MOST_SAMPLED = 0.05, 50, 1000
"""Clients sampled per round, of how many; under the least, all take part."""
QUORUM = 0.8


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
        units = sum(held) if self.unit == "record" else many
        object.__setattr__(self, "clients", many)
        object.__setattr__(self, "records", held)
        object.__setattr__(self, "delta", self.delta or 10.0 ** -math.ceil(math.log10(units) + 1.0))


@dataclass(frozen=True)
class Plan:
    """What to run: the mode, its mechanism with calibrated noise, epsilon, and the reasons.

    `batch` is the expected batch over all clients (per-example), or a client's per local step (local-dp-sgd);
    `sampling_rate` the share of clients per round; `rounding_charged` is False where the charge of the mechanism's own
    rounding leaves no finite bound for so large a model, and the figure is the ideal law's.
    """

    federation: Federation
    mode: Mode
    mechanism: Mechanism
    epsilon: float
    batch: float
    sampling_rate: float
    reasons: tuple[str, ...]
    rounding_charged: bool = True

    @property
    def noise(self) -> NoiseRatio:
        """The noise of a round's average beside the largest update."""
        return noise_to_clip(replace(self.mechanism, coordinates=self.federation.coordinates))

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

    @property
    def least_bytes(self) -> float | None:
        """Bytes that one client uploads per round, at least: Shannon's bound for this noise; None for masked sums."""
        if self.federation.trust == "secure-aggregation" or self.mode == "local-dp-sgd":
            return None
        many, scale = self.federation.coordinates, self.mechanism.clients[0].law.scale
        ratio = self.federation.clipping_norm**2 / (many * scale**2)
        return many * 0.5 * math.log2(1.0 + ratio) / 8.0


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
        many = given.clients
        made: Mechanism = calibrate_each(start, [0.9999 * given.epsilon] * many, [given.delta] * many)
        why = (
            "nobody is trusted, so each client clips and noises every local step itself (local DP-SGD)",
            "each client has the noise that its own target needs: small clients need more",
        )
        return Plan(given, "local-dp-sgd", made, epsilon_of(made, given.delta), batch, 1.0, why)
    share = min(1.0, max(BATCH_SHARE, 1.0 / min(given.records)))
    masked = given.trust == "secure-aggregation"
    weights = [1.0 / given.clients if masked else many / total for many in given.records]
    clients = tuple(
        Client(Gaussian(given.clipping_norm), many, weight, share * many)
        for many, weight in zip(given.records, weights)
    )
    summed = Mechanism(
        clients, clip, Sampling("poisson", share * min(given.records)), given.rounds, given.colluders, "add-remove",
        "example", coordinates,
    )  # fmt: skip
    reasons: tuple[str, ...] = (
        f"each record is drawn with chance {share:.3g} per round, in secret, whichever client holds it: sampling "
        "makes the noise smaller",
        "each example's gradient is clipped, so that one record moves the sum by one clipping norm at most",
    )
    if masked:
        summed = summed.without(_largest(given.records, given.clients - math.ceil(QUORUM * given.clients)))
        reasons = (*reasons, f"the noise is enough where only {QUORUM:.0%} of the clients are in a sum (the quorum)")
    met = calibrate(summed, given.epsilon, given.delta)
    return Plan(
        given, "per-example", met.without(()), epsilon_of(met, given.delta), share * total, 1.0, reasons
    )  # fmt: skip


def _of_clients(given: Federation, coordinates: int | None) -> Plan:
    clip, many = L2(given.clipping_norm), given.clients
    size = min(float(MOST_SAMPLED), max(float(LEAST_SAMPLED), SAMPLED_SHARE * many))
    if given.trust == "server" and size < many:
        start: Mechanism = CohortMechanism.of(
            Cohort(many, size), clip, 1.0, rounds=given.rounds, colluders=given.colluders, adjacency="add-remove",
            coordinates=coordinates,
        )  # fmt: skip
        met = calibrate(start, given.epsilon, given.delta)
        reasons = (
            f"each client is sampled with chance {size / many:.3g} per round, in secret: that makes the noise smaller",
            "a client's whole update is clipped; the server adds the noise of those who drop out",
        )
        return Plan(given, "client-sampling", met, epsilon_of(met, given.delta), 0.0, size / many, reasons)
    present = math.ceil(QUORUM * many) if given.trust == "secure-aggregation" else many
    everyone = (Client(Gaussian(given.clipping_norm), 1, 1.0 / many),) * many
    start = Mechanism(
        everyone, clip, Sampling("all"), given.rounds, given.colluders, "add-remove", "update", coordinates,
        unit="client",
    )  # fmt: skip
    met = calibrate(start.without(range(present, many)), given.epsilon, given.delta)
    reasons = (
        "all clients take part in every round: there are too few to sample, or no sampling is claimed with secure "
        "aggregation",
        "a client's whole update is clipped",
    )
    return Plan(given, "all-clients", met.without(()), epsilon_of(met, given.delta), 0.0, 1.0, reasons)


def _largest(records: tuple[int, ...], many: int) -> list[int]:
    """The places of so many clients that hold most: a record of theirs moves the sum least."""
    return sorted(range(len(records)), key=lambda j: -records[j])[:many]


def _remedies(made: Plan) -> str:
    protect = "protecting records instead of clients, " if made.federation.unit == "client" else ""
    return f"{protect}more clients or records, a larger epsilon, or fewer trained weights (a head, adapters) help"
