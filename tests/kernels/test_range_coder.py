"""The range coder's lanes: what is written is read, carries run through, and no byte is wasted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cepam.kernels.numpy.range_coder import LaneReader, LaneWriter


def write(chances: np.ndarray, bits: np.ndarray) -> list[bytes]:
    lanes, steps = bits.shape
    writer, every = LaneWriter(lanes), np.arange(lanes)
    for k in range(steps):
        writer.code(every, chances[:, k], bits[:, k])
    return [writer.finish(lane) for lane in range(lanes)]


def read(chances: np.ndarray, blocks: list[bytes]) -> np.ndarray:
    reader, every = LaneReader(blocks), np.arange(len(blocks))
    return np.stack([reader.code(every, chances[:, k], every) for k in range(chances.shape[1])], axis=1)


@pytest.mark.parametrize("kind", ["likely", "unlikely", "even", "ones", "zeros", "mixed"])
def test_round_trip(kind: str) -> None:
    rng = np.random.default_rng(8)
    chances = rng.integers(32, 65505, size=(20, 400))
    bits = (rng.random((20, 400)) * 65536 < chances).astype(np.int64)
    if kind == "unlikely":
        bits = 1 - bits
    elif kind == "even":
        chances[:] = 32768
    elif kind in ("ones", "zeros"):
        bits[:] = kind == "ones"
    elif kind == "mixed":
        chances[::2], chances[1::2] = 32, 65504
    blocks = write(chances, bits)
    assert np.array_equal(read(chances, blocks), bits)
    for lane, block in enumerate(blocks):
        assert not block.endswith(b"\0")
        likely = np.where(bits[lane] == 1, chances[lane], 65536 - chances[lane]) / 65536
        ideal = -sum(math.log2(p) for p in likely)
        assert 8 * len(block) <= ideal * 1.001 + 72


def test_carries_run_through_bytes_of_255() -> None:
    """A long string of zeros keeps `low` just under the top, then one more pushes the carry all the way up."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        chances = np.full((1, 300), 65504)
        bits = (rng.random((1, 300)) < 0.02).astype(np.int64)
        bits[0, :50] = 0
        assert np.array_equal(read(chances, write(chances, bits)), bits)


def test_lanes_do_not_mix() -> None:
    rng = np.random.default_rng(9)
    chances = rng.integers(32, 65505, size=(5, 100))
    bits = rng.integers(0, 2, size=(5, 100))
    together = write(chances, bits)
    for lane in range(5):
        assert write(chances[lane : lane + 1], bits[lane : lane + 1]) == [together[lane]]


def test_nothing_is_no_bytes() -> None:
    assert LaneWriter(1).finish(0) == b""
