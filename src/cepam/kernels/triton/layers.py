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
FURTHEST = tl.constexpr(2.0 ** (plan.RANGE_BITS + 1))

# Where a plan's float64 numbers stand in the array that kernels read them from: a float passed to a Triton kernel as
# an argument would be cut to float32.
SCALE, INVERSE_BALL, PER_UNIT, GRID = (tl.constexpr(i) for i in range(4))


@triton.jit
def leading_zeros(v):
    """The number of zero bits above the highest set bit of a 64-bit word that is not 0."""
    # Without the bit below the highest, no rounding can carry the conversion to the next power of two.
    exponent = (v ^ (v & (v >> 1))).to(tl.float64).to(tl.int64, bitcast=True) >> 52
    return 1086 - exponent


@triton.jit
def floor_divide(t, b):
    """floor(t / b): a float64 quotient, put right by its integer remainder (exact while it is under 2^51)."""
    q = (t.to(tl.float64) / b.to(tl.float64)).to(tl.int64)
    rest = t - q * b
    return q - (rest < 0).to(tl.int64) + (rest >= b).to(tl.int64)


@triton.jit
def radius_of_word(word, table, scale):
    """The latent radius in units; the table is coefficient-major, so that lanes rarely meet in one memory bank."""
    odd = (word << 1) | 1
    zeros = leading_zeros(odd)
    mantissa = odd << zeros.to(tl.uint64)
    octave = tl.minimum(zeros, OCTAVES - 1).to(tl.int32)
    segment = (mantissa >> 58).to(tl.int32) & (SEGMENTS - 1)
    row = ((word >> 63).to(tl.int32) * OCTAVES + octave) * SEGMENTS + segment
    t = ((mantissa << 6) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2^-53
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
