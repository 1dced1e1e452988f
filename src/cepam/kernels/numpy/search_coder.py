"""The search coder in NumPy, part by part as docs/proofs/search-coder.md states it: the reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cepam.errors import MalformedMessage
from cepam.kernels.format import search as f
from cepam.kernels.format.plan import CodingTask, Floats, Ints, Plan, block_slices
from cepam.kernels.numpy import scalar_coder
from cepam.kernels.numpy.keystream import Words, stream_words
from cepam.kernels.numpy.quantizer import bit_length, dither, layers, multiply_high, radius_of_word, scale_of_radius
from cepam.kernels.numpy.range_coder import LaneReader, LaneWriter

_LN2 = 0.6931471805599453
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_PER_LN2, _ROOT = 1.4426950408889634, 1.4142135623730951
_EXP = [1.0]
for _i in range(1, 12):
    _EXP.append(_EXP[-1] / _i)
_ATANH = [1.0 / (2 * i + 1) for i in range(11)]
_HALF_TIME = f.TIME_BITS // 2
_LANE = np.zeros(1, dtype=np.int64)


def exponential(v: Floats) -> Floats:
    """e^v for v from -700 to 700, of + and * alone: right to 2^-46."""
    v = np.clip(v, -700.0, 700.0)
    k = np.floor(v * _PER_LN2 + 0.5)
    r = (v - k * _LN2_HIGH) - k * _LN2_LOW
    total = np.full(v.shape, _EXP[-1])
    for coefficient in _EXP[-2::-1]:
        total = total * r + coefficient
    return np.asarray(total * ((k.astype(np.int64) + 1023) << 52).view(np.float64))


def arrivals(words: Words) -> Floats:
    """Times of a Poisson process of rate 1, made of consecutive words: exponential steps, added up as integers.

    The upper 16 bits of a word hold how often the step is halved, the others the place within an octave. Without a 1
    among them the step is 16 octaves and a new one.
    """
    top = words >> np.uint64(48)
    halvings = 17 - bit_length(top)
    v = 1.0 + ((words & np.uint64((1 << 48) - 1)).astype(np.float64) + 0.5) * 2.0**-48
    above = v > _ROOT
    v = np.where(above, v * 0.5, v)
    z = (v - 1.0) / (v + 1.0)
    square = z * z
    total = np.full(v.shape, _ATANH[-1])
    for coefficient in _ATANH[-2::-1]:
        total = total * square + coefficient
    log = 2.0 * z * total + np.where(above, _LN2, 0.0)
    step = np.where(top > 0, halvings.astype(np.float64) * _LN2 - log, 16.0 * _LN2)
    whole = np.floor(step * 2.0**f.TIME_BITS).astype(np.int64)
    upper, lower = np.cumsum(whole >> _HALF_TIME), np.cumsum(whole & ((1 << _HALF_TIME) - 1))
    times: Floats = upper.astype(np.float64) * 2.0**-_HALF_TIME + lower.astype(np.float64) * 2.0**-f.TIME_BITS
    return times[top > 0]


def transform(values: Floats) -> Floats:
    """The Walsh-Hadamard transforms of the rows, not normalised: steps of 1, 2, 4, … places."""
    rows, size = values.shape
    step = 1
    while step < size:
        pairs = values.reshape(rows, -1, 2, step)
        values = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        step *= 2
    return values.reshape(rows, size)


def add_up(values: Floats) -> float:
    """The sum of all numbers: the second half is added to the first, until one is left."""
    while len(values) > 1:
        half = len(values) // 2
        values = values[:half] + values[half:]
    return float(values[0])


@dataclass(frozen=True)
class Part:
    """A part of a segment: 2^log_size coordinates, their streams, their signs, and all shifts of them."""

    plan: Plan
    keys: tuple[bytes, bytes]
    segment: int
    log_size: int
    number: int
    depth: int = 0

    @property
    def size(self) -> int:
        return 1 << self.log_size

    @property
    def cap(self) -> float:
        """c of the theorem."""
        return f.cap_at(self.depth)

    def _words(self, shared: bool, candidate: int, kind: int, index: Ints) -> Words:
        stream = f.stream_number(self.segment, self.log_size, self.number, candidate, kind)
        return stream_words(self.keys[0 if shared else 1], stream, index)

    def vector(self, candidate: int) -> Ints:
        """The shared Gaussian vector of this number, from 0 on, in units: the layered quantizer's error at zero."""
        every = np.arange(self.size)
        radius = radius_of_word(self.plan, self._words(True, candidate, f.LATENTS, every))
        width = scale_of_radius(self.plan, radius)
        place = multiply_high(self._words(True, candidate, f.DITHERS, every), width.astype(np.uint64)).astype(np.int64)
        return np.asarray(place - np.where(place > width >> 1, width, 0))

    @cached_property
    def signs(self) -> Ints:
        """The public signs."""
        place = np.arange(self.size)
        words = self._words(True, 0, f.SIGNS, place >> 6)
        bits = (words >> (place & 63).astype(np.uint64)) & np.uint64(1)
        return 1 - 2 * bits.astype(np.int64)

    def proposals(self, first: int, count: int) -> Ints:
        """Shared shifts, uniform: those from number `first` on."""
        place = first + np.arange(count)
        words = self._words(True, 0, f.PROPOSALS, place >> 2)
        fields = words >> (16 * (place & 3)).astype(np.uint64)
        return (fields & np.uint64(self.size - 1)).astype(np.int64)

    def apply(self, shift: int, g: Ints) -> Ints:
        """What a shift and the signs make of a vector."""
        return np.asarray(self.signs * g[np.arange(self.size) ^ shift])

    def undo(self, shift: int, y: Ints) -> Ints:
        """The vector of which they make y."""
        return np.asarray((self.signs * y)[np.arange(self.size) ^ shift])

    def times(self, kind: int, count: int) -> Floats:
        """The first arrivals of an encoder's own process: those of the opening stream, and of `count` words more."""
        ends = {f.TIMES: (f.OPENING_TIMES, f.OPENING_CHOICES), f.CHOICES: (f.OPENING_CHOICES, f.OPENING_END)}[kind]
        opening = self._words(False, 0, f.OPENING, np.arange(*ends))
        return arrivals(np.concatenate([opening, self._words(False, 0, kind, np.arange(count))]))

    def search(self, x: Ints, energy: float, y: Ints) -> tuple[int, int] | None:
        """(J, K), with y replaced by the vector that they stand for; or None, and y stays.

        y holds a draw of the law in the code of other parts, or of the layered quantizer.
        """
        scores = Scores(self, x, energy)
        shift, coin = (int(word) for word in self._words(False, 0, f.OPENING, np.arange(2)))
        _, q = scores.of(self.undo(shift >> (64 - self.log_size), y))
        if float(coin >> 11) * 2.0**-53 * q >= self.cap:
            return None
        j, ratios = self._first_race(scores)
        k, shift = self._second_race(ratios)
        y[:] = self.apply(shift, self.vector(j - 1))
        return j, k

    def _first_race(self, scores: Scores) -> tuple[int, Floats]:
        best, found, kept = np.inf, 0, np.empty(0)
        count = 0
        while True:
            times = self.times(f.TIMES, count)
            for j in range(len(times)):
                if times[j] >= self.cap * best:
                    return found, kept
                if j >= f.MOST_VECTORS:
                    raise RuntimeError("no vector was found: this has chance under 2^-180 and means a broken keystream")
                ratios, q = scores.of(self.vector(j))
                weighed = float(times[j]) / min(q, self.cap)
                if weighed < best:
                    best, found, kept = weighed, j + 1, ratios
            count, best, found = 2 * count + 128, np.inf, 0

    def _second_race(self, ratios: Floats) -> tuple[int, int]:
        largest, count = float(ratios.max()), 1024
        while count <= 2 * f.MOST_PROPOSALS:
            times = self.times(f.CHOICES, count)
            proposed = self.proposals(0, len(times))
            weighed = times / ratios[proposed]
            ends = times[1:] >= largest * np.minimum.accumulate(weighed)[:-1]
            if ends.any():
                best = int(np.argmin(weighed[: int(np.argmax(ends)) + 1]))
                if best >= f.MOST_PROPOSALS:
                    break
                return best + 1, int(proposed[best])
            count *= 2
        raise RuntimeError("no member was found: this has chance under 2^-180 and means a broken keystream")


class Scores:
    """The likelihood ratios of a part's update under all shifts."""

    def __init__(self, part: Part, x: Ints, energy: float) -> None:
        self.inverse, self.half = 1.0 / part.plan.scale, 0.5 * energy
        self.spectrum = transform((part.signs * (x.astype(np.float64) * self.inverse))[None])

    def of(self, g: Ints) -> tuple[Floats, float]:
        """The ratios of all shifts at a vector, and their mean."""
        size = len(g)
        spectrum = transform((g.astype(np.float64) * self.inverse)[None])
        ratios = exponential(transform(self.spectrum * spectrum)[0] * (1.0 / size) - self.half)
        return ratios, add_up(ratios) * (1.0 / size)


Tree = Any
"""(J, K), None for a part of the layered quantizer, or a list of the trees of both halves."""


class Segment:
    """A segment of an update."""

    def __init__(self, plan: Plan, noise: bytes, number: int, layout: f.Layout) -> None:
        self.plan, self.keys, self.number, self.layout = plan, f.search_keys(noise), number, layout
        place = np.arange(layout.places)
        block, row = place >> layout.log_size, place & (layout.size - 1)
        self.coordinates = row * layout.blocks + block
        self.real = self.coordinates < layout.count

    def part(self, log_size: int, number: int) -> Part:
        return Part(self.plan, self.keys, self.number, log_size, number, self.layout.log_size - log_size)

    def encode(self, x: Ints, y: Ints) -> list[Tree]:
        """The trees of the blocks; y, a draw of the layered quantizer, becomes the vector that is sent."""
        energies = {f.SMALLEST: _energies(x, self.plan.scale)}
        for i in range(f.SMALLEST + 1, self.layout.log_size + 1):
            energies[i] = energies[i - 1][::2] + energies[i - 1][1::2]

        def code(log_size: int, number: int, levels: int) -> Tree:
            energy = float(energies[log_size][number])
            cold = energy <= f.HOTTEST[log_size]
            tree: Tree = None
            if log_size > f.SMALLEST and (not cold or levels > 1):
                tree = [code(log_size - 1, 2 * number + side, levels - cold) for side in (0, 1)]
            if not cold:
                return tree
            own = slice(number << log_size, (number + 1) << log_size)
            return self.part(log_size, number).search(x[own], energy, y[own]) or tree

        return [code(self.layout.log_size, block, f.SEARCHED_LEVELS) for block in range(self.layout.blocks)]

    def decode(self, trees: list[Tree]) -> tuple[Ints, Any]:
        """The vector, and which of its places are searched."""
        y, searched = np.zeros(self.layout.places, dtype=np.int64), np.zeros(self.layout.places, dtype=np.bool_)

        def fill(tree: Tree, log_size: int, number: int) -> None:
            own = slice(number << log_size, (number + 1) << log_size)
            if isinstance(tree, list):
                for side in (0, 1):
                    fill(tree[side], log_size - 1, 2 * number + side)
            elif tree is not None:
                part = self.part(log_size, number)
                y[own] = part.apply(int(part.proposals(tree[1] - 1, 1)[0]), part.vector(tree[0] - 1))
                searched[own] = True

        for block, tree in enumerate(trees):
            fill(tree, self.layout.log_size, block)
        return y, searched


def _energies(x: Ints, scale: float) -> Floats:
    """|x|^2 of the smallest parts, in noise variances, added up from the first coordinate on."""
    rows = x.astype(np.float64).reshape(-1, 1 << f.SMALLEST) * (1.0 / scale)
    return np.asarray(np.cumsum(rows * rows, axis=1)[:, -1])


class TreeCoder:
    """The trees of a segment as decisions of the arithmetic code, in either direction."""

    def __init__(self, coder: LaneWriter | LaneReader, layout: f.Layout) -> None:
        self.coder, self.layout, self.odds = coder, layout, f.load_odds()

    def _decide(self, chance: int, bit: bool) -> bool:
        return bool(self.coder.code(_LANE, np.array([chance]), np.array([bit]))[0])

    def _size(self, odds: Ints, value: int, bits: int) -> int:
        """A number from 1 on of at most so many bits: its length in unary, then the rest."""
        length, places = 0, max(value.bit_length() - 1, 0)
        while length < bits - 1 and self._decide(int(odds[length]), length < places):
            length += 1
        found = 1
        for place in range(length - 1, -1, -1):
            chance = int(odds[bits - 1]) if place == length - 1 else 32768
            found = 2 * found + self._decide(chance, bool(value >> place & 1))
        return found

    def code(self, tree: Tree, log_size: int, depth: int = 0) -> Tree:
        """The tree itself, once coded."""
        odds = self.odds[max(self.layout.energy_class - 2 * depth, 0)]
        if self._decide(int(odds[f.CONTEXT_SPLIT]), isinstance(tree, tuple)):
            j, k = tree if isinstance(tree, tuple) else (0, 0)
            j = self._size(odds[f.CONTEXT_VECTOR :], j, f.VECTOR_BITS)
            return j, self._size(odds[f.CONTEXT_PROPOSAL :], k, f.PROPOSAL_BITS)
        if log_size == f.SMALLEST or self._decide(int(odds[f.CONTEXT_LAYERED]), tree is None):
            return None
        left, right = tree if isinstance(tree, list) else (None, None)
        return [self.code(left, log_size - 1, depth + 1), self.code(right, log_size - 1, depth + 1)]


def encode_span(task: CodingTask, units: Ints, first: int) -> list[bytes]:
    """The segments of consecutive values in units, the first of which is coordinate number `first`."""
    slices = block_slices(len(units), 1, task.per_block)
    return [encode_segment(task.plan, task.key, units[own], (first + own.start) // f.SEGMENT) for own in slices]


def decode_span(task: CodingTask, segments: list[bytes], first: int, count: int) -> Ints:
    """The values of consecutive segments, in units."""
    slices = block_slices(count, 1, task.per_block)
    parts = [
        decode_segment(task.plan, task.key, bytes(data), (first + own.start) // f.SEGMENT, own.stop - own.start)
        for data, own in zip(segments, slices)
    ]
    return np.concatenate(parts)


def encode_segment(plan: Plan, noise: bytes, x: Ints, number: int) -> bytes:
    """The bytes of a segment of an update, x in units."""
    first, count = number * f.SEGMENT, len(x)
    layout = f.choose_layout(x, plan.scale)
    if layout is None:
        return bytes([f.LAYERED_ONLY]) + _encode_layered(plan, noise, x, first + np.arange(count))
    segment = Segment(plan, noise, number, layout)
    ids = _numbers(segment)
    dealt = np.where(segment.real, x[np.minimum(segment.coordinates, count - 1)], 0)
    trees = segment.encode(dealt, _layered(plan, noise, dealt, ids))
    _, searched = segment.decode(trees)
    writer = LaneWriter(1)
    coder = TreeCoder(writer, layout)
    for tree in trees:
        coder.code(tree, layout.log_size)
    stream = writer.finish(0)
    left = _left(segment, searched)
    if not len(left):
        return bytes([layout.class_byte(False)]) + stream
    rest = _encode_layered(plan, noise, x[left], first + left)
    return bytes([layout.class_byte(True)]) + f.short_number(len(stream)) + stream + rest


def decode_segment(plan: Plan, noise: bytes, data: bytes, number: int, count: int) -> Ints:
    """The vector of a segment, in units."""
    first = number * f.SEGMENT
    if not data:
        raise MalformedMessage("a segment has no class")
    found = f.read_class(data[0], count)
    if found is None:
        return _decode_layered(plan, noise, data[1:], first + np.arange(count))
    layout, layered = found
    stream, rest = f.split_segment(data, layered)
    segment = Segment(plan, noise, number, layout)
    coder = TreeCoder(LaneReader([stream]), layout)
    trees = [coder.code(None, layout.log_size) for _ in range(layout.blocks)]
    y, searched = segment.decode(trees)
    out = np.empty(count, dtype=np.int64)
    out[segment.coordinates[segment.real]] = y[segment.real]
    left = _left(segment, searched)
    if bool(len(left)) != layered:
        raise MalformedMessage("a segment's class does not match its parts")
    if layered:
        out[left] = _decode_layered(plan, noise, rest, first + left)
    return out


def _left(segment: Segment, searched: Any) -> Ints:
    """The coordinates of a segment that are the layered quantizer's, in their order."""
    return np.sort(segment.coordinates[segment.real & ~searched])


def _numbers(segment: Segment) -> Ints:
    """The numbers of the coordinates under which the layered quantizer's words are found."""
    first, place = segment.number * f.SEGMENT, np.arange(segment.layout.places)
    return np.where(segment.real, first + segment.coordinates, f.PAD + 2 * first + place)


def _layered(plan: Plan, noise: bytes, x: Ints, ids: Ints) -> Ints:
    """A draw of the layered quantizer, in units."""
    _, width = layers(plan, noise, ids)
    place = dither(plan, noise, 0, ids, width)[:, 0]
    return np.asarray((x - place + (width >> 1)) // width * width + place)


def _encode_layered(plan: Plan, noise: bytes, x: Ints, ids: Ints) -> bytes:
    _, width = layers(plan, noise, ids)
    place = dither(plan, noise, 0, ids, width)[:, 0]
    m = (x - place + (width >> 1)) // width
    scale, period = np.array([scalar_coder.measure_scale(x)]), np.zeros(1, dtype=np.int64)
    return scalar_coder.encode_span(m, width, place, scale, period, len(x))[0]


def _decode_layered(plan: Plan, noise: bytes, block: bytes, ids: Ints) -> Ints:
    _, width = layers(plan, noise, ids)
    place = dither(plan, noise, 0, ids, width)[:, 0]
    m = scalar_coder.decode_span([block], width, place, len(ids))
    if (np.abs(m.astype(np.float64) * width.astype(np.float64)) >= 2.0**62).any():
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return np.asarray(m * width + place)
