"""Estimates: a mean or a median over seeds with its 95 % interval, as plain values and as words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from scipy import stats

from cepam.fl.runs.summary import interval

Estimate = dict[str, Any]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, ends of the 95 % confidence interval (None on one seed) and number of the values."""
    mean, half = interval(list(values))
    ends = (None, None) if half is None else (mean - half, mean + half)
    return {"mean": mean, "low": ends[0], "high": ends[1], "seeds": len(values)}


def median(values: Sequence[float]) -> Estimate:
    """The median with the ends of a distribution-free interval that covers it with 95 % chance at least.

    The ends are order statistics (Thompson 1936), so that the interval also holds for values without a mean; None for
    fewer than six values, which have no such interval.
    """
    ranked, count = sorted(values), len(values)
    inner = int(stats.binom.ppf(0.025, count, 0.5))  # the least k with P(below k + 1 of them) >= 0.025
    ends = (None, None) if inner < 1 else (ranked[inner - 1], ranked[count - inner])
    return {"median": statistics.median(ranked), "low": ends[0], "high": ends[1], "seeds": count}


def median_words(value: Estimate) -> str:
    """The median as `25.53 (24.10 to 27.90)`."""
    if value["low"] is None:
        return f"{value['median']:.2f}"
    return f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def words(value: Estimate, digits: int = 2, sign: bool = False) -> str:
    """The estimate as `91.74 ± 1.63`."""
    first = f"{value['mean']:{'+' if sign else ''}.{digits}f}"
    if value["low"] is None:
        return first
    return f"{first} ± {(value['high'] - value['low']) / 2:.{digits}f}"


def percent(values: Sequence[float]) -> list[float]:
    """Shares as percentages."""
    return [100.0 * value for value in values]


def differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Differences of shares paired by seed, in percentage points."""
    return [100.0 * (x - y) for x, y in zip(a, b, strict=True)]
