"""Symbols in one dimension in Triton: a lane draws the widths and dithers of eight coordinates, two keystream blocks.

Launch with `enable_fp_fusion=False`, as every kernel over `layers`. Without a table every width is the plan's step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, stream_words
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    REACH,
    SCALE,
    STEP,
    UNIT,
    floor_divide,
    grid_value,
    invert,
    width_of_word,
)

REFUSED, WIDE = (tl.constexpr(i) for i in range(2))
"""Which flag is raised: a value that is not finite or beyond reach; what 32 bits may not hold."""
NEAR = tl.constexpr(2.0**52)
ROUND = tl.constexpr(1.5 * 2.0**52)
SLACK = tl.constexpr(2.0**-10)
MOST = tl.constexpr(2.0**31 - 2.0**10)


@triton.jit
def round_quotient(t, b):
    """(floor((t + b // 2) / b) as int32, whether that is right): right while |t| < 2^53, b < 2^50 and it fits.

    The guess has an error under 2^-43 of itself, so one that is lowered by 2^-10 and rounded is the quotient or one
    less. All other values are whole numbers under 2^53: float64 holds them, and the pipe of 32-bit integers, which the
    keystream fills, is spared.
    """
    whole, wide = t.to(tl.float64), b.to(tl.float64)
    # Rounded to a whole number, which then stands in the low bits.
    guess = tl.fma(whole, invert(b), -SLACK) + ROUND
    q = guess - ROUND
    rest = tl.fma(-q, wide, whole)
    low = guess.to(tl.int64, bitcast=True).to(tl.int32)
    return low + (rest + rest >= wide).to(tl.int32), tl.abs(q) < MOST


@triton.jit
def draw_words(keys, table, block):
    """(latent words, dither words) of keystream blocks, each a tuple of eight; no latents without a table."""
    key, stream = load_key(keys, 0), tl.full((), LATENT_STREAM, tl.int64)
    dithers = stream_words(key, stream + 1, block, ROUNDS)
    if table is None:
        return dithers, dithers
    else:
        return stream_words(key, stream, block, ROUNDS), dithers


@triton.jit
def under_each_other(w, lanes: tl.constexpr):
    """Eight tensors of lanes as one, all lanes of the first before all of the second: a lane keeps its own eight."""
    even = tl.join(tl.join(w[0], w[4]), tl.join(w[2], w[6]))
    odd = tl.join(tl.join(w[1], w[5]), tl.join(w[3], w[7]))
    return tl.reshape(tl.permute(tl.join(even, odd), (1, 2, 3, 0)), (8 * lanes,))


@triton.jit
def apart(w, lanes: tl.constexpr):
    """The eight tensors that `under_each_other` made one of."""
    even, odd = tl.split(tl.permute(tl.reshape(w, (2, 2, 2, lanes)), (3, 0, 1, 2)))
    w04, w26 = tl.split(even)
    w15, w37 = tl.split(odd)
    w0, w4 = tl.split(w04)
    w2, w6 = tl.split(w26)
    w1, w5 = tl.split(w15)
    w3, w7 = tl.split(w37)
    return w0, w1, w2, w3, w4, w5, w6, w7


@triton.jit
def widths_of(words, table, numbers, lanes: tl.constexpr):
    """The widths B of coordinates with these latent words, a tuple of eight.

    They are looked up as one tensor: one of Triton's passes walks through the whole kernel for every access of memory,
    and sixty-four took it a quarter of a minute. No value leaves its lane, so the machine code is no longer.
    """
    if table is None:
        step = tl.zeros((lanes,), tl.int64) + tl.load(numbers + STEP).to(tl.int64)
        return step, step, step, step, step, step, step, step
    else:
        return apart(width_of_word(under_each_other(words, lanes), table, tl.load(numbers + SCALE)), lanes)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["x"])
def quantize_scalars(x, m, flags, keys, table, numbers, count, lanes: tl.constexpr):
    """Fills m with the nearest multiples (Paper: M) of `count` coordinates.

    32-bit symbols raise the flag `WIDE` where a value is not under 2^52 units in size, NaN included, or a symbol does
    not fit; 64-bit ones raise `REFUSED` where it is not finite or beyond reach.
    """
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    latents, dithers = draw_words(keys, table, block)
    widths = widths_of(latents, table, numbers, lanes)
    left, good = tl.minimum(count - block * 8, 8).to(tl.int32), block >= 0
    x, m, per_unit = x + block * 8, m + block * 8, tl.load(numbers + PER_UNIT)
    narrow: tl.constexpr = m.dtype.element_ty == tl.int32
    for i in tl.static_range(8):
        value = tl.load(x + i, mask=left > i, other=0.0).to(tl.float64) * per_unit
        b = widths[i]
        t = value.to(tl.int64) - tl.umulhi(dithers[i], b.to(tl.uint64)).to(tl.int64)
        if narrow:
            symbol, fits = round_quotient(t, b)
            good = good & fits & (tl.abs(value) < NEAR)
        else:
            symbol = floor_divide(t + (b >> 1), b)
            good = good & (tl.abs(value) <= REACH)
        tl.store(m + i, symbol, mask=left > i)
    tl.store(flags + block * 0 + (WIDE if narrow else REFUSED), 1, mask=~good)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["m"])
def reconstruct_scalars(m, out, flags, keys, table, numbers, count, released: tl.constexpr, lanes: tl.constexpr):
    """Fills out with decoded values; flags points outside the range of the format."""
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    latents, dithers = draw_words(keys, table, block)
    widths = widths_of(latents, table, numbers, lanes)
    left, good = tl.minimum(count - block * 8, 8).to(tl.int32), block >= 0
    m, out = m + block * 8, out + block * 8
    for i in tl.static_range(8):
        symbol = tl.load(m + i, mask=left > i, other=0).to(tl.int64)
        b = widths[i]
        units = symbol * b + tl.umulhi(dithers[i], b.to(tl.uint64)).to(tl.int64)
        good = good & (tl.abs(symbol.to(tl.float64) * b.to(tl.float64)) < FURTHEST)
        tl.store(out + i, value_of(units, numbers, released), mask=left > i)
    tl.store(flags + block * 0 + REFUSED, 1, mask=~good)


@triton.jit
def value_of(units, numbers, released: tl.constexpr):
    """Positions in units as float64, on the public grid where they are released."""
    if released:
        return grid_value(units, tl.load(numbers + GRID))
    else:
        return units.to(tl.float64) * tl.load(numbers + UNIT)
