"""Participation as it was observed: which messages came, and what the published sums cost.

When a client is away or a message is lost, its noise is not there to cancel that of its earlier messages, and the
streams no longer run in step. So the published rounds are charged as they were: Y_t is the weighted sum of what the
receivers gave in round t, its noise has covariance Sigma = sum over j of sigma_j^2 M_j M_j^T, a record of client k
moves it by L_k G, and

    mu_k^2 = max over slices of c_k^2 sum over i, j in the slice of |L_k^T Sigma^-1 L_k|_ij.

With C_q the rows and C_qq the block of the positions q that came, M = w C_qq^-1 and L = w C_qq^-1 C_q, put at their
rounds; a new stream starts a new block. Nobody missing: Sigma^-1 = C^T C / sum w^2 sigma^2, the closed form.
Absences must not depend on private data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg, sparse

from cepam.distributions.laws import Floats
from cepam.privacy.matrix.correlated_noise import CorrelatedNoise
from cepam.privacy.mechanisms.mechanism import check_count


@dataclass(frozen=True, order=True)
class Arrival:
    """One message that came: in which round, at which position of its client, in which of the client's streams."""

    round: int
    position: int
    stream: int = 0


@dataclass(frozen=True)
class ObservedParticipation:
    """The messages of each client that came, in order, over `rounds` rounds.

    A position that is skipped was sent and lost, or is charged as if it were.
    """

    rounds: int
    arrivals: tuple[tuple[Arrival, ...], ...]

    def __hash__(self) -> int:
        """Computed once: accounts of many clients look each other up by it."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.rounds, self.arrivals))

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds)
        for client, came in enumerate(self.arrivals):
            if any(not 0 <= one.round < self.rounds or one.position < 0 for one in came):
                raise ValueError(f"arrivals of client {client} must lie in rounds 0 to {self.rounds - 1}")
            if any(b.round <= a.round or b.position <= a.position or b.stream < a.stream for a, b in pairwise(came)):
                raise ValueError(f"arrivals of client {client} must rise in round and position")

    @classmethod
    def observed(cls, sent: npt.ArrayLike, lost: npt.ArrayLike | None = None) -> ObservedParticipation:
        """The observed_participation of clients (rows) that sent a message in some rounds (columns), of which some were
        lost."""
        tried = np.array(sent, dtype=bool)
        gone = np.zeros_like(tried) if lost is None else np.array(lost, dtype=bool)
        if tried.ndim != 2 or gone.shape != tried.shape:
            raise ValueError(f"sent and lost must be arrays of clients by rounds, got {tried.shape} and {gone.shape}")
        if (gone & ~tried).any():
            raise ValueError("lost must name messages that were sent")
        positions = np.cumsum(tried, axis=1) - 1
        arrived = tried & ~gone
        rows = [
            tuple(Arrival(int(t), int(positions[k, t])) for t in np.flatnonzero(arrived[k])) for k in range(len(tried))
        ]
        return cls(tried.shape[1], tuple(rows))

    def over(self, rounds: int) -> ObservedParticipation:
        """The first `rounds` rounds."""
        if rounds > self.rounds:
            raise ValueError(
                f"rounds must be at most the {self.rounds} that observed_participation was taken in, got {rounds}"
            )
        kept = tuple(tuple(one for one in came if one.round < rounds) for came in self.arrivals)
        return ObservedParticipation(rounds, kept)

    def positions(self, client: int) -> int:
        """How many positions of a client have been reached."""
        came = self.arrivals[client]
        return came[-1].position + 1 if came else 0

    def noise(self, link: CorrelatedNoise, client: int) -> Floats:
        """M without its weight: how the noise of the client's messages enters the rounds (rows)."""
        made, first = np.zeros((self.rounds, len(self.arrivals[client]))), 0
        for rounds, positions, _ in self._streams(client):
            made[np.ix_(rounds, range(first, first + len(rounds)))] = _undo(link, positions, np.eye(len(rounds)))
            first += len(rounds)
        return made

    def moves(self, link: CorrelatedNoise, client: int) -> Floats:
        """L without its weight: how the client's updates (columns, by position) enter the rounds (rows)."""
        made = np.zeros((self.rounds, self.positions(client)))
        for rounds, positions, start in self._streams(client):
            sent = range(start, positions[-1] + 1)
            made[np.ix_(rounds, sent)] = _undo(link, positions, _block(link, positions, sent))
        return made

    def _streams(self, client: int) -> Iterable[tuple[list[int], list[int], int]]:
        """For each stream the rounds and positions that came, and where it may have started.

        A lost message between two streams is charged as the later one's, whose next message then carries it.
        """
        start = 0
        for _, group in groupby(self.arrivals[client], key=lambda one: one.stream):
            came = list(group)
            positions = [one.position for one in came]
            yield [one.round for one in came], positions, start
            start = positions[-1] + 1


def _block(link: CorrelatedNoise, rows: Sequence[int], columns: Sequence[int]) -> Floats:
    """Some rows and columns of C."""
    across, made = np.array(columns), np.zeros((len(rows), len(columns)))
    for i, position in enumerate(rows):
        inside = across <= position
        made[i, inside] = link.row(position)[across[inside]]
    return made


def _undo(link: CorrelatedNoise, positions: Sequence[int], streams: Floats) -> Floats:
    """C_qq^-1 applied to columns: what the receiver of the messages at `positions` does."""
    if link.decay:  # two terms a message: no need for a solve
        made = streams.copy()
        made[1:] -= (link.decay ** np.diff(positions))[:, np.newaxis] * streams[:-1]
        return made
    block = _block(link, positions, positions)
    return np.asarray(linalg.solve_triangular(block, streams, lower=True), dtype=np.float64)


@lru_cache(maxsize=64)
def precision(
    link: CorrelatedNoise, observed_participation: ObservedParticipation, noises: tuple[tuple[int, float], ...]
) -> Floats:
    """Sigma^-1 of the published sums whose noise is that of the clients in `noises` (pairs of j and w_j sigma_j).

    By round; rounds to which none of them contributed have no noise and no update: their rows are zero.
    """
    total = np.zeros((observed_participation.rounds, observed_participation.rounds))
    for client, noise in noises:
        rows, columns, values = _covariance(link, observed_participation, client)
        total[rows, columns] += noise**2 * values
    seen = np.flatnonzero(np.diag(total) > 0.0)
    made = np.zeros_like(total)
    if len(seen):
        factor = linalg.cho_factor(total[np.ix_(seen, seen)], lower=True)
        made[np.ix_(seen, seen)] = linalg.cho_solve(factor, np.eye(len(seen)))
    return made


def published_sensitivity(
    link: CorrelatedNoise, observed_participation: ObservedParticipation, inverse: Floats, client: int, slices: int
) -> float:
    """The root of the largest sum |L^T Sigma^-1 L|_ij over a slice's positions: mu for w c = 1.

    Guarantee: never below the worst shift, exact where no entry is negative
    (tests/privacy/test_observed_participation.py).
    """
    moves = _moves(link, observed_participation, client)
    shared = np.abs(moves @ (moves @ inverse).T)  # Sigma^-1 is symmetric
    return math.sqrt(max(float(shared[r::slices, r::slices].sum()) for r in range(min(slices, len(shared)))))


@lru_cache(maxsize=256)
def spread(link: CorrelatedNoise, observed_participation: ObservedParticipation, client: int) -> float:
    """A bound for how much longer undoing makes the client's messages together: the norm of M without its weight."""
    if link.decay:
        return 1.0 + link.decay
    mixed = np.abs(observed_participation.noise(link, client))
    return math.sqrt(float(mixed.sum(axis=0).max(initial=0.0)) * float(mixed.sum(axis=1).max(initial=0.0)))


@lru_cache(maxsize=64)
def _moves(link: CorrelatedNoise, observed_participation: ObservedParticipation, client: int) -> Any:
    """`ObservedParticipation.moves` by position, of which most is zero: an update is in one round, unless messages were
    lost."""
    return sparse.csr_array(observed_participation.moves(link, client).T)


@lru_cache(maxsize=64)
def _covariance(
    link: CorrelatedNoise, observed_participation: ObservedParticipation, client: int
) -> tuple[Any, Any, Any]:
    """M M^T of one client: rounds, rounds, and what is not zero there."""
    mixed = sparse.csr_array(observed_participation.noise(link, client))
    found = (mixed @ mixed.T).tocoo()
    return found.row, found.col, found.data
