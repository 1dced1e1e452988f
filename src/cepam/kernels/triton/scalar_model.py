"""The model of `format.scalar_contexts` in Triton: one lane a block, no branch but loops while some lane needs them.

Contexts live in memory, [context][lane] within a program, so that lanes that meet in a context meet in a sector, and
blocks of similar data keep few sectors busy. Scales are 64-bit, contexts and logarithms 32-bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import triton
import triton.language as tl

from cepam.kernels.format import row_period
from cepam.kernels.format import scalar_contexts as contexts
from cepam.kernels.triton.range_coder import any_of, code_bit

FLAT, LOCAL = tl.constexpr(row_period.FLAT), tl.constexpr(row_period.LOCAL)
LEAST, MOST = tl.constexpr(contexts.FLOOR), tl.constexpr(65536 - contexts.FLOOR)
OCTAVE, TICKS = tl.constexpr(contexts.OCTAVE), tl.constexpr(contexts.TICKS)
LEVELS, LEVEL_FLAT, ZONE = (tl.constexpr(i) for i in (contexts.LEVELS, contexts.LEVEL_FLAT, contexts.ZONE))
SIDE_AT, SIZE_AT = tl.constexpr(contexts.SIDE_AT), tl.constexpr(contexts.SIZE_AT)
MEANS_TILT, MEANS_OVER = tl.constexpr(contexts.MEANS_TILT), tl.constexpr(contexts.MEANS_OVER)
LARGEST, LARGEST_BITS = tl.constexpr(contexts.LARGEST), tl.constexpr(contexts.LARGEST_BITS)
ZERO_RATE, SIDE_RATE, SIZE_RATE = (
    tl.constexpr(rate) for rate in (contexts.ZERO_RATE, contexts.SIDE_RATE, contexts.SIZE_RATE)
)
EVEN = tl.constexpr(32768)
FLAT_SIDE_AT, FLAT_SIZE_AT = tl.constexpr(16 * 6), tl.constexpr(16 * 6 + 8)


def flat_contexts(prior: Any) -> Any:
    """Of a number for each context, those of the layout without memory, in the order of `pack_flat`."""
    zeros, sides, sizes = np.split(prior, [contexts.SIDE_AT, contexts.SIZE_AT])
    level = contexts.LEVEL_FLAT
    return np.concatenate([zeros[level :: contexts.LEVELS], sides[level :: contexts.LEVELS], sizes])


class Jump(NamedTuple):
    """How far a quotient lies from its guess: k, whether the upper side is nearer, and the plain bits of |k|."""

    k: Any
    rise: Any
    skip: Any


class KnownOdds(NamedTuple):
    """The contexts of a jump's first three decisions, and their odds as they were read."""

    contexts: Any
    q: Any


class Scales(NamedTuple):
    """What a lane's model remembers: recent sizes, recent values with their signs, and the row above."""

    sized: Any
    signed: Any
    across: Any


@triton.jit
def log(value):
    """256 times a piecewise linear log2 of non-negative values below 2^53 (0 counts as 1)."""
    return ((value | 1).to(tl.float64).to(tl.int64, bitcast=True) >> 44).to(tl.int32) - 1023 * OCTAVE


@triton.jit
def power(exponent):
    """The inverse of `log`, for 0 <= exponent < 31 octaves."""
    return (((exponent & 255) + OCTAVE) << 22) >> (30 - (exponent >> 8))


@triton.jit
def within(value, top):
    """`value` held in 0..top."""
    return tl.minimum(tl.maximum(value, 0), top)


@triton.jit
def edges(width, dither):
    """(high, -low): how far X may go up and down before the quotient leaves M0."""
    half = width >> 1
    high = tl.where(dither <= half, dither + half + 1, dither - half)
    return high, width - high


@triton.jit
def measure_margins(width, dither):
    """Logarithms of the nearer margin, the width and the difference of both margins, and which is nearer, in a word."""
    high, below = edges(width, dither)
    near, tilt = log(tl.minimum(high, below)).to(tl.int64), log(tl.abs(high - below)).to(tl.int64)
    return near | (log(width).to(tl.int64) << 16) | (tilt << 32) | ((high <= below).to(tl.int64) << 48)


@triton.jit
def code_modelled(coder, stream, q, bit, active, rate: tl.constexpr, decoding: tl.constexpr):
    """One decision of the active lanes with odds q: the coder, the bit and the odds afterwards."""
    p = tl.minimum(tl.maximum(q, LEAST), MOST)
    coder, bit = code_bit(coder, stream, p, bit, active, decoding)
    return coder, bit, tl.where(active, q + ((tl.where(bit, 65535, 0) - q) >> rate), q)


@triton.jit
def find_odds(odds, contexts, wanted, lanes: tl.constexpr):
    """The odds of three contexts, read together, so that their latencies are one."""
    found = ()
    for i in tl.static_range(3):
        found += (tl.load(odds + contexts[i] * lanes, mask=wanted, other=0),)
    return found


@triton.jit
def decide(coder, stream, odds, context, bit, active, modelled, lanes: tl.constexpr, decoding: tl.constexpr):
    """One decision on a size of the active lanes, of even odds where it is not modelled: the coder and the bit."""
    place, learning = odds + context * lanes, active & modelled
    q = tl.load(place, mask=learning, other=EVEN)
    coder, bit, q = code_modelled(coder, stream, q, bit, active, SIZE_RATE, decoding)
    tl.store(place, q, mask=learning)
    return coder, bit


@triton.jit
def code_header(coder, stream, value, active, bits: tl.constexpr, decoding: tl.constexpr):
    """Plain bits of side information, highest first."""
    got = tl.zeros_like(value)
    for i in range(bits):
        bit = ((value >> (bits - 1 - i)) & 1) == 1
        p = tl.zeros_like(value) + EVEN
        coder, bit = code_bit(coder, stream, p, bit, active, decoding)
        got = (got << 1) | bit.to(tl.int32)
    return coder, got


@triton.jit
def predict(scales, above, anchor, period, rise):
    """(z, level): the local scale's logarithm, and the context's share of it and of recent signs."""
    sized, signed, across = scales.sized, scales.signed, scales.across
    z = 15 * log(sized) + anchor + tl.where(period > LOCAL, 13 * (above - log(across)), 0)
    z = tl.where(period == FLAT, anchor, within(z >> 4, 31 * OCTAVE - 1))
    towards = tl.where(rise, signed, -signed)
    strength = tl.abs(towards) * 8
    steps = (strength > sized).to(tl.int32) + (strength > 3 * sized).to(tl.int32)
    steps += (strength > 5 * sized).to(tl.int32) + (strength > 7 * sized).to(tl.int32)
    level = tl.where(period == FLAT, LEVEL_FLAT, 4 + tl.where(towards > 0, steps, -steps))
    return z, level + ((z < anchor - 2 * OCTAVE).to(tl.int32) + 2 * (z > anchor).to(tl.int32)) * ZONE


@triton.jit
def code_size(coder, stream, odds, size, more, active, most: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr):
    """The coder, and sizes of at least 1 and at most `most` bits: `skip` low ones plainly, the rest as exponent and
    mantissa, in contexts from `base` on; whether there is `more` than the exponent's first place is known."""
    value, base, skip = size
    plain, rest = split_size(value, skip)
    places, length, going = log(rest) >> 8, more.to(tl.int32), more & (skip + 1 < most)
    while any_of(going):
        coder, more = decide(
            coder, stream, odds, base + tl.minimum(length, 19), length < places, going, going, lanes, decoding
        )
        length = length + (going & more).to(tl.int32)
        going = going & more & (length + skip < most)
    step, out = tl.zeros_like(base), tl.zeros_like(value) + 1
    going = active & (length + skip > 0)
    while any_of(going):
        left = length - 1 - step
        tail = plain >> within(skip + left, 63).to(tl.int64)
        bit = tl.where(left >= 0, rest >> tl.maximum(left, 0).to(tl.int64), tail) & 1
        coder, read = decide(
            coder, stream, odds, base + 19 + tl.minimum(length, 4), bit == 1, going, (step == 0) & (length > 0), lanes,
            decoding,
        )  # fmt: skip
        out = tl.where(going, (out << 1) | read.to(tl.int64), out)
        step = step + 1
        going = going & (step < length + skip)
    skipped = tl.maximum(out - (tl.full((), 1, tl.int64) << skip.to(tl.int64)), 1)
    return coder, tl.where(skip > 0, skipped, out)


@triton.jit
def split_size(value, skip):
    """(plain, rest): the low bits of sizes, and what is left, which is at least 1."""
    plain = value & ((tl.full((), 1, tl.int64) << skip.to(tl.int64)) - 1)
    return plain, (value >> skip.to(tl.int64)) + (skip > 0).to(tl.int64)


@triton.jit
def reach(width, dither, positive, jump, shift):
    """The least |X| that gives this k, in ticks, saturated."""
    high, below = edges(width, dither)
    inner, width = tl.minimum(tl.where(positive, high, below), 1 << 44), tl.minimum(width, 1 << 44)
    right, left = tl.maximum(shift, 0).to(tl.int64), tl.maximum(-shift, 0).to(tl.int64)
    inner, width = (inner >> right) << left, (width >> right) << left
    return tl.minimum(inner, LARGEST) + tl.minimum(jump - 1, LARGEST) * tl.minimum(width, LARGEST)


@triton.jit
def size_row(wide, offset):
    """(skip, row): the plain bits of |k|, and the row of contexts of its others."""
    skip = within((offset - wide - 5 * OCTAVE) >> 8, LARGEST_BITS - 4)
    return skip, within((wide + skip * OCTAVE - offset + 6 * OCTAVE) >> 7, 23)


@triton.jit
def contexts_of(margins, z, level, shift):
    """The contexts of a coordinate's first three decisions (is k zero, which side, is |k| larger than one), and the
    plain bits of |k|."""
    near, wide = (margins & 65535).to(tl.int32), ((margins >> 16) & 65535).to(tl.int32)
    tilt, offset = ((margins >> 32) & 65535).to(tl.int32), shift * OCTAVE + z
    ring = within((near - offset + 5 * OCTAVE) >> 7, 15) * 6 + within((wide - offset + OCTAVE) >> 8, 5)
    side = within((tilt - offset + 4 * OCTAVE) >> 8, 7)
    skip, row = size_row(wide, offset)
    return (ring * LEVELS + level, side * LEVELS + level + SIDE_AT, row * 24 + SIZE_AT), skip


@triton.jit
def pack_flat(margins, scale):
    """`contexts_of` in one word, with the nearer side, where a block of this scale has the layout without memory."""
    contexts, skip = contexts_of(margins, (scale & 1) * 128 + TICKS * OCTAVE, 0, (scale >> 1) - TICKS)
    zero, side = contexts[0] // LEVELS, (contexts[1] - SIDE_AT) // LEVELS + FLAT_SIDE_AT
    size = contexts[2] - SIZE_AT + FLAT_SIZE_AT
    others = size | skip << 12 | (margins >> 48).to(tl.int32) << 18
    return (zero | side << 12).to(tl.int64) | others.to(tl.int64) << 24


@triton.jit
def unpack_flat(word):
    """The three contexts in a word of `pack_flat`."""
    first, size = word.to(tl.int32), (word >> 24).to(tl.int32)
    return first & 4095, (first >> 12) & 4095, size & 4095


@triton.jit
def code_jump(
    coder, stream, odds, jump, known, active, most: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr
):
    """The coder, k where it is not zero, of at most `most` bits, and the odds of side and size afterwards."""
    k, skip = jump.k, jump.skip
    upper = (k > 0) == jump.rise
    coder, nearer, side_q = code_modelled(coder, stream, known.q[1], upper, active, SIDE_RATE, decoding)
    tl.store(odds + known.contexts[1] * lanes, side_q, mask=active)
    _, rest = split_size(tl.abs(k), skip)
    coder, more, size_q = code_modelled(coder, stream, known.q[2], rest > 1, active, SIZE_RATE, decoding)
    tl.store(odds + known.contexts[2] * lanes, size_q, mask=active)
    more, size = active & more, tl.zeros_like(k) + 1
    longer = active & (more | (skip > 0))
    if any_of(longer):
        asked = (tl.abs(k), known.contexts[2], skip)
        coder, size = code_size(coder, stream, odds, asked, more, longer, most, lanes, decoding)
    return coder, tl.where(nearer == jump.rise, size, -size), side_q, size_q


@triton.jit
def code_coordinate(coder, stream, odds, jump, known, active, lanes: tl.constexpr, decoding: tl.constexpr):
    """Codes one coordinate of each active lane: the coder, k, and the odds of its contexts afterwards."""
    coder, moved, zero_q = code_modelled(coder, stream, known.q[0], jump.k != 0, active, ZERO_RATE, decoding)
    tl.store(odds + known.contexts[0] * lanes, zero_q, mask=active)
    moved = moved & active
    k = tl.where(moved, jump.k, 0)
    side_q, size_q = known.q[1], known.q[2]
    if any_of(moved):
        asked = Jump(k, jump.rise, jump.skip)
        coder, told, side_q, size_q = code_jump(coder, stream, odds, asked, known, moved, LARGEST_BITS, lanes, decoding)
        k = tl.where(moved, told, k)
    return coder, k, (zero_q, side_q, size_q)


@triton.jit
def forward(contexts, q, told, after):
    """Odds that were read before the last coordinate, whose contexts were `told`, changed some to `after`."""
    found = ()
    for i in tl.static_range(3):
        found += (tl.where(contexts[i] == told[i], after[i], q[i]),)
    return found


@triton.jit
def follow(scales, means, above, k, places, margins, zero_at, local, active):
    """The scales, and a row's logarithm here, once k is known; `places` of width and dither, `local` scale and shift.

    Width and dither are read from memory where they are needed, which is where k is not zero.
    """
    z, shift = local
    s, moved = power(z).to(tl.int64), k != 0
    e = tl.maximum((s * tl.load(means + zero_at)) >> 8, 1)
    v = (s * tl.load(means + MEANS_TILT + zero_at)) >> 8
    v = tl.where((margins >> 48) == 1, v, -v)
    if any_of(moved):
        _, row = size_row(((margins >> 16) & 65535).to(tl.int32), shift * OCTAVE + z)
        size = reach(tl.load(places[0]), tl.load(places[1]), k > 0, tl.abs(k), shift)
        size = tl.minimum(size + ((s * tl.load(means + MEANS_OVER + row)) >> 8), LARGEST)
        e = tl.where(moved, size, e)
        v = tl.where(moved, tl.where(k > 0, size, -size), v)
    was = power(above).to(tl.int64)
    sized = scales.sized + tl.where(active, (e - scales.sized) >> 2, 0)
    signed = scales.signed + tl.where(active, (v - scales.signed) >> 2, 0)
    across = scales.across + tl.where(active, ((was - scales.across) * 3) >> 4, 0)
    return Scales(sized, signed, across), log(tl.maximum(was + (((e - was) * 3) >> 4), 1))
