"""The Fourier transform of a short vector in vector registers, emitted as LLVM vector code.

NumPy's took a quarter of the time of a message of some thousand coordinates. Ours is of length rows * columns: over the
rows for all columns at once, then a turn, then over the columns for all rows (Stockham's passes, eight lanes abreast).
Only what is rounded to whole numbers may hang on it: its last bits are no part of the arithmetic that both ends share.
"""

from __future__ import annotations

from functools import cache
from math import isqrt
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cepam.kernels.numba.integers import compiled
from cepam.kernels.numba.lanes import DOUBLES, LONG, data_of, filled, spread, transpose, vector_at

LANES = 8
RADICES = (8, 5, 4, 3, 2)
_TURN = 1


@cache
def transform_plan(length: int) -> tuple[int, int, Any, Any]:
    """(rows, columns, radices, factors) for complex vectors of this length, a multiple of 64 without primes above 5."""
    rows = max(r for r in range(LANES, isqrt(length) + 1, LANES) if length % (LANES * r) == 0)
    columns = length // rows
    turn = np.exp(-2j * np.pi / length * np.outer(np.arange(rows), np.arange(columns)))
    (first, before), (second, after) = _passes(rows), _passes(columns)
    factors = np.concatenate([*before, turn.real.reshape(-1), turn.imag.reshape(-1), *after])
    return rows, columns, np.array([*first, _TURN, *second]), factors


def _passes(length: int) -> tuple[list[int], list[Any]]:
    """(radices, factors) of Stockham's passes: for each and each of its places radix - 1 complex factors."""
    radices, factors = [], []
    while length > 1:
        radix = next(r for r in RADICES if length % r == 0)
        powers = np.outer(np.arange(length // radix), np.arange(1, radix))
        factors.append(np.exp(-2j * np.pi / length * powers).reshape(-1).view(np.float64))
        radices.append(radix)
        length //= radix
    return radices, factors


@compiled
def transform(plan: Any, values: Any, spare: Any) -> Any:
    """Whether the Fourier transform of values (real parts, then imaginary ones) lies in `spare`, or in their place."""
    rows, columns, radices, factors = plan
    here, there, length, stride = values, spare, rows, columns
    for radix in radices:
        length //= radix
        if radix == _TURN:
            turn_over(here, there, factors, rows, columns)
            factors = factors[2 * rows * columns :]
            length, stride = columns, rows
        elif radix == 8:
            pass_of_eight(here, there, factors, length, stride)
        elif radix == 4:
            pass_of_four(here, there, factors, length, stride)
        elif radix == 5:
            pass_of_five(here, there, factors, length, stride)
        elif radix == 3:
            pass_of_three(here, there, factors, length, stride)
        else:
            pass_of_two(here, there, factors, length, stride)
        if radix != _TURN:
            factors = factors[2 * (radix - 1) * length :]
        stride *= radix
        here, there = there, here
    return len(radices) & 1 == 1


def _pass(radix: int) -> Any:
    """A pass: place p + k * count of `source` goes to the places radix * p + j of `target`, `stride` numbers each."""

    @intrinsic
    def run(typingctx: Any, source: Any, target: Any, factors: Any, count: Any, stride: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, y, w = (data_of(context, builder, signature, arguments, i) for i in range(3))
            count, stride = arguments[3], arguments[4]
            apart = builder.mul(count, stride)
            imaginary = builder.mul(apart, LONG(radix))
            with cgutils.for_range(builder, count) as place:
                first = builder.mul(place.index, LONG(2 * (radix - 1)))
                factor = [builder.gep(w, [builder.add(first, LONG(i))]) for i in range(2 * (radix - 1))]
                turns = [spread(builder, builder.load(each), DOUBLES) for each in factor]
                start = builder.mul(place.index, stride)
                with cgutils.for_range(builder, builder.udiv(stride, LONG(LANES))) as lanes:
                    skip = builder.mul(lanes.index, LONG(LANES))
                    at = [builder.add(builder.add(start, skip), builder.mul(apart, LONG(k))) for k in range(radix)]
                    found = _points(builder, [_load(builder, x, each, imaginary) for each in at])
                    to = builder.add(builder.mul(start, LONG(radix)), skip)
                    for j, point in enumerate(found):
                        if j:
                            point = _times(builder, point, (turns[2 * j - 2], turns[2 * j - 1]))
                        _store(builder, y, builder.add(to, builder.mul(stride, LONG(j))), imaginary, point)
            return context.get_dummy_value()

        return types.void(source, target, factors, types.int64, types.int64), codegen

    return run


pass_of_two, pass_of_three, pass_of_four, pass_of_five, pass_of_eight = (_pass(radix) for radix in (2, 3, 4, 5, 8))


@intrinsic
def turn_over(typingctx: Any, source: Any, target: Any, turn: Any, rows: Any, columns: Any) -> Any:
    """Fills target with the transpose of source, number by number times `turn`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y, w = (data_of(context, builder, signature, arguments, i) for i in range(3))
        rows, columns = arguments[3], arguments[4]
        imaginary, eight = builder.mul(rows, columns), LONG(LANES)
        with cgutils.for_range(builder, builder.udiv(rows, eight)) as down:
            row = builder.mul(down.index, eight)
            with cgutils.for_range(builder, builder.udiv(columns, eight)) as right:
                column = builder.mul(right.index, eight)
                tile = []
                for i in range(LANES):
                    at = builder.add(builder.mul(builder.add(row, LONG(i)), columns), column)
                    tile.append(_times(builder, _load(builder, x, at, imaginary), _load(builder, w, at, imaginary)))
                turned = zip(*(transpose(builder, [each[part] for each in tile]) for part in (0, 1)))
                for i, point in enumerate(turned):
                    at = builder.add(builder.mul(builder.add(column, LONG(i)), rows), row)
                    _store(builder, y, at, imaginary, point)
        return context.get_dummy_value()

    return types.void(source, target, turn, types.int64, types.int64), codegen


def _points(builder: Any, x: list[Any]) -> list[Any]:
    """The Fourier transform of one, two, four, eight or an odd number of complex vectors."""
    add, subtract = builder.fadd, builder.fsub
    if len(x) % 2 == 0:
        even, odd = _points(builder, x[::2]), _points(builder, x[1::2])
        odd = [_turned(builder, j, point, len(x)) for j, point in enumerate(odd)]
        return [_each(way, a, b) for way in (add, subtract) for a, b in zip(even, odd)]
    pairs = range(1, len(x) // 2 + 1)
    sums, apart = [_each(add, x[k], x[-k]) for k in pairs], [_each(subtract, x[k], x[-k]) for k in pairs]
    found = {0: x[0]}
    for each in sums:
        found[0] = _each(add, found[0], each)
    for j in pairs:
        middle, (re, im) = x[0], (filled(DOUBLES, 0.0),) * 2
        for k in pairs:
            angle = 2.0 * np.pi * j * k / len(x)
            middle = _each(add, middle, _scaled(builder, sums[k - 1], np.cos(angle)))
            re, im = _each(add, (re, im), _scaled(builder, apart[k - 1], np.sin(angle)))
        found[j] = (add(middle[0], im), subtract(middle[1], re))
        found[len(x) - j] = (subtract(middle[0], im), add(middle[1], re))
    return [found[j] for j in range(len(x))]


def _turned(builder: Any, j: int, point: Any, of: int) -> Any:
    """A point of the odd ones' transform, turned by j parts `of` a circle: by none, an eighth, a fourth, or both."""
    re, im = point
    if 4 * j >= of:
        re, im, j = im, builder.fsub(filled(DOUBLES, -0.0), re), j - of // 4
    if j:
        re, im = _scaled(builder, (builder.fadd(re, im), builder.fsub(im, re)), 0.5**0.5)
    return re, im


def _each(operation: Any, a: Any, b: Any) -> Any:
    return operation(a[0], b[0]), operation(a[1], b[1])


def _scaled(builder: Any, point: Any, by: float) -> Any:
    factor = filled(DOUBLES, float(by))
    return builder.fmul(point[0], factor), builder.fmul(point[1], factor)


def _times(builder: Any, a: Any, b: Any) -> Any:
    re = builder.fsub(builder.fmul(a[0], b[0]), builder.fmul(a[1], b[1]))
    return re, builder.fadd(builder.fmul(a[0], b[1]), builder.fmul(a[1], b[0]))


def _load(builder: Any, data: Any, at: Any, imaginary: Any) -> Any:
    re, im = (builder.load(each, align=8) for each in _places(builder, data, at, imaginary))
    return re, im


def _store(builder: Any, data: Any, at: Any, imaginary: Any, point: Any) -> None:
    for part, place in zip(point, _places(builder, data, at, imaginary)):
        builder.store(part, place, align=8)


def _places(builder: Any, data: Any, at: Any, imaginary: Any) -> Any:
    return (vector_at(builder, data, place, DOUBLES) for place in (at, builder.add(at, imaginary)))
