"""The entropy coder in one dimension in Triton: a lane codes a block, or decodes one, from what was staged of it.

A block is coded in segments: `scalar_stage` fills the stage for some coordinates of every lane, `walk_lanes` walks
through them, and `scalar_state` keeps what the next segment goes on with. A lane's chain of decisions is what takes the
time, so nothing else is on it: words are read a coordinate ahead, width and dither only where k is not zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.format import row_period
from cepam.kernels.format import scalar_contexts as contexts
from cepam.kernels.triton.layers import (
    PER_UNIT,
    first_of,
    lanes_of,
    load_place,
    load_value,
    own_lanes,
    units_of,
    values_from,
)
from cepam.kernels.triton.range_coder import Stream, any_of, finish, start_decoder, start_encoder
from cepam.kernels.triton.scalar_model import (
    LOCAL,
    OCTAVE,
    TICKS,
    Jump,
    KnownOdds,
    code_coordinate,
    code_header,
    contexts_of,
    find_odds,
    flat_contexts,
    follow,
    forward,
    log,
    predict,
    unpack_flat,
)
from cepam.kernels.triton.scalar_stage import (
    BUSY,
    COLUMN,
    DITHER_FIELD,
    HEADER,
    JUMP,
    MARGINS,
    SIZE,
    WIDTH,
    begin_block,
    fields_of,
    find_coder,
    find_scales,
    find_stream,
    keep_coder,
    keep_scales,
    load_state,
    state_of,
)

SCALAR_CONTEXTS, NOTHING = tl.constexpr(contexts.CONTEXTS), tl.constexpr(contexts.NOTHING)
FLAT_CONTEXTS = tl.constexpr(len(flat_contexts(contexts.load_tables()[0])))
SHARED_BLOCKS = tl.constexpr(row_period.SHARED_BLOCKS)
UNSIGNED = tl.constexpr((1 << 63) - 1)


class ModelMemory(NamedTuple):
    """What the model reads and writes in memory: odds and the row above of every lane, and the table of means."""

    odds: Any
    column: Any
    means: Any


@triton.jit(do_not_specialize=["room"], do_not_specialize_on_alignment=["headers"])
def begin_encoding(headers, state, slots, place, room, lanes: tl.constexpr):
    """The first state of a wave of encoders, their headers written to slots of `room` words."""
    mine, place = own_lanes(lanes), load_place(place)
    lane, client, block, size = lanes_of(place, 1, mine)
    header = tl.load(headers + lane, mask=size > 0, other=0)
    start = mine.to(tl.int64) * room
    coder, _ = code_header(start_encoder(size * 0), Stream(slots + start, room), header, size > 0, 18, False)
    block, stream = (first_of(place, 1, client, block), size), (start, size * 0 + room)
    begin_block(state_of(state, tl.arange(0, lanes), lanes), coder, header, block, stream, lanes)


@triton.jit(do_not_specialize_on_alignment=["data", "starts", "lengths"])
def begin_decoding(data, starts, lengths, state, place, flags, lanes: tl.constexpr):
    """The first state of a wave of decoders, their headers read; flags[1] gets the largest row period of all waves."""
    place = load_place(place)
    lane, client, block, size = lanes_of(place, 1, own_lanes(lanes))
    live = size > 0
    start, room = tl.load(starts + lane, mask=live, other=0), tl.load(lengths + lane, mask=live, other=0)
    stream = Stream(data + start, room)
    coder, header = code_header(start_decoder(stream, live), stream, size * 0, live, 18, True)
    # A block that says "nothing" has no row period, whatever its plain bits were.
    header = tl.where(live & ((header >> 11) != NOTHING), header, NOTHING << 11)
    tl.atomic_max(flags + 1, tl.max(header & 2047, 0))
    block = (first_of(place, 1, client, block), size)
    begin_block(state_of(state, tl.arange(0, lanes), lanes), coder, header, block, (start, room), lanes)


@triton.jit
def read_staged(here, field, decoding: tl.constexpr):
    """(margins, k) of a staged coordinate; a decoder does not know k."""
    margins = tl.load(here + MARGINS * field)
    k = tl.zeros_like(margins)
    if not decoding:
        k = tl.load(here + JUMP * field)
    return margins, k


@triton.jit(do_not_specialize=["columns", "first", "rows"], do_not_specialize_on_alignment=["data"])
def walk_lanes(data, stage, state, memory, columns, first, rows, lanes: tl.constexpr, decoding: tl.constexpr):
    """Codes the staged coordinates of a wave's lanes, whatever their layouts, or puts the k that was read on the
    stage."""
    program, own = tl.program_id(0).to(tl.int64) * lanes, tl.arange(0, lanes)
    odds, column = memory.odds + program * SCALAR_CONTEXTS + own, memory.column + program * columns + own
    state, field = state_of(state, own, lanes), rows.to(tl.int64) * lanes
    coder, scales, stream = find_coder(state, lanes), find_scales(state, lanes), find_stream(state, data, lanes)
    place, busy = load_state(state, COLUMN, lanes), load_state(state, BUSY, lanes)
    header, size = load_state(state, HEADER, lanes), load_state(state, SIZE, lanes)
    staged = stage + program * rows * fields_of(decoding, False) + own
    scale, period = header >> 11, header & 2047
    anchor, shift = (scale & 1) * 128 + TICKS * OCTAVE, (scale >> 1) - TICKS
    rowed, size, i = any_of(period > LOCAL), tl.where(scale == NOTHING, 0, size), 0
    margins, k = read_staged(staged, field, decoding)
    while i < rows:
        here = staged + i * lanes
        next_margins, next_k = read_staged(staged + tl.minimum(i + 1, rows - 1) * lanes, field, decoding)
        active, rise = first + i < size, (margins >> 48) == 1
        behind = active & (period > LOCAL)
        above = anchor
        if rowed:
            seen = behind & (first + i >= period)
            above = tl.where(seen, tl.load(column + place * lanes, mask=seen, other=0).to(tl.int32), anchor)
        z, level = predict(scales, above, anchor, period, rise)
        contexts, skip = contexts_of(margins, z, level, shift)
        known = KnownOdds(contexts, find_odds(odds, contexts, active, lanes))
        coder, k, _odds = code_coordinate(coder, stream, odds, Jump(k, rise, skip), known, active, lanes, decoding)
        places = (here + WIDTH * field, here + DITHER_FIELD * field)
        scales, over = follow(scales, memory.means, above, k, places, margins, contexts[0], (z, shift), active)
        tl.store(column + place * lanes, over.to(tl.int16), mask=behind)
        place = tl.where(place + 1 == period, 0, place + behind.to(tl.int32))
        if decoding:
            tl.store(here + MARGINS * field, k)
        else:
            busy = busy | (k != 0).to(tl.int32)
        margins, k, i = next_margins, next_k, i + 1
    keep_coder(state, coder, lanes)
    keep_scales(state, scales, place, busy, lanes)


@triton.jit(do_not_specialize=["first", "rows"], do_not_specialize_on_alignment=["data"])
def walk_flat(data, stage, state, odds, first, rows, lanes: tl.constexpr, decoding: tl.constexpr):
    """`walk_lanes` where no layout has memory: contexts were staged, and the next coordinate's odds are read while this
    one is coded. The stage holds two coordinates more than `rows`."""
    program, own = tl.program_id(0).to(tl.int64) * lanes, tl.arange(0, lanes)
    odds, state, field = odds + program * FLAT_CONTEXTS + own, state_of(state, own, lanes), rows.to(tl.int64) * lanes
    coder, stream, busy = find_coder(state, lanes), find_stream(state, data, lanes), load_state(state, BUSY, lanes)
    here = stage + program * rows * fields_of(decoding, True) + own
    told = load_state(state, HEADER, lanes) >> 11 != NOTHING
    i, left = 0, tl.minimum(tl.where(told, load_state(state, SIZE, lanes), 0) - first, rows)
    coded, next_coded = tl.load(here), tl.load(here + lanes)
    k, next_k = coded * 0, coded * 0
    if not decoding:
        k, next_k = tl.load(here + field), tl.load(here + field + lanes)
    q = find_odds(odds, unpack_flat(coded), left > 0, lanes)
    while i < rows:
        far_coded, far_k = tl.load(here + 2 * lanes), next_k
        if not decoding:
            far_k = tl.load(here + field + 2 * lanes)
        contexts, next_contexts, more = unpack_flat(coded), unpack_flat(next_coded), (coded >> 36).to(tl.int32)
        next_q = find_odds(odds, next_contexts, i + 1 < left, lanes)
        jump, known = Jump(k, more >= 64, more & 63), KnownOdds(contexts, q)
        coder, k, after = code_coordinate(coder, stream, odds, jump, known, i < left, lanes, decoding)
        if decoding:
            tl.store(here, k)
        else:
            busy = busy | (k != 0).to(tl.int32)
        q = forward(next_contexts, next_q, contexts, after)
        coded, k, next_coded, next_k = next_coded, next_k, far_coded, far_k
        here, i = here + lanes, i + 1
    keep_coder(state, coder, lanes)
    tl.store(state + BUSY * lanes, busy.to(tl.int64))


@triton.jit(do_not_specialize_on_alignment=["lengths"])
def finish_encoding(state, slots, lengths, lanes: tl.constexpr):
    """Writes the ends of a wave's streams to their slots, and their bytes to `lengths`."""
    state = state_of(state, tl.arange(0, lanes), lanes)
    coder, busy, size = find_coder(state, lanes), load_state(state, BUSY, lanes), load_state(state, SIZE, lanes)
    ended = finish(coder, find_stream(state, slots, lanes), busy > 0) * busy
    tl.store(lengths + own_lanes(lanes), ended, mask=size > 0)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["x"])
def measure_scales(x, numbers, periods, headers, most, place, n, chunk: tl.constexpr):
    """Each block's scale code, half octaves of the mean of |X| (1..126), with the zeros that fill up a row of n; in one
    dimension before its group's row period. `most` gets the bits of the largest |x|, with which NaN counts as larger
    than all, and the largest scale and period."""
    place = load_place(place)
    lane, client, block, size = lanes_of(place, n, tl.program_id(0))
    total, largest = tl.zeros((chunk,), tl.int64), tl.zeros((chunk,), tl.int64)
    x, begin = values_from(x, place.double, first_of(place, n, client, block)), 0
    while begin < size:
        at = begin + tl.arange(0, chunk)
        value = load_value(x, place.double, at, at < size)
        units = units_of(value, tl.load(numbers + PER_UNIT))
        total += tl.minimum(tl.abs(units), 1 << 48)
        largest = tl.maximum(largest, value.to(tl.int64, bitcast=True) & UNSIGNED)
        begin += chunk
    scale = (log(tl.sum(total, 0) // ((size + n - 1) // n * n)) + 64) >> 7
    scale = tl.minimum(tl.maximum(scale, 1), NOTHING - 1)
    tl.atomic_max(most, tl.max(largest, 0))
    tl.atomic_max(most + 1, scale)
    if n == 1:
        groups = (place.blocks + SHARED_BLOCKS - 1) // SHARED_BLOCKS
        period = tl.load(periods + client * groups + block // SHARED_BLOCKS)
        tl.atomic_max(most + 2, period)
        scale = scale << 11 | period
    tl.store(headers + lane, scale)
