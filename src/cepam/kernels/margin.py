"""The margin coder: quotients M of the scalar quantizer as bytes, in contexts of shared margins and past
values.

For every coordinate both ends know the width B and the dither D. With x = 0 the quotient would be M0, and
it stays M0 while `low <= X < high`, `high - low = B`. So k = M - M0 says by how many thresholds X lies off;
three kinds of decision code it: is k zero, is it on the nearer side, how large is it. Contexts are
logarithms of the margins over a local scale of |X|, which follows what was decoded: the left neighbours,
and the values one `stride` earlier.

Logarithms are the upper bits of an exactly converted float64 (8 bits of mantissa, linear between powers of
two), so all arithmetic here is exact. `docs/rate.md` has the measured worth of every part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cepam.kernels.octaves import OCTAVE, log, power, within
from cepam.kernels.ranging import FLOOR, finish, get_bit, pointer, put_bit, start

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FLAT, LOCAL, LARGEST_STRIDE = 0, 1, 2047
NOTHING = 127
TICKS = 16
LEVELS, LEVEL_FLAT, ZONE = 30, 9, 10
SIDE_AT = 16 * 6 * LEVELS
SIZE_AT = SIDE_AT + 8 * LEVELS
CONTEXTS = SIZE_AT + 24 * 24
MEANS_TILT = SIDE_AT
MEANS_OVER = 2 * SIDE_AT
MEANS = MEANS_OVER + 24
LARGEST = (1 << 31) - 1
LARGEST_BITS = 44
ZERO_RATE, SIDE_RATE, SIZE_RATE = 6, 6, 5
BYTES_A_COORDINATE = 72


def load_tables() -> tuple[Any, Any]:
    """(prior, means) as shipped: starting probabilities, and posterior means in 1/256 of the scale."""
    with np.load(Path(__file__).parents[1] / "tables" / "margin.npz") as table:
        return table["prior"], table["means"].astype(np.int64)


@njit(cache=True)
def measure_margins(B: Ints, D: Ints) -> Any:
    """Logarithms of the nearer margin, the width and the difference of both margins; whether up is nearer."""
    near, wide, tilt = np.empty(B.size, np.int16), np.empty(B.size, np.int16), np.empty(B.size, np.int16)
    up = np.empty(B.size, np.uint8)
    for i in range(B.size):
        high, below = edges(B[i], D[i])
        up[i] = high <= below
        near[i] = log(min(high, below))
        wide[i] = log(B[i])
        tilt[i] = log(abs(high - below))
    return near, wide, tilt, up


@njit(cache=True, forceinline=True)
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


@njit(cache=True, forceinline=True)
def learn(odds: Any, at: Any, bit: Any, rate: Any) -> None:
    """Moves the probability in context `at` towards `bit` by 2**-rate of the way."""
    p = np.int64(odds[at])
    odds[at] = np.uint16(p + (((65535 if bit else 0) - p) >> rate))


@njit(cache=True, forceinline=True)
def chance(odds: Any, at: Any) -> Any:
    """The 16-bit probability that the decision in context `at` is 1."""
    return min(max(np.int64(odds[at]), FLOOR), 65536 - FLOOR)


@njit(cache=True, forceinline=True)
def choose(data: Any, size: Any, low: Any, span: Any, at: Any, bit: Any, p: Any, decoding: Any) -> Any:
    """One decision in either direction: (low or code, span, bytes, bit)."""
    if decoding:
        return get_bit(data, size, low, span, at, p)
    low, span, at = put_bit(data, low, span, at, bit, p)
    return low, span, at, bit


@njit(cache=True)
def walk_size(data, size, low, span, at, value, row, skip, odds, decoding):  # type: ignore[no-untyped-def]
    """Codes a size of at least 1: `skip` low bits plainly, the rest as exponent and mantissa, by `row`."""
    plain = value & ((1 << skip) - 1)
    rest = (value >> skip) + (1 if skip else 0)
    places = log(rest) >> 8
    length = 0
    base = SIZE_AT + row * 24
    going = True
    while going and length < LARGEST_BITS - skip:
        context = base + min(length, 19)
        low, span, at, going = choose(
            data, size, low, span, at, length < places, chance(odds, context), decoding
        )
        learn(odds, context, going, SIZE_RATE)
        if going:
            length += 1
    value = 1
    for place in range(length - 1, -1, -1):
        bit = ((rest >> place) & 1) == 1
        if place == length - 1:
            context = base + 20 + min(length, 4) - 1
            low, span, at, bit = choose(data, size, low, span, at, bit, chance(odds, context), decoding)
            learn(odds, context, bit, SIZE_RATE)
        else:
            low, span, at, bit = choose(data, size, low, span, at, bit, 32768, decoding)
        value = (value << 1) | (1 if bit else 0)
    for place in range(skip - 1, -1, -1):
        bit = ((plain >> place) & 1) == 1
        low, span, at, bit = choose(data, size, low, span, at, bit, 32768, decoding)
        value = (value << 1) | (1 if bit else 0)
    if skip:
        value = max(value - (1 << skip), 1)
    return low, span, at, value


@njit(cache=True)
def walk_header(data, size, low, span, at, value, bits, decoding):  # type: ignore[no-untyped-def]
    """Codes `bits` plain bits of side information, highest first; an empty stream decodes as ones."""
    got = 0
    for place in range(bits - 1, -1, -1):
        bit = ((value >> place) & 1) == 1
        low, span, at, bit = choose(data, size, low, span, at, bit, 32768, decoding)
        got = (got << 1) | (1 if bit else 0)
    return low, span, at, got


@njit(cache=True)
def walk_block(data, k, B, D, scale, stride, odds, means, decoding):  # type: ignore[no-untyped-def]
    """Codes one block in either direction; returns the bytes written (encoding) or read.

    `odds` is the block's own copy of the prior and is changed; k is read (encoding) or filled (decoding).
    """
    bytes_at, size = pointer(data), data.size
    low, span, at = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF), 0
    if decoding:
        low, span, at = start(bytes_at, size)
    low, span, at, scale = walk_header(bytes_at, size, low, span, at, scale, 7, decoding)
    if scale == NOTHING:
        k[:] = 0
        return at
    low, span, at, stride = walk_header(bytes_at, size, low, span, at, stride, 11, decoding)
    margins = measure_margins(B, D)
    column = np.full(max(stride, 1), TICKS * OCTAVE + (scale & 1) * 128, np.int16)
    low, span, at = walk(data, low, span, at, k, B, D, margins, scale, stride, column, odds, means, decoding)
    return at if decoding else finish(bytes_at, low, span, at)


@njit(cache=True)
def walk(  # type: ignore[no-untyped-def]
    data, low, span, at, k, B, D, margins, scale, stride, column, odds, means, decoding
):
    """Codes all coordinates; (low, span, at) afterwards. `column`: log |X| for each place of a row."""
    count, size = k.size, data.size
    near, wide, tilt, up = pointer(margins[0]), pointer(margins[1]), pointer(margins[2]), pointer(margins[3])
    data, k, B, D = pointer(data), pointer(k), pointer(B), pointer(D)
    column, odds, means = pointer(column), pointer(odds), pointer(means)
    shift = (scale >> 1) - TICKS
    anchor = TICKS * OCTAVE + (scale & 1) * 128
    first = power(anchor)
    sized, signed, across = first, 0, first
    place = 0
    for i in range(count):
        above = np.int64(column[place])
        z = anchor
        if stride != FLAT:
            z = 15 * log(sized) + anchor
            if stride > LOCAL:
                z += 13 * (above - log(across))
            z = within(z >> 4, 31 * OCTAVE - 1)
        s = power(z)
        offset = shift * OCTAVE + z
        rise = up[i] != 0
        level = lean(signed if rise else -signed, sized) if stride != FLAT else LEVEL_FLAT
        level += ZONE * ((z < anchor - 2 * OCTAVE) + 2 * (z > anchor))
        zero_at = place_zero(near[i] - offset, wide[i] - offset) + level
        moved = k[i] != 0
        low, span, at, moved = choose(data, size, low, span, at, moved, chance(odds, zero_at), decoding)
        learn(odds, zero_at, moved, ZERO_RATE)
        if moved:
            side_at = SIDE_AT + within((tilt[i] - offset + 4 * OCTAVE) >> 8, 7) * LEVELS + level
            nearer = (k[i] > 0) == rise
            low, span, at, nearer = choose(data, size, low, span, at, nearer, chance(odds, side_at), decoding)
            learn(odds, side_at, nearer, SIDE_RATE)
            skip = within((offset - wide[i] - 5 * OCTAVE) >> 8, LARGEST_BITS - 4)
            row = within((wide[i] + skip * OCTAVE - offset + 6 * OCTAVE) >> 7, 23)
            low, span, at, jump = walk_size(data, size, low, span, at, abs(k[i]), row, skip, odds, decoding)
            positive = nearer == rise
            k[i] = jump if positive else -jump
            e = reach(B[i], D[i], positive, jump, shift)
            e = min(e + ((s * means[MEANS_OVER + row]) >> 8), LARGEST)
            v = e if positive else -e
        else:
            k[i] = 0
            e = max((s * means[zero_at]) >> 8, 1)
            v = (s * means[MEANS_TILT + zero_at]) >> 8
            v = v if rise else -v
        sized += (e - sized) >> 2
        signed += (v - signed) >> 2
        if stride > LOCAL:
            was = power(above)
            across += ((was - across) * 3) >> 4
            column[place] = np.int16(log(max(was + (((e - was) * 3) >> 4), 1)))
            place += 1
            if place == stride:
                place = 0
    return low, span, at


@njit(cache=True, forceinline=True)
def lean(towards: Any, sized: Any) -> Any:
    """Sign level 0..8: 4 plus how strongly recent values point to the nearer side."""
    strength = abs(towards) * 8
    level = (strength > sized) + (strength > 3 * sized) + (strength > 5 * sized) + (strength > 7 * sized)
    return 4 + (level if towards > 0 else -level)


@njit(cache=True, forceinline=True)
def place_zero(near: Any, wide: Any) -> Any:
    """The first context of "is k zero?" for logarithms of the nearer margin and the width over the scale."""
    return (within((near + 5 * OCTAVE) >> 7, 15) * 6 + within((wide + OCTAVE) >> 8, 5)) * LEVELS


@njit(cache=True, forceinline=True)
def reach(width: Any, dither: Any, positive: Any, jump: Any, shift: Any) -> Any:
    """The least |X| that gives this k, in ticks, saturated."""
    high, below = edges(width, dither)
    inner = high if positive else below
    if shift >= 0:
        inner, width = inner >> shift, width >> shift
    else:
        inner, width = inner << -shift, width << -shift
    return min(inner, LARGEST) + min(jump - 1, LARGEST) * min(width, LARGEST)


@njit(cache=True)
def encode_block(M, B, D, scale, stride, prior, means, out):  # type: ignore[no-untyped-def]
    """The length of the stream in `out`, which must hold `BYTES_A_COORDINATE * M.size + 16` bytes.

    `scale` comes from `measure_scale`, `stride` from `find_stride`; if all quotients are M0, it is empty.
    -1 where some |M - M0| is 2**44 or more, which no sane update reaches; nothing is written then.
    Guarantee: `decode_block` on exactly these bytes gives M back (tests/kernels/test_margin.py).
    """
    k = np.empty_like(M)
    largest = 0
    for i in range(M.size):
        k[i] = M[i] + (1 if D[i] > B[i] >> 1 else 0)
        largest = max(largest, abs(k[i]))
    if largest == 0:
        return 0
    if largest >= 1 << LARGEST_BITS:
        return -1
    return walk_block(out, k, B, D, scale, stride, prior.copy(), means, False)


@njit(cache=True)
def decode_block(data, B, D, prior, means, M):  # type: ignore[no-untyped-def]
    """Fills M from a stream of `encode_block`; returns the bytes it looked at.

    Guarantee: any bytes decode to some M in bounded time (test_hostile_bytes_decode_in_bounded_time).
    """
    used = walk_block(data, M, B, D, 0, 0, prior.copy(), means, True)
    for i in range(M.size):
        M[i] -= 1 if D[i] > B[i] >> 1 else 0
    return used
