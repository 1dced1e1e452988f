"""The search coder in Triton: the trees of a segment and what is left to the layered quantizer, in both directions, and
the values that a decoder makes of parts.

A wave holds segments whose blocks have 2^log_size coordinates, in `stride` places each. `found` has two numbers for
every part of every size, those of the smallest parts first: J and K where the part is searched, (`HALVED`, 0) where its
halves say more, and (0, 0) where it is the layered quantizer's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.format import search
from cepam.kernels.triton.keystream import (
    LATENT_STREAM,
    ROUNDS,
    below_each_other,
    eight_times,
    load_key,
    number_eight,
    stream_words,
)
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    SCALE,
    grid_value,
    load_value,
    round_quotient,
    store_value,
    units_of,
    width_of_word,
)
from cepam.kernels.triton.range_coder import Stream, any_of, code_bit, finish, start_decoder, start_encoder
from cepam.kernels.triton.scalar_coder import NOTHING
from cepam.kernels.triton.scalar_model import code_header, log, measure_margins, pack_flat
from cepam.kernels.triton.scalar_stage import (
    DITHER_FIELD,
    HEADER,
    MARGINS,
    SIZE,
    WIDTH,
    begin_block,
    fields_of,
    load_state,
    state_of,
)

SMALLEST = tl.constexpr(search.SMALLEST)
VECTOR_BITS, PROPOSAL_BITS = tl.constexpr(search.VECTOR_BITS), tl.constexpr(search.PROPOSAL_BITS)
CONTEXT_SPLIT, CONTEXT_LAYERED = tl.constexpr(search.CONTEXT_SPLIT), tl.constexpr(search.CONTEXT_LAYERED)
CONTEXT_VECTOR, CONTEXT_PROPOSAL = tl.constexpr(search.CONTEXT_VECTOR), tl.constexpr(search.CONTEXT_PROPOSAL)
CONTEXTS, STREAM_BITS, SEGMENT = (
    tl.constexpr(value) for value in (search.CONTEXTS, search.STREAM_BITS, search.SEGMENT)
)
LATENTS, DITHERS, SIGNS, PROPOSALS = (
    tl.constexpr(kind) for kind in (search.LATENTS, search.DITHERS, search.SIGNS, search.PROPOSALS)
)
EVEN, HALVED = tl.constexpr(32768), tl.constexpr(-1)
CLIENT, NUMBER, COUNT, BLOCKS, CLASS, START, LENGTH, LIST = (tl.constexpr(i) for i in range(8))
"""Of a segment: its client, its number, its coordinates and blocks, its energy class, where its stream begins and how
many bytes it has, and where its coordinates that are left begin in their list (-1: all are left)."""
ROW = tl.constexpr(8)
TILE = 128


@triton.jit
def entry_of(segment, part, size, many, stride):
    """Where a part of 2^size coordinates stands in `found`."""
    return many * ((stride >> 4) - (stride >> (size - 1))) + segment * (stride >> size) + part


@triton.jit
def number_of_stream(number, size, part, vector, kind):
    """`format.search.stream_number`."""
    part = ((number << 4 | size) << STREAM_BITS) | part
    return (((part << STREAM_BITS) | vector) << 2) | kind


@triton.jit
def code_number(coder, stream, odds, value, active, bits: tl.constexpr, decoding: tl.constexpr):
    """A number from 1 on of at most so many bits: its length in unary, then the rest."""
    length, going = active.to(tl.int32) * 0, active
    while any_of(going):
        p = tl.load(odds + length, mask=going, other=EVEN)
        coder, longer = code_bit(coder, stream, p, (value >> (length + 1)) > 0, going, decoding)
        longer = longer & going
        length = length + longer.to(tl.int32)
        going = longer & (length < bits - 1)
    told, place = length * 0 + 1, length - 1
    going = active & (place >= 0)
    while any_of(going):
        p = tl.load(odds + bits - 1, mask=going & (place == length - 1), other=EVEN)
        bit = ((value >> tl.maximum(place, 0)) & 1) == 1
        coder, bit = code_bit(coder, stream, p, bit, going, decoding)
        told = tl.where(going, 2 * told + bit.to(tl.int32), told)
        place = place - 1
        going = going & (place >= 0)
    return coder, told


@triton.jit
def code_trees(coder, stream, segment, live, segments, found, odds, many, stride, log_size, decoding: tl.constexpr):
    """The coder behind the trees of segments, a lane each; a decoder fills them into `found`."""
    row = segments + segment * ROW
    blocks = tl.load(row + BLOCKS, mask=live, other=0).to(tl.int32)
    energy = tl.load(row + CLASS, mask=live, other=0).to(tl.int32)
    size, part, none = segment * 0 + log_size, segment * 0, segment * 0
    going, block = live & (blocks > 0), segment * 0
    while any_of(going):
        at = found + 2 * entry_of(segment.to(tl.int64), part, size, many, stride)
        own = odds + tl.maximum(energy - 2 * (log_size - size), 0) * CONTEXTS
        p = tl.load(own + CONTEXT_SPLIT, mask=going, other=EVEN)
        j, k = none, none
        if not decoding:
            j, k = tl.load(at, mask=going, other=0), tl.load(at + 1, mask=going, other=0)
        kind = j
        coder, searched = code_bit(coder, stream, p, j > 0, going, decoding)
        searched = searched & going
        if any_of(searched):
            coder, j = code_number(coder, stream, own + CONTEXT_VECTOR, j, searched, VECTOR_BITS, decoding)
            coder, k = code_number(coder, stream, own + CONTEXT_PROPOSAL, k, searched, PROPOSAL_BITS, decoding)
        asked = going & (searched == 0) & (size > SMALLEST)
        halved = asked
        if any_of(asked):
            p = tl.load(own + CONTEXT_LAYERED, mask=asked, other=EVEN)
            coder, layered = code_bit(coder, stream, p, kind == 0, asked, decoding)
            halved = asked & (layered == 0)
        if decoding:
            tl.store(at, tl.where(searched, j, tl.where(halved, HALVED, 0)), mask=going)
            tl.store(at + 1, tl.where(searched, k, 0), mask=going)
        ended = going & (halved == 0)
        size, part = size - halved.to(tl.int32), tl.where(halved, 2 * part, part)
        rising = ended & (size < log_size) & ((part & 1) == 1)
        while any_of(rising):
            size, part = size + rising.to(tl.int32), tl.where(rising, part >> 1, part)
            rising = rising & (size < log_size) & ((part & 1) == 1)
        block = block + (ended & (size == log_size)).to(tl.int32)
        part = part + ended.to(tl.int32)
        going = going & (block < blocks)
    return coder


@triton.jit(do_not_specialize=["many", "stride", "log_size"], do_not_specialize_on_alignment=["data"])
def read_trees(data, segments, found, odds, many, stride, log_size, lanes: tl.constexpr):
    """Fills `found` with the trees of segments, a lane each; any bytes give some trees."""
    segment = tl.program_id(0) * lanes + tl.arange(0, lanes)
    live, row = segment < many, segments + segment * ROW
    start = tl.load(row + START, mask=live, other=0)
    stream = Stream(data + start, tl.load(row + LENGTH, mask=live, other=0).to(tl.int32))
    coder = start_decoder(stream, live)
    code_trees(coder, stream, segment, live, segments, found, odds, many, stride, log_size, True)


@triton.jit(do_not_specialize=["room", "many", "stride", "log_size"])
def write_trees(slots, lengths, segments, found, odds, room, many, stride, log_size, lanes: tl.constexpr):
    """Writes the trees of segments, a lane each, to slots of `room` words, and the bytes of each to `lengths`."""
    segment = tl.program_id(0) * lanes + tl.arange(0, lanes)
    live = segment < many
    stream = Stream(slots + segment.to(tl.int64) * room, segment * 0 + room)
    coder = start_encoder(segment * 0)
    coder = code_trees(coder, stream, segment, live, segments, found, odds, many, stride, log_size, False)
    tl.store(lengths + segment, finish(coder, stream, live), mask=live)


@triton.jit
def find_part(found, segment, place, many, stride, log_size):
    """(J, K or the shift, binary logarithm of the size) of the part that tells what places are; J is 0 where the
    layered quantizer does."""
    j, k = tl.zeros_like(place).to(tl.int32), tl.zeros_like(place).to(tl.int32)
    own, open_ = k + log_size, place >= 0
    size = log_size
    while size >= SMALLEST:
        at = found + 2 * entry_of(segment, place >> size, size, many, stride)
        told = tl.load(at, mask=open_, other=0)
        ends = open_ & (told != HALVED)
        j, own = tl.where(ends, told, j), tl.where(ends, size, own)
        k = tl.where(ends, tl.load(at + 1, mask=ends, other=0), k)
        open_ = open_ & (told == HALVED)
        size -= 1
    return j, k, own


@triton.jit
def pick_word(words, which):
    """Of each lane's eight words the one of this number."""
    found = words[0]
    for i in tl.static_range(1, 8):
        found = tl.where(which == i, words[i], found)
    return found


@triton.jit
def proposed_shift(key, stream, proposal, size):
    """The shift that each lane's proposal is, counted from 0, of a stream of them."""
    words = stream_words(key, stream, (proposal >> 5).to(tl.int64), ROUNDS)
    word = pick_word(words, (proposal >> 2) & 7) >> (16 * (proposal & 3)).to(tl.uint64)
    return word.to(tl.int32) & ((1 << size) - 1)


@triton.jit(do_not_specialize=["total", "many", "stride", "log_size", "size"])
def find_shifts(segments, found, keys, total, many, stride, log_size, size, lanes: tl.constexpr):
    """Puts the shift that K stands for in the place of K, for all parts of 2^size coordinates."""
    mine = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    per_segment = stride >> size
    segment = tl.where(mine < total, mine // per_segment, 0)
    part = mine - segment * per_segment
    at = found + 2 * entry_of(segment, part, size, many, stride)
    searched = (mine < total) & (tl.load(at, mask=mine < total, other=0) > 0)
    proposal = tl.load(at + 1, mask=searched, other=1) - 1
    client, number = tl.load(segments + segment * ROW + CLIENT), tl.load(segments + segment * ROW + NUMBER)
    stream = number_of_stream(number, size, tl.where(searched, part, 0), 0, PROPOSALS)
    tl.store(at + 1, proposed_shift(load_key(keys, client), stream, proposal, size), mask=searched)


@triton.jit
def find_rows(segments, found, groups, many, stride, log_size, lanes: tl.constexpr):
    """(table row, block, first row, J, shift, size, place) of each lane's eight rows of a block. The lanes beside it
    have other blocks of the same segment, so that they write next to each other. J is 0 where it has none."""
    mine = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    per_segment = stride >> 3
    segment = tl.where(mine < groups, mine // per_segment, 0)
    row = segments + segment * ROW
    blocks = tl.load(row + BLOCKS)
    group = mine - segment * per_segment
    block, first = group % blocks, group // blocks * 8
    inside = (mine < groups) & (first < (1 << log_size))
    place = tl.where(inside, (block << log_size) + first, 0)
    j, shift, size = find_part(found, segment, place, many, stride, log_size)
    return row, block, first, tl.where(inside, j, 0), shift, size, place


@triton.jit(do_not_specialize=["groups", "many", "stride", "log_size"])
def fill_signs(signs, segments, found, keys, groups, many, stride, log_size, lanes: tl.constexpr):
    """Writes the sign bits of every eight rows of a block in a searched part."""
    row, _, _, j, _, size, place = find_rows(segments, found, groups, many, stride, log_size, lanes)
    number, key = tl.load(row + NUMBER), load_key(keys, tl.load(row + CLIENT))
    at = (place & ((1 << size) - 1)).to(tl.int32)
    stream = number_of_stream(number, size, tl.where(j > 0, place >> size, 0), 0, SIGNS)
    word = pick_word(stream_words(key, stream, (at >> 9).to(tl.int64), ROUNDS), (at >> 6) & 7)
    mine = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    tl.store(signs + mine, (word >> (at & 63).to(tl.uint64)).to(tl.uint8), mask=j > 0)


@triton.jit(do_not_specialize=["double", "count", "groups", "many", "stride", "log_size"],
            do_not_specialize_on_alignment=["x"])  # fmt: skip
def fill_values(x, double, count, signs, segments, found, draws, groups, many, stride, log_size,
                lanes: tl.constexpr):  # fmt: skip
    """Writes the values of searched parts on the public grid."""
    row, block, first, j, shift, size, place = find_rows(segments, found, groups, many, stride, log_size, lanes)
    client, number, blocks = tl.load(row + CLIENT), tl.load(row + NUMBER), tl.load(row + BLOCKS)
    key = load_key(draws.keys, client)
    source = ((place & ((1 << size) - 1)).to(tl.int32) ^ shift).to(tl.int64) >> 3
    stream = number_of_stream(number, size, tl.where(j > 0, place >> size, 0), tl.where(j > 0, j - 1, 0), LATENTS)
    word = below_each_other(stream_words(key, stream, source, ROUNDS), lanes)
    b = width_of_word(word, draws.table, tl.load(draws.numbers + SCALE))
    word = below_each_other(stream_words(key, stream + DITHERS, source, ROUNDS), lanes)
    d = tl.umulhi(word, b.to(tl.uint64)).to(tl.int64)
    g = d - tl.where(d > (b >> 1), b, 0)
    target = number_eight(lanes) ^ eight_times(shift & 7, lanes)
    mine = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    flips = tl.load(signs + mine, mask=j > 0, other=0).to(tl.int32)
    g = tl.where(((eight_times(flips, lanes) >> target) & 1) != 0, -g, g)
    end = tl.where(j > 0, tl.load(row + COUNT) - block, 0)
    ahead = (eight_times(first, lanes) + target) * eight_times(blocks, lanes)
    kept = ahead < eight_times(end, lanes)
    start = eight_times(client * count + number * SEGMENT + block, lanes)
    store_value(x, double, tl.where(kept, start + ahead, 0), grid_value(g, tl.load(draws.numbers + GRID)), kept)


@triton.jit(do_not_specialize=["width", "many", "stride", "log_size"])
def mark_left(left, segments, found, width, many, stride, log_size, lanes: tl.constexpr):
    """Marks the coordinates of each segment that are the layered quantizer's."""
    segment = tl.program_id(1).to(tl.int64)
    row = segments + segment * ROW
    coordinate = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    blocks, inside = tl.load(row + BLOCKS), coordinate < tl.load(row + COUNT)
    place = ((coordinate % blocks) << log_size) + coordinate // blocks
    j, _, _ = find_part(found, segment, tl.where(inside, place, 0), many, stride, log_size)
    tl.store(left + segment * width + coordinate, (j == 0).to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["data"])
def begin_left(data, segments, sizes, state, flags, lanes: tl.constexpr):
    """The first state of decoders of what is left, a program for each segment; flags[1] gets the largest row period."""
    row, own = segments + tl.program_id(0) * ROW, tl.arange(0, lanes)
    size = tl.load(sizes + tl.program_id(0) + own * 0)
    start, room = tl.load(row + START + own * 0), tl.load(row + LENGTH + own * 0).to(tl.int32)
    stream, live = Stream(data + start, room), size > 0
    coder, header = code_header(start_decoder(stream, live), stream, size * 0, live, 18, True)
    header = tl.where(live & ((header >> 11) != NOTHING), header, NOTHING << 11)
    tl.atomic_max(flags + 1, tl.max(header & 2047, 0))
    begin_block(state_of(state, own, lanes), coder, header, (start * 0, size), (start, room), lanes)


@triton.jit
def listed_from(coordinates, row, width, at, inside):
    """Of a segment's coordinates that are left, those at these places of their list."""
    start = tl.load(row + LIST)
    listed = tl.load(coordinates + start + at, mask=inside & (start >= 0), other=0)
    return tl.where(start >= 0, listed % width, at.to(tl.int64))


@triton.jit
def units_at(x, double, count, row, coordinate, per_unit, inside):
    """Of an update, coordinates of one segment in units."""
    begin = tl.load(row + CLIENT) * count + tl.load(row + NUMBER) * SEGMENT
    return units_of(load_value(x, double, tl.where(inside, begin + coordinate, 0), inside), per_unit)


@triton.jit(do_not_specialize=["double", "count", "width", "room"], do_not_specialize_on_alignment=["x"])
def begin_left_encoding(x, double, count, segments, sizes, coordinates, width, numbers, slots, state, room,
                        chunk: tl.constexpr):  # fmt: skip
    """The first state of encoders of what is left, a program for each segment, their headers written."""
    mine, own = tl.program_id(0), tl.arange(0, 1)
    row, size, per_unit = segments + mine * ROW, tl.load(sizes + mine), tl.load(numbers + PER_UNIT)
    total, begin = tl.zeros((chunk,), tl.int64), 0
    while begin < size:
        at = begin + tl.arange(0, chunk)
        listed = listed_from(coordinates, row, width, at, at < size)
        units = units_at(x, double, count, row, listed, per_unit, at < size)
        total += tl.minimum(tl.abs(units), 1 << 48)
        begin += chunk
    scale = (log(tl.sum(total, 0) // size) + 64) >> 7
    header = own + (tl.minimum(tl.maximum(scale, 1), NOTHING - 1) << 11)
    start, size = mine.to(tl.int64) * room + own, size + own
    stream = Stream(slots + start, own + room)
    coder, _ = code_header(start_encoder(own), stream, header, size > 0, 18, False)
    begin_block(state_of(state, own, 1), coder, header, (start * 0, size), (start, own + room), 1)


@triton.jit(do_not_specialize=["double", "count", "first", "rows", "width"], do_not_specialize_on_alignment=["x"])
def stage_left(x, double, count, stage, state, segments, coordinates, width, draws, first, rows, flat: tl.constexpr,
               decoding: tl.constexpr, tile: tl.constexpr):  # fmt: skip
    """Stages what is left of each segment, a program for so many coordinates, for a coder of one lane."""
    row, field = segments + tl.program_id(0) * ROW, rows.to(tl.int64)
    state = state_of(state, 0, 1)
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = (at < rows) & (first + at < tl.load(state + SIZE))
    listed = tl.where(inside, listed_from(coordinates, row, width, first + at, inside), 0)
    coordinate = tl.load(row + NUMBER) * SEGMENT + listed
    key, which = load_key(draws.keys, tl.load(row + CLIENT)), (coordinate & 7).to(tl.int32)
    latent = tl.full((), LATENT_STREAM, tl.int64)
    word = pick_word(stream_words(key, latent, coordinate >> 3, ROUNDS), which)
    b = width_of_word(word, draws.table, tl.load(draws.numbers + SCALE))
    word = pick_word(stream_words(key, latent + 1, coordinate >> 3, ROUNDS), which)
    d = tl.umulhi(word, b.to(tl.uint64)).to(tl.int64)
    margins = measure_margins(b, d)
    if flat:
        margins = pack_flat(margins, load_state(state, HEADER, 1) >> 11)
    fields: tl.constexpr = fields_of(decoding, flat)
    stage += tl.program_id(0).to(tl.int64) * fields * field + at
    tl.store(stage + MARGINS * field, margins, mask=at < rows)
    if decoding:
        tl.store(stage + WIDTH * field, b, mask=at < rows)
        tl.store(stage + DITHER_FIELD * field, d, mask=at < rows)
    else:
        units = units_at(x, double, count, row, listed, tl.load(draws.numbers + PER_UNIT), inside)
        k = round_quotient(units - d, b) + (d > (b >> 1)).to(tl.int64)
        tl.store(stage + (fields - 1) * field, k, mask=at < rows)


@triton.jit(do_not_specialize=["double", "count", "first", "rows", "width"], do_not_specialize_on_alignment=["x"])
def put_left(x, double, count, stage, state, segments, coordinates, width, numbers, flags, first, rows,
             tile: tl.constexpr):  # fmt: skip
    """Writes decoded values on the public grid; a flag where a point lies outside the range of the format."""
    row, field = segments + tl.program_id(0) * ROW, rows.to(tl.int64)
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = (at < rows) & (first + at < tl.load(state_of(state, 0, 1) + SIZE))
    listed = listed_from(coordinates, row, width, first + at, inside)
    stage += tl.program_id(0).to(tl.int64) * fields_of(True, False) * field + at
    k = tl.load(stage + MARGINS * field, mask=inside, other=0)
    b = tl.load(stage + WIDTH * field, mask=inside, other=1)
    d = tl.load(stage + DITHER_FIELD * field, mask=inside, other=0)
    m = k - (d > (b >> 1)).to(tl.int64)
    outside = tl.abs(m.to(tl.float64) * b.to(tl.float64)) >= FURTHEST
    begin = tl.load(row + CLIENT) * count + tl.load(row + NUMBER) * SEGMENT
    store_value(x, double, begin + listed, grid_value(m * b + d, tl.load(numbers + GRID)), inside)
    tl.store(flags + at * 0, 1, mask=inside & outside)
