"""Correlated noise: a public matrix C, the sender that applies it, the receiver that undoes it.

Without secret sampling, independent noise is expensive. Here the client sends `encode((Cx)_t)` and the server applies
C^-1 to what it decodes, so that it holds x + C^-1 Z: each round's noise takes away part of the earlier rounds' noise,
and a sum over rounds, which is what training uses, is quieter than its terms. The codec's noise stays independent from
message to message; all that is new is linear, public and exact.

    link = Correlation(decay=0.9617, slices=31)
    sender, receiver = link.sender(m), link.receiver(m)
    position = sender.position                                     # records of slice `sender.slice` make the update
    message = codec.encode(sender.next(clipped), at)
    update = receiver.take(codec.decode(message, at), position)    # clipped + z_t - decay z_(t-1)

Clip the update, never what `next` returns. A sender's state is a history of raw updates: it stays with the client, and
is written nowhere that others read. What the whole costs: `cepam.privacy.MatrixMechanism`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Floats
from cepam.privacy.mechanisms.mechanism import check_count

Row = tuple[float, ...]
State = dict[str, Any]

UNIT_ROUNDING = 2.0**-52
"""Twice the unit roundoff of float64, so that products of roundings need no second thought."""


@dataclass(frozen=True)
class CorrelatedNoise:
    """The matrix C of correlated noise, lower triangular and not negative, and the slices of a client's records.

    Args:
        decay: C_ij = decay^(i - j), in [0, 1): the share of a round's noise that the next round cancels. 0:
            independent noise.
        slices: Into how many fixed slices a client's records are split. Message i is made of slice i mod `slices`.
        coefficients: The first column of a matrix of your own whose diagonals are constant (`from_matrix`).
        rows: The rows of any other matrix of your own (`from_matrix`).

    Raises:
        ValueError: A value is out of range, or more than one of `decay`, `coefficients` and `rows` is given.

    Guarantee: a receiver that takes every message of its sender holds each update plus C^-1 Z
    (tests/privacy/test_correlated_noise.py, tests/statistical/test_correlated_noise.py). Departs: the paper's noise
    is independent from round to round.
    """

    decay: float = 0.0
    slices: int = 1
    coefficients: Row | None = None
    rows: tuple[Row, ...] | None = None

    def __post_init__(self) -> None:
        if not (0.0 <= self.decay < 1.0):
            raise ValueError(f"decay must lie in [0, 1), got {self.decay!r}")
        check_count("slices", self.slices)
        if (self.coefficients is not None) + (self.rows is not None) + (self.decay > 0.0) > 1:
            raise ValueError("give one of decay, coefficients and rows")

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike, slices: int = 1) -> CorrelatedNoise:
        """Make correlated noise from a matrix C of your own.

        Args:
            matrix: A square lower-triangular array; or the first column of a matrix with constant diagonals, which
                stands for every length, with zeros after its last value. Or the name of an .npy file with either.
                Entries are finite and not negative, those of the diagonal positive.
            slices: Into how many fixed slices a client's records are split.

        Returns:
            The correlated noise.

        Raises:
            ValueError: The matrix is of another kind.
        """
        given = np.array(np.load(matrix) if isinstance(matrix, str) else matrix, dtype=np.float64)
        if given.ndim not in (1, 2) or given.size == 0 or (given.ndim == 2 and given.shape[0] != given.shape[1]):
            raise ValueError(f"matrix must be a column of coefficients or a square array, got shape {given.shape}")
        if not np.isfinite(given).all() or (given < 0).any():
            raise ValueError("matrix must be finite and not negative")
        if given.ndim == 1:
            if given[0] <= 0:
                raise ValueError(f"the first coefficient of matrix must be positive, got {given[0]!r}")
            return cls(slices=slices, coefficients=tuple(np.trim_zeros(given, "b").tolist()))
        if np.triu(given, 1).any() or (np.diag(given) <= 0).any():
            raise ValueError("matrix must be lower triangular with a positive diagonal")
        return cls(slices=slices, rows=tuple(tuple(row[: i + 1].tolist()) for i, row in enumerate(given)))

    @property
    def bands(self) -> int | None:
        """How many diagonals of C may be other than zero, the main one included; None for a decay: all of them."""
        if self.rows is not None:
            return max(i - int(np.flatnonzero(row)[0]) + 1 for i, row in enumerate(self.rows))
        if self.coefficients is not None:
            return len(self.coefficients)
        return None if self.decay else 1

    @property
    def longest(self) -> int | None:
        """How many messages a stream may have; None: any number."""
        return None if self.rows is None else len(self.rows)

    @property
    def fades(self) -> bool:
        """Whether C is Toeplitz with coefficients that never rise: then the earliest participations cost most."""
        return self.rows is None and bool((np.diff(self.column(self.bands or 2)) <= 0.0).all())

    @property
    def gain(self) -> float:
        """How many times the bound of an update a message can reach: the largest sum of a row of C."""
        if self.rows is not None:
            return max(math.fsum(row) for row in self.rows)
        return math.fsum(self.coefficients) if self.coefficients is not None else 1.0 / (1.0 - self.decay)

    @property
    def rounding(self) -> float:
        """A bound on the error of a message that float64 causes, over the bound of an update.

        Carry: two roundings a message, each of a vector of at most `gain` bounds, and the state carries them on.
        Matrix: one more rounding than terms, and nothing is carried on.
        """
        if self.decay:
            return UNIT_ROUNDING * self.gain**2
        return UNIT_ROUNDING * self.gain * ((self.bands or 1) + 1)

    def column(self, rounds: int) -> Floats:
        """The first `rounds` coefficients of a Toeplitz C.

        Args:
            rounds: How many.

        Returns:
            The first column of C.

        Raises:
            ValueError: The diagonals of the matrix are not constant.
        """
        if self.rows is not None:
            raise ValueError("this matrix is not Toeplitz: it has no one column")
        if self.coefficients is None:
            return np.asarray(np.power(self.decay, np.arange(rounds)), dtype=np.float64)
        made = np.zeros(rounds)
        made[: len(self.coefficients)] = self.coefficients[:rounds]
        return made

    def row(self, position: int) -> Floats:
        """Row `position` of C, up to its diagonal.

        Args:
            position: Number of the message, from 0.

        Returns:
            `position` + 1 coefficients.

        Raises:
            ValueError: The matrix has fewer rows.
        """
        if self.rows is None:
            return self.column(position + 1)[::-1]
        if position >= len(self.rows):
            raise ValueError(f"position must be under the matrix's {len(self.rows)} rows, got {position}")
        return np.array(self.rows[position])

    def matrix(self, rounds: int) -> Floats:
        """C of the first `rounds` messages.

        Args:
            rounds: How many.

        Returns:
            A square array.
        """
        check_count("rounds", rounds)
        made = np.zeros((rounds, rounds))
        if self.rows is None:
            column = self.column(rounds)
            for i in range(rounds):
                made[i, : i + 1] = column[i::-1]
            return made
        for i in range(rounds):
            made[i, : i + 1] = self.row(i)
        return made

    def noise_covariance(self, rounds: int) -> Floats:
        """The covariance of a received stream's noise over `rounds` messages, in units of a message's variance.

        Args:
            rounds: How many messages.

        Returns:
            A square array.
        """
        undo = np.linalg.inv(self.matrix(rounds))
        return np.asarray(undo @ undo.T, dtype=np.float64)

    def sender(self, size: int, position: int = 0) -> CorrelatedNoiseSender:
        """Start a client's end of a stream.

        Args:
            size: Length of an update.
            position: Number of the first message: not 0 where an older stream was lost.

        Returns:
            The sender.
        """
        return CorrelatedNoiseSender(self, size, position)

    def receiver(self, size: int, position: int = 0) -> CorrelatedNoiseReceiver:
        """The other end of a new stream that starts at `position`.

        Args:
            size: Length of an update.
            position: Number of the first message.

        Returns:
            The receiver.
        """
        return CorrelatedNoiseReceiver(self, size, position)


class CorrelatedNoiseSender:
    """A client's end of one stream: it turns updates into what the codec encodes, in float64.

    Args:
        link: The matrix that the receiver uses.
        size: Length of an update.
        position: Number of the first message.

    `position` goes on to the number of the next message; `slice` is the slice of records that makes it. The memory
    is private: the carried sum, or the last updates as far back as C reaches.
    """

    def __init__(self, link: CorrelatedNoise, size: int, position: int = 0) -> None:
        check_count("size", size)
        check_count("position", position, 0)
        self.link, self.size, self.start, self.position = link, size, position, position
        self._memory: list[Floats] = []

    def __repr__(self) -> str:
        return f"CorrelatedNoiseSender(position={self.position}, size={self.size})"

    @property
    def slice(self) -> int:
        """Which of the client's slices makes the next update."""
        return self.position % self.link.slices

    def next(self, update: npt.ArrayLike) -> Floats:
        """What to encode for this clipped update; the stream moves on by one position.

        Args:
            update: The clipped update.

        Returns:
            A float64 vector for the codec.

        Raises:
            ValueError: The update has another length or is not finite, or the matrix has no further row.
        """
        x = _checked("update", update, self.size)
        if self.link.longest is not None and self.position >= self.link.longest:
            raise ValueError(f"position must be under the matrix's {self.link.longest} rows, got {self.position}")
        if self.link.decay:
            self._memory = [self.link.decay * self._memory[0] + x if self._memory else x.copy()]
        else:
            kept = (self.link.bands or 1) - 1
            self._memory = [*self._memory[max(0, len(self._memory) - kept) :], x.copy()]
        self.position += 1
        return self.again()

    def again(self) -> Floats:
        """The last message's content once more, for a fresh attempt at an address of its own.

        Returns:
            A float64 vector for the codec.

        Raises:
            ValueError: Nothing was sent yet.
        """
        if not self._memory:
            raise ValueError("nothing was sent in this stream yet: call next first")
        if self.link.decay:
            return np.array(self._memory[0])
        row = self.link.row(self.position - 1)[-len(self._memory) :]
        made: Floats = row[0] * self._memory[0]
        for coefficient, update in zip(row[1:], self._memory[1:]):
            made += coefficient * update
        return made

    def state_dict(self) -> State:
        """All that the stream needs to go on, bit for bit; private to the client.

        Returns:
            Numbers and arrays; they hold past updates.
        """
        memory = np.array(self._memory, dtype=np.float64).reshape(-1, self.size)
        return {"start": self.start, "position": self.position, "memory": memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: The state is of another stream or damaged.
        """
        start, position, memory = int(state["start"]), int(state["position"]), np.array(state["memory"], np.float64)
        most = 1 if self.link.decay else self.link.bands or 1
        if not 0 <= start <= position or memory.shape != (min(position - start, most), self.size):
            raise ValueError(f"state does not belong to a stream of {self.size} coordinates of this correlation")
        if not np.isfinite(memory).all():
            raise ValueError("memory of state must be finite")
        self.start, self.position, self._memory = start, position, list(memory)


class CorrelatedNoiseReceiver:
    """The server's end of one stream: it turns decoded vectors into updates with correlated noise.

    Args:
        link: The matrix that the sender uses.
        size: Length of an update.
        position: Number of the first message that it takes.

    Messages may be missing, never out of order. A lost one counts as an update of zero, and what C carried of it
    arrives with the next: y = C_qq^-1 v_q over the positions q that came. With a decay that is v - decay^gap v_last.
    """

    def __init__(self, link: CorrelatedNoise, size: int, position: int = 0) -> None:
        check_count("size", size)
        check_count("position", position, 0)
        self.link, self.size, self.start, self.expected = link, size, position, position
        self._past: list[tuple[int, Floats]] = []

    def __repr__(self) -> str:
        return f"CorrelatedNoiseReceiver(expected={self.expected}, size={self.size})"

    def take(self, vector: npt.ArrayLike, position: int) -> Floats:
        """The update plus this stream's noise, from the decoded vector of message `position`.

        Args:
            vector: The decoded vector.
            position: Number of the message.

        Returns:
            The update with correlated noise.

        Raises:
            ValueError: The vector has another length or is not finite, or the message is not later than the last
                one.
        """
        v = _checked("vector", vector, self.size)
        check_count("position", position, 0)
        if position < self.expected:
            raise ValueError(f"position must be at least {self.expected} in this stream, got {position}")
        if self.link.decay:
            y = v - self.link.decay ** (position - self._past[0][0]) * self._past[0][1] if self._past else v.copy()
            self._past = [(position, v)]
        else:
            row = self.link.row(position)
            y = v.copy()
            for earlier, update in self._past:
                y -= row[earlier] * update
            y /= row[position]
            oldest = position + 2 - (self.link.bands or 1)
            self._past = [(p, u) for p, u in [*self._past, (position, y.copy())] if p >= oldest]
        self.expected = position + 1
        return y

    def state_dict(self) -> State:
        """All that the stream needs to go on, bit for bit.

        Returns:
            Numbers and arrays.
        """
        return {
            "start": self.start,
            "expected": self.expected,
            "positions": np.array([p for p, _ in self._past], dtype=np.int64),
            "memory": np.array([u for _, u in self._past], dtype=np.float64).reshape(-1, self.size),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: The state is of another stream or damaged.
        """
        positions, memory = np.array(state["positions"], np.int64), np.array(state["memory"], np.float64)
        start, expected = int(state["start"]), int(state["expected"])
        inside = (np.diff(positions) > 0).all() and all(start <= p < expected for p in positions)
        if memory.shape != (len(positions), self.size) or not inside or not 0 <= start <= expected:
            raise ValueError(f"state does not belong to a stream of {self.size} coordinates")
        if not np.isfinite(memory).all():
            raise ValueError("memory of state must be finite")
        self.start, self.expected = start, expected
        self._past = [(int(p), u) for p, u in zip(positions, memory)]


def _checked(name: str, value: npt.ArrayLike, size: int) -> Floats:
    """A finite vector in float64: one that is not would spoil every later message."""
    made = np.asarray(value, dtype=np.float64)
    if made.shape != (size,):
        raise ValueError(f"{name} must be a vector of {size} coordinates, got shape {made.shape}")
    if not np.isfinite(made).all():
        raise ValueError(f"{name} must be finite")
    return made
