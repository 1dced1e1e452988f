"""The adaptive coder for vector lattices in NumPy: the model of `vector_contexts`, all blocks of a span in step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cepam.errors import MalformedMessage
from cepam.kernels.format import vector_contexts as c
from cepam.kernels.format.plan import Accept, Floats, Ints, Plan
from cepam.kernels.format.scalar_contexts import LARGEST, NOTHING, OCTAVE, TICKS
from cepam.kernels.numpy.quantizer import Flags, accepted, dithers, layers, nearest, square_length
from cepam.kernels.numpy.range_coder import LaneReader, LaneWriter
from cepam.kernels.numpy.scalar_coder import Decisions, log, measure_scale, power


class Landing(NamedTuple):
    """Dithers, M0's coordinates, e0 and whether it would be accepted: what x = 0 makes of one trial of some rows."""

    d: Ints
    j0: Ints
    error0: Ints
    inside: Flags

    def of(self, rows: Ints | slice) -> Landing:
        """The same for some of the rows."""
        return Landing(self.d[rows], self.j0[rows], self.error0[rows], self.inside[rows])


AT_ONCE = 4096
"""Most sub-vectors, one for each trial, whose dithers are computed in one call."""


class Trials:
    """What both ends know of every trial of a span. Computed when asked for."""

    def __init__(self, plan: Plan, key: bytes, first: int, rows: int) -> None:
        self.plan, self.key = plan, key
        self.ids = first + np.arange(rows, dtype=np.int64)
        self.radius, self.b = layers(plan, key, self.ids)
        if plan.accept is Accept.CELL:
            self.radius = self.b.astype(np.float64) / plan.inverse_ball
        self.known: list[Landing] = []

    def __getitem__(self, trial: int) -> Landing:
        """One trial of all rows."""
        while len(self.known) <= trial:
            self._know_more()
        return self.known[trial]

    def _know_more(self) -> None:
        """As many trials again as are known: where acceptance is rare, a trial by itself is mostly overhead."""
        first, rows = len(self.known), len(self.ids)
        count = max(1, min(first, AT_ONCE // rows))
        d = dithers(self.plan, self.key, range(first, first + count), self.ids, self.b)
        j0, error0 = nearest(self.plan, -d, np.tile(self.b, count))
        found = Landing(d, j0, error0, accepted(self.plan, error0, np.tile(self.radius, count)))
        self.known += [found.of(slice(at, at + rows)) for at in range(0, count * rows, rows)]


def length_of(plan: Plan, vectors: Ints) -> Floats:
    """The lengths of vectors in the law's norm."""
    if plan.accept is Accept.L1_BALL:
        return np.asarray(np.abs(vectors).sum(axis=1).astype(np.float64))
    return np.asarray(np.sqrt(square_length(vectors)))


def mark_of(length: Floats, radius: Floats, offset: Ints, top: int) -> Ints:
    """Half octaves of the margin over the local scale."""
    margin = np.minimum(np.abs(radius - length), c.LONGEST).astype(np.int64)
    return np.clip((log(margin) - offset + 6 * OCTAVE) >> 7, 0, top)


def wide_of(value: Ints) -> Ints:
    """Octaves of a radius or a spacing over the local scale, from their logarithm."""
    return np.clip((value + 2 * OCTAVE) >> 8, 0, c.WIDES - 1)


class TrialCoder(Decisions):
    """The state of the model in every lane, and the coder that it drives."""

    def __init__(self, plan: Plan, trials: Trials, coder: LaneWriter | LaneReader, scale: Ints) -> None:
        prior, self.means = c.load_tables(int(plan.accept), plan.n)
        super().__init__(coder, prior, len(scale))
        self.plan, self.trials = plan, trials
        self.scale = self.header(np.arange(len(scale)), scale, 7)
        self.anchor = TICKS * OCTAVE + (self.scale & 1) * 128
        self.sized = power(self.anchor)
        self.surprised = np.zeros(len(scale), dtype=np.bool_)

    def row(self, lanes: Ints, row: Ints, x: Ints | None, h: Ints, m: Ints) -> None:
        """(H, M) of one row of each of these lanes, written or read."""
        radius, b = self.trials.radius[row], self.trials.b[row]
        z = np.clip((15 * log(self.sized[lanes]) + self.anchor[lanes]) >> 4, 0, 31 * OCTAVE - 1)
        offset = ((self.scale[lanes] >> 1) - TICKS) * OCTAVE + z
        wide = wide_of(log(radius.astype(np.int64)) - offset)
        length, going = np.zeros(len(lanes)), np.arange(len(lanes))
        for trial in range(self.plan.trials):
            at = self.trials[trial].of(row[going])
            mark = mark_of(length_of(self.plan, at.error0), radius[going], offset[going], c.MARKS - 1)
            context = (np.where(at.inside, c.MARKS, 0) + mark) * c.WIDES + wide[going]
            accept, j = at.inside, at.j0
            if x is not None:
                j, error = nearest(self.plan, x[row[going]] - at.d, b[going])
                accept = accepted(self.plan, error, radius[going])
                self.surprised[lanes[going]] |= (accept != at.inside) | (accept & (j != at.j0).any(axis=1))
            if self.plan.accept is not Accept.CELL:
                accept = self.decide_unless_nothing(lanes[going], context, accept)
            ends = np.flatnonzero(accept)
            there = going[ends]
            h[row[there]] = trial + 1
            m[row[there]], length[there] = self.end(
                lanes[there], b[there], offset[there], context[ends], at.of(ends), j[ends]
            )
            going = going[~accept]
            if not len(going):
                break
        else:
            raise MalformedMessage("a trial count is out of range")
        self.follow(lanes, length, radius, offset, wide, z)

    def end(self, lanes: Ints, b: Ints, offset: Ints, context: Ints, at: Landing, j: Ints) -> tuple[Ints, Floats]:
        """The points of accepted trials, and the lengths of the decoded vectors."""
        same = self.decide_unless_nothing(lanes, c.SAME + context, (j == at.j0).all(axis=1))
        points, y = at.j0.copy(), at.error0.copy()
        far = np.flatnonzero(~same)
        if len(far):
            points[far] = self.point(lanes[far], b[far], offset[far], at.error0[far], at.j0[far], j[far])
            y[far] = b[far, None] * (points[far] @ self.plan.basis.T) + at.d[far]
        return points, length_of(self.plan, y)

    def decide_unless_nothing(self, lanes: Ints, context: Ints, bit: Flags) -> Flags:
        """One decision of each lane, except of those whose block says that nothing ever differs."""
        out = bit.copy()
        some = np.flatnonzero(self.scale[lanes] != NOTHING)
        out[some] = self.decide(lanes[some], context[some], bit[some].astype(np.int64), c.RATE) == 1
        return out

    def follow(self, lanes: Ints, length: Floats, radius: Floats, offset: Ints, wide: Ints, z: Ints) -> None:
        """Moves the local scales toward the size that the decoded points suggest."""
        mark = mark_of(length, radius, offset, c.MEAN_MARKS - 1)
        mean = self.means[(np.where(length <= radius, c.MEAN_MARKS, 0) + mark) * c.WIDES + wide]
        size = np.clip((power(z) * mean) >> 8, 1, LARGEST)
        self.sized[lanes] += ((size - self.sized[lanes]) * 5) >> 4

    def point(self, lanes: Ints, b: Ints, offset: Ints, error0: Ints, j0: Ints, j: Ints) -> Ints:
        """Coordinates of points that are not M0, one after the other."""
        walk, n = self.plan.walk, self.plan.n
        step, untouched = np.zeros_like(j0), np.ones(len(lanes), dtype=np.bool_)
        for told, i in enumerate(walk.order):
            centre = np.zeros(len(lanes))
            for k in range(n):
                centre = centre - walk.axes[i, k] * error0[:, k].astype(np.float64)
            centre = centre / b.astype(np.float64)
            for k in walk.order[:told]:
                centre = centre - walk.shear[i, k] * step[:, k].astype(np.float64)
            centre = np.clip(centre, -c.FARTHEST, c.FARTHEST)
            goal = np.floor(centre + 0.5).astype(np.int64)
            stage = np.where(untouched & (goal == 0), 2 if told == n - 1 else 1, 0)
            spacing = log(b) + int(walk.spacing[i]) - offset
            step[:, i] = goal + self.jump(
                lanes, centre - goal.astype(np.float64), stage, spacing, j[:, i] - j0[:, i] - goal
            )
            untouched &= step[:, i] == 0
        return j0 + step

    def jump(self, lanes: Ints, rest: Floats, stage: Ints, spacing: Ints, v: Ints) -> Ints:
        """How far a coordinate lies from where a zero update would be."""
        fraction = np.minimum((np.abs(rest) * (2 * c.FRACTIONS)).astype(np.int64), c.FRACTIONS - 1)
        cell = fraction * c.WIDES + wide_of(spacing)
        stays = self.decide(lanes, c.STAY + stage * (c.FRACTIONS * c.WIDES) + cell, (v == 0).astype(np.int64), c.RATE)
        out = np.zeros(len(lanes), dtype=np.int64)
        far = np.flatnonzero(stays == 0)
        if not len(far):
            return out
        lanes, up, v, spacing = lanes[far], rest[far] >= 0.0, v[far], spacing[far]
        nearer = self.decide(lanes, c.SIDE + cell[far], ((v > 0) == up).astype(np.int64), c.RATE)
        skip = np.clip((-spacing - 5 * OCTAVE) >> 8, 0, c.LARGEST_BITS - 4)
        row = np.clip((spacing + skip * OCTAVE + 6 * OCTAVE) >> 7, 0, c.ROWS - 1)
        size = self.size(lanes, np.abs(v), c.SIZE + row * c.ROW, skip, c.LARGEST_BITS)
        out[far] = np.where((nearer == 1) == up, size, -size)
        return out


def code_span(model: TrialCoder, per_block: int, x: Ints | None) -> tuple[Ints, Ints]:
    """(H, M) of all rows of a span, written from x (H and M are found on the way) or read where x is None."""
    rows = len(model.trials.ids)
    lanes = np.arange(-(-rows // per_block))
    h, m = np.zeros(rows, dtype=np.int64), np.zeros((rows, model.plan.n), dtype=np.int64)
    for step in range(min(per_block, rows)):
        live = lanes[lanes * per_block + step < rows]
        model.row(live, live * per_block + step, x, h, m)
    return h, m


def encode_span(plan: Plan, key: bytes, x: Ints, first: int, per_block: int) -> list[bytes]:
    """The blocks of a span of sub-vectors (rows of x)."""
    coder = LaneWriter(-(-len(x) // per_block))
    starts = range(0, len(x), per_block)
    scale = np.array([measure_scale(x[at : at + per_block].reshape(-1)) for at in starts], dtype=np.int64)
    model = TrialCoder(plan, Trials(plan, key, first, len(x)), coder, scale)
    code_span(model, per_block, x)
    return [coder.finish(lane) if model.surprised[lane] else b"" for lane in range(len(scale))]


def decode_span(
    plan: Plan, key: bytes, blocks: list[bytes], first: int, rows: int, per_block: int
) -> tuple[Ints, Ints]:
    """(H, M) of the sub-vectors in these blocks."""
    scale = np.zeros(len(blocks), dtype=np.int64)
    return code_span(TrialCoder(plan, Trials(plan, key, first, rows), LaneReader(blocks), scale), per_block, None)
