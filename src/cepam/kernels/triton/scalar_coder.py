"""The entropy coder in one dimension in Triton: a lane codes a block, or decodes one, from what was staged of it.

A block is coded in segments: `scalar_stage` fills the stage for some coordinates of every lane, `walk_lanes` walks
through them, and keeps in `state` what the next segment goes on with. A lane's chain of decisions is what takes the
time, so nothing else is on it: words are read a coordinate ahead, width and dither only where k is not zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.model import scalar_contexts as contexts
from cepam.kernels.triton.layers import PER_UNIT, load_value, units_of
from cepam.kernels.triton.range_coder import Coder, Stream, any_of, finish, start_decoder
from cepam.kernels.triton.scalar_model import (
    LOCAL,
    OCTAVE,
    TICKS,
    Jump,
    KnownOdds,
    Scales,
    code_coordinate,
    code_header,
    contexts_of,
    find_odds,
    flat_contexts,
    follow,
    forward,
    log,
    power,
    predict,
    unpack_flat,
)
from cepam.kernels.triton.scalar_stage import DITHER_FIELD, JUMP, MARGINS, WIDTH, lanes_of

SCALAR_CONTEXTS, NOTHING = tl.constexpr(contexts.CONTEXTS), tl.constexpr(contexts.NOTHING)
FLAT_CONTEXTS = tl.constexpr(len(flat_contexts(contexts.load_tables()[0])))
STATE = 10
"""64-bit words that a lane keeps between segments."""
_STATE = tl.constexpr(STATE)


@triton.jit
def keep_coder(state, coder, lanes: tl.constexpr):
    """Writes the range coder's state of each lane."""
    tl.store(state, coder.low.to(tl.int64, bitcast=True))
    tl.store(state + lanes, coder.span.to(tl.int64, bitcast=True))
    tl.store(state + 2 * lanes, coder.at.to(tl.int64))
    tl.store(state + 3 * lanes, coder.word.to(tl.int64))


@triton.jit
def find_coder(state, lanes: tl.constexpr):
    """What `keep_coder` wrote."""
    low, span = tl.load(state).to(tl.uint64, bitcast=True), tl.load(state + lanes).to(tl.uint64, bitcast=True)
    return Coder(low, span, tl.load(state + 2 * lanes).to(tl.int32), tl.load(state + 3 * lanes).to(tl.uint32))


@triton.jit
def keep_scales(state, scales, place, busy, header, lanes: tl.constexpr):
    """Writes the model's state of each lane."""
    tl.store(state + 4 * lanes, scales.sized)
    tl.store(state + 5 * lanes, scales.signed)
    tl.store(state + 6 * lanes, scales.across)
    tl.store(state + 7 * lanes, place.to(tl.int64))
    tl.store(state + 8 * lanes, busy.to(tl.int64))
    tl.store(state + 9 * lanes, header.to(tl.int64))


@triton.jit
def find_scales(state, lanes: tl.constexpr):
    """What `keep_scales` wrote: (scales, place, busy, header)."""
    scales = Scales(tl.load(state + 4 * lanes), tl.load(state + 5 * lanes), tl.load(state + 6 * lanes))
    place, busy = tl.load(state + 7 * lanes).to(tl.int32), tl.load(state + 8 * lanes).to(tl.int32)
    return scales, place, busy, tl.load(state + 9 * lanes).to(tl.int32)


@triton.jit
def begin_scales(state, header, lanes: tl.constexpr):
    """Writes the model's state of each lane before its first coordinate."""
    sized = power(((header >> 11) & 1) * 128 + TICKS * OCTAVE).to(tl.int64)
    keep_scales(state, Scales(sized, sized * 0, sized), header * 0, header * 0, header, lanes)


@triton.jit
def state_of(state, lanes: tl.constexpr):
    """This thread's lane in the state of this program."""
    return state + tl.program_id(0).to(tl.int64) * lanes * _STATE + tl.arange(0, lanes)


@triton.jit(
    do_not_specialize=["begin", "total", "count", "blocks", "length", "room"],
    do_not_specialize_on_alignment=["headers"],
)
def begin_encoding(headers, state, slots, begin, total, count, blocks, length, room, lanes: tl.constexpr):
    """The first state of a wave of encoders, their headers written."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane, _, _, size = lanes_of(begin, total, count, blocks, length, mine)
    live = size > 0
    header = tl.load(headers + lane, mask=live, other=0)
    low = tl.zeros_like(lane).to(tl.uint64)
    at, word = tl.zeros_like(size), tl.zeros_like(size).to(tl.uint32)
    stream, state = Stream(slots + mine.to(tl.int64) * room, room), state_of(state, lanes)
    coder, _ = code_header(Coder(low, low - 1, at, word), stream, header, live, 18, False)
    keep_coder(state, coder, lanes)
    begin_scales(state, header, lanes)


@triton.jit(
    do_not_specialize=["begin", "total", "count", "blocks", "length"],
    do_not_specialize_on_alignment=["data", "starts", "lengths", "headers"],
)
def begin_decoding(
    data, starts, lengths, headers, state, begin, total, count, blocks, length, lanes: tl.constexpr
):  # fmt: skip
    """The first state of a wave of decoders; `headers` gets what they read."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane, _, _, size = lanes_of(begin, total, count, blocks, length, mine)
    live, state = size > 0, state_of(state, lanes)
    data = data + tl.load(starts + lane, mask=live, other=0)
    stream = Stream(data, tl.load(lengths + lane, mask=live, other=0))
    coder, header = code_header(start_decoder(stream, live), stream, size * 0, live, 18, True)
    # A block that says "nothing" has no row period, whatever its plain bits were.
    header = tl.where(live & ((header >> 11) != NOTHING), header, NOTHING << 11)
    keep_coder(state, coder, lanes)
    begin_scales(state, header, lanes)
    tl.store(headers + mine, header)


@triton.jit
def stream_of(data, starts, lengths, room, lane, mine, size, decoding: tl.constexpr):
    """Where a lane of a wave reads its words, or writes them."""
    if decoding:
        data = data + tl.load(starts + lane, mask=size > 0, other=0)
        return Stream(data, tl.load(lengths + lane, mask=size > 0, other=0))
    else:
        return Stream(data + mine.to(tl.int64) * room, room)


@triton.jit(
    do_not_specialize=["begin", "total", "count", "blocks", "length", "columns", "room", "first", "rows"],
    do_not_specialize_on_alignment=["data", "starts", "lengths"],
)
def walk_lanes(
    stage, state, odds, column, means, data, starts, lengths, begin, total, count, blocks, length, columns, room, first,
    rows, lanes: tl.constexpr, decoding: tl.constexpr,
):  # fmt: skip
    """Codes the staged coordinates of a wave's lanes, whatever their layouts, or puts the k that was read on the
    stage."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane, _, _, size = lanes_of(begin, total, count, blocks, length, mine)
    program = tl.program_id(0).to(tl.int64) * lanes
    odds, column = (
        odds + program * SCALAR_CONTEXTS + tl.arange(0, lanes),
        column + program * columns + tl.arange(0, lanes),
    )
    state, field = state_of(state, lanes), rows.to(tl.int64) * lanes
    coder = find_coder(state, lanes)
    scales, place, busy, header = find_scales(state, lanes)
    stream = stream_of(data, starts, lengths, room, lane, mine, size, decoding)
    staged = stage + program * rows * (3 if decoding else 4) + tl.arange(0, lanes)
    scale, period = header >> 11, header & 2047
    anchor, shift = (scale & 1) * 128 + TICKS * OCTAVE, (scale >> 1) - TICKS
    size = tl.where(scale == NOTHING, 0, size)
    rowed = any_of(period > LOCAL)
    i, last = 0, rows - 1
    margins = tl.load(staged + MARGINS * field)
    k = tl.zeros_like(margins)
    if not decoding:
        k = tl.load(staged + JUMP * field)
    while i < rows:
        here, ahead = staged + i * lanes, tl.minimum(i + 1, last) * lanes
        next_margins = tl.load(staged + MARGINS * field + ahead)
        next_k = tl.zeros_like(next_margins)
        if not decoding:
            next_k = tl.load(staged + JUMP * field + ahead)
        active, rise = first + i < size, (margins >> 48) == 1
        behind = active & (period > LOCAL)
        above = anchor
        if rowed:
            seen = behind & (first + i >= period)
            above = tl.where(seen, tl.load(column + place * lanes, mask=seen, other=0).to(tl.int32), anchor)
        z, level = predict(scales, above, anchor, period, rise)
        contexts, skip = contexts_of(margins, z, level, shift)
        known = KnownOdds(contexts, find_odds(odds, contexts, active, lanes))
        coder, k, _odds = code_coordinate(
            coder, stream, odds, Jump(k, rise, skip), known, active, lanes, decoding
        )  # fmt: skip
        places = (here + WIDTH * field, here + DITHER_FIELD * field)
        scales, over = follow(scales, means, above, k, places, margins, contexts[0], (z, shift), active)
        tl.store(column + place * lanes, over.to(tl.int16), mask=behind)
        place = tl.where(place + 1 == period, 0, place + behind.to(tl.int32))
        if decoding:
            tl.store(here + MARGINS * field, k)
        else:
            busy = busy | (k != 0).to(tl.int32)
        margins, k = next_margins, next_k
        i += 1
    keep_coder(state, coder, lanes)
    keep_scales(state, scales, place, busy, header, lanes)


@triton.jit(
    do_not_specialize=["begin", "total", "count", "blocks", "length", "room", "first", "rows"],
    do_not_specialize_on_alignment=["data", "starts", "lengths"],
)
def walk_flat(
    stage, state, odds, data, starts, lengths, begin, total, count, blocks, length, room, first, rows,
    lanes: tl.constexpr, decoding: tl.constexpr,
):  # fmt: skip
    """`walk_lanes` where no layout has memory: contexts were staged, and the next coordinate's odds are read while this
    one is coded. The stage holds two coordinates more than `rows`."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane, _, _, size = lanes_of(begin, total, count, blocks, length, mine)
    program = tl.program_id(0).to(tl.int64) * lanes
    odds, state, field = (
        odds + program * FLAT_CONTEXTS + tl.arange(0, lanes),
        state_of(state, lanes),
        rows.to(tl.int64) * lanes,
    )
    coder = find_coder(state, lanes)
    _, _, busy, header = find_scales(state, lanes)
    stream = stream_of(data, starts, lengths, room, lane, mine, size, decoding)
    here = stage + program * rows * (3 if decoding else 2) + tl.arange(0, lanes)
    i, left = 0, tl.minimum(tl.where(header >> 11 == NOTHING, 0, size) - first, rows)
    coded, next_coded, k, next_k = tl.load(here), tl.load(here + lanes), lane * 0, lane * 0
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
    tl.store(state + 8 * lanes, busy.to(tl.int64))


@triton.jit(
    do_not_specialize=["begin", "total", "count", "blocks", "length", "room"],
    do_not_specialize_on_alignment=["lengths"],
)
def finish_encoding(state, slots, lengths, begin, total, count, blocks, length, room, lanes: tl.constexpr):
    """Writes the ends of a wave's streams to their slots of `room` words, and their bytes to `lengths`."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    _, _, _, size = lanes_of(begin, total, count, blocks, length, mine)
    state = state_of(state, lanes)
    coder = find_coder(state, lanes)
    _, _, busy, _ = find_scales(state, lanes)
    stream = Stream(slots + mine.to(tl.int64) * room, room)
    tl.store(lengths + mine, finish(coder, stream, busy > 0) * busy, mask=size > 0)


@triton.jit(
    do_not_specialize=["double", "count", "blocks", "length", "n", "groups", "shared"],
    do_not_specialize_on_alignment=["x", "wide"],
)
def measure_scales(
    x, wide, double, numbers, periods, headers, most, count, blocks, length, n, groups, shared, chunk: tl.constexpr
):  # fmt: skip
    """Each block's scale code, half octaves of the mean of |X| (1..126), with the zeros that fill up a row of n; in one
    dimension before its group's row period. `most` gets the largest scale and period."""
    lane = tl.program_id(0).to(tl.int64)
    block = lane % blocks
    first = block * length
    size = tl.minimum(count - first, length)
    total = tl.zeros((chunk,), tl.int64)
    begin = 0
    while begin < size:
        at = begin + tl.arange(0, chunk)
        value = load_value(x, wide, double, (lane // blocks) * count + first + at, at < size)
        total += tl.minimum(tl.abs(units_of(value, tl.load(numbers + PER_UNIT))), 1 << 48)
        begin += chunk
    scale = (log(tl.sum(total, 0) // ((size + n - 1) // n * n)) + 64) >> 7
    scale = tl.minimum(tl.maximum(scale, 1), NOTHING - 1)
    tl.atomic_max(most, scale)
    if n == 1:
        period = tl.load(periods + (lane // blocks) * groups + block // shared)
        tl.atomic_max(most + 1, period)
        scale = scale << 11 | period
    tl.store(headers + lane, scale)
