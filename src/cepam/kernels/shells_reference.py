"""The adaptive coder for vector lattices in NumPy: the model of `contexts`, all blocks of a span in step."""

from __future__ import annotations

import numpy as np

from cepam.errors import MalformedMessage
from cepam.kernels import contexts as c
from cepam.kernels.nearest import nearest
from cepam.kernels.ranging_reference import LaneReader, LaneWriter
from cepam.kernels.reference import accepted, bit_length, dither, layers, square_length
from cepam.plan import Accept, Floats, Ints, Plan


class Trials:
    """What both ends know of every trial of a span: dithers, and where x = 0 would land. Computed when asked for."""

    def __init__(self, plan: Plan, key: bytes, first: int, rows: int) -> None:
        self.plan, self.key = plan, key
        self.ids = first + np.arange(rows, dtype=np.int64)
        self.radius, self.b = layers(plan, key, self.ids)
        self.known: list[tuple[Ints, Ints, Ints]] = []

    def __getitem__(self, trial: int) -> tuple[Ints, Ints, Ints]:
        """Dithers, coordinates of M0, and margin contexts (for activity 0) of one trial, for all rows."""
        while len(self.known) <= trial:
            d = dither(self.plan, self.key, len(self.known), self.ids, self.b)
            j0, error = nearest(self.plan, -d, self.b)
            self.known.append((d, j0, margin_contexts(self.plan, error, self.radius, self.b)))
        return self.known[trial]


def margin_contexts(plan: Plan, error: Ints, radius: Floats, b: Ints) -> Ints:
    """The context of each trial's margin, before the activity is added."""
    if plan.accept is Accept.L1_BALL:
        size = np.abs(error).sum(axis=1).astype(np.float64)
    else:
        size = np.sqrt(square_length(error))
    reach = b.astype(np.float64) / plan.inverse_ball if plan.accept is Accept.CELL else radius
    fine = (np.abs(reach - size) / reach * c.FINE).astype(np.int64)
    length = bit_length(fine.astype(np.uint64))
    half = np.where(length >= 2, (fine >> np.maximum(length - 2, 0)) & 1, 0)
    level = np.minimum(2 * length + half, c.LEVELS - 1)
    return ((size <= reach).astype(np.int64) * c.LEVELS + level) * c.ACTIVITIES


class Model:
    """The contexts of all lanes, and the coder that they drive."""

    def __init__(self, coder: LaneWriter | LaneReader, lanes: int) -> None:
        self.coder = coder
        self.p = np.tile(c.FIRST, (lanes, 1))
        self.seen = np.zeros((lanes, c.CONTEXTS), dtype=np.int64)
        self.activity = np.zeros(lanes, dtype=np.int64)

    def code(self, lanes: Ints, context: Ints, bit: Ints) -> Ints:
        """One decision of each of these lanes, written or read."""
        p, seen = self.p[lanes, context], self.seen[lanes, context]
        bit = self.coder.code(lanes, p, bit)
        moved = p + (((bit * c.ONE - p) * c.RATES[seen]) >> 16)
        self.p[lanes, context] = np.clip(moved, c.LEAST, c.ONE - c.LEAST)
        self.seen[lanes, context] = np.minimum(seen + 1, c.SLOWEST)
        return bit

    def difference(self, lanes: Ints, i: int, level: Ints, v: Ints) -> Ints:
        """Coordinate i of M - M0 for these lanes."""
        zero = self.code(lanes, c.ZERO + i * c.ACTIVITIES + level, (v == 0).astype(np.int64))
        out = np.zeros(len(lanes), dtype=np.int64)
        some = np.flatnonzero(zero == 0)
        if not len(some):
            return out
        lanes, level, v = lanes[some], level[some], v[some]
        size = np.abs(v)
        length = bit_length(size.astype(np.uint64))
        k = np.ones(len(lanes), dtype=np.int64)
        going = np.arange(len(lanes))
        while len(going):
            more = self.code(
                lanes[going],
                c.LENGTH + k[going] * c.ACTIVITIES + level[going],
                (length[going] > k[going]).astype(np.int64),
            )
            k[going] += more
            going = going[(more == 1) & (k[going] < c.MAGNITUDES - 1)]
        negative = self.code(lanes, np.full(len(lanes), c.SIGN + i), (v < 0).astype(np.int64))
        value = self._mantissa(lanes, k, size)
        out[some] = np.where(negative == 1, -value, value)
        return out

    def _mantissa(self, lanes: Ints, k: Ints, size: Ints) -> Ints:
        value = np.ones(len(lanes), dtype=np.int64)
        for step in range(int(k.max()) - 1):
            going = np.flatnonzero(k - 2 - step >= 0)
            bit = (size[going] >> (k[going] - 2 - step)) & 1
            if step == 0:
                read = self.code(lanes[going], c.TOP + k[going], bit)
            else:
                read = self.coder.code(lanes[going], np.full(len(going), c.ONE // 2), bit)
            value[going] = 2 * value[going] + read
        return value


def code_span(
    plan: Plan, trials: Trials, coder: LaneWriter | LaneReader, per_block: int, x: Ints | None
) -> tuple[Ints, Ints]:
    """(H, M) of all rows of a span, written from x (H and M are found on the way) or read where x is None."""
    rows = len(trials.ids)
    lanes = np.arange(-(-rows // per_block))
    model = Model(coder, len(lanes))
    h, m = np.zeros(rows, dtype=np.int64), np.zeros((rows, plan.n), dtype=np.int64)
    for step in range(min(per_block, rows)):
        live = lanes[lanes * per_block + step < rows]
        _code_row(plan, trials, model, live, live * per_block + step, x, h, m)
    return h, m


def _code_row(
    plan: Plan, trials: Trials, model: Model, live: Ints, row: Ints, x: Ints | None, h: Ints, m: Ints
) -> None:
    level = np.searchsorted(c.THRESHOLDS, model.activity[live], side="right")
    surprise = np.zeros(len(live), dtype=np.int64)
    longest = np.zeros(len(live), dtype=np.int64)
    going = np.arange(len(live))
    for trial in range(plan.trials):
        d, j0, margin = (part[row[going]] for part in trials[trial])
        context = margin + level[going]
        accept = np.ones(len(going), dtype=np.int64)
        j = j0
        if x is not None:
            j, error = nearest(plan, x[row[going]] - d, trials.b[row[going]])
            accept = accepted(plan, error, trials.radius[row[going]]).astype(np.int64)
        if plan.accept is not Accept.CELL:
            accept = model.code(live[going], context, accept)
            surprise[going] |= accept ^ (margin >= c.LEVELS * c.ACTIVITIES)
        ends = np.flatnonzero(accept == 1)
        if len(ends):
            there = going[ends]
            h[row[there]] = trial + 1
            m[row[there]], longest[there] = _code_point(
                model, live[there], context[ends], level[there], j[ends], j0[ends]
            )
        going = going[accept == 0]
        if not len(going):
            break
    else:
        raise MalformedMessage("a trial count is out of range")
    activity = model.activity[live]
    model.activity[live] = activity + (((surprise + longest) * c.ACTIVITY_STEP - activity) >> 2)


def _code_point(model: Model, lanes: Ints, context: Ints, level: Ints, j: Ints, j0: Ints) -> tuple[Ints, Ints]:
    same = model.code(lanes, c.SAME + context, (j == j0).all(axis=1).astype(np.int64))
    out = j0.copy()
    longest = np.zeros(len(lanes), dtype=np.int64)
    other = np.flatnonzero(same == 0)
    if len(other):
        for i in range(j.shape[1]):
            v = model.difference(lanes[other], i, level[other], j[other, i] - j0[other, i])
            out[other, i] = j0[other, i] + v
            longest[other] = np.maximum(longest[other], bit_length(np.abs(v).astype(np.uint64)) + 1)
    return out, longest


def encode_span(plan: Plan, key: bytes, x: Ints, first: int, per_block: int) -> list[bytes]:
    """The blocks of a span of sub-vectors (rows of x)."""
    coder = LaneWriter(-(-len(x) // per_block))
    code_span(plan, Trials(plan, key, first, len(x)), coder, per_block, x)
    return [coder.finish(lane) for lane in range(len(coder.at))]


def decode_span(
    plan: Plan, key: bytes, blocks: list[bytes], first: int, rows: int, per_block: int
) -> tuple[Ints, Ints]:
    """(H, M) of the sub-vectors in these blocks."""
    return code_span(plan, Trials(plan, key, first, rows), LaneReader(blocks), per_block, None)
