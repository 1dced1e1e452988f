"""Participation: in which messages a record may take part, workloads, sensitivity, and what an observer of it sees."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize, sparse

from cepam.distributions.laws import Floats
from cepam.privacy.matrix.correlated_noise import CorrelatedNoise
from cepam.privacy.mechanisms.mechanism import check_count

# A record moves the updates by G, whose rows have norm at most c where it takes part (positions pi) and are zero
# elsewhere. The stream that carries independent noise is Cx, and for C >= 0, X = C^T C,
#
#     |CG|^2 = sum over i, j in pi of X_ij <g_i, g_j>  <=  c^2 sum over i, j in pi of X_ij,
#
# attained by equal rows. The root of the largest such sum over the allowed pi is the *sensitivity*, in units of c.


MOST_STATES = 100_000


@dataclass(frozen=True)
class Cyclic:
    """Participation in turn: a record of slice r takes part in messages r, r + slices, and so on.

    Args:
        slices: How many fixed slices there are.
    """

    slices: int

    def __post_init__(self) -> None:
        check_count("slices", self.slices)


def slice_of(identifier: str | bytes | int, slices: int) -> int:
    """The slice of a record by its identifier alone: the same whichever other records there are.

    Slices then differ in size, as the hash has it: divide by a public constant, the expected slice, and never by how
    many records a slice holds.

    Args:
        identifier: What names the record for good, such as its primary key; not its place in an array, which changes
            when an earlier record is deleted. An integer counts as its decimal text.
        slices: How many slices there are.

    Returns:
        A number from 0 to `slices` - 1, by SHA-256.

    Raises:
        ValueError: `slices` is no whole number of at least 1, or the identifier of another type.
    """
    check_count("slices", slices)
    if isinstance(identifier, bool) or not isinstance(identifier, str | bytes | int | np.integer):
        raise ValueError(f"identifier must be text, bytes or a whole number, got {type(identifier).__name__}")
    named = identifier if isinstance(identifier, bytes) else str(identifier).encode()
    return int.from_bytes(hashlib.sha256(b"cepam slice\0" + named).digest(), "big") % slices


@dataclass(frozen=True)
class Separated:
    """Participation at a distance: at most `times` times, at least `apart` messages after the last one.

    Args:
        apart: Least distance between two participations of a record, in messages.
        times: Most participations of a record.
    """

    apart: int
    times: int

    def __post_init__(self) -> None:
        check_count("apart", self.apart)
        check_count("times", self.times)


Participation = Cyclic | Separated
Taken = tuple[int, tuple[int, ...]]
Values = dict[Taken, float]


def sensitivity(link: CorrelatedNoise, rounds: int, participation: Participation | None = None) -> float:
    """How far a record can move the stream of `rounds` messages, over how far it can move one update.

    `participation` is the link's own slices unless given.
    Rests on: Choquette-Choo et al. 2023; where coefficients never rise, the earliest participations are the worst, also
    among all separated ones (Kalinin and Lampert 2024).
    Guarantee: exact; tests/privacy/test_participation.py enumerates every pattern of small cases.

    Args:
        link: The correlated noise.
        rounds: Messages of the run.
        participation: In which messages a record may take part; the link's own slices by default.

    Returns:
        A factor of at least 1.
    """
    check_count("rounds", rounds)
    pattern = participation or Cyclic(link.slices)
    if link.fades:
        apart, times = (pattern.slices, rounds) if isinstance(pattern, Cyclic) else (pattern.apart, pattern.times)
        return float(np.linalg.norm(_earliest(link, rounds, apart, times)))
    matrix = link.matrix(rounds)
    if isinstance(pattern, Cyclic):
        return max(float(np.linalg.norm(_moved(matrix, r, pattern))) for r in range(min(pattern.slices, rounds)))
    return _separated(matrix, link.bands or rounds, pattern)


def worst_slice(link: CorrelatedNoise, rounds: int, slices: int) -> int:
    """The slice whose records move the stream furthest."""
    if link.fades:
        return 0
    matrix, pattern = link.matrix(rounds), Cyclic(slices)
    return int(np.argmax([np.linalg.norm(_moved(matrix, r, pattern)) for r in range(min(slices, rounds))]))


def _moved(matrix: Floats, slice_: int, pattern: Cyclic) -> Floats:
    """What a record of the slice moves in each message."""
    return np.asarray(matrix[:, slice_ :: pattern.slices].sum(axis=1), dtype=np.float64)


def _earliest(link: CorrelatedNoise, rounds: int, apart: int, times: int) -> Floats:
    """What the record moves in each message when it takes part in messages 0, apart, 2 apart, …"""
    column, moved = link.column(rounds), np.zeros(rounds)
    for first in range(0, rounds, apart)[:times]:
        moved[first:] += column[: rounds - first]
    return moved


def _separated(matrix: Floats, bands: int, pattern: Separated) -> float:
    """The worst separated pattern, by dynamic programming over the participations that can still matter.

    A state is what C or the separation still remembers: participations less than max(bands, apart) messages ago.
    """
    shared, reach = matrix.T @ matrix, max(bands, pattern.apart)
    best: Values = {(0, ()): 0.0}
    for i in range(len(matrix)):
        after: Values = {}
        for (count, recent), value in best.items():
            left = tuple(j for j in recent if i + 1 - j < reach)
            _keep_larger(after, (count, left), value)
            if count < pattern.times and (not recent or i - recent[-1] >= pattern.apart):
                more = shared[i, i] + 2.0 * math.fsum(shared[i, j] for j in recent)
                _keep_larger(after, (count + 1, (*left, i) if reach > 1 else ()), value + float(more))
        best = after
        if len(best) > MOST_STATES:
            raise ValueError(
                f"a matrix of {bands} bands has too many patterns {pattern.apart} apart to search them all: "
                "use fixed slices, fewer bands, or coefficients that never rise"
            )
    return math.sqrt(max(best.values()))


def _keep_larger(values: Values, state: Taken, v: float) -> None:
    values[state] = max(v, values.get(state, 0.0))


# What training makes of correlated noise, and the decay that leaves least of it.
#
# Momentum m and rates eta make the weights of a run -A x with A_ts = sum over u = s..t of eta_u m^(u-s). The noise
# C^-1 Z of the updates becomes A C^-1 Z in the weights, and at a given epsilon Z grows with the sensitivity of C. So
# the best C has the least |A C^-1| sens(C). For a decay, |A C^-1|^2 = a - 2 decay p + decay^2 q with three sums that
# do not depend on it: a search in one dimension. So it is for a decay c cut after b messages, where with S the shift
# by one message C = (1 - c^b S^b)/(1 - c S), and A C^-1 needs two passes over A.


LARGEST_CARRY = 1.0 - 1e-6
GRID = 64


def best_decay(
    rounds: int, slices: int, momentum: float = 0.0, rates: Sequence[float] | None = None, bands: int | None = None
) -> float:
    """The decay that leaves least noise in the weights of a run at a given epsilon; 0 where none helps.

    `rates` are the server's learning rates, one a round (a constant one unless given): only their ratios matter.
    `bands`: the decay is cut after so many messages. With secret draws in the slices, of which there are then at least
    as many, epsilon follows the length of a column, as it does without: the same decay is best.
    Guarantee: within 1e-4 of the least noise over all carries; tests/privacy/test_workload.py searches a fine grid.

    Args:
        rounds: Messages of the run.
        slices: Slices of a pass.
        momentum: Momentum of the server's optimizer.
        rates: Learning rates by round; only their ratios matter.
        bands: Messages after which the decay is cut.

    Returns:
        A decay from 0 to below 1.
    """
    made = _rates(rounds, momentum, rates)
    check_count("slices", slices)
    noise_of = _noise_of(made, momentum, bands)

    def noise(place: float) -> float:
        decay = -math.expm1(place)
        cut = None if bands is None else CorrelatedNoise.from_matrix(decay ** np.arange(bands), slices)
        return noise_of(decay) * sensitivity(cut or CorrelatedNoise(decay, slices), rounds)

    grid = np.linspace(0.0, math.log1p(-LARGEST_CARRY), GRID)
    least = int(np.argmin([noise(place) for place in grid]))
    high, low = grid[max(0, least - 1)], grid[min(GRID - 1, least + 1)]
    found = optimize.minimize_scalar(noise, bounds=(low, high), method="bounded", options={"xatol": 1e-7})
    return -math.expm1(float(found.x)) if noise(float(found.x)) < noise(0.0) else 0.0


def _noise_of(rates: Floats, momentum: float, bands: int | None) -> Callable[[float], float]:
    """|A C^-1| as a function of the decay."""
    if bands is None:
        sums = _three_sums(rates, momentum)
        return lambda decay: _carried_noise(sums, decay)
    check_count("bands", bands)
    workload = _workload(rates, momentum)
    return lambda decay: _cut_noise(workload, decay, bands)


def weight_noise(
    link: CorrelatedNoise, rounds: int, momentum: float = 0.0, rates: Sequence[float] | None = None
) -> float:
    """The noise in the weights, as a root mean square over rounds, for messages of unit noise.

    Times the sensitivity it is what C costs at a given epsilon. Guarantee: tests/privacy/test_workload.py simulates it.

    Args:
        link: The correlated noise.
        rounds: Messages of the run.
        momentum: Momentum of the server's optimizer.
        rates: Learning rates by round; a constant one by default.

    Returns:
        A standard deviation per coordinate.
    """
    made = _rates(rounds, momentum, rates)
    if link.bands is None:
        return _carried_noise(_three_sums(made, momentum), link.decay) / math.sqrt(rounds)
    left = np.linalg.solve(link.matrix(rounds).T, _workload(made, momentum).T)
    return float(np.linalg.norm(left)) / math.sqrt(rounds)


def _rates(rounds: int, momentum: float, rates: Sequence[float] | None) -> Floats:
    check_count("rounds", rounds)
    if not (0.0 <= momentum < 1.0):
        raise ValueError(f"momentum must lie in [0, 1), got {momentum!r}")
    made = np.ones(rounds) if rates is None else np.array(rates, dtype=np.float64)
    if made.shape != (rounds,):
        raise ValueError(f"rates must give one value for each of {rounds} rounds, got shape {made.shape}")
    if not np.isfinite(made).all() or (made < 0).any() or not made.any():
        raise ValueError("rates must be finite, not negative and not all zero")
    return made


def _workload(rates: Floats, momentum: float) -> Floats:
    """A: how each round's update enters the weights after each round."""
    made = np.zeros((len(rates), len(rates)))
    for s, column in _columns(rates, momentum):
        made[:, s] = column
    return made


def _columns(rates: Floats, momentum: float) -> Iterator[tuple[int, Floats]]:
    """The columns of A from the last to the first: A_ts = eta_s + m A_t,s+1 for t >= s."""
    column = np.zeros(len(rates))
    for s in range(len(rates) - 1, -1, -1):
        column = momentum * column
        column[s:] += rates[s]
        yield s, column


def _three_sums(rates: Floats, momentum: float) -> tuple[float, float, float]:
    """The sums of A_ts^2, A_ts A_t,s+1 and A_t,s+1^2."""
    after, whole, crossed, shifted = np.zeros(len(rates)), 0.0, 0.0, 0.0
    for _, column in _columns(rates, momentum):
        whole += float(column @ column)
        crossed += float(column @ after)
        shifted += float(after @ after)
        after = column
    return whole, crossed, shifted


def _carried_noise(sums: tuple[float, float, float], decay: float) -> float:
    whole, crossed, shifted = sums
    return math.sqrt(max(0.0, whole - 2.0 * decay * crossed + decay**2 * shifted))


def _cut_noise(workload: Floats, decay: float, bands: int) -> float:
    """|A C^-1| for a decay cut after `bands` messages: A (1 - decay S), then 1/(1 - (decay S)^bands) as a recursion."""
    left = workload.copy()
    left[:, :-1] -= decay * workload[:, 1:]
    for end in range(left.shape[1] - bands, 0, -bands):
        start = max(0, end - bands)
        left[:, start:end] += decay**bands * left[:, start + bands : end + bands]
    return float(np.linalg.norm(left))


# Participation as it was observed: which messages came, and what the published sums cost.
#
# When a client is away or a message is lost, its noise is not there to cancel that of its earlier messages, and the
# streams no longer run in step. So the published rounds are charged as they were: Y_t is the weighted sum of what the
# receivers gave in round t, its noise has covariance Sigma = sum over j of sigma_j^2 M_j M_j^T, a record of client k
# moves it by L_k G, and
#
#     mu_k^2 = max over slices of c_k^2 sum over i, j in the slice of |L_k^T Sigma^-1 L_k|_ij.
#
# With C_q the rows and C_qq the block of the positions q that came, M = w C_qq^-1 and L = w C_qq^-1 C_q, put at their
# rounds; a new stream starts a new block. Nobody missing: Sigma^-1 = C^T C / sum w^2 sigma^2, the closed form.
# Absences must not depend on private data.


@dataclass(frozen=True, order=True)
class Arrival:
    """A message that came.

    Args:
        round: In which round it came.
        position: Its number among all messages of its client.
        stream: Which of the client's streams it belongs to.
    """

    round: int
    position: int
    stream: int = 0


@dataclass(frozen=True)
class ObservedParticipation:
    """The messages of each client that came, in order.

    A position that is skipped was sent and lost, or is charged as if it were.

    Args:
        rounds: Rounds of the run so far.
        arrivals: For each client the messages that came.
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
        """Make it from arrays of who sent what.

        Args:
            sent: Whether a client (row) sent a message in a round (column).
            lost: Which of these messages were lost; by default none.

        Returns:
            The messages that came.

        Raises:
            ValueError: The arrays differ in shape, or a lost message was not sent.
        """
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
        """The first `rounds` rounds.

        Args:
            rounds: How many.

        Returns:
            The messages that came in these rounds.

        Raises:
            ValueError: There are fewer rounds.
        """
        if rounds > self.rounds:
            raise ValueError(
                f"rounds must be at most the {self.rounds} that observed_participation was taken in, got {rounds}"
            )
        kept = tuple(tuple(one for one in came if one.round < rounds) for came in self.arrivals)
        return ObservedParticipation(rounds, kept)

    def positions(self, client: int) -> int:
        """How many positions of a client have been reached.

        Args:
            client: The place of the client.

        Returns:
            A number of messages.
        """
        came = self.arrivals[client]
        return came[-1].position + 1 if came else 0

    def noise(self, link: CorrelatedNoise, client: int) -> Floats:
        """M without its weight: how the noise of the client's messages enters the rounds.

        Args:
            link: The correlation of the messages' noise.
            client: The place of the client.

        Returns:
            A matrix of rounds by messages.
        """
        made, first = np.zeros((self.rounds, len(self.arrivals[client]))), 0
        for rounds, positions, _ in self._streams(client):
            made[np.ix_(rounds, range(first, first + len(rounds)))] = _undo(link, positions, np.eye(len(rounds)))
            first += len(rounds)
        return made

    def moves(self, link: CorrelatedNoise, client: int) -> Floats:
        """L without its weight: how the client's updates enter the rounds.

        Args:
            link: The correlation of the messages' noise.
            client: The place of the client.

        Returns:
            A matrix of rounds by positions.
        """
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
