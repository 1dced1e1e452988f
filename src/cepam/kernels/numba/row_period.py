"""The compiled search for a block's row length, with its Fourier transform in vector registers.

NumPy's took a quarter of the time of a message of some thousand coordinates. Ours is of length rows * columns: over the
rows for all columns at once, then a turn, then over the columns for all rows (Stockham's passes, eight lanes abreast).
Only what is rounded to whole numbers may hang on it: its last bits are no part of the arithmetic that both ends share.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cepam.kernels.format.row_period import (
    EVIDENCE,
    FIRST_OF_EQUALS,
    FLAT,
    FOURIER_LENGTHS,
    LARGEST_PERIOD,
    LARGEST_RATIO,
    LOCAL,
    MULTIPLES,
    NEIGHBOURLY,
    QUIET,
    RATIO,
    SHORTEST,
    UNIT,
    WINDOW,
)
from cepam.kernels.numba.compiling import (
    DOUBLES,
    LONG,
    compiled,
    data_of,
    filled,
    floor_divide,
    pasted,
    spread,
    transpose,
    vector_at,
)

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


LENGTHS = [length for length in FOURIER_LENGTHS if length % 256 == 0]
"""Those that `transform` takes at a half and at a quarter; another length finds the same whole numbers."""


class Circle(NamedTuple):
    """What a transform of real vectors of one length needs: plans of its half and its quarter, sines and cosines."""

    half: Any
    quarter: Any
    sines: Any
    cosines: Any


@cache
def circle_of(length: int) -> Circle:
    """The circle of a length out of `LENGTHS`."""
    angles = np.arange(length // 2) * (2.0 * np.pi / length)
    return Circle(transform_plan(length // 2), transform_plan(length // 4), np.sin(angles), np.cos(angles))


def find_period(x: Any) -> int:
    """`FLAT`, `LOCAL` or a row length, as the reference finds it (tests/kernels/test_row_period.py)."""
    count = len(x)
    if count < 4 * SHORTEST:
        return FLAT
    longest = min(LARGEST_PERIOD, count // 3)
    length = LENGTHS[bisect_right(LENGTHS, count + longest)]
    whole, real = np.empty((2, count + 2 * WINDOW), dtype=np.int64), np.empty((3, length))
    return int(search_period(x, circle_of(length), longest, whole, real))


@compiled
def search_period(x: Any, circle: Any, longest: Any, whole: Any, real: Any) -> Any:
    """What `find_period` gives, from the working memory `whole` and `real`."""
    size = whole[0, : len(x)]
    mean = cut_sizes(x, size)
    if mean == 0:
        return FLAT
    if mean >= QUIET:
        correlation = real[2, : longest + 1]
        together = flatten(size, whole[1], real[0])
        correlate(circle, len(x), together, real[0], real[1], correlation)
        period = judge_lags(correlation, real[0])
        if period != 0:
            return period
    return LOCAL if neighbours_alike(size, mean) else FLAT


@pasted
def cut_sizes(x: Any, size: Any) -> Any:
    """The mean of |x|; fills size with |x| in units of 1/1024 of the mean, at most four means."""
    total = np.int64(0)
    for i in range(len(x)):
        size[i] = min(abs(x[i]), 1 << 48)
        total += size[i]
    mean = total // max(len(x), 1)
    if mean > 0:
        for i in range(len(x)):
            size[i] = floor_divide(min(size[i], 4 * mean) * UNIT, mean)
    return mean


@compiled
def flatten(size: Any, total: Any, values: Any) -> Any:
    """The products of neighbours in values, added up; values are filled as in `format.row_period.flatten`, then zeros.

    Those at even places come first, then those at odd ones: the real and imaginary parts of what is transformed.
    """
    count, half, seen = len(size), len(values) >> 1, np.int64(0)
    for i in range(WINDOW):
        total[i] = 0
    for i in range(count):
        seen += size[i]
        total[WINDOW + i] = seen
    for i in range(WINDOW):
        total[WINDOW + count + i] = seen
    sum_of_all = np.int64(0)
    for i in range(count):
        local = (total[i + 2 * WINDOW] - total[i]) // (2 * WINDOW)
        # Both are under 2^19: the quotient in floating point cannot round up to a whole number.
        ratio = np.floor(np.float64((size[i] - local) * RATIO) / np.float64(local + UNIT // 4))
        total[i] = np.int64(min(max(ratio, -LARGEST_RATIO), LARGEST_RATIO)) if size[i] > 0 else 0
        sum_of_all += total[i]
    centre, together = np.int64(np.floor(np.float64(sum_of_all) / np.float64(count))), np.int64(0)
    for i in range(count - 1):
        together += (total[i] - centre) * (total[i + 1] - centre)
    even, odd = values[:half], values[half:]
    for i in range(count >> 1):
        even[i], odd[i] = np.float64(total[2 * i] - centre), np.float64(total[2 * i + 1] - centre)
    for i in range(count >> 1, half):
        even[i] = odd[i] = 0.0
    if count & 1:
        even[count >> 1] = np.float64(total[count - 1] - centre)
    return together


@compiled
def correlate(circle: Any, count: Any, together: Any, values: Any, spare: Any, correlation: Any) -> None:
    """Fills correlation with what `format.row_period.correlate` gives for what `flatten` gave and put in values."""
    half, longest = len(values) >> 1, len(correlation) - 1
    if transform(circle.half, values, spare):
        values, spare = spare, values
    fold_power(values, circle.sines, circle.cosines, spare)
    values, spare = values[half:], spare[half:]
    if not transform(circle.quarter, spare, values):
        values, spare = spare, values
    scale, odd = 1.0 / half, np.float64(together * half)
    unfold(values, circle, spare[: (longest >> 1) + 1], spare[half >> 1 :])
    for lag in range(0, longest + 1, 2):
        correlation[lag] = np.rint(spare[lag >> 1] * scale)
        if lag > 0:
            odd -= spare[(half + lag) >> 1]
        if lag < longest:
            correlation[lag + 1] = np.rint(odd * scale)
    power = max(correlation[0], 1.0)
    for lag in range(longest + 1):
        correlation[lag] = correlation[lag] / power * count / (count - lag)


@pasted
def fold_power(spectrum: Any, sines: Any, cosines: Any, folded: Any) -> None:
    """Fills the second half of folded with the vector whose real transform is a power's cosine transform at even lags.

    Given is the spectrum of even places + i odd places; what is filled has its even places first, then its odd ones.
    The power at k and at its mirror is (mine + other) / 2 -/+ `tilt`.
    """
    half = len(spectrum) >> 1
    re, im, power = spectrum[:half], spectrum[half:], folded[:half]
    power[0] = re[0] * re[0] + im[0] * im[0]
    for k in range(1, half):
        mirror = np.uint64(half - k)  # a signed index might count from the end, for all that the compiler knows
        x, y, u, v = re[k], im[k], re[mirror], im[mirror]
        mine, other, across = x * x + y * y, u * u + v * v, x * v + y * u
        tilt = 0.5 * (mine - other) * sines[k] - across * cosines[k]
        power[k] = 0.5 * (mine + other) + 2.0 * sines[k] * tilt
    even, odd = folded[half : half + (half >> 1)], folded[half + (half >> 1) :]
    for k in range(half >> 1):
        even[k], odd[k] = power[2 * k], power[2 * k + 1]


@pasted
def unfold(spectrum: Any, circle: Any, real: Any, imaginary: Any) -> None:
    """Fills the first numbers of a real vector's transform, from the spectrum of its even places + i odd places."""
    half = len(spectrum) >> 1
    re, im = spectrum[:half], spectrum[half:]
    real[0], imaginary[0] = re[0] + im[0], 0.0
    for k in range(1, len(real)):
        mirror = np.uint64(half - k)
        sum_re, apart_re = re[k] + re[mirror], re[k] - re[mirror]
        sum_im, apart_im = im[k] + im[mirror], im[k] - im[mirror]
        sine, cosine = circle.sines[2 * k], circle.cosines[2 * k]
        real[k] = 0.5 * (sum_re + cosine * sum_im - sine * apart_re)
        imaginary[k] = 0.5 * (apart_im - sine * sum_im - cosine * apart_re)


@pasted
def judge_lags(correlation: Any, score: Any) -> Any:
    """The row length that the correlations support, or 0; the same operations in the same order as the reference."""
    longest, best, begin = len(correlation) - 1, -np.inf, SHORTEST
    for terms in range(MULTIPLES, 0, -1):
        noise, end = np.sqrt(np.float64(terms * MULTIPLES)), longest // terms + 1
        for lag in range(begin, end):
            found = 0.0
            for multiple in range(1, terms + 1):
                found += correlation[multiple * lag]
            score[lag] = found
        for lag in range(begin, end):
            score[lag] /= noise
        begin = max(begin, end)
    for lag in range(SHORTEST, longest + 1):
        if score[lag] > best:
            best = score[lag]
    if best <= EVIDENCE:
        return 0
    at = SHORTEST
    while score[at] < FIRST_OF_EQUALS * best:
        at += 1
    chosen = at
    for lag in range(at + 1, min(at + 3, longest + 1)):
        if score[lag] > score[chosen]:
            chosen = lag
    return chosen if score[chosen] > EVIDENCE else 0


@pasted
def neighbours_alike(size: Any, mean: Any) -> Any:
    """Whether a coordinate's size resembles its neighbour's, and that is worth saying."""
    count, total, squares = len(size), np.int64(0), np.int64(0)
    for i in range(count):
        total += size[i]
        squares += size[i] * size[i]
    if mean < QUIET and 10 * total * total >= 3 * count * squares:
        return False
    centre, together = total // count, np.int64(0)
    alone = (size[0] - centre) * (size[0] - centre)
    for i in range(1, count):
        together += (size[i] - centre) * (size[i - 1] - centre)
        alone += (size[i] - centre) * (size[i] - centre)
    return together / max(alone, 1) > NEIGHBOURLY
