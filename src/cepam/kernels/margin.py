"""The margin coder: quotients M of the scalar quantizer as bytes, in contexts of shared margins and decoded values.

For every coordinate both ends know the width B and the dither D. With x = 0 the quotient would be M0, and it stays M0
while `low <= X < high`, `high - low = B`. So k = M - M0 says by how many thresholds X lies off; three kinds of decision
code it: is k zero, is it on the nearer side, how large is it. Contexts are logarithms of the margins over a local scale
of |X|, which follows what was decoded: the left neighbours, and the values one `stride` earlier.

Logarithms are the upper bits of an exactly converted float64 (8 bits of mantissa, linear between powers of two), so all
arithmetic here is exact. `docs/rate.md` has the measured worth of every part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cepam.kernels.ranging import FLOOR, finish, get_bit, put_bit, start

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FLAT, LOCAL, LARGEST_STRIDE = 0, 1, 2047
NOTHING = 127
OCTAVE, TICKS = 256, 16
ZERO_AT, SIDE_AT, SIZE_AT, CONTEXTS = 0, 864, 936, 936 + 24 * 24
MEANS_TILT, MEANS_OVER, MEANS = 864, 1728, 1728 + 24
LARGEST = (1 << 31) - 1
LARGEST_BITS = 44
COUNT_LIMIT = 255
BYTES_A_COORDINATE = 72


def load_tables() -> tuple[Any, Any, Any]:
    """(prior, means, rates) as shipped: the last arguments of `encode_block` and `decode_block` before the bytes."""
    with np.load(Path(__file__).parents[1] / "tables" / "margin.npz") as table:
        return table["prior"], table["means"].astype(np.int64), table["rates"].astype(np.int64)


@njit(cache=True, inline="always")
def log(value: Any) -> Any:
    """256 times a piecewise linear log2 of a non-negative value below 2**53 (0 counts as 1)."""
    return (np.float64(value | 1).view(np.int64) >> 44) - 1023 * OCTAVE


@njit(cache=True, inline="always")
def power(exponent: Any) -> Any:
    """The inverse of `log`, for 0 <= exponent < 31 octaves."""
    return ((OCTAVE + (exponent & 255)) << (exponent >> 8)) >> 8


@njit(cache=True, inline="always")
def within(value: Any, top: Any) -> Any:
    """`value` held in 0..top."""
    return min(max(value, 0), top)


@njit(cache=True)
def measure_margins(B: Ints, D: Ints) -> Any:
    """Logarithms of the nearer margin, of the width, and of the difference of both margins; which side is nearer."""
    near, wide, tilt = np.empty(B.size, np.int16), np.empty(B.size, np.int16), np.empty(B.size, np.int16)
    up = np.empty(B.size, np.bool_)
    for i in range(B.size):
        high, below = edges(B[i], D[i])
        up[i] = high <= below
        near[i] = log(min(high, below))
        wide[i] = log(B[i])
        tilt[i] = log(abs(high - below))
    return near, wide, tilt, up


@njit(cache=True, inline="always")
def edges(width: Any, dither: Any) -> Any:
    """(high, -low): how far X may go up and down before the quotient leaves M0."""
    half = width >> 1
    high = dither + half + 1 if dither <= half else dither - half
    return high, width - high


@njit(cache=True)
def measure_scale(X: Ints) -> int:
    """The block's scale code: half octaves of the mean of |X| (1..126), for `encode_block`."""
    total = 0
    for value in X:
        total += min(abs(value), 1 << 48)
    mean = total // max(X.size, 1)
    return min(max((log(mean) + 64) >> 7, 1), NOTHING - 1)


@njit(cache=True, inline="always")
def learn(odds: Any, at: Any, bit: Any, rates: Any) -> None:
    """Moves one adaptive probability (22 bits, then a 10-bit count) towards `bit`, fast first, slower later."""
    state = np.int64(odds[at])
    count = state & 1023
    p = state >> 10
    p += (((4194303 if bit else 0) - p) * rates[count]) >> 16
    odds[at] = np.uint32((p << 10) | min(count + 1, COUNT_LIMIT))


@njit(cache=True, inline="always")
def chance(odds: Any, at: Any) -> Any:
    """The 16-bit probability that the decision in context `at` is 1."""
    return min(max(np.int64(odds[at]) >> 16, FLOOR), 65536 - FLOOR)


@njit(cache=True, inline="always")
def choose(data: Any, low: Any, span: Any, at: Any, bit: Any, p: Any, decoding: Any) -> Any:
    """One decision in either direction: (low or code, span, bytes, bit)."""
    if decoding:
        return get_bit(data, low, span, at, p)
    low, span, at = put_bit(data, low, span, at, bit, p)
    return low, span, at, bit


@njit(cache=True)
def walk_size(data, low, span, at, size, row, skip, odds, rates, decoding):  # type: ignore[no-untyped-def]
    """Codes a size of at least 1: `skip` low bits plainly, the rest as exponent and mantissa in contexts of `row`."""
    plain = size & ((1 << skip) - 1)
    rest = (size >> skip) + (1 if skip else 0)
    places = log(rest) >> 8
    length = 0
    base = SIZE_AT + row * 24
    going = True
    while going and length < LARGEST_BITS - skip:
        context = base + min(length, 19)
        low, span, at, going = choose(data, low, span, at, length < places, chance(odds, context), decoding)
        learn(odds, context, going, rates)
        if going:
            length += 1
    value = 1
    for place in range(length - 1, -1, -1):
        bit = ((rest >> place) & 1) == 1
        if place == length - 1:
            context = base + 20 + min(length, 4) - 1
            low, span, at, bit = choose(data, low, span, at, bit, chance(odds, context), decoding)
            learn(odds, context, bit, rates)
        else:
            low, span, at, bit = choose(data, low, span, at, bit, 32768, decoding)
        value = (value << 1) | (1 if bit else 0)
    for place in range(skip - 1, -1, -1):
        bit = ((plain >> place) & 1) == 1
        low, span, at, bit = choose(data, low, span, at, bit, 32768, decoding)
        value = (value << 1) | (1 if bit else 0)
    if skip:
        value = max(value - (1 << skip), 1)
    return low, span, at, value


@njit(cache=True)
def walk_header(data, low, span, at, value, bits, decoding):  # type: ignore[no-untyped-def]
    """Codes `bits` plain bits of side information, highest first; an empty stream decodes as ones."""
    got = 0
    for place in range(bits - 1, -1, -1):
        bit = ((value >> place) & 1) == 1
        low, span, at, bit = choose(data, low, span, at, bit, 32768, decoding)
        got = (got << 1) | (1 if bit else 0)
    return low, span, at, got


@njit(cache=True)
def walk_block(data, k, B, D, scale, stride, odds, means, rates, decoding):  # type: ignore[no-untyped-def]
    """Codes one block in either direction; returns the bytes written (encoding) or read.

    `odds` is the block's own copy of the prior and is changed; k is read (encoding) or filled (decoding).
    """
    low, span, at = start(data) if decoding else (np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF), 0)
    low, span, at, scale = walk_header(data, low, span, at, scale, 7, decoding)
    if scale == NOTHING:
        k[:] = 0
        return at
    low, span, at, stride = walk_header(data, low, span, at, stride, 11, decoding)
    near, wide, tilt, up = measure_margins(B, D)
    shift = (scale >> 1) - TICKS
    anchor = TICKS * OCTAVE + (scale & 1) * 128
    first = power(anchor)
    fast, slow, sized, signed, across = first, first, first, 0, first
    column = np.full(max(stride, 1), anchor, np.int16)
    place = 0
    for i in range(k.size):
        above = np.int64(column[place])
        z = anchor
        if stride != FLAT:
            z = 13 * log(fast) + 2 * log(slow) + anchor
            if stride > LOCAL:
                z += 13 * (above - log(across))
            z = within(z >> 4, 31 * OCTAVE - 1)
        s = power(z)
        offset = shift * OCTAVE + z
        side = (4 if up[i] else -4) if signed > 0 else (-4 if up[i] else 4)
        lean = abs(signed) * 8
        level = (lean > sized) * 1 + (lean > 3 * sized) * 1 + (lean > 5 * sized) * 1 + (lean > 7 * sized) * 1
        level = 4 + (level if side > 0 else -level)
        zero_at = (
            within((near[i] - offset + 5 * OCTAVE) >> 7, 15) * 6 + within((wide[i] - offset + OCTAVE) >> 8, 5)
        ) * 9
        zero_at += level
        moved = k[i] != 0
        low, span, at, moved = choose(data, low, span, at, moved, chance(odds, zero_at), decoding)
        learn(odds, zero_at, moved, rates)
        if moved:
            side_at = SIDE_AT + within((tilt[i] - offset + 4 * OCTAVE) >> 8, 7) * 9 + level
            nearer = (k[i] > 0) == up[i]
            low, span, at, nearer = choose(data, low, span, at, nearer, chance(odds, side_at), decoding)
            learn(odds, side_at, nearer, rates)
            skip = within((offset - wide[i] - 5 * OCTAVE) >> 8, LARGEST_BITS - 4)
            row = within((wide[i] + skip * OCTAVE - offset + 6 * OCTAVE) >> 7, 23)
            low, span, at, size = walk_size(data, low, span, at, abs(k[i]), row, skip, odds, rates, decoding)
            positive = nearer == up[i]
            if decoding:
                k[i] = size if positive else -size
            high, below = edges(B[i], D[i])
            inner = high if positive else below
            if shift >= 0:
                inner, width = inner >> shift, B[i] >> shift
            else:
                inner, width = inner << -shift, B[i] << -shift
            e = min(inner, LARGEST) + min(size - 1, LARGEST) * min(width, LARGEST)
            e = min(e + ((s * means[MEANS_OVER + row]) >> 8), LARGEST)
            v = e if positive else -e
        else:
            if decoding:
                k[i] = 0
            e = max((s * means[zero_at]) >> 8, 1)
            v = (s * means[MEANS_TILT + zero_at]) >> 8
            if not up[i]:
                v = -v
        fast += (e - fast) >> 2
        slow += (e - slow) >> 5
        sized += ((e - sized) * 3) >> 4
        signed += ((v - signed) * 3) >> 4
        if stride > LOCAL:
            was = power(above)
            across += ((was - across) * 3) >> 4
            column[place] = log(max(was + (((e - was) * 3) >> 4), 1))
            place += 1
            if place == stride:
                place = 0
    return at if decoding else finish(data, low, span, at)


@njit(cache=True)
def encode_block(M, B, D, scale, stride, prior, means, rates, out):  # type: ignore[no-untyped-def]
    """The length of the stream written to `out`, which holds `BYTES_A_COORDINATE * M.size + 16` bytes or more.

    `scale` comes from `measure_scale`, `stride` from `find_stride`; a block whose quotients are all M0 takes no byte.
    Guarantee: `decode_block` on exactly these bytes gives M back (tests/kernels/test_margin.py).
    """
    k = np.empty_like(M)
    any_moved = False
    for i in range(M.size):
        k[i] = M[i] + (1 if D[i] > B[i] >> 1 else 0)
        any_moved |= k[i] != 0
    if not any_moved:
        return 0
    return walk_block(out, k, B, D, scale, stride, prior.copy(), means, rates, False)


@njit(cache=True)
def decode_block(data, B, D, prior, means, rates, M):  # type: ignore[no-untyped-def]
    """Fills M from a stream of `encode_block`; returns the bytes it looked at. Any bytes decode to some M, in bounded time."""
    used = walk_block(data, M, B, D, 0, 0, prior.copy(), means, rates, True)
    for i in range(M.size):
        M[i] -= 1 if D[i] > B[i] >> 1 else 0
    return used
