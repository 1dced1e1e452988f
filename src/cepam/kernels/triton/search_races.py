"""The search coder's encoder in Triton: both races of a part, and the vector that they find.

A program has parts of one size, as many as fit a tile; all draw one vector after the other until the last is done.
`listed` numbers the parts of that size that are searched among all of the wave, and a part's place in that list is its
slot: where its signs, ratios and shift are. Ratios of a slot stand like the coordinates of a tile (`hadamard`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.format import search
from cepam.kernels.triton.hadamard import add_up, exact, exponential, largest_of, transform
from cepam.kernels.triton.keystream import (
    ROUNDS,
    below_each_other,
    eight_times,
    load_key,
    number_eight,
    side_by_side,
    stream_words,
)
from cepam.kernels.triton.layers import (
    PER_UNIT,
    SCALE,
    leading_zeros,
    load_value,
    units_of,
    width_of_word,
)
from cepam.kernels.triton.range_coder import any_of
from cepam.kernels.triton.search_coder import (
    BLOCKS,
    CLIENT,
    COUNT,
    DITHERS,
    LATENTS,
    NUMBER,
    PROPOSALS,
    ROW,
    SEGMENT,
    SIGNS,
    entry_of,
    number_of_stream,
    proposed_shift,
)

CAP, HALF_CAP = tl.constexpr(search.CAP), tl.constexpr(search.HALF_CAP)
OPENING, TIMES, CHOICES = (tl.constexpr(kind) for kind in (search.OPENING, search.TIMES, search.CHOICES))
OPENING_TIMES = tl.constexpr(search.OPENING_TIMES)
MOST_VECTORS, MOST_PROPOSALS = tl.constexpr(search.MOST_VECTORS), tl.constexpr(search.MOST_PROPOSALS)
HALF_TIME, LOWER = tl.constexpr(search.TIME_BITS // 2), tl.constexpr((1 << search.TIME_BITS // 2) - 1)
PER_TIME = tl.constexpr(2.0**search.TIME_BITS)
PER_UPPER, PER_LOWER = tl.constexpr(2.0 ** -(search.TIME_BITS // 2)), tl.constexpr(2.0**-search.TIME_BITS)
PLACE, PER_PLACE = tl.constexpr((1 << 48) - 1), tl.constexpr(2.0**-48)
COIN = tl.constexpr(2.0**-53)
LN2, ROOT = tl.constexpr(0.6931471805599453), tl.constexpr(1.4142135623730951)
ATANH = tl.constexpr(tuple(1.0 / (2 * i + 1) for i in range(11)))
INFINITE = tl.constexpr(float("inf"))
BLOCK_WORDS = tl.constexpr(8)


class Parts(NamedTuple):
    """The parts of a program: slot, whether there is one, its place in `found`, its segment's client, number,
    coordinates and blocks, its first place, its first stream."""

    slot: Any
    live: Any
    entry: Any
    client: Any
    segment: Any
    number: Any
    count: Any
    blocks: Any
    begin: Any
    stream: Any


class Arrivals(NamedTuple):
    """Arrivals of every part in so many words of its process: times, and which arrival each is, from 1 on (0: none);
    then the sums of all steps so far, in two halves, and how many arrivals there were."""

    times: Any
    number: Any
    upper: Any
    lower: Any
    last: Any


@triton.jit
def find_parts(listed, segments, total, many, stride, size: tl.constexpr, parts: tl.constexpr):
    """The parts of this program."""
    slot = tl.program_id(0).to(tl.int64) * parts + tl.arange(0, parts)
    live = slot < total
    index = tl.load(listed + slot, mask=live, other=0)
    segment = index // (stride >> size)
    part = index - segment * (stride >> size)
    row = segments + segment * ROW
    number = tl.load(row + NUMBER)
    stream = number_of_stream(number, size, part, 0, 0)
    return Parts(slot, live, entry_of(segment, part, size, many, stride), tl.load(row + CLIENT), segment, number,
                 tl.load(row + COUNT), tl.load(row + BLOCKS), part << size, stream)  # fmt: skip


@triton.jit
def spread(v, each: tl.constexpr):
    """What a part's groups of eight coordinates, or its words, have in common."""
    parts: tl.constexpr = v.shape[0]
    if parts == 1:
        found = tl.broadcast_to(v, (each,))
    else:
        found = tl.reshape(tl.broadcast_to(tl.expand_dims(v, 1), (parts, each)), (parts * each,))
    return found


@triton.jit
def spread_eight(v, each: tl.constexpr):
    """What a part's coordinates have in common."""
    parts: tl.constexpr = v.shape[0]
    if parts == 1:
        found = tl.broadcast_to(v, (8 * each,))
    else:
        found = eight_times(spread(v, each), parts * each)
    return found


@triton.jit
def keys_of(keys, client, each: tl.constexpr):
    """The key of each group of eight coordinates, or of words."""
    found = ()
    key = load_key(keys, client)
    for i in tl.static_range(8):
        found += (spread(key[i], each),)
    return found


@triton.jit
def shared_units(key, stream, group, draws):
    """Groups of eight coordinates of shared vectors, in units: the layered quantizer's errors at zero."""
    groups: tl.constexpr = group.shape[0]
    word = below_each_other(stream_words(key, stream + LATENTS, group, ROUNDS), groups)
    b = width_of_word(word, draws.table, tl.load(draws.numbers + SCALE))
    word = below_each_other(stream_words(key, stream + DITHERS, group, ROUNDS), groups)
    d = tl.umulhi(word, b.to(tl.uint64)).to(tl.int64)
    return d - tl.where(d > (b >> 1), b, 0)


@triton.jit
def steps_of(words):
    """(steps between arrivals in 2^-52, whether one ends there) of words."""
    top = words >> 48
    halvings = (leading_zeros(top | 1) - 47).to(tl.float64)
    v = ((words & PLACE).to(tl.int64).to(tl.float64) + 0.5) * PER_PLACE + 1.0
    above = v > exact(ROOT)
    v = tl.where(above, v * 0.5, v)
    z = (v - 1.0) / (v + 1.0)
    square = z * z
    total = tl.zeros_like(v) + exact(ATANH[10])
    for i in tl.static_range(1, 11):
        total = total * square + exact(ATANH[10 - i])
    log = 2.0 * z * total + tl.where(above, exact(LN2), exact(0.0))
    step = tl.where(top > 0, halvings * exact(LN2) - log, 16.0 * exact(LN2))
    return tl.floor(step * PER_TIME).to(tl.int64), top > 0


@triton.jit
def next_words(key, stream, turn, kind, opening, words: tl.constexpr):
    """The next words of each part's process: eight blocks of the opening stream, then those of a stream of its own."""
    blocks: tl.constexpr = words // BLOCK_WORDS
    parts: tl.constexpr = turn.shape[0]
    own = tl.broadcast_to(tl.expand_dims(tl.arange(0, blocks), 0), (parts, blocks))
    block = tl.reshape(own.to(tl.int64) + tl.expand_dims(turn, 1) * blocks, (parts * blocks,))
    first = block < 8
    stream = spread(stream, blocks) + tl.where(first, OPENING, kind)
    found = stream_words(key, stream, tl.where(first, block + opening, block - 8), ROUNDS)
    return tl.reshape(side_by_side(found, parts * blocks), (parts, words))


@triton.jit
def add_arrivals(before, steps, ends):
    """The arrivals of further steps."""
    upper = tl.cumsum(steps >> HALF_TIME, 1) + tl.expand_dims(before.upper, 1)
    lower = tl.cumsum(steps & LOWER, 1) + tl.expand_dims(before.lower, 1)
    number = tl.cumsum(ends.to(tl.int32), 1) + tl.expand_dims(before.last, 1)
    times = upper.to(tl.float64) * PER_UPPER + lower.to(tl.float64) * PER_LOWER
    return Arrivals(times, tl.where(ends, number, 0), before.upper + tl.sum(steps >> HALF_TIME, 1),
                    before.lower + tl.sum(steps & LOWER, 1), before.last + tl.sum(ends.to(tl.int32), 1))  # fmt: skip


@triton.jit
def arrivals_or(chosen, some, others):
    """The arrivals of some parts from one tile, of others from another."""
    wide = tl.expand_dims(chosen, 1)
    return Arrivals(tl.where(wide, some.times, others.times), tl.where(wide, some.number, others.number),
                    tl.where(chosen, some.upper, others.upper), tl.where(chosen, some.lower, others.lower),
                    tl.where(chosen, some.last, others.last))  # fmt: skip


@triton.jit
def no_arrivals(parts: tl.constexpr, words: tl.constexpr):
    """The state before the first arrival."""
    zero = tl.zeros((parts,), tl.int64)
    empty = tl.zeros((parts, words), tl.float64)
    return Arrivals(empty, empty.to(tl.int32), zero, zero, zero.to(tl.int32))


@triton.jit
def sign_bits(signs, at, group, shift, own):
    """Whether coordinates are negated: those that stand in a group of a slot, through a shift."""
    byte = tl.load(signs + at + (group ^ (shift >> 3))).to(tl.int32)
    groups: tl.constexpr = group.shape[0]
    return (eight_times(byte, groups) >> (own ^ eight_times((shift & 7).to(tl.int32), groups))) & 1


@triton.constexpr_function
def bytes_of_signs(size):
    """Bytes of a slot's signs: whole words."""
    return max(1 << size >> 3, 8)


@triton.jit(do_not_specialize=["total", "many", "stride"])
def fill_sign_words(signs, listed, segments, keys, total, many, stride, size: tl.constexpr, lanes: tl.constexpr):
    """Writes the signs of every slot, a bit for each coordinate; a lane has up to 512 of them."""
    blocks: tl.constexpr = max(1 << size >> 9, 1)
    words: tl.constexpr = bytes_of_signs(size) // 8
    p = find_parts(listed, segments, total, many, stride, size, lanes // blocks)
    block = tl.arange(0, lanes) % blocks
    found = stream_words(keys_of(keys, p.client, blocks), spread(p.stream, blocks) + SIGNS, block.to(tl.int64), ROUNDS)
    at, live = spread(p.slot, blocks) * words + block * 8, spread(p.live, blocks)
    for i in tl.static_range(8):
        if i < words:
            tl.store(signs + at + i, found[i].to(tl.int64, bitcast=True), mask=live)


@triton.jit(do_not_specialize=["double", "count", "total", "many", "stride", "log_size"],
            do_not_specialize_on_alignment=["x"])  # fmt: skip
def race_vectors(x, double, count, y, ratios, most, signs, energies, listed, segments, found, draws, private, flags,
                 total, many, stride, log_size, size: tl.constexpr, parts: tl.constexpr,
                 words: tl.constexpr):  # fmt: skip
    """Puts J of every slot into `found` where a vector takes the place of the draw in y, and its ratios and the largest
    of them into the slot."""
    each: tl.constexpr = 1 << (size - 3)
    groups: tl.constexpr = parts * each
    p = find_parts(listed, segments, total, many, stride, size, parts)
    group = tl.arange(0, groups) % each
    own, eights = number_eight(groups), eight_times(group, groups) * 8 + number_eight(groups)
    sign_at = spread(tl.where(p.live, p.slot, 0), each) * bytes_of_signs(size)
    # The update's transform.
    wide_blocks = spread_eight(p.blocks, each)
    block, row = p.begin >> log_size, p.begin & ((1 << log_size) - 1)
    n = (spread_eight(row, each) + eights) * wide_blocks + spread_eight(block, each)
    inside = (n < spread_eight(p.count, each)) & spread_eight(p.live, each)
    start = spread_eight(p.client * count + p.number * SEGMENT, each)
    inverse = exact(1.0) / tl.load(draws.numbers + SCALE)
    value = load_value(x, double, tl.where(inside, start + n, 0), inside)
    value = units_of(value, tl.load(draws.numbers + PER_UNIT)).to(tl.float64) * inverse
    flips = sign_bits(signs, sign_at, group, group * 0, own)
    spectrum = transform(tl.where(flips != 0, value * -1.0, value), size)
    half = tl.load(energies + p.entry, mask=p.live, other=0.0) * 0.5
    half = spread_eight(half, each)
    key, times_key = keys_of(draws.keys, p.client, each), keys_of(private, p.client, words // BLOCK_WORDS)
    place = tl.broadcast_to(tl.expand_dims(tl.arange(0, words), 0), (parts, words))
    cap = tl.where(log_size - size == 1, exact(HALF_CAP), exact(CAP))
    best, going, arrived = tl.full((parts,), INFINITE, tl.float64), p.live, no_arrivals(parts, words)
    shift, coin, largest, j = zeros_of(parts), tl.zeros_like(best), tl.zeros_like(best), zeros_of(parts)
    turn, tried = tl.zeros((parts,), tl.int64), tl.full((), 0, tl.int32)
    while any_of(going):
        short = going & (arrived.last < tl.maximum(tried, 1))
        while any_of(short):
            drawn = next_words(times_key, p.stream, turn, TIMES, 0, words)
            steps, ends = steps_of(drawn)
            first = tl.expand_dims(turn == 0, 1)
            counts = (first == 0) | (place >= OPENING_TIMES)
            bits = tl.where(first, drawn.to(tl.int64, bitcast=True), 0)
            shift += (tl.sum(tl.where(place == 0, bits, 0), 1).to(tl.uint64, bitcast=True) >> (64 - size)).to(tl.int32)
            bits = tl.sum(tl.where(place == 1, bits, 0), 1).to(tl.uint64, bitcast=True) >> 11
            coin += bits.to(tl.int64).to(tl.float64) * COIN
            arrived = arrivals_or(short, add_arrivals(arrived, tl.where(counts, steps, 0), ends & counts), arrived)
            turn = turn + short.to(tl.int64)
            short = short & (arrived.last < tl.maximum(tried, 1))
        time = tl.sum(tl.where(arrived.number == tried, arrived.times, exact(0.0)), 1)
        going = going & ((tried == 0) | (time < cap * best))
        endless = going & (tried > MOST_VECTORS)
        tl.store(flags + j * 0, 1, mask=endless)
        going, j = going & (endless == 0), tl.where(endless, 0, j)
        if any_of(going):
            if tried == 0:  # the draw, seen through a shift drawn at random
                wide = spread(shift, each)
                at = spread_eight(p.segment * stride + p.begin, each)
                g = tl.load(y + at + (eights ^ eight_times(wide, groups)))
                flips = sign_bits(signs, sign_at, group, wide, own)
                g = tl.where(flips != 0, -g, g)
            else:
                stream = spread(p.stream + ((tried - 1).to(tl.int64) << 2), each)
                g = shared_units(key, stream, group.to(tl.int64), draws)
            seen = transform(g.to(tl.float64) * inverse, size)
            scores = exponential(transform(spectrum * seen, size) * (1.0 / (1 << size)) - half)
            q = add_up(scores, size) * (1.0 / (1 << size))
            if tried == 0:
                going = going & (coin * q < cap)
            else:
                weighed = time / tl.minimum(q, cap)
                better = going & (weighed < best)
                best, j = tl.where(better, weighed, best), tl.where(better, tried, j)
                largest = tl.where(better, largest_of(scores, size), largest)
                at = eight_times(spread(p.slot << size, each) + group, groups) + own * each
                tl.store(ratios + at, scores, mask=spread_eight(better, each))
        tried += 1
    tl.store(found + 2 * p.entry, j, mask=p.live & (j > 0))
    tl.store(most + p.slot, largest, mask=p.live & (j > 0))


@triton.jit
def zeros_of(parts: tl.constexpr):
    """A 32-bit zero for each part."""
    return tl.zeros((parts,), tl.int32)


@triton.jit
def least_before(least, before, other, other_before):
    """(the least of two runs, the least but for the last of them) from those of each, the second behind the first."""
    return tl.minimum(least, other), tl.minimum(least, other_before)


@triton.jit(do_not_specialize=["total", "many", "stride"])
def race_shifts(ratios, most, shifts, listed, segments, found, keys, private, flags, total, many, stride,
                size: tl.constexpr, parts: tl.constexpr, words: tl.constexpr):  # fmt: skip
    """Puts K of every slot that has a J into `found`, and its shift into `shifts`."""
    each: tl.constexpr = 1 << (size - 3)
    p = find_parts(listed, segments, total, many, stride, size, parts)
    going = p.live & (tl.load(found + 2 * p.entry, mask=p.live, other=0) > 0)
    largest = tl.expand_dims(tl.load(most + p.slot, mask=going, other=1.0), 1)
    key, times_key = keys_of(keys, p.client, words), keys_of(private, p.client, words // BLOCK_WORDS)
    place = tl.broadcast_to(tl.expand_dims(tl.arange(0, words), 0), (parts, words))
    turn, best = tl.zeros((parts,), tl.int64), tl.full((parts,), INFINITE, tl.float64)
    k, chosen, arrived = zeros_of(parts), zeros_of(parts), no_arrivals(parts, words)
    while any_of(going):
        steps, ends = steps_of(next_words(times_key, p.stream, turn, CHOICES, 8, words))
        arrived, turn = add_arrivals(arrived, steps, ends), turn + 1
        came = (arrived.number > 0) & tl.expand_dims(going, 1)
        proposal = tl.reshape(tl.where(came, arrived.number - 1, 0), (parts * words,))
        shift = tl.reshape(proposed_shift(key, spread(p.stream, words) + PROPOSALS, proposal, size), (parts, words))
        at = tl.expand_dims(p.slot << size, 1) + ((shift & 7) * each + (shift >> 3))
        weighed = arrived.times / tl.load(ratios + at, mask=came, other=1.0)
        weighed = tl.where(came, weighed, exact(INFINITE))
        _, before = tl.associative_scan((weighed, tl.full((parts, words), INFINITE, tl.float64)), 1, least_before)
        over = came & (arrived.times >= largest * tl.minimum(before, tl.expand_dims(best, 1)))
        weighed = tl.where(over, exact(INFINITE), weighed)
        last, won = tl.min(weighed, 1), place == tl.expand_dims(tl.argmin(weighed, 1), 1)
        better = last < best
        best = tl.where(better, last, best)
        k = tl.where(better, tl.sum(tl.where(won, arrived.number, 0), 1), k)
        chosen = tl.where(better, tl.sum(tl.where(won, shift, 0), 1), chosen)
        endless = going & ((arrived.last > MOST_PROPOSALS) | (k > MOST_PROPOSALS))
        tl.store(flags + k * 0, 1, mask=endless)
        going = going & (endless == 0) & (tl.max(over.to(tl.int32), 1) == 0)
    tl.store(found + 2 * p.entry + 1, k, mask=k > 0)
    tl.store(shifts + p.slot, chosen, mask=k > 0)


@triton.jit(do_not_specialize=["total", "many", "stride"])
def see_parts(y, shifts, signs, listed, segments, found, draws, total, many, stride, size: tl.constexpr,
              parts: tl.constexpr):  # fmt: skip
    """Puts the vectors that were found in the place of draws."""
    each: tl.constexpr = 1 << (size - 3)
    groups: tl.constexpr = parts * each
    p = find_parts(listed, segments, total, many, stride, size, parts)
    j = tl.load(found + 2 * p.entry, mask=p.live, other=0)
    if any_of(j > 0):
        group = tl.arange(0, groups) % each
        shift = spread(tl.load(shifts + p.slot, mask=j > 0, other=0), each)
        stream = p.stream + (tl.maximum(j - 1, 0).to(tl.int64) << 2)
        source = (group ^ (shift >> 3)).to(tl.int64)
        g = shared_units(keys_of(draws.keys, p.client, each), spread(stream, each), source, draws)
        # What stands at k of its own group goes to k, shifted, of this one.
        target = number_eight(groups) ^ eight_times(shift & 7, groups)
        inside = spread(j > 0, each)
        byte = tl.load(signs + spread(p.slot, each) * bytes_of_signs(size) + group, mask=inside, other=0)
        g = tl.where(((eight_times(byte.to(tl.int32), groups) >> target) & 1) != 0, -g, g)
        at = spread(p.segment * stride + p.begin, each) + group * 8
        tl.store(y + eight_times(at, groups) + target, g, mask=eight_times(inside, groups))
