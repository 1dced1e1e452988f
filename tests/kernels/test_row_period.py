"""The compiled search for a row length beside the reference: the same answer whatever the block looks like."""

from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam.kernels.dispatch import encode_spans
from cepam.kernels.format import row_period as reference
from cepam.kernels.format.plan import joined
from cepam.kernels.numba import row_period
from cepam.kernels.numba.row_period import transform, transform_plan

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
    for count in (32, 64, 65, 500, 1001, 2048, 3000, 4000, 5000, 6422, 8192):
        longest = min(reference.LARGEST_PERIOD, count // 3)
        size = rng.integers(0, 4097, count)
        values = reference.flatten(size)
        length = min(length for length in row_period.LENGTHS if length > count + longest)
        real, found = np.full((2, length), np.nan), np.empty(longest + 1)
        together = row_period.flatten(size, np.empty(count + 2 * reference.WINDOW, dtype=np.int64), real[0])
        assert together == values[1:] @ values[:-1]
        assert (real[0].reshape(2, -1).T.reshape(-1)[:count] == values).all()
        row_period.correlate(row_period.circle_of(length), count, together, real[0], real[1], found)
        assert (found == reference.correlate(values, longest)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_first_bytes_tell_layouts(kind: str) -> None:
    """Streams of one and of several blocks, nothing among them; the control is the layout itself."""
    codec, rng = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1)), np.random.default_rng(9)
    task, flat = codec.task(0, bytes(32)), []
    for count in (1, 7, 40, 500, 8192, 9000, 20_000):
        x = block(kind, count, rng) * task.plan.unit
        x[8192:16384] = 0.0
        streams = joined(encode_spans("auto", 1, task, x))
        layout = reference.find_period(np.trunc(x[:8192] / task.plan.unit).astype(np.int64))
        flat.append(layout == reference.FLAT)
        told = reference.seem_flat(np.frombuffer(streams.data, dtype=np.uint8), streams.lengths)
        assert told == (flat[-1] or not len(streams.data)), (kind, count)
    assert kind not in ("rows", "neighbours", "i.i.d.") or 1 < sum(flat) < len(flat) + (kind == "i.i.d.")


@pytest.mark.parametrize("length", [64, 128, 320, 384, 576, 1920, 2304, 2560, 4608, 5120])
def test_the_transform_is_that_of_fourier(length: int) -> None:
    values = np.random.default_rng(9).normal(size=(2, length))
    expected = np.fft.fft(values[0] + 1j * values[1])
    spare = np.empty(2 * length)
    found = spare if transform(transform_plan(length), values.reshape(-1), spare) else values
    re, im = found.reshape(2, -1)
    assert np.abs(re + 1j * im - expected).max() < 1e-13 * np.sqrt(length)
