"""The margin coder gives every quotient back, and takes any bytes in bounded time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.kernels.format import row_period
from cepam.kernels.format import scalar_contexts as contexts
from cepam.kernels.format.row_period import find_period
from cepam.kernels.numba import scalar_coder
from tests.kernels import scalar_coder_by_hand

TABLES = contexts.load_tables()


def quantize(X: np.ndarray, sigma_units: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(M, B, D) of integers X under Gaussian noise of scale `sigma_units`."""
    draw = np.random.default_rng(seed)
    R = np.floor(sigma_units * np.sqrt(draw.chisquare(3, X.size))).astype(np.int64)
    B = 2 * R + 1
    D = np.minimum((draw.random(X.size) * B).astype(np.int64), B - 1)
    return (X - D + R) // B, B, D


def encode(M: np.ndarray, B: np.ndarray, D: np.ndarray, scale: int, period: int) -> np.ndarray:
    out = np.empty(contexts.BYTES_A_COORDINATE * M.size + 16, np.uint8)
    work = scalar_coder.margins_for(M.size)
    return out[: scalar_coder.encode_block(M.copy(), B, D, scale, period, *TABLES, work, out)].copy()


def decode(data: np.ndarray, B: np.ndarray, D: np.ndarray) -> np.ndarray:
    M = np.empty_like(B)
    scalar_coder.decode_block(data, B, D, *TABLES, scalar_coder.margins_for(B.size), M)
    return M


@pytest.mark.parametrize("period", [row_period.FLAT, row_period.LOCAL, 2, 96, 2047])
@pytest.mark.parametrize("ratio", [0.0, 1e-4, 0.05, 1.0, 30.0, 1e3, 1e6])
def test_round_trip(ratio: float, period: int) -> None:
    draw = np.random.default_rng(7)
    sigma = 1 << 40
    X = np.trunc(np.clip(draw.standard_t(3, 3000) * ratio, -(2**21), 2**21) * sigma).astype(np.int64)
    M, B, D = quantize(X, sigma, 1)
    data = encode(M, B, D, scalar_coder.measure_scale(X), period)
    assert (decode(data, B, D) == M).all()
    assert data.size == 0 or data[-1] != 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(0, 300),
    scale=st.integers(1, 126),
    period=st.integers(0, 2047),
    spread=st.integers(0, 48),
    bits=st.integers(1, 45),
)
def test_round_trip_with_any_side_information(
    seed: int, size: int, scale: int, period: int, spread: int, bits: int
) -> None:
    """A wrong scale or period costs bits, never the value."""
    draw = np.random.default_rng(seed)
    B = 2 * draw.integers(0, 1 << bits, size) + 1
    D = draw.integers(0, B) if size else np.empty(0, np.int64)
    k = draw.integers(-(1 << spread), (1 << spread) + 1, size) * draw.integers(0, 2, size)
    M = k - (D > B >> 1)
    assert (decode(encode(M, B, D, scale, period), B, D) == M).all()


def test_margins_are_exact() -> None:
    """k = 0 exactly for low <= X < high, for every dither of a small width."""
    for R in range(6):
        B = 2 * R + 1
        for D in range(B):
            high, below = scalar_coder.edges(B, D)
            for X in range(-3 * B, 3 * B):
                k = (X - D + R) // B + (1 if D > R else 0)
                assert (k == 0) == (-below <= X < high)
                assert k == (X + below) // B


def test_nothing_costs_nothing() -> None:
    X = np.zeros(8192, np.int64)
    M, B, D = quantize(X, 1 << 40, 3)
    data = encode(M, B, D, scalar_coder.measure_scale(X), find_period(X))
    assert data.size == 0
    assert (decode(data, B, D) == M).all()


@pytest.mark.parametrize("kind", ["random", "zeros", "ones", "empty", "short"])
def test_hostile_bytes_decode_to_something(kind: str) -> None:
    draw = np.random.default_rng(11)
    _, B, D = quantize(np.zeros(8192, np.int64), 1 << 40, 3)
    decode(np.zeros(1, np.uint8), B, D)
    for trial in range(30):
        data = {
            "random": draw.integers(0, 256, 60000),
            "zeros": np.zeros(60000),
            "ones": np.full(60000, 255),
            "empty": np.zeros(0),
            "short": draw.integers(0, 256, 1 + trial),
        }[kind].astype(np.uint8)
        assert (np.abs(decode(data, B, D)) <= 1 << contexts.LARGEST_BITS + 1).all()


def test_any_cut_or_flip_of_a_stream_decodes_to_something() -> None:
    draw = np.random.default_rng(5)
    X = (draw.normal(size=2000) * (1 << 41)).astype(np.int64)
    M, B, D = quantize(X, 1 << 40, 3)
    data = encode(M, B, D, scalar_coder.measure_scale(X), 40)
    for _ in range(200):
        mangled = data.copy()
        mangled[draw.integers(0, data.size)] ^= 1 << draw.integers(0, 8)
        decode(mangled, B, D)
        decode(data[: draw.integers(0, data.size)].copy(), B, D)


def test_period_of_outer_products_is_found_and_pays() -> None:
    draw = np.random.default_rng(2)
    rows = draw.normal(size=80) * (draw.random(80) < 0.6)
    columns = np.maximum(draw.normal(size=100), 0)
    X = (np.outer(rows, columns).ravel() * (1 << 41)).astype(np.int64)
    M, B, D = quantize(X, 1 << 40, 3)
    scale = scalar_coder.measure_scale(X)
    assert find_period(X) == 100
    assert encode(M, B, D, scale, 100).size < 0.85 * encode(M, B, D, scale, row_period.LOCAL).size


def test_no_period_is_found_in_independent_entries() -> None:
    for seed in range(20):
        X = (np.random.default_rng(seed).normal(size=8192) * (1 << 40)).astype(np.int64)
        assert find_period(X) == row_period.FLAT


@pytest.mark.parametrize(("spread", "chosen"), [(0.3, row_period.FLAT), (2.0, row_period.LOCAL)])
def test_neighbours_of_a_quiet_update_count_where_sizes_differ_widely(spread: float, chosen: int) -> None:
    draw = np.random.default_rng(4)
    X = (draw.laplace(size=8192) * np.repeat(np.exp(spread * draw.normal(size=128)), 64) * (1 << 34)).astype(np.int64)
    M, B, D = quantize(X, 1 << 40, 3)
    scale = scalar_coder.measure_scale(X)
    assert find_period(X) == chosen
    flat, local = (encode(M, B, D, scale, period).size for period in (row_period.FLAT, row_period.LOCAL))
    assert (flat < local) == (chosen == row_period.FLAT)


@pytest.mark.parametrize("period", [row_period.FLAT, row_period.LOCAL, 2, 30])
@pytest.mark.parametrize("ratio", [0.02, 1.0, 20.0, 1e4])
def test_bytes_equal_those_made_by_hand(ratio: float, period: int) -> None:
    draw = np.random.default_rng(9)
    X = (draw.standard_t(3, 700) * (draw.random(700) < 0.7) * ratio * (1 << 40)).astype(np.int64)
    M, B, D = quantize(X, 1 << 40, 1)
    scale = scalar_coder.measure_scale(X)
    numbers = [a.tolist() for a in (M, B, D)]
    by_hand = scalar_coder_by_hand.encode(*numbers, scale, period, *(t.tolist() for t in TABLES))
    assert encode(M, B, D, scale, period).tobytes() == by_hand
