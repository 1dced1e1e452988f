"""The compiled search for a row length beside the reference: the same answer whatever the block looks like."""

from __future__ import annotations

import numpy as np
import pytest

from cepam.kernels.model import row_period as reference
from cepam.kernels.numba import row_period

KINDS = ("i.i.d.", "rows", "weak rows", "neighbours", "sparse", "heavy", "quiet", "huge")


def block(kind: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Units that look like an update of this kind."""
    x = rng.normal(size=count)
    period = int(rng.integers(3, max(count // 3, 4)))
    if kind in ("rows", "weak rows"):
        column = np.exp(rng.normal(size=period) * (1.0 if kind == "rows" else 0.3))
        x *= np.resize(column, count)
    if kind == "neighbours":
        x *= np.exp(np.cumsum(rng.normal(size=count)) / 8)
    if kind == "sparse":
        x *= rng.random(count) < 0.05
    if kind == "heavy":
        x = rng.standard_cauchy(count)
    scale = {"quiet": 2.0**33, "huge": 2.0**46}.get(kind, 2.0**40)
    return np.clip(x * scale, -(2.0**61), 2.0**61).astype(np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_the_compiled_search_finds_what_the_reference_finds(kind: str) -> None:
    rng, found = np.random.default_rng(7), []
    for count in (*range(1, 40, 6), *rng.integers(40, 8193, 60).tolist(), 2048, 6422, 8192):
        x = block(kind, int(count), rng)
        found.append(reference.find_period(x))
        assert row_period.find_period(x) == found[-1], (kind, count)
    # Kinds are told apart, so that agreement means something.
    assert kind not in ("rows", "weak rows") or len(set(found)) > 30
    assert kind not in ("sparse", "quiet") or max(found) <= reference.LOCAL


def test_correlations_of_both_are_the_same_whole_numbers() -> None:
    rng = np.random.default_rng(8)
    for count, longest in ((64, 21), (6422, 2047), (8192, 2047)):
        size = rng.integers(0, 4097, count)
        values = reference.flatten(size)
        length = min(length for length in reference.FOURIER_LENGTHS if length > count + longest)
        padded, folded = np.zeros(length), np.empty(length // 2)
        row_period.flatten(size, np.empty(count + 2 * reference.WINDOW, dtype=np.int64), padded)
        assert (padded[:count] == values).all()
        sines, cosines = row_period._circle(length)
        second = row_period.fold_power(np.fft.rfft(padded), sines, cosines, padded, folded)
        found = np.empty(longest + 1)
        row_period.judge_lags(np.fft.rfft(folded), second, count, found, padded)
        assert (found == reference.correlate(values, longest)).all()
