"""The compiled passes over a lowered network: sums of gradients and scores, for many rows of weights in one call.

Thirty clients with their own weights, or ten seeds with theirs, are rows of one matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.fl import loops
from cepam.fl.loops import Floats, Integers, loop
from cepam.fl.lowering import (
    BIAS,
    CHANNELS,
    COLUMNS,
    CONV,
    DST,
    DST_SIZE,
    FIRST,
    HEIGHT,
    KERNEL,
    KIND,
    LINES,
    OUTS,
    PAD,
    PITCHED,
    PLANES,
    PLANES_SIZE,
    POOL,
    RELU,
    RUN,
    SRC,
    SRC_SIZE,
    STRIDE,
    TANH,
    WEIGHT,
    WIDTH,
    WINNER,
    Table,
)  # fmt: skip

Pixels = npt.NDArray[Any]
CHUNK = 100


@loop
def _conv_forward(row: Table, weights: Floats, values: Floats, planes: Floats, starts: Integers) -> None:
    channels, outs, kernel, stride, pad, run = row[CHANNELS], row[OUTS], row[KERNEL], row[STRIDE], row[PAD], row[RUN]
    spread = planes[row[PLANES] : row[PLANES] + row[PLANES_SIZE]]
    pitched = planes[row[PITCHED] : row[PITCHED] + outs * run]
    loops.spread(values[row[SRC] : row[SRC] + row[SRC_SIZE]], spread, channels, row[HEIGHT], row[WIDTH], stride, pad)
    pitch = (row[WIDTH] + 2 * pad + stride - 1) // stride
    loops.taps(starts, channels, (row[HEIGHT] + 2 * pad + stride - 1) // stride, pitch, kernel, stride)
    for o in range(outs):
        pitched[o * run : (o + 1) * run] = weights[row[BIAS] + o] if row[BIAS] >= 0 else np.float32(0.0)
    weight = weights[row[WEIGHT] : row[WEIGHT] + outs * channels * kernel * kernel]
    loops.convolve(spread, weight, starts[: channels * kernel * kernel], pitched, outs, run)
    out = values[row[DST] : row[DST] + row[DST_SIZE]]
    for o in range(outs):
        for y in range(row[LINES]):
            line = pitched[o * run + y * pitch : o * run + y * pitch + row[COLUMNS]]
            out[(o * row[LINES] + y) * row[COLUMNS] : (o * row[LINES] + y + 1) * row[COLUMNS]] = line


@loop
def _conv_backward(
    row: Table, weights: Floats, planes: Floats, starts: Integers, ahead: Floats, back: Floats, gradient: Floats
) -> None:
    channels, outs, kernel, stride, pad, run = row[CHANNELS], row[OUTS], row[KERNEL], row[STRIDE], row[PAD], row[RUN]
    spread = planes[row[PLANES] : row[PLANES] + row[PLANES_SIZE]]
    pitched = planes[row[PITCHED] : row[PITCHED] + outs * run]
    pitch = (row[WIDTH] + 2 * pad + stride - 1) // stride
    loops.taps(starts, channels, (row[HEIGHT] + 2 * pad + stride - 1) // stride, pitch, kernel, stride)
    pitched[:] = np.float32(0.0)
    for o in range(outs):
        total = np.float32(0.0)
        for y in range(row[LINES]):
            line = ahead[(o * row[LINES] + y) * row[COLUMNS] : (o * row[LINES] + y + 1) * row[COLUMNS]]
            for x in range(line.size):
                pitched[o * run + y * pitch + x] = line[x]
                total += line[x]
        if row[BIAS] >= 0:
            gradient[row[BIAS] + o] = total
    count = channels * kernel * kernel
    weight = weights[row[WEIGHT] : row[WEIGHT] + outs * count]
    to = gradient[row[WEIGHT] : row[WEIGHT] + outs * count]
    loops.correlate(spread, pitched, starts[:count], to, outs, run)
    if not row[FIRST]:
        loops.convolve_back(pitched, weight, starts[:count], spread, outs, run)
        loops.gather(spread, back, channels, row[HEIGHT], row[WIDTH], stride, pad)


@loop
def forward(table: Table, weights: Floats, values: Floats, planes: Floats, winners: Integers, starts: Integers) -> None:
    """Fills `values` behind the example that stands at its beginning; the logits come last."""
    for line in range(table.shape[0]):
        row = table[line]
        source = values[row[SRC] : row[SRC] + row[SRC_SIZE]]
        out = values[row[DST] : row[DST] + row[DST_SIZE]]
        if row[KIND] == CONV:
            _conv_forward(row, weights, values, planes, starts)
        elif row[KIND] == POOL:
            where = winners[row[WINNER] : row[WINNER] + row[DST_SIZE]]
            loops.pool(source, out, where, row[CHANNELS], row[HEIGHT], row[WIDTH], row[KERNEL], row[STRIDE])
        elif row[KIND] == RELU:
            for t in range(source.size):
                out[t] = max(source[t], np.float32(0.0))
        elif row[KIND] == TANH:
            loops.tanh(source, out)
        else:
            if row[BIAS] >= 0:
                out[:] = weights[row[BIAS] : row[BIAS] + out.size]
            else:
                out[:] = np.float32(0.0)
            loops.dense(source, weights[row[WEIGHT] : row[WEIGHT] + source.size * out.size], out)


@loop
def backward(
    table: Table,
    weights: Floats,
    values: Floats,
    slopes: Floats,
    planes: Floats,
    winners: Integers,
    starts: Integers,
    gradient: Floats,
) -> None:
    """Fills `gradient` from the derivative to the logits, which stands at the end of `slopes`."""
    for line in range(table.shape[0] - 1, -1, -1):
        row = table[line]
        source = values[row[SRC] : row[SRC] + row[SRC_SIZE]]
        out = values[row[DST] : row[DST] + row[DST_SIZE]]
        ahead = slopes[row[DST] : row[DST] + row[DST_SIZE]]
        back = slopes[row[SRC] : row[SRC] + row[SRC_SIZE]]
        if row[KIND] == CONV:
            _conv_backward(row, weights, planes, starts, ahead, back, gradient)
        elif row[KIND] == POOL:
            loops.pool_back(ahead, winners[row[WINNER] : row[WINNER] + row[DST_SIZE]], back)
        elif row[KIND] == RELU:
            for t in range(source.size):
                back[t] = ahead[t] if source[t] > 0 else np.float32(0.0)
        elif row[KIND] == TANH:
            for t in range(source.size):
                back[t] = ahead[t] * (np.float32(1.0) - out[t] * out[t])
        else:
            count = source.size * out.size
            weight, to = weights[row[WEIGHT] : row[WEIGHT] + count], gradient[row[WEIGHT] : row[WEIGHT] + count]
            loops.dense_back(source, weight, ahead, to, back)
            if row[BIAS] >= 0:
                gradient[row[BIAS] : row[BIAS] + out.size] = ahead


@loop
def _places(block: Floats, size: int, room: tuple[int, int, int, int]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Weights, gradient, values, slopes and planes as parts of one block.

    One block, because the compiler tests at run time whether arrays overlap and takes another path if they might: with
    separate arrays the last bit of a sum would depend on where the allocator put them.
    """
    values, planes = 2 * size, 2 * (size + room[0])
    block[planes:] = np.float32(0.0)
    middle = values + room[0]
    return block[:size], block[size:values], block[values:middle], block[middle:planes], block[planes:]


@loop
def summed_gradients(
    table: Table, room: tuple[int, int, int, int], weights: Floats, of: Table, images: Pixels, labels: Table,
    index: Table, count: Table, scale: float, shift: float, bounds: Floats, out: Floats, losses: Floats,
) -> None:  # fmt: skip
    """Fills row r of `out` with the sum of the gradients of examples index[r, :count[r]] at weights[of[r]].

    Where bounds[r] is finite each example's gradient is first scaled down to that l2 norm. `losses` gets their sums.
    """
    pixels, scratch = images.shape[1], 2 * (weights.shape[1] + room[0]) + room[1]
    for r in range(out.shape[0]):
        block, winners, starts = np.empty(scratch, np.float32), np.empty(room[2], np.int32), np.empty(room[3], np.int32)
        here, gradient, values, slopes, planes = _places(block, out.shape[1], room)
        here[:] = weights[of[r]]
        row, total, bound = out[r], 0.0, bounds[r]
        row[:] = np.float32(0.0)
        for b in range(count[r]):
            image = images[index[r, b]]
            for t in range(pixels):
                values[t] = np.float32(image[t]) * np.float32(scale) + np.float32(shift)
            forward(table, here, values, planes, winners, starts)
            last = table[-1]
            logits, ahead = values[last[DST] :], slopes[last[DST] :]
            total += loops.cross_entropy(logits, labels[index[r, b]], ahead)
            backward(table, here, values, slopes, planes, winners, starts, gradient)
            factor = np.float32(1.0)
            if bound < np.inf:
                squares = np.float32(0.0)
                for t in range(gradient.size):
                    squares += gradient[t] * gradient[t]
                if squares > bound * bound:
                    factor = np.float32(bound / np.sqrt(squares) * (1.0 - 2.0**-20))
            for t in range(gradient.size):
                row[t] += factor * gradient[t]
        losses[r] = total


@loop
def evaluate(
    table: Table, room: tuple[int, int, int, int], weights: Floats, images: Pixels, labels: Table, scale: float,
    shift: float, first: int, correct: Table, losses: npt.NDArray[np.float64],
) -> None:  # fmt: skip
    """Fills, for jobs `first` and on, how many of CHUNK examples are right and the sum of their losses.

    Jobs count the chunks of the first row of weights, then those of the second, and so on.
    """
    pixels, chunks, scratch = images.shape[1], -(-images.shape[0] // CHUNK), 2 * (weights.shape[1] + room[0]) + room[1]
    for job in range(correct.shape[0]):
        g, chunk = (first + job) // chunks, (first + job) % chunks
        block, winners, starts = np.empty(scratch, np.float32), np.empty(room[2], np.int32), np.empty(room[3], np.int32)
        here, _, values, slopes, planes = _places(block, weights.shape[1], room)
        here[:] = weights[g]
        right, total = 0, 0.0
        for i in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, images.shape[0])):
            image = images[i]
            for t in range(pixels):
                values[t] = np.float32(image[t]) * np.float32(scale) + np.float32(shift)
            forward(table, here, values, planes, winners, starts)
            logits = values[table[-1, DST] :]
            right += int(np.argmax(logits) == labels[i])
            total += loops.cross_entropy(logits, labels[i], slopes)
        correct[job] = right
        losses[job] = total
