"""Symbols in one dimension in Triton: a lane draws the widths and dithers of eight coordinates, two keystream blocks.

Launch with `enable_fp_fusion=False`, as every kernel over `layers`, for whole groups of eight coordinates.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from cepam.kernels.triton.keystream import load_key
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    REACH,
    SLACK,
    UNIT,
    draw_cells,
    grid_value,
    invert_below,
    round_quotient,
    whole_less,
)


class Kind(NamedTuple):
    """What symbols are of: scales from latents or one step; and whether values are put on the public grid."""

    layered: bool
    released: bool = True


REFUSED, WIDE = (tl.constexpr(i) for i in range(2))
"""Which flag is raised: a value that is not finite or beyond reach; what 32 bits may not hold."""
NEAR = tl.constexpr(2.0**52)
MOST = tl.constexpr(2.0**31 - 2.0**10)


@triton.jit
def round_near_quotient(t, b):
    """(`round_quotient` as int32, whether that is right): right while |t| < 2^53, b < 2^50 and it fits.

    The guess has an error under 2^-43 of itself, so one that is lowered by 2^-10 and rounded is the quotient or one
    less. All other values are whole numbers under 2^53: float64 holds them, and the pipe of 32-bit integers, which the
    keystream fills, is spared.
    """
    whole, wide = t.to(tl.float64), b.to(tl.float64)
    guess = whole_less(tl.fma(whole, invert_below(b), SLACK))
    below = whole_less(guess)
    rest = tl.fma(below, wide, whole)
    low = guess.to(tl.int64, bitcast=True).to(tl.int32)
    return low + (rest + rest >= wide).to(tl.int32), tl.abs(below) < MOST


@triton.jit
def load_eight(at, block, inside, lanes: tl.constexpr):
    """Eight values in a row of each lane, `below_each_other`; four in a row are one access, where they are aligned."""
    at += block[:, None] * 8 + tl.arange(0, 4)[None, :]
    near, far = tl.load(at, mask=inside[:, None], other=0), tl.load(at + 4, mask=inside[:, None], other=0)
    return tl.reshape(tl.permute(tl.join(near, far), (2, 1, 0)), (8 * lanes,))


@triton.jit
def store_eight(at, block, values, inside, lanes: tl.constexpr):
    """Writes what `load_eight` reads."""
    at += block[:, None] * 8 + tl.arange(0, 4)[None, :]
    near, far = tl.split(tl.permute(tl.reshape(values, (2, 4, lanes)), (2, 1, 0)))
    tl.store(at, near, mask=inside[:, None])
    tl.store(at + 4, far, mask=inside[:, None])


@triton.jit
def raise_flag(flag, bad, lanes: tl.constexpr):
    """Sets the flag if anything is bad."""
    tl.store(flag + tl.arange(0, 8 * lanes) * 0, 1, mask=bad)


@triton.jit(do_not_specialize=["first", "count"])
def quantize_scalars(x, m, flags, draws, first, count, tiles: tl.constexpr, kind: tl.constexpr, lanes: tl.constexpr):
    """Fills m with the nearest multiples (Paper: M) of `count` groups of coordinates, from number `first` of a vector,
    or from its first without a sum: the keystream's columns that hold no counter are then the scalar unit's.

    A program does so many tiles of lanes, so that it computes those columns once. 32-bit symbols raise the flag `WIDE`
    where a value is not under 2^52 units in size, NaN included, or a symbol does not fit; 64-bit ones raise `REFUSED`
    where it is not finite or beyond reach.
    """
    narrow: tl.constexpr = m.dtype.element_ty == tl.int32
    key = load_key(draws.keys, 0)
    for tile in range(tiles):
        block = (tl.program_id(0) * tiles + tile).to(tl.int64) * lanes + tl.arange(0, lanes)
        b, d = draw_cells(draws, key, block if first is None else block + first, kind.layered)
        inside = block < count
        value = load_eight(x, block, inside, lanes).to(tl.float64) * tl.load(draws.numbers + PER_UNIT)
        t = value.to(tl.int64) - d
        if narrow:
            symbol, fits = round_near_quotient(t, b)
            raise_flag(flags + WIDE, ~(fits & (tl.abs(value) < NEAR)), lanes)
        else:
            symbol = round_quotient(t, b)
            raise_flag(flags + REFUSED, ~(tl.abs(value) <= REACH), lanes)
        store_eight(m, block, symbol, inside, lanes)


@triton.jit(do_not_specialize=["first", "count"])
def reconstruct_scalars(
    m, out, flags, draws, first, count, tiles: tl.constexpr, kind: tl.constexpr, lanes: tl.constexpr
):
    """Fills out with decoded values, as `quantize_scalars` filled m; flags points outside the range of the format."""
    key = load_key(draws.keys, 0)
    for tile in range(tiles):
        block = (tl.program_id(0) * tiles + tile).to(tl.int64) * lanes + tl.arange(0, lanes)
        b, d = draw_cells(draws, key, block if first is None else block + first, kind.layered)
        inside = block < count
        symbol = load_eight(m, block, inside, lanes).to(tl.int64)
        raise_flag(flags + REFUSED, tl.abs(symbol.to(tl.float64) * b.to(tl.float64)) >= FURTHEST, lanes)
        store_eight(out, block, value_of(symbol * b + d, draws.numbers, kind.released), inside, lanes)


@triton.jit
def value_of(units, numbers, released: tl.constexpr):
    """Positions in units as float64, on the public grid where they are released."""
    if released:
        return grid_value(units, tl.load(numbers + GRID))
    else:
        return units.to(tl.float64) * tl.load(numbers + UNIT)
