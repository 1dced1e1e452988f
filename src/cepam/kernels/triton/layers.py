"""Latent radii, scales, dithers and places of lanes in Triton.

Launch every kernel with `enable_fp_fusion=False`: a fused multiply-add would round once where the other backends round
twice, and two ends of a message would then disagree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.distributions import radius
from cepam.kernels.format import plan
from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, below_each_other, stream_words

OCTAVES = tl.constexpr(radius.OCTAVES)
SEGMENTS = tl.constexpr(radius.SEGMENTS)
COEFFICIENTS = tl.constexpr(radius.COEFFICIENTS)
TABLE_ROWS = tl.constexpr(radius.TAILS * radius.OCTAVES * radius.SEGMENTS)
GRID_BITS = tl.constexpr(plan.GRID_BITS)
HALF_GRID = tl.constexpr(1 << (plan.GRID_BITS - 1))
FRACTION = tl.constexpr((1 << 58) - (1 << 5))
FURTHEST = tl.constexpr(2.0 ** (plan.RANGE_BITS + 1))
REACH = tl.constexpr(2.0**plan.RANGE_BITS)
SLACK = tl.constexpr(2.0**-10)
WHOLE = tl.constexpr(1.5 * 2.0**52)
WHOLE_BITS = tl.constexpr(0x4338000000000000)

# Where a plan's float64 numbers stand in the array that kernels read them from: a float passed to a Triton kernel as
# an argument would be cut to float32.
SCALE, INVERSE_BALL, PER_UNIT, GRID, STEP, TRIALS, UNIT = (tl.constexpr(i) for i in range(7))


@triton.jit
def load_whole(at, many: tl.constexpr):
    """So many whole numbers of `device_whole`, as a tuple: the first, a count of coordinates, of 64 bits, others of 32.

    64-bit quotients are slow.
    """
    numbers = (tl.load(at),)
    for i in tl.static_range(1, many):
        numbers += (tl.load(at + i).to(tl.int32),)
    return numbers


@triton.jit
def leading_zeros(v):
    """The number of zero bits above the highest set bit of a 64-bit word that is not 0."""
    # Without the bits that have a one above them, no rounding carries the conversion to the next power of two. Only a
    # word of more than 53 bits is rounded, so the upper half suffices.
    high = (v >> 32).to(tl.uint32)
    thin = ((high ^ (high & (high >> 1))).to(tl.uint64) << 32) | v.to(tl.uint32).to(tl.uint64)
    return 1086 - (thin.to(tl.float64).to(tl.int64, bitcast=True) >> 52).to(tl.int32)


@triton.jit
def floor_divide(t, b):
    """floor(t / b): a float64 quotient, put right by its integer remainder (exact while it is under 2^51)."""
    q = (t.to(tl.float64) / b.to(tl.float64)).to(tl.int64)
    rest = t - q * b
    return q - (rest < 0).to(tl.int64) + (rest >= b).to(tl.int64)


@triton.jit
def invert_below(b):
    """-1 / b in float64 with an error under 2^-43 of itself, for guesses: a division has branches in the way."""
    root = tl.rsqrt(b.to(tl.float32)).to(tl.float64)
    inverse = root * root
    return inverse * tl.fma(b.to(tl.float64), inverse, -2.0)  # a factor -b would take an instruction


@triton.jit
def whole_less(x):
    """3 * 2^51 less x, which has -x, rounded, in its low bits."""
    return x * -1.0 + WHOLE  # one instruction: a product with -1 is no product, but -x is 0 - x to Triton


@triton.jit
def round_quotient(t, b):
    """floor((t + b // 2) / b) for |t| < 2^62 and b < 2^52, while it is at most 2^50 in size: values reach to 2^61, and
    widths begin at 2^11 + 1.

    The first guess has an error under 2^-42 of itself, so that at most 257 b are left, with either sign. The second,
    lowered by 2^-10, is the quotient of that or one less. A sum with 3 * 2^51 has a whole number in its low bits.
    """
    inverse = invert_below(b)
    q = whole_less(t.to(tl.float64) * inverse).to(tl.int64, bitcast=True) - WHOLE_BITS
    rest = t - q * b
    more = whole_less(tl.fma(rest.to(tl.float64), inverse, SLACK)).to(tl.int64, bitcast=True) - WHOLE_BITS
    rest -= more * b
    return q + more + (rest + rest >= b).to(tl.int64)


@triton.jit
def radius_of_word(word, table, scale):
    """The latent radii in units of words in one dimension; the table of `device_plan` holds pairs of coefficients, each
    pair of all rows together: one access for two, and lanes rarely meet in one memory bank."""
    odd = (word << 1) | 1
    octave = leading_zeros(odd)
    mantissa = odd << octave.to(tl.uint64)
    # The six highest bits are a one and the segment.
    row = (word >> 63).to(tl.int32) * (OCTAVES * SEGMENTS) + (octave * SEGMENTS + (mantissa >> 58).to(tl.int32))
    t = (mantissa & FRACTION).to(tl.int64).to(tl.float64)  # times 2^58
    at = table + ((row - SEGMENTS) * 2)[:, None] + tl.arange(0, 2)[None, :]
    low, high = tl.split(tl.load(at + (COEFFICIENTS - 2) * TABLE_ROWS))
    value = high * t + low
    for i in tl.static_range(4, COEFFICIENTS + 1, 2):
        low, high = tl.split(tl.load(at + (COEFFICIENTS - i) * TABLE_ROWS))
        value = (value * t + high) * t + low
    return value * scale


@triton.jit
def width_of_word(word, table, scale):
    """The width B = 2 floor(r) + 1, which is floor(2 r) made odd, in one dimension, where the ball is the cell."""
    return radius_of_word(word, table, 2.0 * scale).to(tl.int64) | 1


@triton.jit
def draw_cells(draws, key, number, layered: tl.constexpr):
    """(width, dither) under a key of groups of eight coordinates in one dimension, `below_each_other`."""
    latent = tl.full((), LATENT_STREAM, tl.int64)
    groups: tl.constexpr = number.shape[0]
    if layered:
        word = below_each_other(stream_words(key, latent, number, ROUNDS), groups)
        b = width_of_word(word, draws.table, tl.load(draws.numbers + SCALE))
    else:
        b = tl.zeros((8 * groups,), tl.int64) + tl.load(draws.numbers + STEP).to(tl.int64)
    word = below_each_other(stream_words(key, latent + 1, number, ROUNDS), groups)
    return b, tl.umulhi(word, b.to(tl.uint64)).to(tl.int64)


@triton.jit
def units_of(x, per_unit):
    """Values cut toward zero to whole units."""
    return (x.to(tl.float64) * per_unit).to(tl.int64)


@triton.jit
def values_from(x, double, first):
    """Where values from this one on are: `x` points to float32 values or, where double is 1, to float64 ones as if they
    were pairs, so that one kernel serves both types."""
    return x + (first << double)


@triton.jit
def load_value(x, double, at, inside):
    """Values as float64, so many behind those at x (`values_from`)."""
    narrow = tl.load(x + at, mask=inside & (double == 0), other=0.0).to(tl.float64)
    wide = x.to(tl.pointer_type(tl.float64), bitcast=True)
    return narrow + tl.load(wide + at, mask=inside & (double == 1), other=0.0)


@triton.jit
def store_value(x, double, at, value, inside):
    """Writes float64 values where `load_value` finds them, rounded to float32 unless double is 1."""
    tl.store(x + at, value.to(tl.float32), mask=inside & (double == 0))
    tl.store(x.to(tl.pointer_type(tl.float64), bitcast=True) + at, value, mask=inside & (double == 1))


@triton.jit
def grid_value(units, grid):
    """Positions in units rounded to the public grid, as float64."""
    return ((units + HALF_GRID) >> GRID_BITS).to(tl.float64) * grid


class Place(NamedTuple):
    """Which lanes of a batch a wave has, one for each block: numbers that kernels read from memory."""

    count: Any  # coordinates of a client's update
    begin: Any  # the wave's first lane in the batch, and the one behind its last
    total: Any
    blocks: Any  # blocks of a client
    per_block: Any  # sub-vectors of a block
    double: Any  # 1 where updates are float64 (`load_value`)


@triton.jit
def load_place(place):
    """The numbers of a `Place`."""
    return Place(*load_whole(place, 6))


@triton.jit
def lanes_of(place, n, mine):
    """(lane in the batch, client, block of the client, coordinates) of lanes `mine` of the wave."""
    # A message has at most 2^27 blocks: 32 bits are enough, and 64-bit quotients are slow.
    lane, length = mine + place.begin, place.per_block * n
    inside = lane < place.total
    client = tl.where(inside, lane // place.blocks, 0)
    block = tl.where(inside, lane - client * place.blocks, 0).to(tl.int64)
    size = tl.where(inside, tl.minimum(place.count - block * length, length), 0).to(tl.int32)
    return lane.to(tl.int64), client.to(tl.int64), block, size


@triton.jit
def first_of(place, n, client, block):
    """Where blocks begin among the coordinates of all clients."""
    return client * place.count + block * (place.per_block * n)


@triton.jit
def own_lanes(lanes: tl.constexpr):
    """The lanes of the wave that this program codes, one a thread."""
    return tl.program_id(0) * lanes + tl.arange(0, lanes)
