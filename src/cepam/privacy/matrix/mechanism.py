"""The matrix mechanism: a run with correlated noise, and what its records are charged without secret sampling.

The whole run is one Gaussian event. Round by round the noise is smaller than what it costs: charging rounds by their
own variance is wrong, and an attack shows it (tests/privacy/test_matrix_audit.py).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from cepam.privacy.matrix.correlated_noise import CorrelatedNoise
from cepam.privacy.matrix.participation import (
    Cyclic,
    ObservedParticipation,
    Participation,
    Separated,
    precision,
    published_sensitivity,
    sensitivity,
    spread,
)
from cepam.privacy.mechanisms.mechanism import Mechanism, Sampling
from cepam.privacy.numerics.smoothing import MOST_SPREAD

MOST_COALITIES = 200
NOTHING_SECRET = Sampling("all")


@dataclass(frozen=True)
class MatrixMechanism(Mechanism):
    """A run with correlated noise (DP-FTRL): `rounds` messages per client, whose noise is correlated by `link`.

    Clients follow their slices in a fixed public order, and the server divides by public constants.

    Args:
        link: The matrix and the slices.
        sampling: `all` keeps nothing secret: the run is one Gaussian event, mu = w c sens / (noise of the sum).
            `poisson` samples records of the round's slice afresh and in secret with probability
            draws·slices/records; C then has at most `slices` bands. A run costs rounds/slices events of the
            subsampled Gaussian (Choquette-Choo et al. 2023).
        participation: Replaces the fixed slices.
        observed_participation: Which messages came; by default all.
        run: Names the streams. In an accountant more rounds of one run take the place of fewer; without a name every
            mechanism is a run of its own.
        clients: `draws` of a client is B, the public number that divides its sum; by default records/slices.
        unit: `client` protects all records of a client, which takes part in every round with whole updates. Under
            add-remove its updates are then zero while its noise stays.

    Other fields are those of `Mechanism`.

    Raises:
        ValueError: The noise is not Gaussian, the matrix is too short, or settings contradict each other.

    c is how far a record moves an update: bound/B with per-example clipping (twice under replace), twice the bound
    for a clipped update. Over fewer rounds the run is the prefix: `mechanism.over(t)` gives a running epsilon. Noise
    that changes within a stream is not represented.

    Guarantee: epsilon holds for updates chosen adaptively (Denisov et al. 2022), under the adjacency and trust of
    `Mechanism` (tests/privacy/test_matrix_mechanism.py, tests/privacy/test_matrix_audit.py).
    """

    sampling: Sampling = NOTHING_SECRET
    link: CorrelatedNoise = field(kw_only=True)
    participation: Participation | None = None
    observed_participation: ObservedParticipation | None = None
    run: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.law_is_gaussian:
            raise ValueError("correlated noise is accounted for with Gaussian noise only, got Laplace")
        if self.absent:
            raise ValueError("absent is for independent rounds: say which messages came by observed_participation")
        if self.unit == "client" and self.participation is not None:
            raise ValueError("unit 'client' takes part in every message, got a participation")
        if self.link.longest is not None and self.rounds > self.link.longest:
            raise ValueError(f"rounds must be at most the matrix's {self.link.longest}, got {self.rounds}")
        if self.observed_participation is not None:
            self._check_observed_participation(self.observed_participation)
        if self.amplified:
            self._check_amplified()
        elif self.sampling.kind != "all":
            raise ValueError(f"sampling must be 'all' or 'poisson' with correlated noise, got {self.sampling.kind!r}")

    def _check_observed_participation(self, observed_participation: ObservedParticipation) -> None:
        if observed_participation.rounds != self.rounds or len(observed_participation.arrivals) != len(self.clients):
            raise ValueError(
                f"observed_participation must be of {len(self.clients)} clients over {self.rounds} rounds, got "
                f"{len(observed_participation.arrivals)} over {observed_participation.rounds}"
            )
        if self.amplified or self.participation is not None:
            raise ValueError("observed_participation goes with fixed slices and sampling 'all'")

    def _check_amplified(self) -> None:
        if self.participation is not None:
            raise ValueError("sampling 'poisson' protects single records of fixed slices")
        if self.link.bands is None or self.link.bands > self.link.slices:
            raise ValueError(
                f"sampling 'poisson' needs a matrix of at most slices = {self.link.slices} bands, got "
                f"{self.link.bands or 'a decay, which has no end'}"
            )

    @property
    def amplified(self) -> bool:
        """Whether secret draws inside the slices are claimed."""
        return self.sampling.kind == "poisson"

    @property
    def events(self) -> int:
        """How many times a record is charged: once, or with secret draws once for each pass over the slices."""
        return -(-self.rounds // self.link.slices) if self.amplified else 1

    def once(self) -> MatrixMechanism:
        """The whole run: it is charged as one event, or as one for each pass.

        Returns:
            This mechanism.
        """
        return self

    @property
    def largest_round(self) -> float:
        """The largest row of |C G| over `sensitivity`: given the past, a round's own shift over the run's.

        At least 1/sqrt(rounds), as the squares of rows add up to that of the sensitivity. 1 where they are not known.
        """
        if self.amplified or self.observed_participation is not None or isinstance(self.participation, Separated):
            return 1.0
        every = 1 if self.unit == "client" else self.participation.slices if self.participation else self.link.slices
        matrix = self.link.matrix(self.rounds)
        rows = max(float(matrix[:, start::every].sum(axis=1).max()) for start in range(min(every, self.rounds)))
        return min(1.0, rows / self.sensitivity)

    @property
    def confines_records(self) -> bool:
        """Whether a record is taken to matter in its slice's messages only."""
        return self.unit == "record" and (self.amplified or self.participation is not None or self.link.slices > 1)

    def history(self, client: int) -> Hashable:
        """What a client's guarantee depends on besides the other clients.

        Args:
            client: The place of the client.

        Returns:
            Equal values for clients of equal guarantees.
        """
        return self.clients[
            client
        ], None if self.observed_participation is None else self.observed_participation.arrivals[client]

    def sampling_rate(self, client: int) -> float:
        """The probability that one given record of the round's slice is drawn.

        Args:
            client: The place of the client.

        Returns:
            A probability; 1 where nothing is sampled in secret.

        Raises:
            ValueError: The client's `draws` are more than a slice has records.
        """
        if not self.amplified:
            return 1.0
        rate = self.batch(client) * self.link.slices / self.clients[client].records
        if not (0.0 < rate <= 1.0):
            most = self.clients[client].records / self.link.slices
            raise ValueError(f"draws must be at most a slice's {most:g} records, got {self.batch(client)!r}")
        return rate

    def batch(self, client: int) -> float:
        """B, the public number that divides the sum of a client's clipped gradients.

        Args:
            client: The place of the client.

        Returns:
            A number of records.
        """
        who = self.clients[client]
        if who.draws is not None:
            return who.draws
        return float(self.sampling.draws) if self.amplified else who.records / self.link.slices

    def distance(self, client: int) -> float:
        """c: how far a record (or a client) moves one update.

        Args:
            client: The place of the client.

        Returns:
            A distance in the clip's norm.
        """
        if self.clipped == "update":
            return super().distance(client)
        return (2.0 if self.adjacency == "replace" else 1.0) * self.clip_of(client).bound / self.batch(client)

    @property
    def sensitivity(self) -> float:
        """How far a record moves a stream without gaps, over how far it moves one update."""
        if self.amplified and self.link.rows is None:
            return float(np.linalg.norm(self.link.column(min(self.rounds, self.link.bands or 1))))
        if self.amplified:
            return float(np.linalg.norm(self.link.matrix(self.rounds), axis=0).max())
        slices = Cyclic(1) if self.unit == "client" else None
        return sensitivity(self.link, self.rounds, self.participation or slices)

    def mu(self, client: int, colluders: int | None = None) -> float:
        """The shift of one event over its noise: w c sens / sqrt(sum over j not colluding of w_j^2 sigma_j^2).

        With `observed_participation`, of the sums that were published. The float64 rounding of the sender's state is
        added.

        Args:
            client: The place of the client.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            mu of one Gaussian mechanism.
        """
        who = self.clients[client]
        moved = who.weight * self.distance(client)
        if self.observed_participation is None:
            exact = moved * self.sensitivity / self.noise_against(client, colluders)
        elif not self.observed_participation.arrivals[client]:
            return 0.0
        else:
            exact = moved * self._published(client, self.colluders if colluders is None else colluders)
        return exact + self._rounding(client)

    def _rounding(self, client: int) -> float:
        """What the rounding of two adjacent senders' states may add to mu; the client's own noise hides it."""
        most = 1.0 if self.clipped == "update" else self.clients[client].records / self.batch(client)
        length = 2.0 * math.sqrt(self.rounds) * self.link.rounding * self.clip_of(client).bound * max(1.0, most)
        return length / self.clients[client].law.scale

    def _published(self, client: int, colluders: int) -> float:
        """The worst mu for w c = 1 over every coalition of that many other clients."""
        assert self.observed_participation is not None
        others = [j for j in range(len(self.clients)) if j != client]
        if math.comb(len(others), colluders) > MOST_COALITIES:
            raise ValueError(
                f"{colluders} colluders of {len(others)} make too many coalitions to try with observed_participation: "
                "ask for 0, 1 or all others"
            )
        slices, worst = 1 if self.unit == "client" else self.link.slices, 0.0
        for honest in combinations(others, len(others) - colluders):
            hidden = (client, *honest) if self._is_smoothed(client) else (client,)
            noises = tuple((j, self.clients[j].noise) for j in sorted(hidden) if j == client or self._is_smoothed(j))
            inverse = precision(self.link, self.observed_participation, noises)
            worst = max(worst, published_sensitivity(self.link, self.observed_participation, inverse, client, slices))
        return worst

    def _is_smoothed(self, client: int) -> bool:
        """Whether the server's own noise covers the grid of this client's messages, so that they blend with others."""
        return (
            self.observed_participation is not None
            and spread(self.link, self.observed_participation, client) <= MOST_SPREAD
        )

    def alone(self, client: int) -> MatrixMechanism:
        """What the same rounds would release of one client by itself.

        Args:
            client: The place of the client.

        Returns:
            A new mechanism.
        """
        came = self.observed_participation and ObservedParticipation(
            self.rounds, (self.observed_participation.arrivals[client],)
        )
        return replace(self, clients=(self.clients[client],), colluders=0, observed_participation=came)

    @property
    def foreseeable(self) -> bool:
        """Whether what more rounds cost is known: not where messages are missing."""
        return self.observed_participation is None

    def followed_by(self, later: Mechanism) -> Mechanism | None:
        """`later`, where it is this run gone on with; None for another run, which costs anew.

        Guarantee: two runs are never charged as one stream (tests/privacy/test_matrix_mechanism.py).

        Args:
            later: The mechanism that was released next.

        Returns:
            `later` or None.

        Raises:
            ValueError: `later` has the name of this run and other rounds.
        """
        if not (isinstance(later, MatrixMechanism) and self.run and self.run == later.run):
            return None
        if later.rounds < self.rounds or not _same_start(self, later):
            raise ValueError(f"the accountant holds {self.rounds} rounds of run {self.run!r}: this release has others")
        return later

    def over(self, rounds: int) -> MatrixMechanism:
        """The first `rounds` rounds: the prefix of every stream.

        Args:
            rounds: At most those that the matrix has.

        Returns:
            A new mechanism.
        """
        came = None if self.observed_participation is None else self.observed_participation.over(rounds)
        return replace(self, rounds=rounds, observed_participation=came)


def _same_start(earlier: MatrixMechanism, later: MatrixMechanism) -> bool:
    """Whether the later release begins with the rounds of the earlier one; nobody missing may be said either way."""
    begun = later.over(earlier.rounds)
    newcomers = len(later.clients) - len(earlier.clients)
    if (
        newcomers > 0
        and begun.observed_participation is not None
        and not any(begun.observed_participation.arrivals[-newcomers:])
    ):
        known = ObservedParticipation(begun.rounds, begun.observed_participation.arrivals[:-newcomers])
        nodes = None if begun.nodes is None else begun.nodes[:-newcomers]
        fewer = begun.clients[:-newcomers]
        begun = replace(begun, clients=fewer, observed_participation=known, nodes=nodes, colluders=earlier.colluders)
    if (earlier.observed_participation is None) == (begun.observed_participation is None):
        return begun == earlier
    everyone = ObservedParticipation.observed(np.ones((len(earlier.clients), earlier.rounds)))
    said = replace(earlier, observed_participation=earlier.observed_participation or everyone)
    return replace(begun, observed_participation=begun.observed_participation or everyone) == said
