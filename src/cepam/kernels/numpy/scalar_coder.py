"""The adaptive coder for scalars in NumPy: the model of `scalar_contexts`, all blocks of a span in step."""

from __future__ import annotations

import numpy as np

from cepam.kernels.format import scalar_contexts as g
from cepam.kernels.format.plan import Ints
from cepam.kernels.format.row_period import FLAT, LARGEST_PERIOD, LOCAL
from cepam.kernels.format.scalar_contexts import FLOOR
from cepam.kernels.numpy.range_coder import LaneReader, LaneWriter

Coder = LaneWriter | LaneReader


def log(value: Ints) -> Ints:
    """256 times a piecewise linear log2 of non-negative values below 2^53 (0 counts as 1)."""
    return np.asarray(((value | 1).astype(np.float64).view(np.int64) >> 44) - 1023 * g.OCTAVE)


def power(exponent: Ints) -> Ints:
    """The inverse of `log`, for exponents from 0 to below 31 octaves."""
    return np.asarray(((g.OCTAVE + (exponent & 255)) << (exponent >> 8)) >> 8)


def edges(width: Ints, dither: Ints) -> tuple[Ints, Ints]:
    """(high, -low): how far X may go up and down before the quotient leaves M0."""
    half = width >> 1
    high = np.where(dither <= half, dither + half + 1, dither - half)
    return high, width - high


class Decisions:
    """The adaptive probabilities of all lanes, and the coder that they drive."""

    def __init__(self, coder: Coder, prior: Ints, lanes: int) -> None:
        self.coder = coder
        self.odds = np.tile(prior.astype(np.int64), (lanes, 1))

    def decide(self, lanes: Ints, context: Ints, bit: Ints, rate: int) -> Ints:
        """One modelled decision of each of these lanes."""
        p = self.odds[lanes, context]
        bit = self.coder.code(lanes, np.clip(p, FLOOR, 65536 - FLOOR), bit)
        self.odds[lanes, context] = p + ((bit * 65535 - p) >> rate)
        return bit

    def plain(self, lanes: Ints, bit: Ints) -> Ints:
        """One decision of even odds of each of these lanes."""
        return self.coder.code(lanes, np.full(len(lanes), 32768), bit)

    def header(self, lanes: Ints, value: Ints, bits: int) -> Ints:
        """Plain bits of side information, highest first."""
        got = np.zeros(len(lanes), dtype=np.int64)
        for place in range(bits - 1, -1, -1):
            got = (got << 1) | self.plain(lanes, (value >> place) & 1)
        return got

    def size(self, lanes: Ints, value: Ints, base: Ints, skip: Ints, most: int) -> Ints:
        """A size of at least 1, of at most `most` bits: `skip` low ones plainly, the rest by exponent and mantissa."""
        plain = value & ((np.int64(1) << skip) - 1)
        rest = (value >> skip) + (skip > 0)
        places = log(rest) >> 8
        length = np.zeros(len(lanes), dtype=np.int64)
        going = np.arange(len(lanes))
        while len(going):
            bit = (length[going] < places[going]).astype(np.int64)
            more = self.decide(lanes[going], base[going] + np.minimum(length[going], 19), bit, g.SIZE_RATE)
            length[going] += more
            going = going[(more == 1) & (length[going] < most - skip[going])]
        out = np.ones(len(lanes), dtype=np.int64)
        for step in range(int((length + skip).max())):
            going = np.flatnonzero(step < length + skip)
            left = length[going] - 1 - step
            low = plain[going] >> np.maximum(skip[going] + left, 0)
            bit = np.where(left >= 0, rest[going] >> np.maximum(left, 0), low) & 1
            if step == 0:
                top = length[going] > 0
                context = base[going] + 19 + np.minimum(length[going], 4)
                read = np.empty(len(going), dtype=np.int64)
                read[top] = self.decide(lanes[going[top]], context[top], bit[top], g.SIZE_RATE)
                read[~top] = self.plain(lanes[going[~top]], bit[~top])
            else:
                read = self.plain(lanes[going], bit)
            out[going] = (out[going] << 1) | read
        return np.where(skip > 0, np.maximum(out - (np.int64(1) << skip), 1), out)


class QuotientCoder(Decisions):
    """The state of the model in every lane."""

    def __init__(self, coder: Coder, b: Ints, d: Ints, scale: Ints, period: Ints) -> None:
        prior, self.means = g.load_tables()
        super().__init__(coder, prior, len(scale))
        self.b, self.d = b, d
        self.scale, self.period = scale.copy(), period.copy()
        self.above, self.below = edges(b, d)
        self.rise = self.above <= self.below
        self.near = log(np.minimum(self.above, self.below))
        self.wide = log(b)
        self.tilt = log(np.abs(self.above - self.below))

    def start(self) -> None:
        """Everything that depends on the side information."""
        anchor = g.TICKS * g.OCTAVE + (self.scale & 1) * 128
        self.shift, self.anchor = (self.scale >> 1) - g.TICKS, anchor
        self.sized, self.across = power(anchor), power(anchor)
        self.signed = np.zeros_like(anchor)
        self.column = np.tile(anchor[:, None], (1, LARGEST_PERIOD + 1))

    def coordinate(self, lanes: Ints, i: int, k: Ints) -> Ints:
        """k of coordinate i in these lanes, written or read; the state has moved on."""
        period = self.period[lanes]
        place = np.where(period > LOCAL, i % np.maximum(period, 1), 0)
        above = self.column[lanes, place]
        z = 15 * log(self.sized[lanes]) + self.anchor[lanes]
        z += np.where(period > LOCAL, 13 * (above - log(self.across[lanes])), 0)
        z = np.where(period == FLAT, self.anchor[lanes], np.clip(z >> 4, 0, 31 * g.OCTAVE - 1))
        s, offset = power(z), self.shift[lanes] * g.OCTAVE + z
        rise = self.rise[lanes, i]
        level = self.level(lanes, period, rise)
        level += g.ZONE * ((z < self.anchor[lanes] - 2 * g.OCTAVE) + 2 * (z > self.anchor[lanes]))
        near = np.clip((self.near[lanes, i] - offset + 5 * g.OCTAVE) >> 7, 0, 15)
        wide = np.clip((self.wide[lanes, i] - offset + g.OCTAVE) >> 8, 0, 5)
        zero_at = (near * 6 + wide) * g.LEVELS + level
        moved = self.decide(lanes, zero_at, (k != 0).astype(np.int64), g.ZERO_RATE)
        e = np.maximum((s * self.means[zero_at]) >> 8, 1)
        v = (s * self.means[g.MEANS_TILT + zero_at]) >> 8
        v = np.where(rise, v, -v)
        out = np.zeros(len(lanes), dtype=np.int64)
        far = np.flatnonzero(moved)
        if len(far):
            out[far], e[far] = self.jump(lanes[far], i, k[far], offset[far], level[far], s[far])
            v[far] = np.where(out[far] > 0, e[far], -e[far])
        self.follow(lanes, period, place, above, e, v)
        return out

    def level(self, lanes: Ints, period: Ints, rise: Ints) -> Ints:
        """How strongly recent values point to the nearer side."""
        signed, sized = self.signed[lanes], self.sized[lanes]
        towards = np.where(rise, signed, -signed)
        strength = np.abs(towards) * 8
        steps = sum((strength > c * sized).astype(np.int64) for c in (1, 3, 5, 7))
        return np.where(period == FLAT, g.LEVEL_FLAT, 4 + np.where(towards > 0, steps, -steps))

    def jump(self, lanes: Ints, i: int, k: Ints, offset: Ints, level: Ints, s: Ints) -> tuple[Ints, Ints]:
        """A k that is not zero, and the size of X that it suggests."""
        rise = self.rise[lanes, i]
        tilt = np.clip((self.tilt[lanes, i] - offset + 4 * g.OCTAVE) >> 8, 0, 7)
        side_at = g.SIDE_AT + tilt * g.LEVELS + level
        nearer = self.decide(lanes, side_at, ((k > 0) == rise).astype(np.int64), g.SIDE_RATE)
        wide = self.wide[lanes, i]
        skip = np.clip((offset - wide - 5 * g.OCTAVE) >> 8, 0, g.LARGEST_BITS - 4)
        row = np.clip((wide + skip * g.OCTAVE - offset + 6 * g.OCTAVE) >> 7, 0, 23)
        size = self.size(lanes, np.abs(k), g.SIZE_AT + row * 24, skip, g.LARGEST_BITS)
        positive = (nearer == 1) == rise
        shift = self.shift[lanes]
        inner = np.where(positive, self.above[lanes, i], self.below[lanes, i])
        inner, width = _shifted(inner, shift), _shifted(self.b[lanes, i], shift)
        e = np.minimum(inner, g.LARGEST) + np.minimum(size - 1, g.LARGEST) * np.minimum(width, g.LARGEST)
        e = np.minimum(e + ((s * self.means[g.MEANS_OVER + row]) >> 8), g.LARGEST)
        return np.where(positive, size, -size), e

    def follow(self, lanes: Ints, period: Ints, place: Ints, above: Ints, e: Ints, v: Ints) -> None:
        """Moves the local scales toward a coordinate's size."""
        self.sized[lanes] += (e - self.sized[lanes]) >> 2
        self.signed[lanes] += (v - self.signed[lanes]) >> 2
        rows = np.flatnonzero(period > LOCAL)
        if len(rows):
            lanes, was = lanes[rows], power(above[rows])
            self.across[lanes] += ((was - self.across[lanes]) * 3) >> 4
            self.column[lanes, place[rows]] = log(np.maximum(was + (((e[rows] - was) * 3) >> 4), 1))


def _shifted(value: Ints, shift: Ints) -> Ints:
    value = np.minimum(value, np.int64(1) << 44)
    return np.where(shift >= 0, value >> np.maximum(shift, 0), value << np.maximum(-shift, 0))


def measure_scale(x: Ints) -> int:
    """A block's scale code: half octaves of the mean of |X| (1..126)."""
    mean = np.array([int(np.minimum(np.abs(x), 1 << 48).sum()) // max(len(x), 1)])
    return int(np.clip((log(mean) + 64) >> 7, 1, g.NOTHING - 1)[0])


def _lanes(values: Ints, per_block: int) -> Ints:
    count = -(-len(values) // per_block)
    table = np.ones(count * per_block, dtype=np.int64)
    table[: len(values)] = values
    return table.reshape(count, per_block)


def _walk_all(walk: QuotientCoder, live: Ints, k: Ints, count: int) -> None:
    """Runs the coder over all coordinates of the live lanes; k (lanes, per_block) is read or filled."""
    walk.start()
    per_block = k.shape[1]
    for i in range(min(per_block, count)):
        now = live[live * per_block + i < count]
        k[now, i] = walk.coordinate(now, i, k[now, i])


def encode_span(m: Ints, b: Ints, d: Ints, scale: Ints, period: Ints, per_block: int) -> list[bytes]:
    """The blocks of consecutive quotients m; `scale` and `period` hold one entry a block."""
    widths = _lanes(b, per_block)
    k = _lanes(m + (d > b >> 1), per_block)
    k.reshape(-1)[len(m) :] = 0
    coder = LaneWriter(len(k))
    walk = QuotientCoder(coder, widths, _lanes(d, per_block), scale, period)
    live = np.flatnonzero(k.any(axis=1))
    walk.header(live, scale[live], 7)
    walk.header(live, period[live], 11)
    _walk_all(walk, live, k, len(m))
    return [coder.finish(lane) if lane in set(live.tolist()) else b"" for lane in range(len(k))]


def decode_span(blocks: list[bytes], b: Ints, d: Ints, per_block: int) -> Ints:
    """The quotients in consecutive blocks."""
    every = np.arange(len(blocks))
    zero = np.zeros(len(blocks), dtype=np.int64)
    walk = QuotientCoder(LaneReader(blocks), _lanes(b, per_block), _lanes(d, per_block), zero, zero)
    walk.scale[:] = walk.header(every, zero, 7)
    live = every[walk.scale != g.NOTHING]
    walk.period[live] = walk.header(live, zero[live], 11)
    k = np.zeros((len(blocks), per_block), dtype=np.int64)
    _walk_all(walk, live, k, len(b))
    return np.asarray(k.reshape(-1)[: len(b)] - (d > b >> 1))
