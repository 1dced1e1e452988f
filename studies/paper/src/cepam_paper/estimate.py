"""Estimates: a mean over seeds with its 95 % interval, as plain values and as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cepam.fl.runs.summary import interval

Estimate = dict[str, Any]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, ends of the 95 % confidence interval (None on one seed) and number of the values."""
    mean, half = interval(list(values))
    ends = (None, None) if half is None else (mean - half, mean + half)
    return {"mean": mean, "low": ends[0], "high": ends[1], "seeds": len(values)}


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
