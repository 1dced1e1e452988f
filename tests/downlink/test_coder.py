"""The coder of differences: what goes in comes out, both forms write the same bytes, and few of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.kernels.format.plan import Ints
from cepam.kernels.numba.broadcast_coder import CompiledLoop
from cepam.kernels.numpy.broadcast_coder import ReferenceLoop

COMPILED, REFERENCE = CompiledLoop(bytes(32)), ReferenceLoop(bytes(32))
LARGEST = 2**31


def sparse(size: int, density: float, seed: int = 0) -> Ints:
    """Independent zeros and ones of either sign."""
    draw = np.random.default_rng(seed)
    return np.where(draw.random(size) < density, draw.choice([-1, 1], size), 0).astype(np.int64)


def geometric(size: int, scale: float, seed: int = 0) -> Ints:
    """A two-sided discrete law of about this scale."""
    return np.rint(np.random.default_rng(seed).laplace(scale=scale, size=size)).astype(np.int64)


SHAPES = {
    "nothing": np.zeros(0, dtype=np.int64),
    "zeros": np.zeros(300, dtype=np.int64),
    "one": np.array([1], dtype=np.int64),
    "last": np.r_[np.zeros(299, dtype=np.int64), -1],
    "sparse": sparse(700, 0.05),
    "signs": np.abs(sparse(700, 0.3)),
    "dense": geometric(500, 3.0),
    "snapshot": geometric(400, 1e5),
    "mixed": np.r_[sparse(300, 0.02), geometric(300, 40.0), sparse(200, 0.5)],
    "huge": np.array([LARGEST, -LARGEST, 0, 1, LARGEST - 1, -1] * 20, dtype=np.int64),
    "lonely": np.r_[np.zeros(400, dtype=np.int64), LARGEST, np.zeros(100, dtype=np.int64)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_both_forms_write_the_same_bytes_and_read_them(name: str) -> None:
    block = SHAPES[name]
    (stream,) = COMPILED.encode([block.copy()])
    assert REFERENCE.encode([block]) == [stream]
    for loop in (COMPILED, REFERENCE):
        (read,) = loop.decode([stream], [len(block)])
        np.testing.assert_array_equal(read, block)


def test_blocks_of_different_length_walk_side_by_side() -> None:
    blocks = [SHAPES[name] for name in ("sparse", "zeros", "dense", "one")]
    streams = [COMPILED.encode([block.copy()])[0] for block in blocks]
    assert REFERENCE.encode(blocks) == streams
    for got, block in zip(REFERENCE.decode(streams, [len(block) for block in blocks]), blocks):
        np.testing.assert_array_equal(got, block)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.just(0), st.integers(-3, 3), st.integers(-LARGEST, LARGEST)), max_size=60))
def test_any_difference_comes_back(values: list[int]) -> None:
    block = np.array(values, dtype=np.int64)
    (stream,) = COMPILED.encode([block.copy()])
    assert REFERENCE.encode([block]) == [stream]
    np.testing.assert_array_equal(COMPILED.decode([stream], [len(block)])[0], block)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80), st.integers(1, 50))
def test_any_bytes_decode_to_the_same_numbers_in_both_forms(data: bytes, length: int) -> None:
    (read,) = COMPILED.decode([data], [length])
    assert np.abs(read).max() < 2**33
    np.testing.assert_array_equal(REFERENCE.decode([data], [length])[0], read)


def test_a_block_of_zeros_costs_nothing() -> None:
    assert COMPILED.encode([np.zeros(8192, dtype=np.int64)]) == [b""]


def entropy(density: float) -> float:
    """Bits per coordinate of independent ones of either sign at this density."""
    return float(-density * np.log2(density / 2) - (1 - density) * np.log2(1 - density))


@pytest.mark.parametrize("density", [0.003, 0.02, 0.06, 0.2])
def test_the_rate_of_independent_symbols_is_their_entropy(density: float) -> None:
    """Oracle: the entropy of the very block, from its own counts; 2 % and eight bytes are for learning.

    The control is the same block with its density known too well by neighbours' places: sorted, it must cost far less.
    """
    block = sparse(8192, density, seed=3)
    found = 8 * len(COMPILED.encode([block.copy()])[0])
    assert found < 1.02 * entropy(float((block != 0).mean())) * len(block) + 64
    assert 8 * len(COMPILED.encode([np.sort(block)])[0]) < 0.6 * found + 64


def test_sizes_cost_their_entropy() -> None:
    """Oracle: the empirical entropy of Laplace steps of scale 12, where sizes take most of the bits."""
    block = geometric(8192, 12.0, seed=4)
    _, counts = np.unique(block, return_counts=True)
    bound = -(counts * np.log2(counts / len(block))).sum()
    assert 8 * len(COMPILED.encode([block.copy()])[0]) < 1.05 * bound
