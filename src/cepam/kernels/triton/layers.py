"""Latents, scales and dithers in Triton: the integer arithmetic of `reference`, on tensors of any shape.

Launch every kernel with `enable_fp_fusion=False`: a fused multiply-add would round once where the other backends round
twice, and two ends of a message would then disagree.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.model import plan
from cepam.noise import radius

OCTAVES = tl.constexpr(radius.OCTAVES)
SEGMENTS = tl.constexpr(radius.SEGMENTS)
COEFFICIENTS = tl.constexpr(radius.COEFFICIENTS)
TABLE_ROWS = tl.constexpr(radius.TAILS * radius.OCTAVES * radius.SEGMENTS)
GRID_BITS = tl.constexpr(plan.GRID_BITS)
HALF_GRID = tl.constexpr(1 << (plan.GRID_BITS - 1))
FRACTION = tl.constexpr((1 << 58) - (1 << 5))
FURTHEST = tl.constexpr(2.0 ** (plan.RANGE_BITS + 1))
REACH = tl.constexpr(2.0**plan.RANGE_BITS)

# Where a plan's float64 numbers stand in the array that kernels read them from: a float passed to a Triton kernel as
# an argument would be cut to float32.
SCALE, INVERSE_BALL, PER_UNIT, GRID, STEP, TRIALS, UNIT = (tl.constexpr(i) for i in range(7))


@triton.jit
def leading_zeros(v):
    """The number of zero bits above the highest set bit of a 64-bit word that is not 0."""
    # float64 holds 32 bits exactly, so no rounding carries the conversion to the next power of two.
    high = (v >> 32).to(tl.uint32)
    empty = high == 0
    exponent = tl.where(empty, v.to(tl.uint32), high).to(tl.float64).to(tl.int64, bitcast=True) >> 52
    return tl.where(empty, 1086, 1054) - exponent.to(tl.int32)


@triton.jit
def floor_divide(t, b):
    """floor(t / b): a float64 quotient, put right by its integer remainder (exact while it is under 2^51)."""
    q = (t.to(tl.float64) / b.to(tl.float64)).to(tl.int64)
    rest = t - q * b
    return q - (rest < 0).to(tl.int64) + (rest >= b).to(tl.int64)


@triton.jit
def invert(b):
    """1 / b in float64 with an error under 2^-43 of itself, for guesses: a division has branches in the way."""
    root = tl.rsqrt(b.to(tl.float32)).to(tl.float64)
    inverse = root * root
    return inverse * tl.fma(-b.to(tl.float64), inverse, 2.0)


@triton.jit
def radius_of_word(word, table, scale):
    """The latent radius in units; the table is coefficient-major, so that lanes rarely meet in one memory bank."""
    odd = (word << 1) | 1
    octave = leading_zeros(odd)
    mantissa = odd << octave.to(tl.uint64)
    # The six highest bits are a one and the segment.
    row = (word >> 63).to(tl.int32) * (OCTAVES * SEGMENTS) + (octave * SEGMENTS + (mantissa >> 58).to(tl.int32))
    table -= SEGMENTS
    t = (mantissa & FRACTION).to(tl.int64).to(tl.float64) * 3.469446951953614e-18  # 2^-58
    value = tl.load(table + (COEFFICIENTS - 1) * TABLE_ROWS + row)
    for i in tl.static_range(COEFFICIENTS - 1):
        value = value * t + tl.load(table + (COEFFICIENTS - 2 - i) * TABLE_ROWS + row)
    return value * scale


@triton.jit
def width_of_word(word, table, scale):
    """The width B = 2 floor(r) + 1 of a coordinate in one dimension, where the ball is the cell."""
    return 2 * radius_of_word(word, table, scale).to(tl.int64) + 1


@triton.jit
def units_of(x, per_unit):
    """Values cut toward zero to whole units."""
    return (x.to(tl.float64) * per_unit).to(tl.int64)


@triton.jit
def load_value(x, wide, double, at, inside):
    """Values as float64, from `wide` where the update is float64 (double is 1) and from `x` where it is float32."""
    narrow = tl.load(x + at, mask=inside & (double == 0), other=0.0).to(tl.float64)
    return narrow + tl.load(wide + at, mask=inside & (double == 1), other=0.0)


@triton.jit
def store_value(x, wide, double, at, value, inside):
    """Writes float64 values to `wide` (double is 1) or, rounded, to `x`: one kernel for both types of updates."""
    tl.store(x + at, value.to(tl.float32), mask=inside & (double == 0))
    tl.store(wide + at, value, mask=inside & (double == 1))


@triton.jit
def grid_value(units, grid):
    """Positions in units rounded to the public grid, as float64."""
    return ((units + HALF_GRID) >> GRID_BITS).to(tl.float64) * grid
