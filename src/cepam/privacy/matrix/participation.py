"""Participation schemas: in which messages a record may take part, and the sensitivity that follows.

A record moves the updates by G, whose rows have norm at most c where it takes part (positions pi) and are zero
elsewhere. The stream that carries independent noise is Cx, and for C >= 0, X = C^T C,

    |CG|^2 = sum over i, j in pi of X_ij <g_i, g_j>  <=  c^2 sum over i, j in pi of X_ij,

attained by equal rows. The root of the largest such sum over the allowed pi is the *sensitivity*, in units of c.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from cepam.distributions.laws import Floats
from cepam.privacy.matrix.correlated_noise import CorrelatedNoise
from cepam.privacy.mechanisms.mechanism import check_count

MOST_STATES = 100_000


@dataclass(frozen=True)
class Cyclic:
    """Every record belongs to one of `slices` fixed slices: it takes part in messages r, r + slices, …"""

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
    """A record takes part at most `times` times, at least `apart` messages after the last; else as it likes."""

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
