"""The search for a block's row length, compiled: what `model.row_period.find_period` gives, in a sixth of its time.

Correlations are whole numbers on both ways, so that another transform may find them. A real vector is transformed as a
complex one of half its length; its power is even, and half a transform brings it back (a cosine transform at even lags
through a real one of half its length; from lag to lag the odd ones differ by what that has for an imaginary part).
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from cepam.kernels.model.row_period import (
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
from cepam.kernels.numba.integers import compiled, floor_divide, pasted
from cepam.kernels.numba.transform import transform, transform_plan

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
    """The products of neighbours in values, added up; values are filled as `model.row_period.flatten` says, then zeros.

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
    """Fills correlation with what `model.row_period.correlate` gives for what `flatten` gave and put in values."""
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
