"""Convolutions over LANES examples side by side, forward and to the weights and the input.

A tile of six outputs by four places stays in registers, so that one vector loaded feeds six multiplications; a dense
layer is a convolution whose kernel is as wide as its input. Where a tile's side does not divide a layer's, the last
tile overlaps the one before it and computes the same numbers again.
"""

from __future__ import annotations

import numpy as np

from cepam_paper.compiled.register_tiles import FOUR, LANES, ONE, SIX, add, blank, put, take
from cepam_paper.compiled.vectorised_layers import Floats, loop, pasted

Shape = tuple[int, int, int, int, int, int, int, int, int]
"""Channels, height and width of the input; height, width and stride of the kernel; outputs, their height and width."""
Kernels = tuple[Floats, int, int]
"""Weights, where the kernels begin in them, and where their biases do; a negative number: there are none."""


@loop
def _sum(
    outs: tuple[int, ...], places: tuple[int, ...], source: Floats, at: int, kernels: Kernels, shape: Shape,
    out: Floats, to: int,
) -> None:  # fmt: skip
    """Fills one tile of `out` with the correlation of the kernels with the input from `at` on."""
    channels, height, width, high, wide, stride, _, lines, columns = shape
    weights, weight, bias = kernels
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
def _sums(outs: tuple[int, ...], source: Floats, kernels: Kernels, shape: Shape, out: Floats, to: int) -> None:
    """Fills the planes of these outputs; where four places do not divide a line the last four overlap."""
    _, _, width, _, _, stride, _, lines, columns = shape
    for y in range(lines):
        if columns >= len(FOUR):
            for x in range(0, columns, len(FOUR)):
                x = min(x, columns - len(FOUR))
                at, place = (y * width + x) * stride, to + y * columns + x
                _sum(outs, FOUR, source, at, kernels, shape, out, place)
        else:
            for x in range(columns):
                at, place = (y * width + x) * stride, to + y * columns + x
                _sum(outs, ONE, source, at, kernels, shape, out, place)


@loop
def convolve(source: Floats, weights: Floats, weight: int, bias: int, shape: Shape, out: Floats) -> None:
    """Fills `out` with the correlation of `source` with the kernels at `weight`; a negative `bias` means none."""
    size, outs, area = shape[0] * shape[3] * shape[4], shape[6], shape[7] * shape[8]
    for block in range(0, outs, len(SIX) if outs >= len(SIX) else 1):
        o = min(block, outs - len(SIX)) if outs >= len(SIX) else block
        own = bias + o if bias >= 0 else -1
        if outs >= len(SIX):
            _sums(SIX, source, (weights, weight + o * size, own), shape, out, o * area)
        else:
            _sums(ONE, source, (weights, weight + o * size, own), shape, out, o * area)


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
    channels: tuple[int, ...], places: tuple[int, ...], opened: tuple[Floats, int, int], y: int, x: int,
    kernels: tuple[Floats, int], shape: Shape, back: Floats, to: int,
) -> None:  # fmt: skip
    """Fills one tile of `back`: places beside each other in a few channels."""
    (ahead, rows, across), (weights, weight) = opened, kernels
    count, height, width, high, wide, _, outs, _, _ = shape
    pitch = across + 2 * len(FOUR)
    first_i, last_i = max(0, y - rows + 1), min(high - 1, y)
    first_j, last_j = max(0, x - across + 1), min(wide - 1, x + len(places) - 1)
    tile = blank(channels, places)
    for o in range(outs):
        for i in range(first_i, last_i + 1):
            start, tap = (o * rows + y - i) * pitch + len(FOUR) + x, weight + (o * count * high + i) * wide
            for j in range(first_j, last_j + 1):
                tile = add(tile, channels, places, weights, tap + j, high * wide, ahead, start - j, 1)
    put(tile, channels, places, back, to, height * width)


@pasted
def _returns(
    channels: tuple[int, ...], opened: tuple[Floats, int, int], kernels: tuple[Floats, int], shape: Shape, back: Floats,
    to: int,
) -> None:  # fmt: skip
    height, width = shape[1], shape[2]
    for y in range(height):
        if width >= len(FOUR):
            for x in range(0, width, len(FOUR)):
                x = min(x, width - len(FOUR))
                _return(channels, FOUR, opened, y, x, kernels, shape, back, to + y * width + x)
        else:
            for x in range(width):
                _return(channels, ONE, opened, y, x, kernels, shape, back, to + y * width + x)


@loop
def convolve_back(ahead: Floats, opened: Floats, weights: Floats, weight: int, shape: Shape, back: Floats) -> None:
    """Fills `back` with the derivative to the input, given that to the output; `opened` is room to work in."""
    channels, height, width, high, wide, _, _, _, _ = shape
    rows, across = _open(ahead, opened, shape)
    for block in range(0, channels, len(SIX) if channels >= len(SIX) else 1):
        if channels >= len(SIX):
            c = min(block, channels - len(SIX))
            place, to = weight + c * high * wide, c * height * width
            _returns(SIX, (opened, rows, across), (weights, place), shape, back, to)
        else:
            place, to = weight + block * high * wide, block * height * width
            _returns(ONE, (opened, rows, across), (weights, place), shape, back, to)
