"""The search coder, compiled: the arithmetic of `numpy.search_coder`, in the same order (docs/search.md)."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cepam.errors import MalformedMessage
from cepam.kernels.format import search as f
from cepam.kernels.format.keystream import LATENT_STREAM, key_words
from cepam.kernels.format.plan import GRID_BITS, Ints
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
    OPENING_END,
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
from cepam.kernels.format.task import CodingTask, Values, block_slices
from cepam.kernels.numba.compiling import aligned, compiled, floor_divide, inlined, layer_plan, leading_zeros
from cepam.kernels.numba.keystream import chacha_half, fill_words, start_lanes
from cepam.kernels.numba.quantizer import fill_dithers, fill_widths, to_units
from cepam.kernels.numba.range_coder import choose, finish, fresh, start
from cepam.kernels.numba.scalar_coder import decode_block, encode_block, margins_for, measure_scale

_LN2 = 0.6931471805599453
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_PER_LN2, _ROOT = 1.4426950408889634, 1.4142135623730951
_MAGIC = 6755399441055744.0
_SIXTEEN = np.int64(np.floor(16.0 * _LN2 * 2.0**f.TIME_BITS))
_TIME, _HALF_TIME = 2.0**TIME_BITS, TIME_BITS // 2
_LOWER = (1 << _HALF_TIME) - 1
_EXP = [1.0]
for _i in range(1, 12):
    _EXP.append(_EXP[-1] / _i)
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11 = _EXP[2:]
_A3, _A5, _A7, _A9, _A11, _A13, _A15, _A17, _A19, _A21 = (1.0 / (2 * i + 1) for i in range(1, 11))
_LARGEST_PART = 1 << LARGEST
_MASK48 = np.uint64((1 << 48) - 1)
_LAYERED, _HALVES, _SEARCHED, _TRY = 0, 1, 2, 3
_HALF = 1 << (GRID_BITS - 1)


class SearchWork(NamedTuple):
    """Working memory of a part: keystreams, a vector, its transforms and ratios; one for each thread."""

    shared: Any
    private: Any
    words: Any
    few: Any
    opening: Any
    steps: Any
    b: Any
    d: Any
    g: Any
    xf: Any
    gf: Any
    spectrum: Any
    ratios: Any
    kept: Any
    sums: Any


def _search_work() -> SearchWork:
    size = _LARGEST_PART
    return SearchWork(
        shared=aligned(256, np.uint32),
        private=aligned(256, np.uint32),
        words=aligned(2 * size, np.uint32),
        few=aligned(256, np.uint32),
        opening=aligned(128, np.int64),
        steps=aligned(128, np.int64),
        b=aligned(size, np.int64),
        d=aligned(size, np.int64),
        g=aligned(size, np.int64),
        xf=aligned(size, np.float64),
        gf=aligned(size, np.float64),
        spectrum=aligned(1 << LARGEST, np.float64),
        ratios=aligned(1 << LARGEST, np.float64),
        kept=aligned(1 << LARGEST, np.float64),
        sums=aligned(1 << (LARGEST - 1), np.float64),
    )


@inlined
def exponential(v: Any) -> Any:
    """e^v for v from -700 to 700, right to 2^-46."""
    v = min(max(v, -700.0), 700.0)
    k = np.floor(v * _PER_LN2 + 0.5)
    r = (v - k * _LN2_HIGH) - k * _LN2_LOW
    total = _E11
    total = total * r + _E10
    total = total * r + _E9
    total = total * r + _E8
    total = total * r + _E7
    total = total * r + _E6
    total = total * r + _E5
    total = total * r + _E4
    total = total * r + _E3
    total = total * r + _E2
    total = total * r + 1.0
    total = total * r + 1.0
    power = (np.float64(k + _MAGIC).view(np.int64) + 1023) << 52
    return total * np.int64(power).view(np.float64)


@compiled
def fill_steps(words: Any, steps: Any) -> None:
    """Fills steps between arrivals, in 2^-52, of 128 words; negative where a step goes on in the next word."""
    for i in range(128):
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


@compiled
def transform(values: Any, size: Any) -> None:
    """The Walsh-Hadamard transform of `size` numbers, in place: steps of 1, 2, 4, … places."""
    for at in range(0, size, 8):
        a0, a1, a2, a3 = values[at], values[at + 1], values[at + 2], values[at + 3]
        a4, a5, a6, a7 = values[at + 4], values[at + 5], values[at + 6], values[at + 7]
        a0, a1, a2, a3, a4, a5, a6, a7 = a0 + a1, a0 - a1, a2 + a3, a2 - a3, a4 + a5, a4 - a5, a6 + a7, a6 - a7
        a0, a2, a1, a3, a4, a6, a5, a7 = a0 + a2, a0 - a2, a1 + a3, a1 - a3, a4 + a6, a4 - a6, a5 + a7, a5 - a7
        values[at], values[at + 4] = a0 + a4, a0 - a4
        values[at + 1], values[at + 5] = a1 + a5, a1 - a5
        values[at + 2], values[at + 6] = a2 + a6, a2 - a6
        values[at + 3], values[at + 7] = a3 + a7, a3 - a7
    step = 8
    while 2 * step < size:
        for at in range(0, size, 4 * step):
            p, q = values[at : at + step], values[at + step : at + 2 * step]
            r, s = values[at + 2 * step : at + 3 * step], values[at + 3 * step : at + 4 * step]
            for i in range(step):
                a, b = p[i] + q[i], p[i] - q[i]
                c, d = r[i] + s[i], r[i] - s[i]
                p[i], r[i] = a + c, a - c
                q[i], s[i] = b + d, b - d
        step *= 4
    if step < size:
        p, q = values[:step], values[step : 2 * step]
        for i in range(step):
            a, b = p[i], q[i]
            p[i], q[i] = a + b, a - b


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
def fill_vector(layers: Any, stream: Any, size: Any, w: Any) -> None:
    """Fills w.g with a shared vector, in units, of which `stream` holds the latent words."""
    some = w.words[: 128 if size <= 64 else -(-size // 128) * 256]
    b, d, g = w.b[:size], w.d[:size], w.g[:size]
    fill_some(w.shared, stream, some)
    fill_widths(some.view(np.uint64), layers.table, layers.scale, b)
    fill_some(w.shared, stream + DITHERS, some)
    fill_dithers(some.view(np.uint64), b, d)
    for i in range(size):
        g[i] = d[i] - (b[i] if d[i] > b[i] >> 1 else 0)


@inlined
def fill_some(state: Any, stream: Any, out: Any) -> None:
    """Fills out, 128 32-bit words or a multiple of 256, with the first blocks of a stream."""
    if len(out) == 128:
        fill_half(state, stream, 0, out)
    else:
        fill_words(state, stream, 0, out)


@inlined
def fill_signs(w: Any, stream: Any, size: Any) -> None:
    """Fills w.few with a part's public signs, a bit for each place."""
    fill_words(w.shared, stream + SIGNS, 0, w.few) if size > 4096 else fill_half(w.shared, stream + SIGNS, 0, w.few[:128])


@compiled
def fill_ratios(w: Any, size: Any, half: Any, ratios: Any) -> Any:
    """The mean of the ratios of all shifts at the vector in w.gf, which is overwritten; fills them in."""
    gf = w.gf[:size]
    transform(gf, size)
    inverse = 1.0 / np.float64(size)
    for i in range(size):
        ratios[i] = w.spectrum[i] * gf[i]
    transform(ratios, size)
    for i in range(size):
        ratios[i] = exponential(ratios[i] * inverse - half)
    return add_up(ratios, w.sums, size) * inverse


@compiled
def add_up(values: Any, sums: Any, size: Any) -> Any:
    """The sum of all numbers: the second half is added to the first, until one is left."""
    half = size >> 1
    for i in range(half):
        sums[i] = values[i] + values[half + i]
    while half > 1:
        half >>= 1
        for i in range(half):
            sums[i] += sums[i + half]
    return sums[0]


@inlined
def is_negative(words: Any, place: Any) -> Any:
    """The sign bit at a place."""
    return (words[place >> 6] >> np.uint64(place & 63)) & np.uint64(1) != np.uint64(0)


@compiled
def search_part(
    layers: Any, inverse: Any, segment: Any, log_size: Any, part: Any, half: Any, depth: Any, y: Any, w: Any
) -> Any:
    """(J, K) of a part, whose update is in w.xf, with y replaced by what they stand for.

    (0, 0) where y stays, (-1, 0) where nothing was found.
    """
    size, cap = np.int64(1) << log_size, cap_at(depth)
    stream = number_of_stream(segment, log_size, part, 0, 0)
    fill_signs(w, stream, size)
    some = w.few.view(np.uint64)
    for i in range(size):
        w.spectrum[i] = -w.xf[i] if is_negative(some, i) else w.xf[i]
    transform(w.spectrum, size)
    # A shift drawn at random, and the draw as it would be seen through it.
    own = w.words[:256]
    fill_words(w.private, stream + OPENING, 0, own)
    opening = own.view(np.uint64)
    fill_steps(opening, w.opening)
    shift = np.int64(opening[0] >> np.uint64(64 - log_size))
    coin = np.float64(np.int64(opening[1] >> np.uint64(11))) * 2.0**-53
    for i in range(size):
        value = np.float64(y[i ^ shift]) * inverse
        w.gf[i] = -value if is_negative(some, i ^ shift) else value
    if coin * fill_ratios(w, size, half, w.ratios) >= cap:
        return np.int64(0), np.int64(0)
    j = race_vectors(layers, inverse, stream, size, half, cap, w)
    if j < 1:
        return np.int64(-1), np.int64(0)
    k = race_shifts(stream, size, w)
    if k < 1:
        return np.int64(-1), np.int64(0)
    fill_part(layers, stream, log_size, j, k, y, w)
    return j, k


@compiled
def race_vectors(layers: Any, inverse: Any, stream: Any, size: Any, half: Any, cap: Any, w: Any) -> Any:
    """J, with the ratios of its vector in w.kept; 0 where there is none."""
    best, found, j = np.inf, np.int64(0), np.int64(0)
    upper, lower, batch = np.int64(0), np.int64(0), np.int64(0)
    steps, at, end = w.opening, np.int64(OPENING_TIMES), np.int64(OPENING_CHOICES)
    while True:
        if at == end:
            steps, at, end = w.steps, np.int64(0), np.int64(128)
            fill_words(w.private, stream + TIMES, 16 * batch, w.few)
            fill_steps(w.few.view(np.uint64), steps)
            batch += 1
        step = abs(steps[at])
        upper, lower = upper + (step >> _HALF_TIME), lower + (step & _LOWER)
        ends = steps[at] >= 0
        at += 1
        if not ends:
            continue
        time = np.float64(upper) * 2.0**-_HALF_TIME + np.float64(lower) * 2.0**-TIME_BITS
        if time >= cap * best:
            return found
        if j >= MOST_VECTORS:
            return np.int64(0)
        fill_vector(layers, stream + (j << 2) + LATENTS, size, w)
        for i in range(size):
            w.gf[i] = np.float64(w.g[i]) * inverse
        q = fill_ratios(w, size, half, w.ratios)
        j += 1
        weighed = time / min(q, cap)
        if weighed < best:
            best, found = weighed, j
            for i in range(size):
                w.kept[i] = w.ratios[i]


@compiled
def race_shifts(stream: Any, size: Any, w: Any) -> Any:
    """K, for the ratios in w.kept; 0 where there is none."""
    largest = w.kept[0]
    for k in range(1, size):
        largest = max(largest, w.kept[k])
    best, found, i = np.inf, np.int64(0), np.int64(0)
    upper, lower, batch = np.int64(0), np.int64(0), np.int64(0)
    proposed, mask = w.words[:128], np.uint64(size - 1)
    steps, at, end = w.opening, np.int64(OPENING_CHOICES), np.int64(OPENING_END)
    while True:
        if at == end:
            steps, at, end = w.steps, np.int64(0), np.int64(128)
            fill_words(w.private, stream + CHOICES, 16 * batch, w.few)
            fill_steps(w.few.view(np.uint64), steps)
            batch += 1
        step = abs(steps[at])
        upper, lower = upper + (step >> _HALF_TIME), lower + (step & _LOWER)
        ends = steps[at] >= 0
        at += 1
        if not ends:
            continue
        time = np.float64(upper) * 2.0**-_HALF_TIME + np.float64(lower) * 2.0**-TIME_BITS
        if time >= largest * best:
            return found
        if i >= MOST_PROPOSALS:
            return np.int64(0)
        if i & 255 == 0:
            fill_half(w.shared, stream + PROPOSALS, 8 * (i >> 8), proposed)
        word = proposed.view(np.uint64)[(i >> 2) & 63]
        weighed = time / w.kept[np.int64((word >> np.uint64(16 * (i & 3))) & mask)]
        i = i + np.int64(1)
        if weighed < best:
            best, found = weighed, i


@compiled
def fill_part(layers: Any, stream: Any, log_size: Any, j: Any, k: Any, y: Any, w: Any) -> None:
    """Fills y with the vector that (J, K) stand for."""
    size, place = np.int64(1) << log_size, k - 1
    fill_half(w.shared, stream + PROPOSALS, 8 * (place >> 8), w.few[:128])
    word = w.few.view(np.uint64)[(place >> 2) & 63] >> np.uint64(16 * (place & 3))
    shift = np.int64(word & np.uint64(size - 1))
    fill_vector(layers, stream + ((j - 1) << 2) + LATENTS, size, w)
    fill_signs(w, stream, size)
    some = w.few.view(np.uint64)
    for i in range(size):
        value = w.g[i ^ shift]
        y[i] = -value if is_negative(some, i) else value


class Forest(NamedTuple):
    """The parts of a segment, those of one size after those of another: what became of each, J and K, |x|^2."""

    first: Any
    kind: Any
    j: Any
    k: Any
    energy: Any


def _forest(layout: f.Layout) -> Forest:
    """Room for the parts of a segment; `first` says where those of 2^i coordinates begin."""
    counts = [layout.places >> i if SMALLEST <= i <= layout.log_size else 0 for i in range(LARGEST + 1)]
    total = sum(counts)
    first = np.cumsum([0, *counts])[:-1].astype(np.int64)
    kind, j, k = np.zeros(total, dtype=np.int8), np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    return Forest(first, kind, j, k, np.zeros(total))


@compiled
def search_segment(
    layers: Any, inverse: Any, keys: Any, segment: Any, log_size: Any, blocks: Any, x: Any, y: Any, t: Any, w: Any
) -> Any:
    """Codes every block of a segment; False where nothing was found. y becomes the vector that is sent."""
    start_lanes(keys[0], w.shared)
    start_lanes(keys[1], w.private)
    base = t.first[SMALLEST]
    for part in range(blocks << (log_size - SMALLEST)):
        total = 0.0
        for i in range(part << SMALLEST, (part + 1) << SMALLEST):
            value = np.float64(x[i]) * inverse
            total += value * value
        t.energy[base + part] = total
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
        size = np.int64(1) << i
        for part in range(blocks << (log_size - i)):
            own = t.first[i] + part
            halves = t.k[own] != 0
            found = np.int64(0)
            if t.kind[own] == _TRY:
                begin = part << i
                for n in range(size):
                    w.xf[n] = np.float64(x[begin + n]) * inverse
                half = 0.5 * t.energy[own]
                depth = np.int64(log_size - i)
                own_y = y[begin : begin + size]
                found, k = search_part(layers, inverse, segment, np.int64(i), part, half, depth, own_y, w)
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
    """Fills y where parts are searched, if y is not empty, and left: whether a place is the layered quantizer's.

    Returns how many parts were searched.
    """
    start_lanes(key, w.shared)
    searched = np.int64(0)
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
            searched += found
            for n in range(begin, begin + size):
                left[n] = not found
            if found and len(y):
                stream = number_of_stream(segment, np.int64(i), part, 0, 0)
                fill_part(layers, stream, np.int64(i), t.j[own], t.k[own], y[begin : begin + size], w)
            while i < log_size and part & 1:
                i, part = i + 1, part >> 1
            if i == log_size:
                break
            part += 1
    return searched


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
def deal(
    layers: Any, key: Any, pads: Any, log_size: Any, blocks: Any, units: Any, b: Any, d: Any, x: Any, y: Any, w: Any
) -> None:
    """Fills x with the units dealt to blocks, y with a draw of the layered quantizer for them, also where none is."""
    size, count = np.int64(1) << log_size, len(units)
    for block in range(blocks):
        begin = block << log_size
        filled = np.int64(0)
        for row in range(size):
            i = row * blocks + block
            if i < count:
                place = begin + row
                x[place] = units[i]
                y[place] = floor_divide(units[i] - d[i] + (b[i] >> 1), b[i]) * b[i] + d[i]
                filled = np.int64(row + 1)
        if filled < size:
            fill_layers(layers, key, pads + begin, w.words, w.private, w.b[:size], w.d[:size])
            for row in range(filled, size):
                x[begin + row] = 0
                y[begin + row] = w.d[row] - (w.b[row] if w.d[row] > w.b[row] >> 1 else 0)


@compiled
def collect(left: Any, log_size: Any, blocks: Any, count: Any, found: Any) -> Any:
    """Fills found with the coordinates of places that are left, in their order; their number."""
    many = np.int64(0)
    for i in range(count):
        block, row = i % blocks, i // blocks
        if left[(block << log_size) + row]:
            found[many] = i
            many += 1
    return many


@compiled
def to_values(y: Any, log_size: Any, blocks: Any, half: Any, grid: Any, out: Any) -> None:
    """Fills out with the values of places on the public grid."""
    for block in range(blocks):
        begin = block << log_size
        for row in range(1 << log_size):
            i = row * blocks + block
            if i < len(out):
                out[i] = np.float64((y[begin + row] + half) >> GRID_BITS) * grid


@compiled
def place_values(m: Any, b: Any, d: Any, found: Any, half: Any, grid: Any, out: Any) -> Any:
    """Fills out at the coordinates found with their values on the public grid; False if one is out of range."""
    outside = np.int64(0)
    for i in range(len(found)):
        outside += np.int64(abs(np.float64(m[i]) * np.float64(b[i])) >= 2.0**62)
        out[found[i]] = np.float64((m[i] * b[i] + d[i] + half) >> GRID_BITS) * grid
    return outside == 0


_kept = threading.local()


def _work() -> SearchWork:
    """Working memory, this thread's own."""
    kept: SearchWork | None = getattr(_kept, "work", None)
    if kept is None:
        kept = _kept.work = _search_work()
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
    work, layers, count = _work(), layer_plan(task.plan), len(values)
    noise, first = key_words(task.key), number * f.SEGMENT
    units = np.empty(count, dtype=np.int64)
    to_units(values, 1.0 / task.plan.unit, units)
    b, d = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    fill_layers(layers, noise, first, work.words, work.private, b, d)
    layout = f.choose_layout(units, task.plan.scale)
    if layout is None:
        return bytes([f.LAYERED_ONLY]) + _encode_layered(units, b, d)
    x, y = np.empty(layout.places, dtype=np.int64), np.empty(layout.places, dtype=np.int64)
    deal(layers, noise, f.PAD + 2 * first, layout.log_size, layout.blocks, units, b, d, x, y, work)
    trees, inverse = _forest(layout), 1.0 / task.plan.scale
    keys = tuple(key_words(key) for key in f.search_keys(task.key))
    if not search_segment(layers, inverse, keys, number, layout.log_size, layout.blocks, x, y, trees, work):
        raise RuntimeError("nothing was found: this has chance under 2^-180 and means a broken keystream")
    out = np.empty(8 * len(trees.kind) + 16, dtype=np.uint8)
    length = write_forest(out, layout.log_size, layout.blocks, layout.energy_class, f.load_odds(), trees)
    stream = out[:length].tobytes()
    blocks = trees.kind[trees.first[layout.log_size] :][: layout.blocks]
    if (blocks == _SEARCHED).all():
        return bytes([layout.class_byte(False)]) + stream
    found = _left(layers, keys[0], number, layout, np.empty(0, dtype=np.int64), trees)
    if not len(found):
        return bytes([layout.class_byte(False)]) + stream
    rest = _encode_layered(units[found], b[found], d[found])
    return bytes([layout.class_byte(True)]) + f.short_number(length) + stream + rest


def _decode_segment(task: CodingTask, data: bytes, number: int, out: Values) -> None:
    layers, count = layer_plan(task.plan), len(out)
    if not data:
        raise MalformedMessage("a segment has no class")
    read = f.read_class(data[0], count)
    if read is None:
        _decode_layered(task, data[1:], number, np.arange(count), out)
        return
    layout, layered = read
    stream, rest = f.split_segment(data, layered)
    trees, y = _forest(layout), np.empty(layout.places, dtype=np.int64)
    read_forest(np.frombuffer(bytearray(stream), dtype=np.uint8), layout.log_size, layout.blocks,
                layout.energy_class, f.load_odds(), trees)  # fmt: skip
    found = _left(layers, key_words(f.search_keys(task.key)[0]), number, layout, y, trees)
    if bool(len(found)) != layered:
        raise MalformedMessage("a segment's class does not match its parts")
    to_values(y, layout.log_size, layout.blocks, _HALF, task.plan.grid, out)
    if layered:
        _decode_layered(task, rest, number, found, out)


def _left(layers: Any, key: Any, number: int, layout: f.Layout, y: Ints, trees: Forest) -> Ints:
    """The coordinates that are the layered quantizer's; fills y, if it is not empty, where parts are searched."""
    left, found = np.empty(layout.places, dtype=np.bool_), np.empty(layout.count, dtype=np.int64)
    fill_forest(layers, key, number, layout.log_size, layout.blocks, y, left, trees, _work())
    return found[: collect(left, layout.log_size, layout.blocks, layout.count, found)]


def _encode_layered(x: Ints, b: Ints, d: Ints) -> bytes:
    prior, means = load_tables()
    m = np.array([], dtype=np.int64) if not len(x) else _quotients(x, b, d)
    out: npt.NDArray[np.uint8] = np.empty(len(x) * BYTES_A_COORDINATE + 16, dtype=np.uint8)
    length = encode_block(m, b, d, measure_scale(x), 0, prior, means, margins_for(len(x)), out)
    return out[:length].tobytes()


def _decode_layered(task: CodingTask, block: bytes, number: int, found: Ints, out: Values) -> None:
    work, (prior, means) = _work(), load_tables()
    b, d = np.empty(len(out), dtype=np.int64), np.empty(len(out), dtype=np.int64)
    fill_layers(layer_plan(task.plan), key_words(task.key), number * f.SEGMENT, work.words, work.private, b, d)
    b, d, m = b[found], d[found], np.empty(len(found), dtype=np.int64)
    data = np.frombuffer(bytearray(block), dtype=np.uint8)
    decode_block(data, b, d, prior, means, margins_for(len(found)), m)
    if not place_values(m, b, d, found, _HALF, task.plan.grid, out):
        raise MalformedMessage("a lattice point lies outside the range of the format")


def _quotients(x: Ints, b: Ints, d: Ints) -> Ints:
    return np.asarray((x - d + (b >> 1)) // b)
