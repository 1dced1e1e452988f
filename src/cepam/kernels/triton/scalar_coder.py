"""The entropy coder in one dimension in Triton: a lane quantizes and codes a block, or decodes and reconstructs one.

A lane draws eight widths and dithers at a time from its own keystream blocks, puts them with what follows from them
into `stage`, a few kilobytes that stay in the cache, and then walks through those eight coordinates. A program must
have as many threads as lanes: then a lane reads back only what its own thread wrote, and no barrier is needed.

What fills the stage is not inlined: Triton looks at all that hangs together with each access of memory, over and over,
and and its time grows steeply with the length of a function. Such functions take scalars only: lanes meet in memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.model import scalar_contexts as contexts
from cepam.kernels.triton.keystream import LATENT_STREAM, ask_words, stage_words
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
from cepam.kernels.triton.range_coder import finish, start_decoder
from cepam.kernels.triton.scalar_model import (
    LOCAL,
    OCTAVE,
    TICKS,
    code_coordinate,
    code_header,
    log,
    measure_margins,
    power,
)

CONTEXTS, NOTHING = tl.constexpr(contexts.CONTEXTS), tl.constexpr(contexts.NOTHING)
STAGED = 3 + 4 * 8
_STAGED = tl.constexpr(STAGED)
_WIDTH, _DITHER, _MARGINS, _JUMP = (tl.constexpr(3 + 8 * i) for i in range(4))


@triton.jit
def lanes_of(begin, total, count, blocks, length, lanes: tl.constexpr):
    """(lane in the wave, lane in the batch, client, block of the client, coordinates), one lane for each block."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane = mine.to(tl.int64) + begin
    inside = lane < total
    client = tl.where(inside, lane // blocks, 0)
    block = tl.where(inside, lane % blocks, 0)
    return mine, lane, client, block, tl.where(inside, tl.minimum(count - block * length, length), 0).to(tl.int32)


@triton.jit(noinline=True)
def stage_coordinate(
    stage, x, wide, double, place, table, numbers, step, begin, total, count, blocks, length, layered: tl.constexpr,
    lanes: tl.constexpr, decoding: tl.constexpr,
):  # fmt: skip
    """Turns the keystream words of coordinate `place` of each lane into width, dither, margins and (encoding) k."""
    stage += tl.arange(0, lanes) + (place & 7) * lanes
    if layered:
        latent = tl.load(stage + _WIDTH * lanes).to(tl.uint64, bitcast=True)
        b = width_of_word(latent, table, tl.load(numbers + SCALE))
    else:
        b = tl.zeros((lanes,), tl.int64) + step
    d = tl.umulhi(tl.load(stage + _DITHER * lanes).to(tl.uint64, bitcast=True), b.to(tl.uint64)).to(tl.int64)
    tl.store(stage + _WIDTH * lanes, b)
    tl.store(stage + _DITHER * lanes, d)
    tl.store(stage + _MARGINS * lanes, measure_margins(b, d))
    if not decoding:
        _, _, client, block, size = lanes_of(begin, total, count, blocks, length, lanes)
        value = load_value(x, wide, double, client * count + block * length + place, place < size)
        m = floor_divide(units_of(value, tl.load(numbers + PER_UNIT)) - d + (b >> 1), b)
        tl.store(stage + _JUMP * lanes, m + (d > (b >> 1)).to(tl.int64))


@triton.jit
def stage_group(
    stage, x, wide, double, place, keys, table, numbers, step, begin, total, count, blocks, length,
    layered: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr,
):  # fmt: skip
    """Writes width, dither, margins and (encoding) k of the eight coordinates from `place` on of each lane."""
    _, _, client, block, _ = lanes_of(begin, total, count, blocks, length, lanes)
    stream, eight = tl.zeros_like(block) + LATENT_STREAM, block * (length >> 3) + (place >> 3)
    ask_words(stage, client, stream + 1, eight, lanes)
    stage_words(stage, stage + _DITHER * lanes, keys, lanes)
    if layered:
        ask_words(stage, client, stream, eight, lanes)
        stage_words(stage, stage + _WIDTH * lanes, keys, lanes)
    for i in range(8):
        stage_coordinate(
            stage, x, wide, double, place + i, table, numbers, step, begin, total, count, blocks, length, layered,
            lanes, decoding,
        )  # fmt: skip


@triton.jit
def walk_lanes(
    low, span, at, word, data, room, x, wide, double, flags, header, keys, table, numbers, step, means, odds, column,
    stage, begin, total, count, blocks, length, live, layered: tl.constexpr, lanes: tl.constexpr,
    decoding: tl.constexpr,
):  # fmt: skip
    """Codes the coordinates of each live lane, and fills x when decoding; the coder's state, and whether some k was
    not zero."""
    _, _, client, block, size = lanes_of(begin, total, count, blocks, length, lanes)
    scale, period, start = header >> 11, header & 2047, client * count + block * length
    anchor = (scale & 1) * 128 + TICKS * OCTAVE
    sized = power(anchor).to(tl.int64)
    shift, signed, across = (scale >> 1) - TICKS, tl.zeros_like(sized), sized
    place, busy = tl.zeros_like(scale), tl.zeros_like(scale)
    i, end = 0, tl.max(size, 0)
    while i < end:
        if (i & 7) == 0:
            stage_group(
                stage, x, wide, double, i, keys, table, numbers, step, begin, total, count, blocks, length, layered,
                lanes, decoding,
            )  # fmt: skip
        staged = stage + tl.arange(0, lanes) + (i & 7) * lanes
        active = live & (i < size)
        rows = active & (period > LOCAL)
        b = tl.load(staged + _WIDTH * lanes)
        d = tl.load(staged + _DITHER * lanes)
        margins = tl.load(staged + _MARGINS * lanes)
        k = tl.zeros_like(b)
        if not decoding:
            k = tl.load(staged + _JUMP * lanes)
        above = tl.load(column + place * lanes, mask=rows & (i >= period), other=0).to(tl.int32)
        above = tl.where(rows & (i >= period), above, anchor)
        low, span, at, word, sized, signed, across, k, over = code_coordinate(
            low, span, at, word, sized, signed, across, data, room, odds, means, above, k, b, d, margins, anchor,
            shift, period, active, lanes, decoding,
        )  # fmt: skip
        tl.store(column + place * lanes, over.to(tl.int16), mask=rows)
        place = tl.where(place + 1 == period, 0, place + rows.to(tl.int32))
        if decoding:
            put_value(x, wide, double, start + i, flags, k - (d > (b >> 1)).to(tl.int64), b, d, numbers, i < size)
        else:
            busy = busy | (k != 0).to(tl.int32)
        i += 1
    return low, span, at, word, busy


@triton.jit
def put_value(x, wide, double, at, flags, m, b, d, numbers, inside):
    """Writes decoded values on the public grid; a flag where a point lies outside the range of the format."""
    outside = tl.abs(m.to(tl.float64) * b.to(tl.float64)) >= FURTHEST
    store_value(x, wide, double, at, grid_value(m * b + d, tl.load(numbers + GRID)), inside)
    tl.store(flags + m * 0, 1, mask=inside & outside)


@triton.jit
def pieces_of(odds, column, stage, columns, lanes: tl.constexpr):
    """This program's own contexts and columns at this thread's lane, and its stage."""
    program, lane = tl.program_id(0).to(tl.int64) * lanes, tl.arange(0, lanes)
    return odds + program * CONTEXTS + lane, column + program * columns + lane, stage + program * _STAGED


@triton.jit(
    do_not_specialize=["double", "step", "begin", "total", "count", "blocks", "length", "columns", "room"],
    do_not_specialize_on_alignment=["x", "wide", "headers", "lengths"],
)
def encode_lanes(
    x, wide, double, keys, table, numbers, step, means, headers, odds, column, stage, slots, lengths, begin, total,
    count, blocks, length, columns, room, layered: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Codes a wave of blocks from lane number `begin` on into slots of `room` words; `lengths` gets their bytes."""
    mine, lane, _, _, size = lanes_of(begin, total, count, blocks, length, lanes)
    odds, column, stage = pieces_of(odds, column, stage, columns, lanes)
    live = size > 0
    header = tl.load(headers + lane, mask=live, other=0)
    data = slots + mine.to(tl.int64) * room
    low = tl.zeros_like(lane).to(tl.uint64)
    at, word = tl.zeros_like(size), tl.zeros_like(size).to(tl.uint32)
    low, span, at, word, _ = code_header(low, low - 1, at, word, data, room, header, live, 18, False)
    low, span, at, word, busy = walk_lanes(
        low, span, at, word, data, room, x, wide, double, lengths, header, keys, table, numbers, step, means, odds,
        column, stage, begin, total, count, blocks, length, live, layered, lanes, False,
    )  # fmt: skip
    tl.store(lengths + mine, finish(data, low, span, at, word, room, busy > 0) * busy, mask=live)


@triton.jit(
    do_not_specialize=["double", "step", "begin", "total", "count", "blocks", "length", "columns"],
    do_not_specialize_on_alignment=["x", "wide", "data", "starts", "lengths"],
)
def decode_lanes(
    x, wide, double, keys, table, numbers, step, means, data, starts, lengths, odds, column, stage, flags, begin,
    total, count, blocks, length, columns, layered: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Decodes a wave of blocks from lane number `begin` on into x."""
    _, lane, _, _, size = lanes_of(begin, total, count, blocks, length, lanes)
    odds, column, stage = pieces_of(odds, column, stage, columns, lanes)
    live = size > 0
    data = data + tl.load(starts + lane, mask=live, other=0)
    room = tl.load(lengths + lane, mask=live, other=0)
    low, span, at, word = start_decoder(data, room, live)
    low, span, at, word, header = code_header(low, span, at, word, data, room, size * 0, live, 18, True)
    live = live & ((header >> 11) != NOTHING)
    walk_lanes(
        low, span, at, word, data, room, x, wide, double, flags, header, keys, table, numbers, step, means, odds,
        column, stage, begin, total, count, blocks, length, live, layered, lanes, True,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["double", "count", "blocks", "length", "n"], do_not_specialize_on_alignment=["x", "wide"]
)
def measure_scales(x, wide, double, numbers, scales, count, blocks, length, n, chunk: tl.constexpr):
    """Each block's scale code: half octaves of the mean of |X| (1..126), with the zeros that fill up a row of n."""
    lane = tl.program_id(0).to(tl.int64)
    first = (lane % blocks) * length
    size = tl.minimum(count - first, length)
    total = tl.zeros((chunk,), tl.int64)
    begin = 0
    while begin < size:
        at = begin + tl.arange(0, chunk)
        value = load_value(x, wide, double, (lane // blocks) * count + first + at, at < size)
        total += tl.minimum(tl.abs(units_of(value, tl.load(numbers + PER_UNIT))), 1 << 48)
        begin += chunk
    scale = (log(tl.sum(total, 0) // ((size + n - 1) // n * n)) + 64) >> 7
    tl.store(scales + lane, tl.minimum(tl.maximum(scale, 1), NOTHING - 1))
