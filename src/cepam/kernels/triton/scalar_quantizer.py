"""The quantizer in one dimension in Triton: a lane draws the latents and dithers of eight coordinates, two blocks.

A program covers `lanes` keystream blocks of one client; the second axis of the grid counts clients, so that one launch
serves many. `flags` gets a 1 where an input is not finite, beyond reach, or wider than the type of the symbols.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, side_by_side, stream_words
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    REACH,
    SCALE,
    floor_divide,
    grid_value,
    units_of,
    width_of_word,
)


@triton.jit
def widths_and_dithers(key, block, table, scale, step, layered: tl.constexpr, lanes: tl.constexpr):
    """(B, D), each (lanes, 8), of the coordinates that these keystream blocks serve."""
    stream = tl.full((), LATENT_STREAM + 1, tl.int64)
    words = side_by_side(stream_words(key, stream, block, ROUNDS), lanes)
    if layered:
        latents = side_by_side(stream_words(key, stream - 1, block, ROUNDS), lanes)
        b = width_of_word(latents, table, scale)
    else:
        b = tl.zeros((lanes, 8), tl.int64) + step
    return b, tl.umulhi(words, b.to(tl.uint64)).to(tl.int64)


@triton.jit(do_not_specialize=["step", "first"])
def quantize_scalar(x, keys, table, numbers, step, m, flags, first, count, layered: tl.constexpr, lanes: tl.constexpr):
    """Fills m with the nearest multiples (Paper: M) of `count` coordinates a client; `first` is a multiple of 8."""
    client = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    at = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = at < count
    value = tl.load(x + client * count + at, mask=inside, other=0.0)
    b, d = widths_and_dithers(
        load_key(keys, client), (first >> 3) + block, table, tl.load(numbers + SCALE), step, layered, lanes
    )
    q = floor_divide(units_of(value, tl.load(numbers + PER_UNIT)) - d + (b >> 1), b)
    symbol = q.to(m.dtype.element_ty)
    refused = (symbol.to(tl.int64) != q) | ~(tl.abs(value.to(tl.float64)) <= tl.load(numbers + REACH))
    tl.store(m + client * count + at, symbol, mask=inside)
    tl.store(flags + at * 0, 1, mask=inside & refused)


@triton.jit(do_not_specialize=["step", "first"])
def reconstruct_scalar(
    m, keys, table, numbers, step, out, flags, first, count, layered: tl.constexpr, lanes: tl.constexpr
):
    """Fills out with decoded values on the public grid; a flag where a point lies outside the range of the format."""
    client = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    at = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = at < count
    q = tl.load(m + client * count + at, mask=inside, other=0).to(tl.int64)
    b, d = widths_and_dithers(
        load_key(keys, client), (first >> 3) + block, table, tl.load(numbers + SCALE), step, layered, lanes
    )
    outside = tl.abs(q.to(tl.float64) * b.to(tl.float64)) >= FURTHEST
    value = grid_value(q * b + d, tl.load(numbers + GRID))
    tl.store(out + client * count + at, value.to(out.dtype.element_ty), mask=inside)
    tl.store(flags + at * 0, 1, mask=inside & outside)
