"""Staging in one dimension in Triton: widths, dithers and quotients, and what a lane keeps between segments."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from cepam.kernels.triton.keystream import eight_times, in_rows, load_key, number_eight
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    draw_cells,
    grid_value,
    lanes_of,
    load_place,
    load_value,
    round_quotient,
    store_value,
    units_of,
    values_from,
)
from cepam.kernels.triton.range_coder import Coder, Stream
from cepam.kernels.triton.scalar_model import OCTAVE, TICKS, Scales, measure_margins, pack_flat, power

LOW, SPAN, AT, WORD, SIZED, SIGNED, ACROSS, COLUMN, BUSY, HEADER, FIRST, SIZE, START, ROOM = (
    tl.constexpr(i) for i in range(14)
)
STATE = 14
"""Words of a lane: its coder, its model, what it codes (header, first coordinate, how many) and where (`Stream`)."""
_STATE = tl.constexpr(STATE)


@triton.jit
def state_of(state, own, lanes):
    """Lanes `own` in the state of this program."""
    return state + tl.program_id(0).to(tl.int64) * lanes * _STATE + own


@triton.jit
def load_state(state, word: tl.constexpr, lanes):
    """A word of each lane's state that has 32 bits."""
    return tl.load(state + word * lanes).to(tl.int32)


@triton.jit
def keep_coder(state, coder, lanes: tl.constexpr):
    """Writes the range coder's state of each lane."""
    tl.store(state + LOW * lanes, coder.low.to(tl.int64, bitcast=True))
    tl.store(state + SPAN * lanes, coder.span.to(tl.int64, bitcast=True))
    tl.store(state + AT * lanes, coder.at.to(tl.int64))
    tl.store(state + WORD * lanes, coder.word.to(tl.int64))


@triton.jit
def find_coder(state, lanes: tl.constexpr):
    """What `keep_coder` wrote."""
    low, span = tl.load(state + LOW * lanes), tl.load(state + SPAN * lanes)
    at, word = load_state(state, AT, lanes), tl.load(state + WORD * lanes).to(tl.uint32)
    return Coder(low.to(tl.uint64, bitcast=True), span.to(tl.uint64, bitcast=True), at, word)


@triton.jit
def keep_scales(state, scales, column, busy, lanes: tl.constexpr):
    """Writes the model's state of each lane: scales, column of its row, whether some k was not zero."""
    tl.store(state + SIZED * lanes, scales.sized)
    tl.store(state + SIGNED * lanes, scales.signed)
    tl.store(state + ACROSS * lanes, scales.across)
    tl.store(state + COLUMN * lanes, column.to(tl.int64))
    tl.store(state + BUSY * lanes, busy.to(tl.int64))


@triton.jit
def find_scales(state, lanes: tl.constexpr):
    """The scales that `keep_scales` wrote."""
    sized, signed = tl.load(state + SIZED * lanes), tl.load(state + SIGNED * lanes)
    return Scales(sized, signed, tl.load(state + ACROSS * lanes))


@triton.jit
def find_stream(state, data, lanes: tl.constexpr):
    """Where each lane reads its words, or writes them."""
    return Stream(data + tl.load(state + START * lanes), load_state(state, ROOM, lanes))


@triton.jit
def begin_block(state, coder, header, block, stream, lanes: tl.constexpr):
    """Writes each lane's state before its first coordinate; of a block it takes where it begins among all coordinates
    and how many it has, of a stream where its words start and their room."""
    sized = power(((header >> 11) & 1) * 128 + TICKS * OCTAVE).to(tl.int64)
    keep_coder(state, coder, lanes)
    keep_scales(state, Scales(sized, sized * 0, sized), header * 0, header * 0, lanes)
    tl.store(state + HEADER * lanes, header.to(tl.int64))
    tl.store(state + FIRST * lanes, block[0])
    tl.store(state + SIZE * lanes, block[1].to(tl.int64))
    tl.store(state + START * lanes, stream[0])
    tl.store(state + ROOM * lanes, stream[1].to(tl.int64))


MARGINS, WIDTH, DITHER_FIELD, JUMP = (tl.constexpr(i) for i in range(4))
TILE = 128
"""Groups of eight coordinates that a program stages, of all lanes of a program of the coder."""
_TILE = tl.constexpr(TILE)


class Staged(NamedTuple):
    """What a stage is filled for: scales from latents or one step, which way, and whether no layout has memory."""

    layered: bool
    decoding: bool
    flat: bool


@triton.constexpr_function
def fields_of(decoding, flat):
    """How many fields a stage has: margins, width, dither and, for an encoder, k; a decoder puts k where the margins
    stood. Where no layout has memory, contexts stand in the place of margins, and for an encoder k in that of width and
    dither."""
    return 3 if decoding else (2 if flat else 4)


@triton.jit(do_not_specialize=["first", "rows"], do_not_specialize_on_alignment=["x"])
def fill_stage(x, stage, state, draws, place, first, rows, lanes: tl.constexpr, kind: tl.constexpr):
    """Stages coordinates `first` to before `first + rows` of each lane's block, for a coder with so many lanes."""
    fields: tl.constexpr = fields_of(kind.decoding, kind.flat)
    each, number = tl.arange(0, _TILE), number_eight(_TILE)
    own, eight = each % lanes, tl.program_id(1) * (_TILE // lanes) + each // lanes
    place, state, field = load_place(place), state_of(state, own, lanes), rows.to(tl.int64) * lanes
    _, client, block, _ = lanes_of(place, 1, tl.program_id(0) * lanes + own)
    group = block * (place.per_block >> 3) + (first >> 3) + eight
    b, d = draw_cells(draws, load_key(draws.keys, client), group, kind.layered)
    stage += tl.program_id(0).to(tl.int64) * fields * field
    if not kind.decoding:
        left = tl.minimum(load_state(state, SIZE, lanes) - first, rows) - eight * 8
        there = values_from(x, place.double, eight_times(tl.load(state + FIRST * lanes) + first + eight * 8, _TILE))
        inside = number < eight_times(left, _TILE)
        units = units_of(load_value(there, place.double, number, inside), tl.load(draws.numbers + PER_UNIT))
        k = round_quotient(units - d, b) + (d > (b >> 1)).to(tl.int64)
        put_field(stage + (fields - 1) * field, k, eight, own, rows, lanes)
    margins = measure_margins(b, d)
    if kind.flat:
        margins = pack_flat(margins, eight_times(load_state(state, HEADER, lanes) >> 11, _TILE))
    put_field(stage + MARGINS * field, margins, eight, own, rows, lanes)
    if kind.decoding or not kind.flat:
        put_field(stage + WIDTH * field, b, eight, own, rows, lanes)
        put_field(stage + DITHER_FIELD * field, d, eight, own, rows, lanes)


@triton.jit
def put_field(field, value, eight, own, rows, lanes: tl.constexpr):
    """Writes a field of the stage; the last program may reach over its end."""
    if lanes == 1:
        at = eight[:, None] * 8 + tl.arange(0, 8)[None, :]
        tl.store(field + at, in_rows(value, _TILE), mask=(eight * 8 < rows)[:, None])
    else:
        at = eight_times(eight * 8 * lanes + own, _TILE) + number_eight(_TILE) * lanes
        tl.store(field + at, value, mask=eight_times(eight * 8 < rows, _TILE))


@triton.jit(do_not_specialize=["first", "rows", "double"], do_not_specialize_on_alignment=["x"])
def put_values(x, double, stage, state, numbers, flags, first, rows, lanes: tl.constexpr):
    """Writes decoded values on the public grid; a flag where a point lies outside the range of the format.

    A tile is read with lanes next to each other and written with coordinates next to each other.
    """
    tall: tl.constexpr = 8 * _TILE // lanes
    lane, field = tl.arange(0, lanes), rows.to(tl.int64) * lanes
    state, row = state_of(state, lane, lanes), tl.program_id(1) * tall + tl.arange(0, tall)
    at = stage + tl.program_id(0).to(tl.int64) * fields_of(True, False) * field + row[:, None] * lanes + lane[None, :]
    inside = (row < rows)[:, None] & ((first + row)[:, None] < load_state(state, SIZE, lanes)[None, :])
    k = tl.load(at + MARGINS * field, mask=inside, other=0)
    b, d = tl.load(at + WIDTH * field, mask=inside, other=1), tl.load(at + DITHER_FIELD * field, mask=inside, other=0)
    m = k - (d > (b >> 1)).to(tl.int64)
    outside = tl.abs(m.to(tl.float64) * b.to(tl.float64)) >= FURTHEST
    there = values_from(x, double, tl.load(state + FIRST * lanes) + first)[None, :]
    store_value(there, double, row[:, None], grid_value(m * b + d, tl.load(numbers + GRID)), inside)
    tl.store(flags + m * 0, 1, mask=inside & outside)
