"""The search coder, compiled: the arithmetic of `numpy.search_coder`, in the same order (docs/search.md)."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cepam.errors import MalformedMessage
from cepam.kernels.format import search as f
from cepam.kernels.format.plan import GRID_BITS, LATENT_STREAM, CodingTask, Ints, Values, block_slices, key_words
from cepam.kernels.format.scalar_contexts import BYTES_A_COORDINATE, load_tables
from cepam.kernels.format.search import (
    CAP,
    CHOICES,
    CONTEXT_LAYERED,
    CONTEXT_PROPOSAL,
    CONTEXT_SPLIT,
    CONTEXT_VECTOR,
    DITHERS,
    HALF_CAP,
    HOTTEST,
    LARGEST,
    LATENTS,
    MOST_PROPOSALS,
    MOST_VECTORS,
    OPENING,
    OPENING_CHOICES,
    OPENING_TIMES,
    PROPOSAL_BITS,
    PROPOSALS,
    SEARCHED_LEVELS,
    SIGNS,
    SMALLEST,
    STREAM_BITS,
    TIME_BITS,
    TIMES,
    VECTOR_BITS,
)
from cepam.kernels.numba.compiling import (
    aligned,
    compiled,
    floor_divide,
    inlined,
    layer_plan,
    leading_zeros,
    multiply_high,
    transpose_eight,
    transpose_scaled,
)
from cepam.kernels.numba.hadamard import exponentials, see, transform, transform_product, transform_signed, undo
from cepam.kernels.numba.keystream import chacha_half, chacha_lanes, fill_words, start_lanes
from cepam.kernels.numba.quantizer import (
    eight_errors,
    eight_places,
    fill_dithers,
    fill_widths,
    radius_of_word,
    to_units,
)
from cepam.kernels.numba.range_coder import choose, finish, fresh, start
from cepam.kernels.numba.scalar_coder import decode_block, encode_block, margins_for, measure_scale

_LN2, _ROOT = 0.6931471805599453, 1.4142135623730951
_SIXTEEN = np.int64(np.floor(16.0 * _LN2 * 2.0**f.TIME_BITS))
_TIME, _HALF_TIME = 2.0**TIME_BITS, TIME_BITS // 2
_LOWER = (1 << _HALF_TIME) - 1
_A3, _A5, _A7, _A9, _A11, _A13, _A15, _A17, _A19, _A21 = (1.0 / (2 * i + 1) for i in range(1, 11))
_LARGEST_PART = 1 << LARGEST
_MASK48 = np.uint64((1 << 48) - 1)
_LAYERED, _HALVES, _SEARCHED, _TRY = 0, 1, 2, 3
_HALF = 1 << (GRID_BITS - 1)
_OWN = 4
"""Lanes of a part's first blocks that are the encoder's own: of both races. Then signs, and proposals."""
_CHOICE_BLOCKS = OPENING_CHOICES // 8
_FIRST_KINDS = np.array([OPENING] * _OWN + [SIGNS] * 4 + [PROPOSALS] * 8)
_FIRST_BLOCKS = np.array([0, 1, _CHOICE_BLOCKS, _CHOICE_BLOCKS + 1, *range(4), *range(8)])
_PAIRED = 7
"""Parts of up to 2^7 coordinates share the sixteen lanes with their neighbours, in eight lanes each."""
_PAIR_KINDS = np.array([OPENING] * _OWN + [SIGNS] + [PROPOSALS] * 3)
_PAIR_BLOCKS = np.array([0, *range(_CHOICE_BLOCKS, _CHOICE_BLOCKS + 3), 0, *range(3)])
_FEW = 6
"""How many times dearer the words of a coordinate are where those of its neighbours are not needed."""
ROUGHLY = 2.0**-16
"""A part is first searched with exponentials right to 2^-21. They decide nothing between numbers that are closer to
each other than this margin: such a part is searched again, exactly. So the result is always that of exact ones."""
_UNSURE = -2
"""In the place of J: what rough exponentials did not decide."""


class SearchWork(NamedTuple):
    """Working memory of a part: keystreams, two vectors, their ratios; one for each thread."""

    shared: Any
    private: Any
    mixed: Any
    paired: Any
    words: Any
    first: Any
    few: Any
    signs: Any
    proposed: Any
    steps: Any
    places: Any
    inside: Any
    g: Any
    values: Any
    spectrum: Any
    ratios: Any
    sums: Any
    b: Any
    d: Any


def _search_work() -> SearchWork:
    size = _LARGEST_PART
    return SearchWork(
        shared=aligned(256, np.uint32),
        private=aligned(256, np.uint32),
        mixed=aligned(256, np.uint32),
        paired=aligned(256, np.uint32),
        words=aligned(512, np.uint32),
        first=aligned(256, np.uint32),
        few=aligned(128, np.uint32),
        signs=aligned(128, np.uint64),
        proposed=aligned(64, np.uint64),
        steps=aligned(64, np.int64),
        places=aligned(128, np.int64),
        inside=aligned(128, np.float64),
        g=aligned(2 * size, np.int64),
        values=aligned(size, np.float64),
        spectrum=aligned(size, np.float64),
        ratios=aligned(2 * size, np.float64),
        sums=aligned(size // 4 + 8, np.float64),
        b=aligned(size, np.int64),
        d=aligned(size, np.int64),
    )


@compiled
def fill_steps(words: Any, steps: Any) -> None:
    """Fills steps between arrivals, in 2^-52, of words; negative where a step goes on in the next word."""
    for i in range(len(words)):
        word = words[i]
        top = word >> np.uint64(48)
        halvings = np.float64(np.int64(leading_zeros(top | np.uint64(1)))) - 47.0
        v = 1.0 + (np.float64(np.int64(word & _MASK48)) + 0.5) * 2.0**-48
        above = v > _ROOT
        v = v * 0.5 if above else v
        z = (v - 1.0) / (v + 1.0)
        square = z * z
        total = _A21
        total = total * square + _A19
        total = total * square + _A17
        total = total * square + _A15
        total = total * square + _A13
        total = total * square + _A11
        total = total * square + _A9
        total = total * square + _A7
        total = total * square + _A5
        total = total * square + _A3
        total = total * square + 1.0
        log = 2.0 * z * total + (_LN2 if above else 0.0)
        step = np.int64(np.floor((halvings * _LN2 - log) * _TIME))
        steps[i] = step if top > np.uint64(0) else -_SIXTEEN


@inlined
def cap_at(depth: Any) -> Any:
    """`format.search.cap_at`."""
    return HALF_CAP if depth == 1 else CAP


@inlined
def number_of_stream(segment: Any, log_size: Any, part: Any, candidate: Any, kind: Any) -> Any:
    """`format.search.stream_number`."""
    return (((segment << 4 | log_size) << STREAM_BITS | part) << STREAM_BITS | candidate) << 2 | kind


@compiled
def fill_half(state: Any, stream: Any, first: Any, out: Any) -> None:
    """Fills 128 32-bit words with eight blocks of a stream from number `first` on."""
    for lane in range(8):
        counter = np.uint64(first + lane)
        state[12 * 16 + lane] = np.uint32(counter & np.uint64(0xFFFFFFFF))
        state[13 * 16 + lane] = np.uint32(counter >> np.uint64(32))
        state[14 * 16 + lane] = np.uint32(stream & 0xFFFFFFFF)
        state[15 * 16 + lane] = np.uint32(stream >> 32)
    chacha_half(state, out)


@compiled
def fill_many(state: Any, stream: Any, blocks: Any, out: Any) -> None:
    """Fills words with so many first blocks (a power of two up to 8) of a stream, and of the one behind it."""
    for lane in range(2 * blocks):
        state[12 * 16 + lane] = np.uint32(lane & (blocks - 1))
        state[13 * 16 + lane] = np.uint32(0)
        own = stream + (lane >= blocks)
        state[14 * 16 + lane] = np.uint32(own & 0xFFFFFFFF)
        state[15 * 16 + lane] = np.uint32(own >> 32)
    if blocks == 8:
        chacha_lanes(state, out)
    else:
        chacha_half(state, out)


@compiled
def fill_vector(layers: Any, stream: Any, size: Any, g: Any, inverse: Any, w: Any) -> None:
    """Fills g with a shared vector in units, its latent words in `stream`, and w.values with the same in scales."""
    step = min(size, np.int64(128))
    latents, dithers = w.words.view(np.uint64)[:step], w.words.view(np.uint64)[step : 2 * step]
    for begin in range(0, size, step):
        if step < 128:
            fill_many(w.shared, stream, size >> 3, w.words)
        else:
            fill_words(w.shared, stream, begin >> 3, w.words[:256])
            fill_words(w.shared, stream + DITHERS, begin >> 3, w.words[256:])
        for i in range(0, step, 8):
            eight_places(latents, np.int64(i), w.places, w.inside)
        for i in range(0, step, 8):
            eight_errors(
                dithers, w.places, w.inside, np.int64(i), layers.table, layers.scale, inverse, g, w.values, begin + i
            )


@inlined
def fill_first(w: Any, stream: Any, size: Any) -> Any:
    """Fills w.first with a part's first blocks of each race, its first signs and proposals; w.signs with all signs."""
    for lane in range(16):
        own = stream + _FIRST_KINDS[lane]
        w.mixed[12 * 16 + lane] = np.uint32(_FIRST_BLOCKS[lane])
        w.mixed[13 * 16 + lane] = np.uint32(0)
        w.mixed[14 * 16 + lane] = np.uint32(own & 0xFFFFFFFF)
        w.mixed[15 * 16 + lane] = np.uint32(own >> 32)
    chacha_lanes(w.mixed, w.first)
    if size > 64 * 32:
        fill_signs(w, stream, size)
    else:
        some = w.first.view(np.uint64)
        for i in range(32):
            w.signs[i] = some[32 + i]


@inlined
def fill_pair(w: Any, even: Any, odd: Any) -> None:
    """Fills the halves of w.first with the first blocks of two small parts, whose streams these are."""
    for lane in range(16):
        own = (even if lane < 8 else odd) + _PAIR_KINDS[lane & 7]
        w.paired[12 * 16 + lane] = np.uint32(_PAIR_BLOCKS[lane & 7])
        w.paired[13 * 16 + lane] = np.uint32(0)
        w.paired[14 * 16 + lane] = np.uint32(own & 0xFFFFFFFF)
        w.paired[15 * 16 + lane] = np.uint32(own >> 32)
    chacha_lanes(w.paired, w.first)


@inlined
def fill_signs(w: Any, stream: Any, size: Any) -> None:
    """Fills w.signs with a part's public signs, a bit for each place."""
    some = w.signs.view(np.uint32)
    fill_words(w.shared, stream + SIGNS, 0, some) if size > 4096 else fill_half(w.shared, stream + SIGNS, 0, some[:128])


@inlined
def fill_ratios(w: Any, size: Any, half: Any, ratios: Any, exactly: Any) -> Any:
    """(the mean, the largest) of the ratios of all shifts at the vector in w.values, which is lost; fills them in."""
    inverse = 1.0 / np.float64(size)
    transform(w.values, size)
    transform_product(ratios, size, w.spectrum, w.values)
    total, largest = exponentials(ratios, size, inverse, half, w.sums, exactly)
    return total * inverse, largest


@inlined
def close(a: Any, b: Any, margin: Any) -> Any:
    """Whether rough exponentials leave open which of two positive numbers is the larger one."""
    return margin > 0.0 and abs(a - b) <= margin * a


@inlined
def search_part(
    layers: Any, inverse: Any, segment: Any, log_size: Any, part: Any, half: Any, depth: Any, x: Any, y: Any, w: Any,
    margin: Any,
) -> Any:  # fmt: skip
    """(J, K) of a part whose update is x, with y replaced by what they stand for, unless the part is a block.

    (0, 0) where y stays, (-1, 0) where nothing was found, (`_UNSURE`, 0) where a margin of 0 is needed to decide.
    """
    size, cap = np.int64(1) << log_size, cap_at(depth)
    stream = number_of_stream(segment, log_size, part, 0, 0)
    begin, times, choices = np.int64(0), np.int64(16), np.int64(16)
    offered, proposals = np.int64(64), np.int64(64)
    if log_size > _PAIRED:
        fill_first(w, stream, size)
    else:
        begin, times, choices = 64 * (part & 1), np.int64(8), np.int64(24)
        offered, proposals = np.int64(40), np.int64(24)
        some = w.first.view(np.uint64)
        for i in range(2):
            w.signs[i] = some[begin + 32 + i]
    transform_signed(w.spectrum, size, x, w.signs)
    # A shift drawn at random, and the draw as it would be seen through it.
    first = w.first.view(np.uint64)[begin:]
    shift = np.int64(first[0] >> np.uint64(64 - log_size))
    coin = np.float64(np.int64(first[1] >> np.uint64(11))) * 2.0**-53
    undo(y, w.signs, shift, size, inverse, w.values)
    weighed = coin * fill_ratios(w, size, half, w.ratios, margin == 0.0)[0]
    if close(cap, weighed, margin):
        return np.int64(_UNSURE), np.int64(0)
    if weighed >= cap:
        return np.int64(0), np.int64(0)
    j, slot, largest = race_vectors(layers, inverse, stream, size, half, cap, first[:times], w, margin)
    if j < 1:
        return np.int64(-1) if j == 0 else j, np.int64(0)
    for i in range(proposals):
        w.proposed[i] = first[offered + i]
    drawn = first[times : times + choices]
    k, shift = race_shifts(stream, size, w.ratios[slot : slot + size], largest, drawn, 4 * proposals, w, margin)
    if k < 1:
        return np.int64(-1) if k == 0 else k, np.int64(0)
    if depth > 0:
        see(w.g[slot : slot + size], w.signs, shift, size, y)
    return j, k


@inlined
def race_vectors(
    layers: Any, inverse: Any, stream: Any, size: Any, half: Any, cap: Any, first: Any, w: Any, margin: Any
) -> Any:
    """(J, where its vector and its ratios are in w, the largest of these); J is 0 where there is none."""
    best, found, j = np.inf, np.int64(0), np.int64(0)
    slot, most = np.int64(0), 0.0
    upper, lower, batch = np.int64(0), np.int64(0), np.int64(0)
    fill_steps(first, w.steps)
    at, end = np.int64(OPENING_TIMES), np.int64(len(first))
    while True:
        if at == end:
            if end < 64:
                fill_half(w.private, stream + OPENING, 0, w.few)
            else:
                fill_half(w.private, stream + TIMES, 8 * batch, w.few)
                at, batch = np.int64(0), batch + 1
            fill_steps(w.few.view(np.uint64), w.steps)
            end = np.int64(64)
        step = abs(w.steps[at])
        upper, lower = upper + (step >> _HALF_TIME), lower + (step & _LOWER)
        ends = w.steps[at] >= 0
        at += 1
        if not ends:
            continue
        time = np.float64(upper) * 2.0**-_HALF_TIME + np.float64(lower) * 2.0**-TIME_BITS
        if close(time, cap * best, margin):
            return np.int64(_UNSURE), slot, most
        if time >= cap * best:
            return found, slot, most
        if j >= MOST_VECTORS:
            return np.int64(0), slot, most
        other = np.int64(_LARGEST_PART) - slot
        fill_vector(layers, stream + (j << 2) + LATENTS, size, w.g[other : other + size], inverse, w)
        q, largest = fill_ratios(w, size, half, w.ratios[other : other + size], margin == 0.0)
        j += 1
        weighed = time / min(q, cap)
        if close(weighed, best, margin):
            return np.int64(_UNSURE), slot, most
        if weighed < best:
            best, found, slot, most = weighed, j, other, largest


@inlined
def race_shifts(
    stream: Any, size: Any, ratios: Any, largest: Any, first: Any, offered: Any, w: Any, margin: Any
) -> Any:
    """(K, its shift) for these ratios, with so many proposals in w.proposed; K is 0 where there is none."""
    found, chosen, i = np.int64(0), np.int64(0), np.int64(0)
    best, bound, last = np.inf, np.inf, np.inf
    more, most = 1.0 + 2.0 * margin + 1e-12, 1.0 + margin
    upper, lower, batch = np.int64(0), np.int64(0), np.int64(0)
    mask = np.uint64(size - 1)
    fill_steps(first, w.steps)
    at, end = np.int64(0), np.int64(len(first))
    while True:
        if at == end:
            if end < 64:
                fill_half(w.private, stream + OPENING, OPENING_CHOICES >> 3, w.few)
            else:
                fill_half(w.private, stream + CHOICES, 8 * batch, w.few)
                at, batch = np.int64(0), batch + 1
            fill_steps(w.few.view(np.uint64), w.steps)
            end = np.int64(64)
        step = abs(w.steps[at])
        upper, lower = upper + (step >> _HALF_TIME), lower + (step & _LOWER)
        ends = w.steps[at] >= 0
        at += 1
        if not ends:
            continue
        time = np.float64(upper) * 2.0**-_HALF_TIME + np.float64(lower) * 2.0**-TIME_BITS
        if time >= last:
            return found, chosen
        if i >= MOST_PROPOSALS:
            return np.int64(0), chosen
        if i == offered:
            offered = (i | 255) + 1
            fill_half(w.shared, stream + PROPOSALS, 8 * (i >> 8), w.proposed.view(np.uint32))
        shift = np.int64((w.proposed[(i >> 2) & 63] >> np.uint64(16 * (i & 3))) & mask)
        i = i + np.int64(1)
        if time < bound * ratios[shift]:
            weighed = time / ratios[shift]
            if close(weighed, best, margin):
                return np.int64(_UNSURE), chosen
            if weighed < best:
                # No division where it could not win: the bounds are a little more than what they stand for.
                best, bound, last, found, chosen = weighed, weighed * more, largest * weighed * most, i, shift


@compiled
def fill_part(layers: Any, stream: Any, log_size: Any, j: Any, k: Any, y: Any, w: Any) -> None:
    """Fills y with the vector that (J, K) stand for."""
    size, place = np.int64(1) << log_size, k - 1
    if size <= 2048:
        fill_few_signs(w, stream, size, place >> 5)
        words = w.few.view(np.uint64)
        word = words[32 + ((place >> 2) & 7)] >> np.uint64(16 * (place & 3))
    else:
        fill_half(w.shared, stream + PROPOSALS, 8 * (place >> 8), w.few)
        word = w.few.view(np.uint64)[(place >> 2) & 63] >> np.uint64(16 * (place & 3))
        fill_signs(w, stream, size)
    fill_vector(layers, stream + ((j - 1) << 2) + LATENTS, size, w.g, 1.0, w)
    see(w.g, w.signs, np.int64(word & np.uint64(size - 1)), size, y)


@compiled
def fill_few_signs(w: Any, stream: Any, size: Any, block: Any) -> None:
    """Fills w.signs with the signs of a part of up to 2,048 coordinates, and w.few from word 32 on with a block of
    proposals: all in one call of the cipher."""
    for lane in range(8):
        own = stream + (SIGNS if lane < 4 else PROPOSALS)
        counter = np.uint64(lane if lane < 4 else block)
        w.shared[12 * 16 + lane] = np.uint32(counter & np.uint64(0xFFFFFFFF))
        w.shared[13 * 16 + lane] = np.uint32(counter >> np.uint64(32))
        w.shared[14 * 16 + lane] = np.uint32(own & 0xFFFFFFFF)
        w.shared[15 * 16 + lane] = np.uint32(own >> 32)
    chacha_half(w.shared, w.few)
    some = w.few.view(np.uint64)
    for i in range((size + 63) >> 6):
        w.signs[i] = some[i]


class Forest(NamedTuple):
    """The parts of a segment, those of one size after those of another: what became of each, J and K, |x|^2."""

    first: Any
    kind: Any
    j: Any
    k: Any
    energy: Any


def _forest(layout: f.Layout) -> Forest:
    """This thread's room for the parts of a segment; `first` says where those of 2^i coordinates begin."""
    counts = [layout.places >> i if SMALLEST <= i <= layout.log_size else 0 for i in range(LARGEST + 1)]
    total, workspace = sum(counts), _workspace()
    first = np.array([sum(counts[:i]) for i in range(LARGEST + 1)], dtype=np.int64)
    kind = workspace.take(9, -(-total // 8), np.int8)[:total]
    j, k, energy = workspace.take(10, total), workspace.take(11, total), workspace.take(12, total, np.float64)
    return Forest(first, kind, j, k, energy)


@inlined
def square_sum(x: Any) -> Any:
    """The sum of squares, added up from the first on."""
    total = 0.0
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


@compiled
def search_segment(
    layers: Any, inverse: Any, keys: Any, segment: Any, log_size: Any, blocks: Any, x: Any, y: Any, t: Any, w: Any,
    margin: Any,
) -> Any:  # fmt: skip
    """Codes every block of a segment, x in noise scales; False where nothing was found. y is used up."""
    start_lanes(keys[0], w.shared)
    start_lanes(keys[1], w.private)
    start_lanes(keys[0], w.mixed)
    start_lanes(keys[0], w.paired)
    for i in range(8):
        for lane in range(_OWN):
            w.mixed[(4 + i) * 16 + lane] = keys[1][i]
            w.paired[(4 + i) * 16 + lane] = w.paired[(4 + i) * 16 + 8 + lane] = keys[1][i]
    base = t.first[SMALLEST]
    for part in range(blocks << (log_size - SMALLEST)):
        t.energy[base + part] = square_sum(x[part << SMALLEST : (part + 1) << SMALLEST])
    for i in range(SMALLEST + 1, log_size + 1):
        for part in range(blocks << (log_size - i)):
            below = t.first[i - 1] + 2 * part
            t.energy[t.first[i] + part] = t.energy[below] + t.energy[below + 1]
    # How many searches are left to a part goes down from its block; 0 where it is not reached.
    for part in range(blocks):
        t.j[t.first[log_size] + part] = SEARCHED_LEVELS
    for i in range(log_size, SMALLEST - 1, -1):
        for part in range(blocks << (log_size - i)):
            own = t.first[i] + part
            levels = t.j[own]
            cold = t.energy[own] <= HOTTEST[i]
            t.kind[own] = _TRY if cold and levels > 0 else _LAYERED
            t.k[own] = i > SMALLEST and levels > 0 and (not cold or levels > 1)
            if i > SMALLEST:
                for side in range(2):
                    t.j[t.first[i - 1] + 2 * part + side] = (levels - cold) if t.k[own] else 0
    for i in range(SMALLEST, log_size + 1):
        size, ready = np.int64(1) << i, np.int64(-1)
        for part in range(blocks << (log_size - i)):
            own = t.first[i] + part
            halves = t.k[own] != 0
            found = np.int64(0)
            if t.kind[own] == _TRY:
                begin, depth, half = part << i, np.int64(log_size - i), 0.5 * t.energy[own]
                if i <= _PAIRED and part >> 1 != ready:
                    ready = np.int64(part >> 1)
                    even = number_of_stream(segment, np.int64(i), 2 * ready, 0, 0)
                    fill_pair(w, even, number_of_stream(segment, np.int64(i), 2 * ready + 1, 0, 0))
                own_x, own_y = x[begin : begin + size], y[begin : begin + size]
                found, k, tried = np.int64(_UNSURE), np.int64(0), margin
                while found == _UNSURE:
                    found, k = search_part(
                        layers, inverse, segment, np.int64(i), part, half, depth, own_x, own_y, w, tried
                    )
                    tried = 0.0
                if found < 0:
                    return False
                t.j[own], t.k[own] = found, k
            t.kind[own] = _SEARCHED if found > 0 else (_HALVES if halves else _LAYERED)
    return True


@inlined
def code_size(data: Any, state: Any, value: Any, bits: Any, odds: Any, decoding: Any) -> Any:
    """A number from 1 on of at most so many bits: its length in unary, then the rest; (state, number)."""
    places = np.int64(63) - np.int64(leading_zeros(np.uint64(value | 1)))
    length = np.int64(0)
    going = True
    while going and length < bits - 1:
        state, going = choose(data, state, length < places, odds[length], decoding)
        if going:
            length += 1
    found = np.int64(1)
    for place in range(length - 1, -1, -1):
        chance = odds[bits - 1] if place == length - 1 else np.int64(32768)
        state, bit = choose(data, state, (value >> place) & 1 == 1, chance, decoding)
        found = 2 * found + (1 if bit else 0)
    return state, found


@inlined
def code_forest(data: Any, log_size: Any, blocks: Any, energy_class: Any, table: Any, t: Any, decoding: Any) -> Any:
    """Codes the parts of all blocks in either direction; the state afterwards."""
    state = start(data) if decoding else fresh()
    for block in range(blocks):
        i, part = log_size, np.int64(block)
        while True:
            own = t.first[i] + part
            odds = table[max(energy_class - 2 * (log_size - i), 0)]
            state, searched = choose(data, state, t.kind[own] == _SEARCHED, odds[CONTEXT_SPLIT], decoding)
            kind = np.int64(_SEARCHED)
            if searched:
                state, t.j[own] = code_size(data, state, t.j[own], VECTOR_BITS, odds[CONTEXT_VECTOR:], decoding)
                state, t.k[own] = code_size(data, state, t.k[own], PROPOSAL_BITS, odds[CONTEXT_PROPOSAL:], decoding)
            else:
                layered = True
                if i > SMALLEST:
                    state, layered = choose(data, state, t.kind[own] == _LAYERED, odds[CONTEXT_LAYERED], decoding)
                kind = np.int64(_LAYERED if layered else _HALVES)
            t.kind[own] = kind
            if kind == _HALVES:
                i, part = i - 1, 2 * part
                continue
            while i < log_size and part & 1:
                i, part = i + 1, part >> 1
            if i == log_size:
                break
            part += 1
    return state


@compiled
def write_forest(out: Any, log_size: Any, blocks: Any, energy_class: Any, table: Any, t: Any) -> Any:
    """The length of the stream of the trees in `out`."""
    return finish(out, code_forest(out, log_size, blocks, energy_class, table, t, False))


@compiled
def read_forest(data: Any, log_size: Any, blocks: Any, energy_class: Any, table: Any, t: Any) -> None:
    """Fills in the trees from their stream."""
    code_forest(data, log_size, blocks, energy_class, table, t, True)


@compiled
def fill_forest(
    layers: Any, key: Any, segment: Any, log_size: Any, blocks: Any, y: Any, left: Any, t: Any, w: Any
) -> Any:
    """Fills y where parts are searched, if y is not empty, and left, one for 32 places: is it the layered quantizer's?

    Returns how many places that is.
    """
    start_lanes(key, w.shared)
    many = np.int64(0)
    for block in range(blocks):
        i, part = log_size, np.int64(block)
        while True:
            own = t.first[i] + part
            if t.kind[own] == _HALVES:
                i, part = i - 1, 2 * part
                continue
            size = np.int64(1) << i
            begin = part << i
            found = t.kind[own] == _SEARCHED
            many += 0 if found else size
            for n in range(begin >> SMALLEST, (begin + size) >> SMALLEST):
                left[n] = not found
            if found and len(y):
                stream = number_of_stream(segment, np.int64(i), part, 0, 0)
                fill_part(layers, stream, np.int64(i), t.j[own], t.k[own], y[begin : begin + size], w)
            while i < log_size and part & 1:
                i, part = i + 1, part >> 1
            if i == log_size:
                break
            part += 1
    return many


@compiled
def fill_layers(layers: Any, key: Any, first: Any, words: Any, state: Any, b: Any, d: Any) -> None:
    """Fills b and d with the widths and dithers of coordinates from number `first` (a multiple of 8) on."""
    start_lanes(key, state)
    step = len(words) >> 1
    for begin in range(0, len(b), step):
        count = min(step, len(b) - begin)
        some = words[: -(-count // 128) * 256]
        fill_words(state, LATENT_STREAM, (first + begin) >> 3, some)
        fill_widths(some.view(np.uint64), layers.table, layers.scale, b[begin : begin + count])
        fill_words(state, LATENT_STREAM + 1, (first + begin) >> 3, some)
        fill_dithers(some.view(np.uint64), b[begin : begin + count], d[begin : begin + count])


@compiled
def draw(units: Any, b: Any, d: Any, y: Any) -> None:
    """Fills y with a draw of the layered quantizer."""
    for i in range(len(units)):
        y[i] = floor_divide(units[i] - d[i] + (b[i] >> 1), b[i]) * b[i] + d[i]


@compiled
def deal(
    layers: Any, key: Any, pads: Any, log_size: Any, blocks: Any, units: Any, drawn: Any, inverse: Any, x: Any, y: Any,
    w: Any,
) -> None:  # fmt: skip
    """Fills x with the units dealt to blocks, in noise scales, and y with their draws, also where no unit is."""
    size, count = np.int64(1) << log_size, np.int64(len(units))
    rows, many = count // blocks, blocks & ~7
    for first in range(0, many, 8):
        for row in range(0, rows & ~7, 8):
            transpose_scaled(units, row * blocks + first, blocks, inverse, x, (first << log_size) + row, size)
            transpose_eight(drawn, row * blocks + first, blocks, y, (first << log_size) + row, size)
    for block in range(blocks):
        begin = block << log_size
        for row in range(rows & ~7 if block < many else 0, rows):
            x[begin + row] = np.float64(units[row * blocks + block]) * inverse
            y[begin + row] = drawn[row * blocks + block]
        filled = rows
        if rows * blocks + block < count:
            x[begin + rows] = np.float64(units[rows * blocks + block]) * inverse
            y[begin + rows] = drawn[rows * blocks + block]
            filled += 1
        if filled < size:
            start = filled & ~7
            fill_layers(layers, key, pads + begin + start, w.words, w.private, w.b[start:size], w.d[start:size])
            for row in range(filled, size):
                x[begin + row] = 0.0
                y[begin + row] = w.d[row] - (w.b[row] if w.d[row] > w.b[row] >> 1 else 0)


@compiled
def collect(left: Any, log_size: Any, blocks: Any, count: Any, picked: Any, found: Any) -> Any:
    """Fills found with the coordinates of places that are left, in their order; their number. `picked` has room for
    the numbers of all blocks."""
    many, rows, least = np.int64(0), -(-count // blocks), np.int64(1) << SMALLEST
    for first in range(0, rows, least):
        some = np.int64(0)
        for block in range(blocks):
            picked[some] = block
            some += left[((block << log_size) + first) >> SMALLEST]
        for row in range(first, min(first + least, rows)):
            for i in range(some):
                found[many] = row * blocks + picked[i]
                many += found[many] < count
    return many


@compiled
def fill_few(layers: Any, key: Any, first: Any, found: Any, w: Any, b: Any, d: Any) -> None:
    """Fills b and d with the widths and dithers of some coordinates, counted from number `first`."""
    start_lanes(key, w.private)
    words = w.first.view(np.uint64)
    for lane in range(16):
        w.private[14 * 16 + lane] = np.uint32(LATENT_STREAM + (lane >> 3))
        w.private[15 * 16 + lane] = np.uint32(0)
    for begin in range(0, len(found), 8):
        some = min(8, len(found) - begin)
        for lane in range(16):
            counter = np.uint64((first + found[begin + min(lane & 7, some - 1)]) >> 3)
            w.private[12 * 16 + lane] = np.uint32(counter & np.uint64(0xFFFFFFFF))
            w.private[13 * 16 + lane] = np.uint32(counter >> np.uint64(32))
        chacha_lanes(w.private, w.first)
        for lane in range(some):
            i, place = begin + lane, 8 * lane + ((first + found[begin + lane]) & 7)
            b[i] = 2 * np.int64(radius_of_word(words[place], layers.table, layers.scale)) + 1
            d[i] = np.int64(multiply_high(words[64 + place], np.uint64(b[i])))


@compiled
def to_values(y: Any, log_size: Any, blocks: Any, half: Any, grid: Any, dealt: Any, out: Any) -> None:
    """Fills out with the values of places on the public grid; `dealt` has room for as many, and y is used up."""
    size, count = np.int64(1) << log_size, np.int64(len(out))
    rows, many = count // blocks, blocks & ~7
    if many == 0:
        for i in range(size * blocks):
            y[i] = (y[i] + half) >> GRID_BITS
        for block in range(blocks):
            begin = block << log_size
            for row in range(rows + (rows * blocks + block < count)):
                out[row * blocks + block] = np.float64(y[begin + row]) * grid
        return
    for first in range(0, many, 8):
        for row in range(0, rows & ~7, 8):
            transpose_eight(y, (first << log_size) + row, size, dealt, row * blocks + first, blocks)
    for block in range(blocks):
        begin = block << log_size
        for row in range(rows & ~7 if block < many else 0, rows + (rows * blocks + block < count)):
            dealt[row * blocks + block] = y[begin + row]
    for i in range(count):
        out[i] = np.float64((dealt[i] + half) >> GRID_BITS) * grid


@compiled
def sum_coarse(units: Any, shift: Any, most: Any) -> Any:
    """The sum that `format.search.coarse_sum` is."""
    total = np.int64(0)
    for i in range(len(units)):
        coarse = min(abs(units[i]) >> shift, most)
        total += coarse * coarse
    return total


@compiled
def place_values(m: Any, b: Any, d: Any, found: Any, half: Any, grid: Any, out: Any) -> Any:
    """Fills out at the coordinates found with their values on the public grid; False if one is out of range."""
    outside = np.int64(0)
    for i in range(len(found)):
        outside += np.int64(abs(np.float64(m[i]) * np.float64(b[i])) >= 2.0**62)
        out[found[i]] = np.float64((m[i] * b[i] + d[i] + half) >> GRID_BITS) * grid
    return outside == 0


class Workspace:
    """A thread's working memory: of parts, and of a segment's coordinates and places."""

    def __init__(self) -> None:
        self.search, self._many = _search_work(), {0: np.empty(0)}

    def take(self, number: int, count: int, dtype: Any = np.int64) -> Any:
        """An array that is kept: fresh memory costs more than what is done with it."""
        kept = self._many.get(number, self._many[0])
        if len(kept) < count:
            kept = self._many[number] = aligned(count, np.float64)
        return kept[:count].view(dtype)


_kept = threading.local()


def _workspace() -> Workspace:
    """Working memory, this thread's own."""
    kept: Workspace | None = getattr(_kept, "workspace", None)
    if kept is None:
        kept = _kept.workspace = Workspace()
    return kept


def encode_span(task: CodingTask, values: Values, first: int) -> list[bytes]:
    """The segments of consecutive values, the first of which is coordinate number `first`."""
    slices = block_slices(len(values), 1, task.per_block)
    return [_encode_segment(task, values[part], (first + part.start) // f.SEGMENT) for part in slices]


def decode_span(task: CodingTask, segments: list[bytes], first: int, out: Values) -> None:
    """Fills out with the decoded values of consecutive segments."""
    for data, part in zip(segments, block_slices(len(out), 1, task.per_block)):
        _decode_segment(task, bytes(data), (first + part.start) // f.SEGMENT, out[part])


def _encode_segment(task: CodingTask, values: Values, number: int) -> bytes:
    workspace, layers, count = _workspace(), layer_plan(task.plan), len(values)
    work, noise, first = workspace.search, key_words(task.key), number * f.SEGMENT
    units, b, d, drawn = (workspace.take(i, count) for i in range(1, 5))
    to_units(values, 1.0 / task.plan.unit, units)
    fill_layers(layers, noise, first, work.words, work.private, b, d)
    layout = f.layout_of_sum(int(sum_coarse(units, f.COARSE, f.LARGEST_COARSE)), count, task.plan.scale)
    if layout is None:
        return bytes([f.LAYERED_ONLY]) + _encode_layered(units, b, d)
    size, blocks = layout.log_size, layout.blocks
    x, y = workspace.take(5, layout.places, np.float64), workspace.take(6, layout.places)
    trees, inverse = _forest(layout), 1.0 / task.plan.scale
    draw(units, b, d, drawn)
    deal(layers, noise, f.PAD + 2 * first, size, blocks, units, drawn, inverse, x, y, work)
    keys = tuple(key_words(key) for key in f.search_keys(task.key))
    if not search_segment(layers, inverse, keys, number, size, blocks, x, y, trees, work, ROUGHLY):
        raise RuntimeError("nothing was found: this has chance under 2^-180 and means a broken keystream")
    out = np.empty(8 * len(trees.kind) + 16, dtype=np.uint8)
    length = write_forest(out, size, blocks, layout.energy_class, f.load_odds(), trees)
    stream = out[:length].tobytes()
    if (trees.kind[trees.first[size] :][:blocks] == _SEARCHED).all():
        return bytes([layout.class_byte(False)]) + stream
    found = _left(layers, keys[0], number, layout, np.empty(0, dtype=np.int64), trees)
    if not len(found):
        return bytes([layout.class_byte(False)]) + stream
    rest = _encode_layered(units[found], b[found], d[found])
    return bytes([layout.class_byte(True)]) + f.short_number(length) + stream + rest


def _decode_segment(task: CodingTask, data: bytes, number: int, out: Values) -> None:
    workspace, layers, count = _workspace(), layer_plan(task.plan), len(out)
    if not data:
        raise MalformedMessage("a segment has no class")
    read = f.read_class(data[0], count)
    if read is None:
        _decode_layered(task, data[1:], number, np.arange(count), out)
        return
    layout, layered = read
    stream, rest = f.split_segment(data, layered)
    trees, y = _forest(layout), workspace.take(6, layout.places)
    read_forest(np.frombuffer(bytearray(stream), dtype=np.uint8), layout.log_size, layout.blocks,
                layout.energy_class, f.load_odds(), trees)  # fmt: skip
    found = _left(layers, key_words(f.search_keys(task.key)[0]), number, layout, y, trees)
    if bool(len(found)) != layered:
        raise MalformedMessage("a segment's class does not match its parts")
    to_values(y, layout.log_size, layout.blocks, _HALF, task.plan.grid, workspace.take(1, count), out)
    if layered:
        _decode_layered(task, rest, number, found, out)


def _left(layers: Any, key: Any, number: int, layout: f.Layout, y: Ints, trees: Forest) -> Ints:
    """The coordinates that are the layered quantizer's; fills y, if it is not empty, where parts are searched."""
    workspace = _workspace()
    left = workspace.take(7, -(-layout.places >> SMALLEST + 3), np.int8)
    picked, found = workspace.take(13, layout.blocks + 1), workspace.take(8, layout.count + 1)
    if not fill_forest(layers, key, number, layout.log_size, layout.blocks, y, left, trees, workspace.search):
        return found[:0]
    return found[: collect(left, layout.log_size, layout.blocks, layout.count, picked, found)]


def _encode_layered(x: Ints, b: Ints, d: Ints) -> bytes:
    prior, means = load_tables()
    m = np.array([], dtype=np.int64) if not len(x) else _quotients(x, b, d)
    out: npt.NDArray[np.uint8] = np.empty(len(x) * BYTES_A_COORDINATE + 16, dtype=np.uint8)
    length = encode_block(m, b, d, measure_scale(x), 0, prior, means, margins_for(len(x)), out)
    return out[:length].tobytes()


def _decode_layered(task: CodingTask, block: bytes, number: int, found: Ints, out: Values) -> None:
    workspace, (prior, means), many = _workspace(), load_tables(), len(found)
    work, layers, key, first = workspace.search, layer_plan(task.plan), key_words(task.key), number * f.SEGMENT
    if _FEW * many < len(out):
        b, d = workspace.take(4, many), workspace.take(5, many)
        fill_few(layers, key, first, found, work, b, d)
    else:
        b, d = workspace.take(4, len(out)), workspace.take(5, len(out))
        fill_layers(layers, key, first, work.words, work.private, b, d)
        b, d = b[found], d[found]
    m, data = workspace.take(6, many), np.frombuffer(bytearray(block), dtype=np.uint8)
    decode_block(data, b, d, prior, means, margins_for(many), m)
    if not place_values(m, b, d, found, _HALF, task.plan.grid, out):
        raise MalformedMessage("a lattice point lies outside the range of the format")


def _quotients(x: Ints, b: Ints, d: Ints) -> Ints:
    return np.asarray((x - d + (b >> 1)) // b)
