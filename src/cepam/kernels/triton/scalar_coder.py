"""The entropy coder in one dimension in Triton: a lane quantizes and codes a block, or decodes and reconstructs one.

A lane draws eight widths and dithers at a time from its own keystream blocks, puts them with what follows from them
into `stage`, a few kilobytes that stay in the cache, and then walks through those eight coordinates. A program must
have as many threads as lanes: then a lane reads back only what its own thread wrote, and no barrier is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.model import scalar_contexts as contexts
from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, stream_words
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    SCALE,
    floor_divide,
    grid_value,
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

STAGED = 4
CONTEXTS, NOTHING = tl.constexpr(contexts.CONTEXTS), tl.constexpr(contexts.NOTHING)
_WIDTH, _DITHER, _MARGINS, _JUMP = (tl.constexpr(8 * i) for i in range(STAGED))


@triton.jit
def stage_group(
    stage, x, left, key, block, table, numbers, step, layered: tl.constexpr, lanes: tl.constexpr,
    decoding: tl.constexpr,
):  # fmt: skip
    """Writes width, dither, margins and (encoding) k of the next eight coordinates; `left` of them are the lane's."""
    stream = tl.full((), LATENT_STREAM + 1, tl.int64)
    dithers = stream_words(key, stream, block, ROUNDS)
    if layered:
        latents = stream_words(key, stream - 1, block, ROUNDS)
    for i in tl.static_range(8):
        if layered:
            b = width_of_word(latents[i], table, tl.load(numbers + SCALE))
        else:
            b = tl.zeros_like(block) + step
        d = tl.umulhi(dithers[i], b.to(tl.uint64)).to(tl.int64)
        tl.store(stage + (_WIDTH + i) * lanes, b)
        tl.store(stage + (_DITHER + i) * lanes, d)
        tl.store(stage + (_MARGINS + i) * lanes, measure_margins(b, d))
        if not decoding:
            value = tl.load(x + i, mask=i < left, other=0.0)
            m = floor_divide(units_of(value, tl.load(numbers + PER_UNIT)) - d + (b >> 1), b)
            tl.store(stage + (_JUMP + i) * lanes, m + (d > (b >> 1)).to(tl.int64))


@triton.jit
def walk_lanes(
    low, span, at, word, data, room, x, flags, header, key, block, table, numbers, step, means, odds, column, stage,
    count, live, layered: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr,
):  # fmt: skip
    """Codes the first `count` coordinates of each live lane, and fills x when decoding; the coder's state, and whether
    some k was not zero."""
    scale, period = header >> 11, header & 2047
    anchor = (scale & 1) * 128 + TICKS * OCTAVE
    sized = power(anchor).to(tl.int64)
    shift, signed, across = (scale >> 1) - TICKS, tl.zeros_like(sized), sized
    place, busy = tl.zeros_like(scale), tl.zeros_like(scale)
    begin, end = 0, tl.max(count, 0)
    while begin < end:
        stage_group(
            stage, x + begin, count - begin, key, block + (begin >> 3), table, numbers, step, layered, lanes, decoding
        )
        for i in range(8):
            active = live & (begin + i < count)
            rows = active & (period > LOCAL)
            b = tl.load(stage + (_WIDTH + i) * lanes)
            d = tl.load(stage + (_DITHER + i) * lanes)
            margins = tl.load(stage + (_MARGINS + i) * lanes)
            k = tl.zeros_like(b)
            if not decoding:
                k = tl.load(stage + (_JUMP + i) * lanes)
            above = tl.load(column + place * lanes, mask=rows & (begin + i >= period), other=0).to(tl.int32)
            above = tl.where(begin + i >= period, above, anchor)
            above = tl.where(rows, above, anchor)
            low, span, at, word, sized, signed, across, k, over = code_coordinate(
                low, span, at, word, sized, signed, across, data, room, odds, means, above, k, b, d, margins, anchor,
                shift, period, active, lanes, decoding,
            )  # fmt: skip
            tl.store(column + place * lanes, over.to(tl.int16), mask=rows)
            place = tl.where(place + 1 == period, 0, place + rows.to(tl.int32))
            if decoding:
                put_value(x + begin + i, flags, k - (d > (b >> 1)).to(tl.int64), b, d, numbers, begin + i < count)
            else:
                busy = busy | (k != 0).to(tl.int32)
        begin += 8
    return low, span, at, word, busy


@triton.jit
def put_value(x, flags, m, b, d, numbers, inside):
    """Writes decoded values on the public grid; a flag where a point lies outside the range of the format."""
    outside = tl.abs(m.to(tl.float64) * b.to(tl.float64)) >= FURTHEST
    tl.store(x, grid_value(m * b + d, tl.load(numbers + GRID)).to(x.dtype.element_ty), mask=inside)
    tl.store(flags + m * 0, 1, mask=inside & outside)


@triton.jit
def lanes_of(begin, total, count, blocks, length, lanes: tl.constexpr):
    """(lane in the wave, lane in the batch, client, block of the client, coordinates), one lane for each block."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane = mine.to(tl.int64) + begin
    inside = lane < total
    client = tl.where(inside, lane // blocks, 0)
    block = tl.where(inside, lane % blocks, 0)
    return mine, lane, client, block, tl.where(inside, tl.minimum(count - block * length, length), 0).to(tl.int32)


@triton.jit
def pieces_of(odds, column, stage, columns, lanes: tl.constexpr):
    """This program's own working memory, at this thread's lane."""
    program, lane = tl.program_id(0).to(tl.int64) * lanes, tl.arange(0, lanes)
    return odds + program * CONTEXTS + lane, column + program * columns + lane, stage + program * 32 + lane


@triton.jit(do_not_specialize=["step", "begin", "total", "count", "blocks", "length", "columns", "room"])
def encode_lanes(
    x, keys, table, numbers, step, means, headers, odds, column, stage, slots, lengths, begin, total, count, blocks,
    length, columns, room, layered: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Codes a wave of blocks from lane number `begin` on into slots of `room` words; `lengths` gets their bytes."""
    mine, lane, client, block, size = lanes_of(begin, total, count, blocks, length, lanes)
    odds, column, stage = pieces_of(odds, column, stage, columns, lanes)
    live = size > 0
    header = tl.load(headers + lane, mask=live, other=0)
    data = slots + mine.to(tl.int64) * room
    low = tl.zeros_like(lane).to(tl.uint64)
    at, word = tl.zeros_like(size), tl.zeros_like(size).to(tl.uint32)
    low, span, at, word, _ = code_header(low, low - 1, at, word, data, room, header, live, False)
    low, span, at, word, busy = walk_lanes(
        low, span, at, word, data, room, x + client * count + block * length, lengths, header, load_key(keys, client),
        block * (length >> 3), table, numbers, step, means, odds, column, stage, size, live, layered, lanes, False,
    )  # fmt: skip
    tl.store(lengths + mine, finish(data, low, span, at, word, room, busy > 0) * busy, mask=live)


@triton.jit(do_not_specialize=["step", "begin", "total", "count", "blocks", "length", "columns"])
def decode_lanes(
    x, keys, table, numbers, step, means, data, starts, lengths, odds, column, stage, flags, begin, total, count,
    blocks, length, columns, layered: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Decodes a wave of blocks from lane number `begin` on into x."""
    _, lane, client, block, size = lanes_of(begin, total, count, blocks, length, lanes)
    odds, column, stage = pieces_of(odds, column, stage, columns, lanes)
    live = size > 0
    data = data + tl.load(starts + lane, mask=live, other=0)
    room = tl.load(lengths + lane, mask=live, other=0)
    low, span, at, word = start_decoder(data, room, live)
    low, span, at, word, header = code_header(low, span, at, word, data, room, size * 0, live, True)
    live = live & ((header >> 11) != NOTHING)
    walk_lanes(
        low, span, at, word, data, room, x + client * count + block * length, flags, header, load_key(keys, client),
        block * (length >> 3), table, numbers, step, means, odds, column, stage, size, live, layered, lanes, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count", "blocks", "length"])
def measure_scales(x, numbers, scales, count, blocks, length, chunk: tl.constexpr):
    """Each block's scale code: half octaves of the mean of |X| (1..126)."""
    lane = tl.program_id(0).to(tl.int64)
    first = (lane % blocks) * length
    size = tl.minimum(count - first, length)
    total = tl.zeros((chunk,), tl.int64)
    begin = 0
    while begin < size:
        at = begin + tl.arange(0, chunk)
        value = tl.load(x + (lane // blocks) * count + first + at, mask=at < size, other=0.0)
        total += tl.minimum(tl.abs(units_of(value, tl.load(numbers + PER_UNIT))), 1 << 48)
        begin += chunk
    scale = (log(tl.sum(total, 0) // size) + 64) >> 7
    tl.store(scales + lane, tl.minimum(tl.maximum(scale, 1), NOTHING - 1))
