"""The adaptive coder for vector lattices, compiled: trials, contexts and range coder in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cepam.kernels.format import vector_contexts as c
from cepam.kernels.format.scalar_contexts import LARGEST, NOTHING, OCTAVE, TICKS
from cepam.kernels.numba.compiling import compiled, in_eight, inlined, pasted
from cepam.kernels.numba.keystream import start_lanes
from cepam.kernels.numba.quantizer import draw_dither, first_words, is_accepted, layer_of, nearest, place, square_length
from cepam.kernels.numba.range_coder import (
    chance,
    choose,
    finish,
    fresh,
    learn,
    log,
    power,
    start,
    walk_header,
    walk_size,
    within,
)

MARKS, WIDES, MEAN_MARKS, FRACTIONS = c.MARKS, c.WIDES, c.MEAN_MARKS, c.FRACTIONS
SAME, STAY, SIDE, SIZE, ROWS, ROW = c.SAME, c.STAY, c.SIDE, c.SIZE, c.ROWS, c.ROW
CONTEXTS, RATE, LARGEST_BITS = c.CONTEXTS, c.RATE, c.LARGEST_BITS
FARTHEST, LONGEST = c.FARTHEST, c.LONGEST
ROW_BYTES = 240


@inlined
def length_of(p: Any, vector: Any, square: Any) -> Any:
    """The length of a vector in the law's norm, given that in the Euclidean one, squared."""
    if p.accept == 0:
        total = np.int64(0)
        for i in range(p.n):
            total += abs(vector[i])
        return np.float64(total)
    return np.sqrt(square)


@inlined
def mark_of(length: Any, radius: Any, offset: Any, top: Any) -> Any:
    """Half octaves of the margin over the local scale."""
    margin = np.int64(min(abs(radius - length), LONGEST))
    return within((log(margin) - offset + 6 * OCTAVE) >> 7, top)


@inlined
def wide_of(value: Any) -> Any:
    """Octaves of a radius or a spacing over the local scale, from their logarithm."""
    return within((value + 2 * OCTAVE) >> 8, WIDES - 1)


class Layer(NamedTuple):
    """A sub-vector's number, its latent radius, the lattice's scale, and what contexts are measured against."""

    row: Any
    radius: Any
    b: Any
    offset: Any
    wide: Any


@inlined
def walk_coordinate(
    p: Any, data: Any, state: Any, i: Any, stage: Any, layer: Any, w: Any, decoding: Any
) -> Any:  # fmt: skip
    """Codes the difference of lattice coordinate i from M0's; w.work holds differences (row 6)."""
    step, odds = w.work[6], w.odds
    centre = min(max(w.centres[i], -FARTHEST), FARTHEST)
    goal = np.int64(np.floor(centre + 0.5))
    rest = centre - np.float64(goal)
    if goal != 0:
        stage = 0
    up = rest >= 0.0
    fraction = within(np.int64(abs(rest) * (2 * FRACTIONS)), FRACTIONS - 1)
    spacing = log(layer.b) + p.spacing[i] - layer.offset
    cell = fraction * WIDES + wide_of(spacing)
    jump = step[i] - goal
    context = STAY + stage * (FRACTIONS * WIDES) + cell
    state, stays = choose(data, state, jump == 0, chance(odds, context), decoding)
    learn(odds, context, stays, RATE)
    if stays:
        step[i] = goal
        return state
    context = SIDE + cell
    state, nearer = choose(data, state, (jump > 0) == up, chance(odds, context), decoding)
    learn(odds, context, nearer, RATE)
    skip = within((-spacing - 5 * OCTAVE) >> 8, LARGEST_BITS - 4)
    row = within((spacing + skip * OCTAVE + 6 * OCTAVE) >> 7, ROWS - 1)
    base = SIZE + row * ROW
    state, size = walk_size(data, state, abs(jump), base, skip, LARGEST_BITS, odds, decoding)
    step[i] = goal + size if nearer == up else goal - size
    return state


@pasted
def walk_point(p: Any, data: Any, state: Any, layer: Any, w: Any, decoding: Any) -> Any:
    """Codes a point that is not M0, coordinate by coordinate; w.work: j (row 1), j0 (row 3), differences (row 6)."""
    j, j0, step, centres = w.work[1], w.work[3], w.work[6], w.centres
    start_centres(p, w.work[4], layer.b, centres)
    for i in range(p.n):
        step[i] = j[i] - j0[i]
    stage = 1
    for told in range(p.n):
        i = p.order[told]
        if told == p.n - 1 and stage == 1:
            stage = 2
        state = walk_coordinate(p, data, state, i, stage, layer, w, decoding)
        j[i] = j0[i] + step[i]
        if step[i] != 0:
            stage = 0
        for k in range(p.n):
            centres[k] -= p.shear[i, k] * np.float64(step[i])
    return state


@inlined
def start_centres(p: Any, error0: Any, b: Any, centres: Any) -> None:
    """Fills centres with where a zero update would lie from M0, for all coordinates abreast."""
    for i in range(p.n):
        centres[i] = 0.0
    for k in range(p.n):
        if p.straight:
            centres[k] -= p.axes[k, k] * np.float64(error0[k])
        else:
            for i in range(p.n):
                centres[i] -= p.axes[k, i] * np.float64(error0[k])
    for i in range(p.n):
        centres[i] /= np.float64(b)


@compiled
def measure_rows(x: Any) -> Any:
    """The block's scale code: half octaves of the mean of |X| (1..126)."""
    total = np.int64(0)
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            total += min(abs(x[r, i]), 1 << 48)
    mean = total // max(x.size, 1)
    return min(max((log(mean) + 64) >> 7, 1), NOTHING - 1)


@inlined
def begin_block(w: Any, key: Any, rows: Any, tables: Any, data: Any, decoding: Any) -> Any:
    """The coder's state behind the header, and the block's scale; contexts and keystream as a block begins."""
    scale = np.int64(0) if decoding else measure_rows(rows)
    for i in range(CONTEXTS):
        w.odds[i] = tables[0][i]
    start_lanes(key, w.state)
    return walk_header(data, start(data) if decoding else fresh(), scale, 7, decoding)


@compiled
def code_rows(p: Any, w: Any, key: Any, rows: Any, first: Any, decoding: Any, tables: Any, data: Any) -> Any:
    """Writes rows to data (the number of bytes comes back) or fills them from it (0, or -1 if it makes no sense).

    A block in which every row does what a zero update would have done has no bytes. `tables`: (prior, means).
    """
    state, scale = begin_block(w, key, rows, tables, data, decoding)
    return walk_rows(p, w, rows, first, scale, tables[1], data, state, decoding)


@compiled
def code_eights(p: Any, w: Any, key: Any, rows: Any, first: Any, decoding: Any, tables: Any, data: Any) -> Any:
    """The same on E8."""
    state, scale = begin_block(w, key, rows, tables, data, decoding)
    return walk_rows(in_eight(p), w, rows, first, scale, tables[1], data, state, decoding)


@pasted
def walk_rows(
    p: Any, w: Any, rows: Any, first: Any, scale: Any, means: Any, data: Any, state: Any, decoding: Any
) -> Any:
    """Codes all rows; what `code_rows` returns."""
    j, j0, odds = w.work[1], w.work[3], w.odds
    nothing, surprised = scale == NOTHING, False
    anchor = TICKS * OCTAVE + (scale & 1) * 128
    sized = power(anchor)
    for r in range(len(rows)):
        z = within((15 * log(sized) + anchor) >> 4, 31 * OCTAVE - 1)
        layer = enter_row(p, w, first + r, r == 0, ((scale >> 1) - TICKS) * OCTAVE + z)
        state, accept, context, length, unlike = walk_trials(p, w, rows[r], layer, data, state, nothing, decoding)
        surprised |= unlike
        if not accept:
            return np.int64(-1)
        same = True
        if not decoding:
            for i in range(p.n):
                same &= j[i] == j0[i]
            surprised |= not same
        if not nothing:
            state, same = choose(data, state, same, chance(odds, SAME + context), decoding)
            learn(odds, SAME + context, same, RATE)
        if same:
            for i in range(p.n):
                j[i] = j0[i]
        else:
            state = walk_point(p, data, state, layer, w, decoding)
        fits, length = leave_row(p, w, rows[r], layer.b, length, same, decoding)
        if not fits:
            return np.int64(-1)
        mark = mark_of(length, layer.radius, layer.offset, MEAN_MARKS - 1)
        mean = means[((MEAN_MARKS if length <= layer.radius else 0) + mark) * WIDES + layer.wide]
        sized += ((min(max((power(z) * mean) >> 8, 1), LARGEST) - sized) * 5) >> 4
    if decoding:
        return np.int64(0)
    return finish(data, state) if surprised else np.int64(0)


@pasted
def enter_row(p: Any, w: Any, row: Any, fresh_words: Any, offset: Any) -> Any:
    """The layer of a sub-vector, over a local scale whose logarithm is `offset`."""
    if fresh_words or row & 127 == 0:
        first_words(p, w, row)
    radius, b = layer_of(p, w, row)
    if p.accept == 2:
        radius = np.float64(b) / p.inverse_ball
    return Layer(row, radius, b, offset, wide_of(log(np.int64(radius)) - offset))


@inlined
def walk_trials(
    p: Any, w: Any, x: Any, layer: Any, data: Any, state: Any, nothing: Any, decoding: Any
) -> Any:  # fmt: skip
    """Codes which trial is accepted: (state, whether one was, context, |e0|, what x = 0 would change)."""
    d, j, error, j0, error0, target = w.work[0], w.work[1], w.work[2], w.work[3], w.work[4], w.work[5]
    context, length, accept, unlike = np.int64(0), 0.0, False, False
    for trial in range(p.trials):
        draw_dither(p, w, layer.row, trial, layer.b, d)
        for i in range(p.n):
            target[i] = -d[i]
        square = nearest(p, target, layer.b, j0, error0, w.spare)
        accept = inside = is_accepted(p, error0, square, layer.radius)
        length = length_of(p, error0, square)
        mark = mark_of(length, layer.radius, layer.offset, MARKS - 1)
        context = ((MARKS if inside else 0) + mark) * WIDES + layer.wide
        if not decoding:
            for i in range(p.n):
                target[i] = x[i] - d[i]
            square = nearest(p, target, layer.b, j, error, w.spare)
            accept = is_accepted(p, error, square, layer.radius)
            unlike |= accept != inside
        if p.accept != 2 and not nothing:
            state, accept = choose(data, state, accept, chance(w.odds, context), decoding)
            learn(w.odds, context, accept, RATE)
        if accept:
            break
    return state, accept, context, length, unlike


@pasted
def leave_row(p: Any, w: Any, x: Any, b: Any, length: Any, same: Any, decoding: Any) -> Any:
    """Whether a sub-vector lies in the range of the format, and the length of what it decodes to. Decoding fills x.

    The length at M0 is that of e0. One in the l1 norm may wrap to a negative number, as in the other backends.
    """
    d, j, error, target = w.work[0], w.work[1], w.work[2], w.work[5]
    if decoding and not place(p, b, d, j, x):
        return False, length
    if same:
        return True, length
    if decoding:
        return True, length_of(p, x, square_length(x, p.n))
    for i in range(p.n):
        target[i] = x[i] + error[i]
    return True, length_of(p, target, square_length(target, p.n))
