"""The compiled passes over a lowered network: sums of gradients and scores, for many rows of weights in one call.

Thirty clients with their own weights, or ten seeds with theirs, are rows of one matrix. A block of LANES examples goes
through the network at once: examples of one row that share its weights, or one example each of several rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.clip import margin
from cepam_paper.compiled import convolution
from cepam_paper.compiled import vectorised_layers as layers
from cepam_paper.compiled.program import (
    BIAS,
    CHANNELS,
    COLUMNS,
    CONV,
    DST,
    DST_SIZE,
    FIRST,
    FRAME,
    HEIGHT,
    KERNEL,
    KIND,
    LINES,
    OUTS,
    PAD,
    POOL,
    RELU,
    SRC,
    SRC_SIZE,
    STRIDE,
    TANH,
    WEIGHT,
    WIDTH,
    WINNER,
    Examples,
    Pixels,
    Room,
    Rows,
    Table,
    Workspace,
)  # fmt: skip
from cepam_paper.compiled.register_tiles import LANES
from cepam_paper.compiled.transpose import add_squares, to_lanes, to_rows, weigh
from cepam_paper.compiled.vectorised_layers import Floats, loop, pasted

Doubles = npt.NDArray[np.float64]
CHUNK = 8 * LANES
ZERO = np.float32(0.0)
WITHIN = 1.0 - margin(np.float32)


@pasted
def _shape(row: Table) -> convolution.Shape:
    """The numbers of a convolution; a dense layer is a kernel as wide as its input."""
    if row[KIND] == CONV:
        kernel = row[KERNEL]
        return (
            row[CHANNELS],
            row[HEIGHT],
            row[WIDTH],
            kernel,
            kernel,
            row[STRIDE],
            row[OUTS],
            row[LINES],
            row[COLUMNS],
        )
    return (1, 1, row[SRC_SIZE], 1, row[SRC_SIZE], 1, row[DST_SIZE], 1, 1)


@pasted
def forward(table: Table, weights: Floats, values: Floats, winners: Floats) -> None:
    """Fills `values` behind the examples that stand at its beginning; the logits come last."""
    for line in range(table.shape[0]):
        row = table[line]
        source = values[row[SRC] : row[SRC] + row[SRC_SIZE]]
        out = values[row[DST] : row[DST] + row[DST_SIZE]]
        if row[KIND] == POOL:
            where = winners[row[WINNER] : row[WINNER] + row[DST_SIZE]]
            layers.pool(source, out, where, row[CHANNELS], row[HEIGHT], row[WIDTH], row[KERNEL], row[STRIDE])
        elif row[KIND] == FRAME:
            layers.pad(source, out, row[CHANNELS], row[HEIGHT], row[WIDTH], row[PAD])
        elif row[KIND] == RELU:
            layers.relu(source.reshape(-1), out.reshape(-1))
        elif row[KIND] == TANH:
            layers.tanh(source.reshape(-1), out.reshape(-1))
        else:
            convolution.convolve(source, weights, row[WEIGHT], row[BIAS], _shape(row), out)


@pasted
def backward(
    table: Table, weights: Floats, values: Floats, slopes: Floats, opened: Floats, winners: Floats, gradient: Floats
) -> None:
    """Fills `gradient` from the derivative to the logits, which stands at the end of `slopes`."""
    for line in range(table.shape[0] - 1, -1, -1):
        row = table[line]
        source = values[row[SRC] : row[SRC] + row[SRC_SIZE]]
        out = values[row[DST] : row[DST] + row[DST_SIZE]]
        ahead = slopes[row[DST] : row[DST] + row[DST_SIZE]]
        back = slopes[row[SRC] : row[SRC] + row[SRC_SIZE]]
        if row[KIND] == POOL:
            where = winners[row[WINNER] : row[WINNER] + row[DST_SIZE]]
            layers.pool_back(ahead, where, back, row[CHANNELS], row[HEIGHT], row[WIDTH], row[KERNEL], row[STRIDE])
        elif row[KIND] == FRAME:
            layers.pad_back(ahead, back, row[CHANNELS], row[HEIGHT], row[WIDTH], row[PAD])
        elif row[KIND] == RELU:
            layers.relu_back(source.reshape(-1), ahead.reshape(-1), back.reshape(-1))
        elif row[KIND] == TANH:
            layers.tanh_back(out.reshape(-1), ahead.reshape(-1), back.reshape(-1))
        else:
            shape = _shape(row)
            convolution.convolve_slopes(source, ahead, row[WEIGHT], row[BIAS], shape, gradient)
            if row[FIRST]:
                continue
            if row[KIND] != CONV:
                # The same weights read as one kernel of one tap a channel, which wastes nothing at the edges.
                shape = (row[SRC_SIZE], 1, 1, 1, 1, 1, row[DST_SIZE], 1, 1)
            convolution.convolve_back(ahead, opened, weights, row[WEIGHT], shape, back)


@loop
def _places(block: Floats, room: Room, size: int) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats]:
    """Values, slopes, winners, opened, and three vectors of weights: gradient, own weights and sums."""
    slopes, winners = room[0], 2 * room[0]
    opened = winners + room[1]
    gradient = opened + room[2]
    here, sums = gradient + size, gradient + 2 * size
    return (
        block[:slopes], block[slopes:winners], block[winners:opened], block[opened:gradient], block[gradient:here],
        block[here:sums], block[sums : sums + size],
    )  # fmt: skip


@loop
def _into_lanes(rows: Pixels, picks: Table, out: Floats) -> None:
    """Fills the beginning of `out` with the picked rows, one a lane."""
    width = rows.shape[1]
    for t in range(0, width, LANES):
        if width >= LANES:
            to_lanes(rows, picks, min(t, width - LANES), out)
        else:
            for lane in range(LANES):
                for u in range(width):
                    out[u, lane] = np.float32(rows[picks[lane], u])


@loop
def _out_of_lanes(source: Floats, rows: Table, out: Floats) -> None:
    """Fills these rows of `out` with the columns of `source`, the first lane's in the first row."""
    width = source.shape[0]
    for t in range(0, width, LANES):
        if width >= LANES:
            to_rows(source, min(t, width - LANES), rows, out)
        else:
            for lane in range(rows.size):
                for u in range(width):
                    out[rows[lane], u] = source[u, lane]


@loop
def _read(images: Pixels, picks: Table, scale: float, shift: float, values: Floats) -> None:
    """Fills the beginning of `values` with the picked examples as the network sees them."""
    _into_lanes(images, picks, values)
    flat = values[: images.shape[1]].reshape(-1)
    for t in range(flat.size):
        flat[t] = flat[t] * np.float32(scale) + np.float32(shift)


@loop
def _factors(gradient: Floats, bounds: Floats, factors: Floats, losses: Doubles) -> None:
    """Fills `factors` with what scales each lane's gradient to its l2 bound; squares are summed in double precision.

    `clip.margin` keeps the rounded products within the bound. A lane with a bound whose norm or loss is not a
    number becomes zero, gradient and loss.
    """
    squares = np.zeros(LANES, np.float64)
    add_squares(gradient, squares)
    for lane in range(LANES):
        bound = np.float64(bounds[lane])
        factors[lane] = np.float32(1.0)
        if squares[lane] > bound * bound:
            factors[lane] = np.float32(bound * WITHIN / np.sqrt(squares[lane]))
        if bound < np.inf and not (np.isfinite(squares[lane]) and np.isfinite(losses[lane])):
            factors[lane], losses[lane] = ZERO, 0.0
            gradient[:, lane] = ZERO


@pasted
def _gradients(
    table: Table, weights: Floats, examples: Examples, picks: Table, places: tuple[Floats, ...], losses: Doubles
) -> None:
    """Fills `losses` and the gradient among the places with those of the picked examples, one a lane."""
    values, slopes, winners, opened, gradient, _, _ = places
    _read(examples.images, picks, examples.scale, examples.shift, values)
    forward(table, weights, values, winners)
    last = table[-1, DST]
    layers.cross_entropy(values[last:], examples.labels, picks, slopes[last:], losses)
    backward(table, weights, values, slopes, opened, winners, gradient)


@loop
def by_example(work: Workspace, asked: Rows, examples: Examples, rows: Table, out: Floats, losses: Floats) -> None:
    """Fills these rows of `out` with sums of gradients, the examples of a row in the lanes of its blocks.

    `losses` gets the sums of losses.
    """
    count, bounds, size = asked.counts, asked.bounds, asked.weights.shape[1]
    places = _places(work.block, work.room, size)
    gradient = places[4]
    picks, lost = np.empty(LANES, np.int64), np.empty(LANES, np.float64)
    factors, bound = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    for r in rows:
        sums, total = out[r], 0.0
        sums[:] = ZERO
        bound[:] = bounds[r]
        for first in range(0, count[r], LANES):
            held = min(LANES, count[r] - first)
            for lane in range(LANES):
                picks[lane] = asked.records[r, first + (lane if lane < held else 0)]
            _gradients(work.table, asked.weights[asked.of[r]], examples, picks, places, lost)
            factors[:] = np.float32(1.0)
            if bounds[r] < np.inf:
                _factors(gradient, bound, factors, lost)
            factors[held:] = ZERO
            for t in range(size):
                sums[t] += weigh(gradient, t, factors)
            for lane in range(held):
                total += lost[lane]
        losses[r] = total


@loop
def by_row(work: Workspace, asked: Rows, examples: Examples, rows: Table, out: Floats, losses: Floats) -> None:
    """As `by_example`, for at most LANES rows with few examples each: every row has a lane, with its own weights."""
    count, bounds, size, most = asked.counts, asked.bounds, asked.weights.shape[1], 0
    places = _places(work.block, work.room, size)
    gradient, here, sums = places[4:]
    mine, picks = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    factors, bound = np.ones(LANES, np.float32), np.empty(LANES, np.float32)
    lost, total, clipped = np.empty(LANES, np.float64), np.zeros(LANES, np.float64), False
    for lane in range(LANES):
        r = mine[lane] = rows[lane if lane < rows.size else 0]
        picks[lane], bound[lane] = asked.of[r], bounds[r]
        most, clipped = max(most, count[r]), clipped or bounds[r] < np.inf
    _into_lanes(asked.weights, picks, here)
    sums[:] = ZERO
    for step in range(most):
        for lane in range(LANES):
            picks[lane] = asked.records[mine[lane], step if step < count[mine[lane]] else 0]
        _gradients(work.table, here, examples, picks, places, lost)
        if clipped:
            _factors(gradient, bound, factors, lost)
        for lane in range(LANES):
            alive = step < count[mine[lane]]
            total[lane] += lost[lane] if alive else 0.0
            picks[lane] = 1 if alive else 0
        for t in range(size):
            for lane in range(LANES):
                sums[t, lane] += factors[lane] * gradient[t, lane] if picks[lane] else ZERO
    _out_of_lanes(sums, rows, out)
    for lane in range(rows.size):
        losses[rows[lane]] = total[lane]


@loop
def evaluate(work: Workspace, weights: Floats, examples: Examples, first: int, correct: Table, losses: Doubles) -> None:
    """Fills, for jobs `first` and on, how many of CHUNK examples are right and the sum of their losses.

    Jobs count the chunks of the first row of weights, then those of the second, and so on.
    """
    table, images, labels = work.table, examples.images, examples.labels
    chunks, last = -(-images.shape[0] // CHUNK), table[-1, DST]
    values, slopes, winners, _, _, _, _ = _places(work.block, work.room, weights.shape[1])
    picks, lost = np.empty(LANES, np.int64), np.empty(LANES, np.float64)
    for job in range(correct.shape[0]):
        here, chunk = weights[(first + job) // chunks], (first + job) % chunks
        right, total = 0, 0.0
        for start in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, images.shape[0]), LANES):
            held = min(LANES, images.shape[0] - start)
            for lane in range(LANES):
                picks[lane] = start + (lane if lane < held else 0)
            _read(images, picks, examples.scale, examples.shift, values)
            forward(table, here, values, winners)
            layers.cross_entropy(values[last:], labels, picks, slopes[last:], lost)
            for lane in range(held):
                right += int(np.argmax(values[last:, lane]) == labels[start + lane])
                total += lost[lane]
        correct[job] = right
        losses[job] = total
