"""The GPU's keystream beside the published one and the reference, through Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import numpy as np
import pytest

from cepam.kernels.numpy.keystream import chacha

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
triton = pytest.importorskip("triton", reason="the GPU path needs Triton")
tl = pytest.importorskip("triton.language")

from cepam.kernels.triton.keystream import load_key, side_by_side, stream_words  # noqa: E402
from cepam.kernels.triton.plan import device_keys  # noqa: E402

KEY = bytes(range(1, 33))


@triton.jit
def fill_blocks(keys, out, stream, first, lanes: tl.constexpr, rounds: tl.constexpr):  # type: ignore[no-untyped-def]
    """Writes the words of consecutive keystream blocks."""
    lane = tl.arange(0, lanes).to(tl.int64)
    number = tl.full((), 0, tl.int64) + stream
    words = stream_words(load_key(keys, 0), number, first + lane, rounds)
    tl.store(out + lane[:, None] * 8 + tl.arange(0, 8)[None, :], side_by_side(words, lanes))


def keystream(key: bytes, stream: int, first: int, rounds: int) -> np.ndarray:
    out = torch.zeros((16, 8), dtype=torch.int64)
    fill_blocks[(1,)](device_keys([key], "cpu"), out, stream, first, lanes=16, rounds=rounds)
    return out.numpy().view(np.uint32)


def test_keystream_is_the_published_one() -> None:
    """RFC 8439, 2.3.2: key 00..1f, counter 1, nonce 00:00:00:09:00:00:00:4a:00:00:00:00 (words 13-15 of the state)."""
    key = bytes(range(32))
    first, stream = 1 | 0x09000000 << 32, 0x4A000000
    block = keystream(key, stream, first, 20)[0].astype("<u4").tobytes()
    assert block[:16].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"
    assert block[48:].hex() == "b5129cd1de164eb9cbd083e8a2503c4e"


@pytest.mark.parametrize("first", [0, 2**32 - 5])
def test_keystream_is_the_reference(first: int) -> None:
    stream, blocks = 1 << 33 | 5, first + np.arange(16)
    tail = np.stack([blocks & 0xFFFFFFFF, blocks >> 32, 0 * blocks + 5, 0 * blocks + 2], axis=1).astype(np.uint32)
    assert np.array_equal(keystream(KEY, stream, first, 12), chacha(KEY, tail))
