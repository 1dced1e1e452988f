"""The search for a block's row length, compiled: what `model.row_period.find_period` gives, in a third of its time.

Correlations are whole numbers on both ways, so that another transform may find them: the power of a real vector is
even, and half a transform brings it back (a cosine transform through a real one of half its length).
"""

from __future__ import annotations

from functools import cache
from typing import Any

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
from cepam.kernels.numba.integers import compiled, floor_divide


def find_period(x: Any) -> int:
    """`FLAT`, `LOCAL` or a row length, as the reference finds it (tests/kernels/test_row_period.py)."""
    count = len(x)
    size = np.empty(count, dtype=np.int64)
    mean = cut_sizes(x, size)
    if count < 4 * SHORTEST or mean == 0:
        return FLAT
    longest = min(LARGEST_PERIOD, count // 3)
    if longest >= SHORTEST and mean >= QUIET:
        length = min(length for length in FOURIER_LENGTHS if length > count + longest)
        sines, cosines = _circle(length)
        values, folded = np.zeros(length), np.empty(length // 2)
        flatten(size, np.empty(count + 2 * WINDOW, dtype=np.int64), values)
        second = fold_power(np.fft.rfft(values), sines, cosines, values, folded)
        period = judge_lags(np.fft.rfft(folded), second, count, np.empty(longest + 1), values)
        if period:
            return int(period)
    return LOCAL if neighbours_alike(size, mean) else FLAT


@cache
def _circle(length: int) -> tuple[Any, Any]:
    angles = np.arange(length // 2) * (2.0 * np.pi / length)
    return np.sin(angles), np.cos(angles)


@compiled
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
def flatten(size: Any, total: Any, values: Any) -> None:
    """Fills values with sizes over their moving average, cut off and centred (`model.row_period.flatten`)."""
    count, seen = len(size), np.int64(0)
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
    centre = np.int64(np.floor(np.float64(sum_of_all) / np.float64(count)))
    for i in range(count):
        values[i] = np.float64(total[i] - centre)


@compiled
def fold_power(spectrum: Any, sines: Any, cosines: Any, power: Any, folded: Any) -> Any:
    """The cosine transform of a spectrum's power at lag 1; fills folded with what a real transform takes."""
    half = len(folded)
    for k in range(half + 1):
        power[k] = spectrum[k].real * spectrum[k].real + spectrum[k].imag * spectrum[k].imag
    second = 0.5 * (power[0] - power[half])
    folded[0] = 0.5 * (power[0] + power[half])
    for k in range(1, half):
        second += power[k] * cosines[k]
        folded[k] = 0.5 * (power[k] + power[half - k]) - sines[k] * (power[k] - power[half - k])
    return second


@compiled
def judge_lags(half: Any, second: Any, count: Any, correlation: Any, score: Any) -> Any:
    """The row length that the correlations support, or 0; the same operations in the same order as the reference."""
    longest, scale, odd = len(correlation) - 1, 1.0 / (2 * (len(half) - 1)), second
    for lag in range(0, longest + 1, 2):
        correlation[lag] = np.rint(half[lag >> 1].real * scale)
        if lag > 0:
            odd -= half[lag >> 1].imag
        if lag < longest:
            correlation[lag + 1] = np.rint(odd * scale)
    power = max(correlation[0], 1.0)
    for lag in range(longest + 1):
        correlation[lag] = correlation[lag] / power * count / (count - lag)
    best, terms, noise = -np.inf, MULTIPLES, np.sqrt(np.float64(MULTIPLES * MULTIPLES))
    for lag in range(SHORTEST, longest + 1):
        while terms * lag > longest:
            terms -= 1
            noise = np.sqrt(np.float64(terms * MULTIPLES))
        found = 0.0
        for multiple in range(1, terms + 1):
            found += correlation[multiple * lag]
        score[lag] = found / noise
        best = max(best, score[lag])
    at = SHORTEST
    for lag in range(SHORTEST, longest + 1):
        if score[lag] >= FIRST_OF_EQUALS * best:
            at = lag
            break
    chosen = at
    for lag in range(at + 1, min(at + 3, longest + 1)):
        if score[lag] > score[chosen]:
            chosen = lag
    return chosen if score[chosen] > EVIDENCE else 0


@compiled
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
