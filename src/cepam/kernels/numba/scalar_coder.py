"""The adaptive coder for scalars: quotients M of their quantizer as bytes, in contexts of margins and past values.

For every coordinate both ends know its layer: the width B and the dither D. With x = 0 the quotient would be M0, and it
stays M0 while `low <= X < high`, `high - low = B`. So k = M - M0 says by how many thresholds X lies off; three kinds of
decision code it: is k zero, is it on the nearer side, how large is it. Contexts are logarithms of the margins over
a local scale of |X|, which follows what was decoded: the left neighbours, and the values one `period` earlier.

Logarithms are the upper bits of an exactly converted float64 (8 bits of mantissa, linear between powers of two),
so all arithmetic here is exact. `bench/ablate.py` measures the worth of every part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.row_period import FLAT, LARGEST_PERIOD, LOCAL
from cepam.kernels.format.scalar_contexts import (
    CONTEXTS,
    LARGEST,
    LARGEST_BITS,
    LEVEL_FLAT,
    LEVELS,
    MEANS_OVER,
    MEANS_TILT,
    NOTHING,
    OCTAVE,
    SIDE_AT,
    SIDE_RATE,
    SIZE_AT,
    TICKS,
    ZERO_RATE,
    ZONE,
)
from cepam.kernels.numba.compiling import compiled, inlined, pasted
from cepam.kernels.numba.range_coder import (
    chance,
    choose,
    finish,
    fresh,
    learn,
    log,
    power,
    start,
    walk_header,
    walk_size,
    within,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Margins(NamedTuple):
    """Working memory for one block; one for each thread."""

    near: Any
    wide: Any
    tilt: Any
    up: Any
    column: Any
    odds: Any


def margins_for(count: int) -> Margins:
    """Working memory for blocks of up to `count` coordinates."""
    return Margins(
        near=np.empty(count, dtype=np.int16),
        wide=np.empty(count, dtype=np.int16),
        tilt=np.empty(count, dtype=np.int16),
        up=np.empty(count, dtype=np.uint8),
        column=np.empty(LARGEST_PERIOD + 1, dtype=np.int16),
        odds=np.empty(CONTEXTS, dtype=np.uint16),
    )


@inlined
def measure_margins(B: Any, D: Any, w: Any) -> None:
    """Fills logarithms of the nearer margin, the width and the difference of both margins; whether up is nearer."""
    for i in range(len(B)):
        high, below = edges(B[i], D[i])
        w.up[i] = high <= below
        w.near[i] = log(min(high, below))
        w.wide[i] = log(B[i])
        w.tilt[i] = log(abs(high - below))


@inlined
def edges(width: Any, dither: Any) -> Any:
    """(high, -low): how far X may go up and down before the quotient leaves M0."""
    half = width >> 1
    high = dither + half + 1 if dither <= half else dither - half
    return high, width - high


@compiled
def measure_scale(X: Any) -> Any:
    """The block's scale code: half octaves of the mean of |X| (1..126), for `encode_block`."""
    total = np.int64(0)
    for i in range(len(X)):
        total += min(abs(X[i]), 1 << 48)
    mean = total // max(len(X), 1)
    return min(max((log(mean) + 64) >> 7, 1), NOTHING - 1)


@pasted
def walk_block(
    data: Any, k: Any, layers: Any, scale: Any, period: Any, prior: Any, means: Any, w: Any, decoding: Any
) -> Any:
    """Codes one block in either direction; the bytes written (encoding) or 0. k is read or filled."""
    state, scale = walk_header(data, start(data) if decoding else fresh(), scale, 7, decoding)
    if scale == NOTHING:
        for i in range(len(k)):
            k[i] = 0
        return np.int64(0)
    state, period = walk_header(data, state, period, 11, decoding)
    for i in range(CONTEXTS):
        w.odds[i] = prior[i]
    if period == FLAT:
        state = walk_flat(data, state, k, layers, scale, w, decoding)
    else:
        measure_margins(layers[0], layers[1], w)
        for i in range(max(period, 1)):
            w.column[i] = TICKS * OCTAVE + (scale & 1) * 128
        state = walk(data, state, k, layers, scale, period, means, w, decoding)
    return np.int64(0) if decoding else finish(data, state)


@pasted
def walk_flat(data: Any, state: Any, k: Any, layers: Any, scale: Any, w: Any, decoding: Any) -> Any:
    """What `walk` gives where nothing is expected of neighbours: contexts hang on margins alone, and come first."""
    B, D = layers
    odds, contexts = w.odds, w.near
    offset = ((scale >> 1) - TICKS) * OCTAVE + TICKS * OCTAVE + (scale & 1) * 128
    for i in range(len(k)):
        high, below = edges(B[i], D[i])
        contexts[i] = place_zero(log(min(high, below)) - offset, log(B[i]) - offset) + LEVEL_FLAT
    for i in range(len(k)):
        zero_at = contexts[i]
        state, moved = choose(data, state, k[i] != 0, chance(odds, zero_at), decoding)
        learn(odds, zero_at, moved, ZERO_RATE)
        if moved:
            high, below = edges(B[i], D[i])
            wide, tilt = log(B[i]) - offset, log(abs(high - below)) - offset
            state, k[i], _ = walk_jump(data, state, k[i], high <= below, wide, tilt, LEVEL_FLAT, odds, decoding)
        else:
            k[i] = 0
    return state


@inlined
def walk_jump(
    data: Any, state: Any, k: Any, rise: Any, wide: Any, tilt: Any, level: Any, odds: Any, decoding: Any
) -> Any:
    """Codes a k that is not zero: its side, then its size; (state, k, row of the size's contexts)."""
    side_at = SIDE_AT + within((tilt + 4 * OCTAVE) >> 8, 7) * LEVELS + level
    state, nearer = choose(data, state, (k > 0) == rise, chance(odds, side_at), decoding)
    learn(odds, side_at, nearer, SIDE_RATE)
    skip = within((-wide - 5 * OCTAVE) >> 8, LARGEST_BITS - 4)
    row = within((wide + skip * OCTAVE + 6 * OCTAVE) >> 7, 23)
    base = SIZE_AT + row * 24
    state, jump = walk_size(data, state, abs(k), base, skip, LARGEST_BITS, odds, decoding)
    return state, jump if nearer == rise else -jump, row


@inlined
def walk(data: Any, state: Any, k: Any, layers: Any, scale: Any, period: Any, means: Any, w: Any, decoding: Any) -> Any:
    """Codes all coordinates; the state afterwards. `w.column`: a logarithm of |X| for each place of a row."""
    B, D = layers
    odds, column = w.odds, w.column
    shift = (scale >> 1) - TICKS
    anchor = TICKS * OCTAVE + (scale & 1) * 128
    first = power(anchor)
    sized, signed, across, place = first, 0, first, 0
    for i in range(len(k)):
        above = np.int64(column[place])
        z = 15 * log(sized) + anchor
        if period > LOCAL:
            z += 13 * (above - log(across))
        z = within(z >> 4, 31 * OCTAVE - 1)
        s, offset, rise = power(z), shift * OCTAVE + z, w.up[i] != 0
        level = lean(signed if rise else -signed, sized)
        level += ZONE * ((z < anchor - 2 * OCTAVE) + 2 * (z > anchor))
        wide = w.wide[i] - offset
        zero_at = place_zero(w.near[i] - offset, wide) + level
        state, moved = choose(data, state, k[i] != 0, chance(odds, zero_at), decoding)
        learn(odds, zero_at, moved, ZERO_RATE)
        if moved:
            state, k[i], row = walk_jump(data, state, k[i], rise, wide, w.tilt[i] - offset, level, odds, decoding)
            e = reach(B[i], D[i], k[i] > 0, abs(k[i]), shift)
            e = min(e + ((s * means[MEANS_OVER + row]) >> 8), LARGEST)
            v = e if k[i] > 0 else -e
        else:
            k[i] = 0
            e = max((s * means[zero_at]) >> 8, 1)
            v = (s * means[MEANS_TILT + zero_at]) >> 8
            v = v if rise else -v
        sized += (e - sized) >> 2
        signed += (v - signed) >> 2
        if period > LOCAL:
            across += ((power(above) - across) * 3) >> 4
            column[place] = follow(power(above), e)
            place = place + 1 if place + 1 < period else 0
    return state


@inlined
def follow(was: Any, e: Any) -> Any:
    """The logarithm kept for a place of a row whose size was expected to be `was` and is about e."""
    return np.int16(log(max(was + (((e - was) * 3) >> 4), 1)))


@inlined
def lean(towards: Any, sized: Any) -> Any:
    """Sign level 0..8: 4 plus how strongly recent values point to the nearer side."""
    strength = abs(towards) * 8
    level = (strength > sized) + (strength > 3 * sized) + (strength > 5 * sized) + (strength > 7 * sized)
    return 4 + (level if towards > 0 else -level)


@inlined
def place_zero(near: Any, wide: Any) -> Any:
    """The first context of "is k zero?" for logarithms of the nearer margin and the width over the scale."""
    return (within((near + 5 * OCTAVE) >> 7, 15) * 6 + within((wide + OCTAVE) >> 8, 5)) * LEVELS


@inlined
def reach(width: Any, dither: Any, positive: Any, jump: Any, shift: Any) -> Any:
    """The least |X| that gives this k, in ticks, saturated."""
    high, below = edges(width, dither)
    inner = high if positive else below
    inner, width = min(inner, 1 << 44), min(width, 1 << 44)
    if shift >= 0:
        inner, width = inner >> shift, width >> shift
    else:
        inner, width = inner << -shift, width << -shift
    return min(inner, LARGEST) + min(jump - 1, LARGEST) * min(width, LARGEST)


@compiled
def encode_block(M: Any, B: Any, D: Any, scale: Any, period: Any, prior: Any, means: Any, w: Any, out: Any) -> Any:
    """The length of the stream in `out`, which must hold `BYTES_A_COORDINATE * len(M) + 16` bytes; M is overwritten.

    `scale` comes from `measure_scale`, `period` from `find_period`; if all quotients are M0, the stream is empty.
    Guarantee: `decode_block` on exactly these bytes gives M back (tests/kernels/test_scalar_coder.py).
    """
    any_moved = False
    for i in range(len(M)):
        M[i] += 1 if D[i] > B[i] >> 1 else 0
        any_moved |= M[i] != 0
    if not any_moved:
        return np.int64(0)
    return walk_block(out, M, (B, D), scale, period, prior, means, w, False)


@compiled
def decode_block(data: Any, B: Any, D: Any, prior: Any, means: Any, w: Any, M: Any) -> None:
    """Fills M from a stream of `encode_block`.

    Guarantee: any bytes decode to some M in bounded time (tests/kernels/test_scalar_coder.py).
    """
    walk_block(data, M, (B, D), np.int64(0), np.int64(0), prior, means, w, True)
    for i in range(len(M)):
        M[i] -= 1 if D[i] > B[i] >> 1 else 0
