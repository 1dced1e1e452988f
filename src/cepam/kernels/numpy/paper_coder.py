"""The paper's code for (H, M), in NumPy: Golomb for H, fixed length for M from a bound on the update.

Paper: Section IV-B (compression). Departs: the set M(U) of reachable lattice points is replaced by the smallest box of
lattice coordinates around it (the same thing on Z^1), numbered jointly while the box has at most 2^62 points.
Bits are written from the most significant of the first byte on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.errors import MalformedMessage
from cepam.kernels.format.golomb import golomb_parameter
from cepam.kernels.format.plan import MOST_TRIALS, Floats, Ints, Plan
from cepam.kernels.numpy.quantizer import bit_length, layers
from cepam.lattices.lattice import Search

JOINT_LIMIT = 2.0**62
_SLACK = 1e-6


def coordinate_box(plan: Plan, b: Ints, bound: int) -> tuple[Ints, Ints]:
    """The least coordinate and the number of coordinates that an accepted point can have, per row and dimension."""
    side = b[:, None].astype(np.float64)
    if plan.search is Search.CUBIC:
        low = (-bound - (b - 1) + (b >> 1)) // b
        high = (bound + (b >> 1)) // b
        return np.repeat(low[:, None], plan.n, axis=1), np.repeat((high - low + 1)[:, None], plan.n, axis=1)
    reach = float(bound) / side
    spread = 1.0 / plan.inverse_ball + _SLACK
    below = -(reach + plan.box.astype(np.float64)) - spread
    above = np.broadcast_to(reach + spread, below.shape)
    low, high = _interval(plan.inverse, below, above)
    return low, high - low + 1


def _interval(matrix: Floats, below: Floats, above: Floats) -> tuple[Ints, Ints]:
    low, high = np.zeros(below.shape), np.zeros(below.shape)
    for i in range(len(matrix)):
        for k in range(len(matrix)):
            weight = matrix[i, k]
            low[:, i] += weight * (below[:, k] if weight > 0 else above[:, k])
            high[:, i] += weight * (above[:, k] if weight > 0 else below[:, k])
    return np.floor(low - _SLACK).astype(np.int64), np.ceil(high + _SLACK).astype(np.int64)


def field_widths(count: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Bits of each field of a row, and whether the row has one joint field (in column 0) or one a coordinate."""
    total = np.ones(len(count))
    for i in range(count.shape[1]):
        total = total * count[:, i].astype(np.float64)
    joint = total <= JOINT_LIMIT
    product = np.where(joint, np.prod(np.where(joint[:, None], count, 1), axis=1), 1)
    widths = bit_length((count - 1).astype(np.uint64))
    widths[joint] = 0
    widths[joint, 0] = bit_length((product[joint] - 1).astype(np.uint64))
    return widths, joint


def encode(plan: Plan, key: bytes, h: Ints, m: Ints, first: int, bound: int, acceptance: float) -> bytes:
    """The code of one block of sub-vectors."""
    ids = first + np.arange(len(h), dtype=np.int64)
    _, b = layers(plan, key, ids)
    low, count = coordinate_box(plan, b, bound)
    digits = m - low
    if ((digits < 0) | (digits >= count)).any():
        raise ValueError("the update exceeds the bound that the paper's coder was given")
    widths, joint = field_widths(count)
    values = digits.copy()
    values[joint] = 0
    number = np.zeros(len(h), dtype=np.int64)
    for i in range(plan.n):
        number[joint] = number[joint] * count[joint, i] + digits[joint, i]
    values[joint, 0] = number[joint]
    prefix = golomb_fields(h, golomb_parameter(acceptance))
    return _pack(prefix, values, widths)


def golomb_fields(h: Ints, run: int) -> tuple[Ints, Ints, Ints]:
    """The number of ones of the unary part (minus one: none at all), the remainder and its width, for each H."""
    if run == 0:
        return np.full(len(h), -1), np.zeros_like(h), np.zeros_like(h)
    quotient, rest = (h - 1) // run, (h - 1) % run
    full = (run - 1).bit_length()
    short = (1 << full) - run
    return quotient, np.where(rest < short, rest, rest + short), np.where(rest < short, max(full - 1, 0), full)


def _pack(prefix: tuple[Ints, Ints, Ints], values: Ints, widths: Ints) -> bytes:
    ones, rest, rest_width = prefix
    lengths = np.column_stack([ones + 1, rest_width, widths])
    ends = np.cumsum(lengths.reshape(-1)).reshape(lengths.shape)
    bits = np.zeros(int(ends[-1, -1]) if len(ends) else 0, dtype=np.uint8)
    runs = np.maximum(ones, 0)
    starts = ends[:, 0] - lengths[:, 0]
    offsets = np.arange(int(runs.sum())) - np.repeat(np.cumsum(runs) - runs, runs)
    bits[np.repeat(starts, runs) + offsets] = 1
    fields = np.column_stack([rest, values])
    for k in range(int(lengths[:, 1:].max(initial=0))):
        rows, columns = np.nonzero(lengths[:, 1:] > k)
        bits[ends[rows, columns + 1] - 1 - k] = (fields[rows, columns] >> k) & 1
    return np.packbits(bits).tobytes()


class _Reader:
    """A bit string read field by field, refusing to read past its end."""

    def __init__(self, data: bytes) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
        self.at = 0

    def ones(self, limit: int) -> int:
        tail = self.bits[self.at : self.at + limit + 1]
        zeros = np.flatnonzero(tail == 0)
        if not len(zeros):
            raise MalformedMessage("a trial count does not end")
        self.at += int(zeros[0]) + 1
        return int(zeros[0])

    def number(self, width: int) -> int:
        if self.at + width > len(self.bits):
            raise MalformedMessage("a block ends too early")
        field = self.bits[self.at : self.at + width]
        self.at += width
        return int("".join(map(str, field)) or "0", 2)

    def close(self) -> None:
        if len(self.bits) - self.at >= 8 or self.bits[self.at :].any():
            raise MalformedMessage("a block has bytes left over")


def decode(
    plan: Plan, key: bytes, data: bytes, first: int, rows: int, bound: int, acceptance: float
) -> tuple[Ints, Ints]:
    """(H, M) of one block of sub-vectors."""
    _, b = layers(plan, key, first + np.arange(rows, dtype=np.int64))
    low, count = coordinate_box(plan, b, bound)
    widths, joint = field_widths(count)
    run = golomb_parameter(acceptance)
    reader = _Reader(data)
    h, m = np.ones(rows, dtype=np.int64), np.empty((rows, plan.n), dtype=np.int64)
    for r in range(rows):
        if run:
            h[r] = _read_trials(reader, run)
        if joint[r]:
            number = reader.number(int(widths[r, 0]))
            for i in range(plan.n - 1, -1, -1):
                number, m[r, i] = divmod(number, int(count[r, i]))
            if number:
                raise MalformedMessage("a lattice point lies outside its box")
        else:
            m[r] = [reader.number(int(w)) for w in widths[r]]
    if (m >= count).any():
        raise MalformedMessage("a lattice point lies outside its box")
    reader.close()
    return h, m + low


def _read_trials(reader: _Reader, run: int) -> int:
    full = (run - 1).bit_length()
    short = (1 << full) - run
    quotient = reader.ones(MOST_TRIALS // run)
    rest = reader.number(max(full - 1, 0))
    if rest >= short and full:
        rest = 2 * rest + reader.number(1) - short
    trials = quotient * run + rest + 1
    if trials > MOST_TRIALS:
        raise MalformedMessage("a trial count is out of range")
    return trials
