"""Widths, dithers and quotients in one dimension in Triton, before they are coded and after: all coordinates at once.

What a coordinate's code needs and does not depend on other coordinates is put on the `stage`, a 64-bit word for each
field: [program of the coder][field][coordinate][lane], so that the lanes of a coder read next to each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, side_by_side, stream_words
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    SCALE,
    floor_divide,
    grid_value,
    load_value,
    store_value,
    units_of,
    width_of_word,
)
from cepam.kernels.triton.scalar_model import measure_margins, pack_flat

DECODED_FIELDS, CODED_FIELDS, FLAT_FIELDS = 3, 4, 2
"""Fields of the stage: margins, width, dither and, for an encoder, k; a decoder puts k where the margins stood. Where
no layout has memory, contexts stand in the place of margins, and for an encoder k in that of width and dither."""
MARGINS, WIDTH, DITHER_FIELD, JUMP = (tl.constexpr(i) for i in range(4))
TILE = 128
"""Groups of eight coordinates that a program stages, of all lanes of a program of the coder."""


@triton.jit
def lanes_of(begin, total, count, blocks, length, mine):
    """(lane in the batch, client, block of the client, coordinates) of lanes of the wave, one lane for each block."""
    # A message has at most 2^27 blocks: 32 bits are enough, and 64-bit quotients are slow.
    lane = mine + begin
    inside = lane < total
    client = tl.where(inside, lane // blocks, 0)
    block = tl.where(inside, lane - client * blocks, 0).to(tl.int64)
    size = tl.where(inside, tl.minimum(count - block * length, length), 0).to(tl.int32)
    return lane.to(tl.int64), client.to(tl.int64), block, size


@triton.jit
def tile_of(stage, rows, fields, lanes, tile: tl.constexpr):
    """(lanes of the wave, groups of eight coordinates, stage): a program's tile of lanes and groups."""
    each = tl.arange(0, tile)
    eight = tl.program_id(1) * (tile // lanes) + each // lanes
    base = tl.program_id(0).to(tl.int64) * fields * rows * lanes
    at = stage + base + (eight[:, None] * 8 + tl.arange(0, 8)[None, :]) * lanes + (each % lanes)[:, None]
    return tl.program_id(0) * lanes + each % lanes, eight, at


@triton.jit(
    do_not_specialize=["double", "step", "begin", "total", "count", "blocks", "length", "first", "rows", "lanes"],
    do_not_specialize_on_alignment=["x", "wide", "headers"],
)
def fill_stage(
    x, wide, double, keys, table, numbers, step, headers, stage, begin, total, count, blocks, length, first, rows,
    lanes, layered: tl.constexpr, decoding: tl.constexpr, flat: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Stages coordinates `first` to before `first + rows` of each lane's block; `headers` are those of the wave."""
    fields: tl.constexpr = 3 if decoding else (2 if flat else 4)
    mine, eight, at = tile_of(stage, rows, fields, lanes, tile)
    _, client, block, size = lanes_of(begin, total, count, blocks, length, mine)
    number = block * (length >> 3) + (first >> 3) + eight
    key, latent = load_key(keys, client), tl.full((), LATENT_STREAM, tl.int64)
    if layered:
        word = side_by_side(stream_words(key, latent, number, ROUNDS), tile)
        b = width_of_word(word, table, tl.load(numbers + SCALE))
    else:
        b = tl.zeros((tile, 8), tl.int64) + step
    word = side_by_side(stream_words(key, latent + 1, number, ROUNDS), tile)
    d = tl.umulhi(word, b.to(tl.uint64)).to(tl.int64)
    field = rows.to(tl.int64) * lanes
    # The last program may reach over the end of the stage.
    fits = (eight * 8 < rows)[:, None] & (b >= 0)
    margins = measure_margins(b, d)
    if flat:
        margins = pack_flat(margins, (tl.load(headers + mine, mask=size > 0, other=0) >> 11)[:, None])
    tl.store(at + MARGINS * field, margins, mask=fits)
    if decoding or not flat:
        tl.store(at + WIDTH * field, b, mask=fits)
        tl.store(at + DITHER_FIELD * field, d, mask=fits)
    if not decoding:
        place = first + eight[:, None] * 8 + tl.arange(0, 8)[None, :]
        inside = fits & (place < size[:, None])
        value = load_value(x, wide, double, (client * count + block * length)[:, None] + place, inside)
        m = floor_divide(units_of(value, tl.load(numbers + PER_UNIT)) - d + (b >> 1), b)
        tl.store(at + (fields - 1) * field, m + (d > (b >> 1)).to(tl.int64), mask=fits)


@triton.jit(
    do_not_specialize=["double", "begin", "total", "count", "blocks", "length", "first", "rows"],
    do_not_specialize_on_alignment=["x", "wide"],
)
def put_values(
    x, wide, double, numbers, stage, flags, begin, total, count, blocks, length, first, rows, lanes: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Writes decoded values on the public grid; a flag where a point lies outside the range of the format.

    A tile is read with lanes next to each other and written with coordinates next to each other.
    """
    lane = tl.arange(0, lanes)
    _, client, block, size = lanes_of(begin, total, count, blocks, length, tl.program_id(0) * lanes + lane)
    row, field = tl.program_id(1) * (tile // lanes) + tl.arange(0, tile // lanes), rows.to(tl.int64) * lanes
    at = stage + tl.program_id(0).to(tl.int64) * 3 * field + row[:, None] * lanes + lane[None, :]
    inside = (row < rows)[:, None] & ((first + row)[:, None] < size[None, :])
    k = tl.load(at + MARGINS * field, mask=inside, other=0)
    b, d = tl.load(at + WIDTH * field, mask=inside, other=1), tl.load(at + DITHER_FIELD * field, mask=inside, other=0)
    m = k - (d > (b >> 1)).to(tl.int64)
    outside = tl.abs(m.to(tl.float64) * b.to(tl.float64)) >= FURTHEST
    where = (client * count + block * length)[None, :] + (first + row)[:, None]
    store_value(x, wide, double, where, grid_value(m * b + d, tl.load(numbers + GRID)), inside)
    tl.store(flags + m * 0, 1, mask=inside & outside)
