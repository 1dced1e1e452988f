"""The loops of a small network, compiled for the CPU: LANES examples side by side, one in each lane of a vector.

Activations stand as [channel][row][column][lane]. A convolution keeps a tile of six outputs by four places in registers,
so that one vector loaded feeds six multiplications; a dense layer is a convolution whose kernel is as wide as its
input. PyTorch's own operators are the oracle: `tests/fl/test_compiled.py` compares the two.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from cepam.fl.tile import FOUR, LANES, ONE, SIX, add, award, blank, contest, enter, put, take

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Shape = tuple[int, int, int, int, int, int, int, int, int]
"""Channels, height and width of the input; height, width and stride of the kernel; outputs, their height and width."""

# No fast-math flag: sums keep the order written here, whatever path through a loop the compiler chose.
loop = numba.njit(cache=True, inline="never", error_model="numpy", nogil=True)
# A function compiled by itself is compiled again inside each of its callers: those in the middle are pasted in instead.
pasted = numba.njit(cache=True, inline="always", error_model="numpy", nogil=True)


@loop
def _sum(
    outs: tuple[int, ...], places: tuple[int, ...], source: Floats, at: int, weights: Floats, weight: int, bias: int,
    shape: Shape, out: Floats, to: int,
) -> None:  # fmt: skip
    """Fills one tile of `out` with the correlation of the kernels from `weight` on with the input from `at` on."""
    channels, height, width, high, wide, stride, _, lines, columns = shape
    tile = blank(outs, places)
    if bias >= 0:
        tile = take(outs, places, weights, bias)
    tap, size = weight, channels * high * wide
    for c in range(channels):
        for i in range(high):
            start = at + (c * height + i) * width
            for j in range(wide):
                tile = add(tile, outs, places, weights, tap, size, source, start + j, stride)
                tap += 1
    put(tile, outs, places, out, to, lines * columns)


@pasted
def _sums(
    outs: tuple[int, ...], source: Floats, weights: Floats, weight: int, bias: int, shape: Shape, out: Floats, to: int
) -> None:
    """Fills the planes of these outputs; where four places do not divide a line the last four overlap."""
    _, _, width, _, _, stride, _, lines, columns = shape
    for y in range(lines):
        if columns >= len(FOUR):
            for x in range(0, columns, len(FOUR)):
                x = min(x, columns - len(FOUR))
                at, place = (y * width + x) * stride, to + y * columns + x
                _sum(outs, FOUR, source, at, weights, weight, bias, shape, out, place)
        else:
            for x in range(columns):
                at, place = (y * width + x) * stride, to + y * columns + x
                _sum(outs, ONE, source, at, weights, weight, bias, shape, out, place)


@loop
def convolve(source: Floats, weights: Floats, weight: int, bias: int, shape: Shape, out: Floats) -> None:
    """Fills `out` with the correlation of `source` with the kernels at `weight`; a negative `bias` means none."""
    size, outs, area = shape[0] * shape[3] * shape[4], shape[6], shape[7] * shape[8]
    for block in range(0, outs, len(SIX) if outs >= len(SIX) else 1):
        o = min(block, outs - len(SIX)) if outs >= len(SIX) else block
        own = bias + o if bias >= 0 else -1
        if outs >= len(SIX):
            _sums(SIX, source, weights, weight + o * size, own, shape, out, o * area)
        else:
            _sums(ONE, source, weights, weight + o * size, own, shape, out, o * area)


@loop
def _slope(
    outs: tuple[int, ...], taps: tuple[int, ...], source: Floats, at: int, ahead: Floats, first: int, shape: Shape,
    gradient: Floats, to: int,
) -> None:  # fmt: skip
    """Fills the derivative to a few neighbouring taps of a few kernels: a sum over all places."""
    channels, _, width, high, wide, stride, _, lines, columns = shape
    tile = blank(outs, taps)
    for y in range(lines):
        start, line = at + y * stride * width, first + y * columns
        for x in range(columns):
            tile = add(tile, outs, taps, ahead, line + x, lines * columns, source, start + x * stride, 1)
    put(tile, outs, taps, gradient, to, channels * high * wide)


@pasted
def _slopes(
    outs: tuple[int, ...], source: Floats, ahead: Floats, first: int, shape: Shape, gradient: Floats, to: int
) -> None:
    channels, height, width, high, wide, _, _, _, _ = shape
    whole = wide - wide % len(FOUR)
    for line in range(channels * high):
        at, tap = ((line // high) * height + line % high) * width, to + line * wide
        for j in range(0, whole, len(FOUR)):
            _slope(outs, FOUR, source, at + j, ahead, first, shape, gradient, tap + j)
        for j in range(whole, wide):
            _slope(outs, ONE, source, at + j, ahead, first, shape, gradient, tap + j)


@loop
def convolve_slopes(source: Floats, ahead: Floats, weight: int, bias: int, shape: Shape, gradient: Floats) -> None:
    """Fills the kernels' and biases' places in `gradient`, given the derivative to the output.

    A bias is the weight of an input that is one everywhere.
    """
    size, outs, area = shape[0] * shape[3] * shape[4], shape[6], shape[7] * shape[8]
    one, alone = np.ones(1, np.float32), (1, 1, 0, 1, 1, 0, outs, shape[7], shape[8])
    for block in range(0, outs, len(SIX) if outs >= len(SIX) else 1):
        o = min(block, outs - len(SIX)) if outs >= len(SIX) else block
        if outs >= len(SIX):
            _slopes(SIX, source, ahead, o * area, shape, gradient, weight + o * size)
            if bias >= 0:
                _slope(SIX, ONE, one, 0, ahead, o * area, alone, gradient, bias + o)
        else:
            _slopes(ONE, source, ahead, o * area, shape, gradient, weight + o * size)
            if bias >= 0:
                _slope(ONE, ONE, one, 0, ahead, o * area, alone, gradient, bias + o)


@loop
def _open(ahead: Floats, opened: Floats, shape: Shape) -> tuple[int, int]:
    """Rows and columns of the output as the input sees it: `opened` has zeros between strides and beside each line."""
    stride, outs, lines, columns = shape[5], shape[6], shape[7], shape[8]
    rows, across = (lines - 1) * stride + 1, (columns - 1) * stride + 1
    pitch, edge = across + 2 * len(FOUR), len(FOUR)
    opened[: outs * rows * pitch] = np.float32(0.0)
    for o in range(outs):
        for y in range(lines):
            for x in range(columns):
                to, at = (o * rows + y * stride) * pitch + edge + x * stride, (o * lines + y) * columns + x
                for lane in range(LANES):
                    opened[to, lane] = ahead[at, lane]
    return rows, across


@loop
def _return(
    channels: tuple[int, ...], places: tuple[int, ...], opened: Floats, rows: int, across: int, y: int, x: int,
    weights: Floats, weight: int, shape: Shape, back: Floats, to: int,
) -> None:  # fmt: skip
    """Fills one tile of `back`: places beside each other in a few channels."""
    count, height, width, high, wide, _, outs, _, _ = shape
    pitch = across + 2 * len(FOUR)
    first_i, last_i = max(0, y - rows + 1), min(high - 1, y)
    first_j, last_j = max(0, x - across + 1), min(wide - 1, x + len(places) - 1)
    tile = blank(channels, places)
    for o in range(outs):
        for i in range(first_i, last_i + 1):
            start, tap = (o * rows + y - i) * pitch + len(FOUR) + x, weight + (o * count * high + i) * wide
            for j in range(first_j, last_j + 1):
                tile = add(tile, channels, places, weights, tap + j, high * wide, opened, start - j, 1)
    put(tile, channels, places, back, to, height * width)


@pasted
def _returns(
    channels: tuple[int, ...], opened: Floats, rows: int, across: int, weights: Floats, weight: int, shape: Shape,
    back: Floats, to: int,
) -> None:  # fmt: skip
    height, width = shape[1], shape[2]
    for y in range(height):
        if width >= len(FOUR):
            for x in range(0, width, len(FOUR)):
                x = min(x, width - len(FOUR))
                _return(channels, FOUR, opened, rows, across, y, x, weights, weight, shape, back, to + y * width + x)
        else:
            for x in range(width):
                _return(channels, ONE, opened, rows, across, y, x, weights, weight, shape, back, to + y * width + x)


@loop
def convolve_back(ahead: Floats, opened: Floats, weights: Floats, weight: int, shape: Shape, back: Floats) -> None:
    """Fills `back` with the derivative to the input, given that to the output; `opened` is room to work in."""
    channels, height, width, high, wide, _, _, _, _ = shape
    rows, across = _open(ahead, opened, shape)
    for block in range(0, channels, len(SIX) if channels >= len(SIX) else 1):
        if channels >= len(SIX):
            c = min(block, channels - len(SIX))
            place, to = weight + c * high * wide, c * height * width
            _returns(SIX, opened, rows, across, weights, place, shape, back, to)
        else:
            place, to = weight + block * high * wide, block * height * width
            _returns(ONE, opened, rows, across, weights, place, shape, back, to)


@loop
def pad(source: Floats, out: Floats, channels: int, height: int, width: int, edge: int) -> None:
    """Fills `out` with the planes of `source` framed by zeros."""
    out[:] = np.float32(0.0)
    for c in range(channels):
        for y in range(height):
            to = (c * (height + 2 * edge) + y + edge) * (width + 2 * edge) + edge
            out[to : to + width] = source[(c * height + y) * width : (c * height + y + 1) * width]


@loop
def pad_back(ahead: Floats, back: Floats, channels: int, height: int, width: int, edge: int) -> None:
    """Fills `back` with what lies inside the frame."""
    for c in range(channels):
        for y in range(height):
            at = (c * (height + 2 * edge) + y + edge) * (width + 2 * edge) + edge
            back[(c * height + y) * width : (c * height + y + 1) * width] = ahead[at : at + width]


@loop
def pool(
    source: Floats, out: Floats, winner: Floats, channels: int, height: int, width: int, size: int, stride: int
) -> None:
    """Fills `out` with the largest value of each window and `winner` with its place there (the first of equals)."""
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                corner = (c * height + y * stride) * width + x * stride
                held = enter(source, corner)
                for i in range(size):
                    for j in range(1 if i == 0 else 0, size):
                        held = contest(held, source, corner + i * width + j, np.float32(i * size + j))
                at = (c * rows + y) * columns + x
                put(held[:1], ONE, ONE, out, at, 0)
                put(held[1:], ONE, ONE, winner, at, 0)


@loop
def pool_back(
    ahead: Floats, winner: Floats, back: Floats, channels: int, height: int, width: int, size: int, stride: int
) -> None:
    """Fills `back` with each window's derivative at its winner."""
    back[:] = np.float32(0.0)
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                at, corner = (c * rows + y) * columns + x, (c * height + y * stride) * width + x * stride
                for i in range(size):
                    for j in range(size):
                        award(ahead, winner, at, np.float32(i * size + j), back, corner + i * width + j)


@loop
def tanh(source: Floats, out: Floats) -> None:
    """Fills `out` with tanh, as a ratio of polynomials so that it vectorises (error below 4e-7)."""
    for t in range(source.size):
        x = source[t]
        x = np.float32(-7.9) if x < np.float32(-7.9) else (np.float32(7.9) if x > np.float32(7.9) else x)
        s = x * x
        p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
        p = p * s + np.float32(-8.60467152213735e-11)
        p = p * s + np.float32(5.12229709037114e-08)
        p = p * s + np.float32(1.48572235717979e-05)
        p = p * s + np.float32(6.37261928875436e-04)
        p = p * s + np.float32(4.89352455891786e-03)
        q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
        q = q * s + np.float32(2.26843463243900e-03)
        q = q * s + np.float32(4.89352518554385e-03)
        out[t] = x * p / q


@loop
def tanh_back(out: Floats, ahead: Floats, back: Floats) -> None:
    """Fills `back` with the derivative to the input of tanh, given its output."""
    for t in range(out.size):
        back[t] = ahead[t] * (np.float32(1.0) - out[t] * out[t])


@loop
def relu(source: Floats, out: Floats) -> None:
    """Fills `out` with what is positive in `source`, zeros elsewhere; what is not a number stays so."""
    for t in range(source.size):
        out[t] = np.float32(0.0) if source[t] < np.float32(0.0) else source[t]


@loop
def relu_back(source: Floats, ahead: Floats, back: Floats) -> None:
    """Fills `back` with the derivative to the input of `relu`."""
    for t in range(source.size):
        back[t] = ahead[t] if source[t] > np.float32(0.0) else np.float32(0.0)


@loop
def cross_entropy(
    logits: Floats, labels: Integers, picks: Integers, back: Floats, losses: npt.NDArray[np.float64]
) -> None:
    """Fills `losses` with each lane's loss and `back` with its derivative to the logits; its label is that picked."""
    for lane in range(LANES):
        label = labels[picks[lane]]
        top = logits[0, lane]
        for t in range(1, logits.shape[0]):
            top = max(top, logits[t, lane])
        total = np.float32(0.0)
        for t in range(logits.shape[0]):
            back[t, lane] = np.exp(logits[t, lane] - top)
            total += back[t, lane]
        for t in range(logits.shape[0]):
            back[t, lane] /= total
        back[label, lane] -= np.float32(1.0)
        losses[lane] = np.log(total) + top - logits[label, lane]
