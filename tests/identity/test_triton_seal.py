"""Seals that a GPU makes and opens beside those of `cryptography`, through Triton's interpreter: the same bytes."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from typing import Any

import numpy as np
import pytest

import cepam
from cepam.codec import codec as codec_module
from cepam.codec import sealing, wire
from cepam.errors import SealBroken
from cepam.kernels.format.blocks import JoinedBlocks
from tests.corpus import AT
from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
triton = pytest.importorskip("triton", reason="the GPU path needs Triton")
tl = pytest.importorskip("triton.language")
gcm_siv = pytest.importorskip("cepam.kernels.triton.gcm_siv", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend  # noqa: E402
from cepam.kernels.triton import launch as waves  # noqa: E402

KEYS, MARK = AT.derive(), bytes(range(100, 132))
LENGTHS = np.array([150, 0, 129])


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of eight blocks, hashed by four lanes: the interpreter takes a second for a round of AES."""
    monkeypatch.setattr(sealing, "CHUNK_BYTES", 128)
    monkeypatch.setattr(sealing, "LEAST_ON_GPU", 200)
    monkeypatch.setattr(gcm_siv, "HASHED", 4)


def sealed(data: Any, ready: Any = None) -> bytes:
    return wire.seal(wire.Contents(3 * 8192, False, 0, JoinedBlocks(data, LENGTHS)), KEYS, MARK, 7, ready=ready)


def opens(message: bytes) -> wire.Contents:
    return wire.open_sealed(message, KEYS, MARK, [1], device="cpu")


def test_seals_are_those_of_the_library_and_open_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks and a short third under keys of their own. A flipped bit is found by the GPU in a chunk's text, and by
    the library in its tag, which the last chunk binds, even if the GPU were to find every chunk in order. Schedules
    that were asked for by a bound that the payload exceeds, here of one chunk, are not used."""
    data = np.random.default_rng(1).integers(0, 256, LENGTHS.sum(), dtype=np.uint8)
    message = sealed(torch.from_numpy(data), wire.prepare(KEYS, MARK, 256, "cpu"))
    assert message == sealed(data)
    found = opens(message)
    assert (found.size, found.lattice, list(found.blocks.lengths)) == (3 * 8192, 0, list(LENGTHS))
    assert found.blocks.on_gpu
    assert found.blocks.data.numpy().tobytes() == data.tobytes()
    with pytest.raises(SealBroken):
        opens(flipped(message, 3 + 144 + 40))
    monkeypatch.setattr(gcm_siv, "open_chunks", lambda *_: torch.zeros(8, dtype=torch.int32))
    for at in (3 + 2 * 144 - 1, len(message) - 1):
        with pytest.raises(SealBroken):
            opens(flipped(message, at))


def test_schedules_are_asked_for_before_a_payload_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of two seals, coded and sealed on one device: the message of the CPU, by schedules that were asked for
    once, by a bound of its length."""
    for name, value in (("LEAST_ON_GPU", 32), ("CHUNK_BYTES", 64)):
        monkeypatch.setattr(sealing, name, value)
    monkeypatch.setattr(waves, "_first_room", lambda *_: 48)
    monkeypatch.setattr(codec_module, "gpu_of", lambda update: backend if torch.is_tensor(update) else None)
    seen, prepare = [], gcm_siv.prepare
    monkeypatch.setattr(gcm_siv, "prepare", lambda keys, *more: (seen.append(len(keys)), prepare(keys, *more))[1])
    codec = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), backend="numpy")
    x = np.random.default_rng(2).normal(0, 0.02, 264).astype(np.float32)
    message = codec.encode(torch.from_numpy(x), AT)
    assert message == codec.encode(x, AT)
    assert message[0] == wire.IN_CHUNKS
    assert seen == [2]


@triton.jit
def fill_products(x, y, out, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, lanes)
    x, y = gcm_siv.load_words(x + at, 1, at >= 0), gcm_siv.load_words(y + at, 1, at >= 0)
    gcm_siv.store_words(out + at * 2, gcm_siv.multiply_words(x[0], y[0]), 2)


@triton.jit
def fill_dots(a, b, out, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, lanes)
    a, b = gcm_siv.load_words(a + at * 4, 4, at >= 0), gcm_siv.load_words(b + at * 4, 4, at >= 0)
    gcm_siv.store_words(out + at * 4, gcm_siv.dot(a, b), 4)


def product_bit_by_bit(x: Any, y: Any) -> Any:
    """The product of polynomials of 32 bits, as words of 64."""
    total = np.zeros(len(x), dtype=np.uint64)
    for i in range(32):
        total ^= (x.astype(np.uint64) << np.uint64(i)) * (y >> np.uint32(i) & np.uint32(1))
    return total


def product_by_whole_numbers(x: Any, y: Any, apart: int) -> Any:
    """The same from products of whole numbers with every so many bits of both factors, if nothing carries."""
    masks = [np.uint64(sum(1 << bit for bit in range(i, 64, apart))) for i in range(apart)]
    x, y = x.astype(np.uint64), y.astype(np.uint64)
    parts = [(x & masks[i]) * (y & masks[j]) & masks[(i + j) % apart] for i in range(apart) for j in range(apart)]
    return np.bitwise_xor.reduce(parts)


def test_products_of_whole_numbers_are_those_of_polynomials() -> None:
    """Every pair of factors with every fourth bit, from each of the lowest four: 2^20 pairs; and words of all bits.
    Of every third bit eleven ones can meet, and carry: that must be seen."""
    eight = sum(((np.arange(256, dtype=np.uint32) >> i & 1) << 4 * i for i in range(8)), np.zeros(256, dtype=np.uint32))
    draw = np.random.default_rng(6).integers(0, 2**32, (2, 2**16), dtype=np.uint32)
    draw[:, :2] = 0xFFFFFFFF, 0x80000000
    pairs = [(np.repeat(eight << i, 256), np.tile(eight << j, 256)) for i in range(4) for j in range(4)]
    for x, y in (*pairs, draw):
        out = np.zeros(2 * len(x), dtype=np.int32)
        fill_products[(1,)](*(torch.from_numpy(each.view(np.int32)) for each in (x, y, out)), lanes=len(x))
        assert np.array_equal(out.view(np.uint64), product_bit_by_bit(x, y))
    assert np.array_equal(product_by_whole_numbers(*draw, 4), product_bit_by_bit(*draw))
    assert not np.array_equal(product_by_whole_numbers(*draw, 3), product_bit_by_bit(*draw))


def dot_bit_by_bit(a: int, b: int) -> int:
    """a b / x^128 modulo POLYVAL's polynomial."""
    total = 0
    for i in range(128):
        total ^= (b >> i & 1) * a << i
    for _ in range(128):
        total = (total ^ (total & 1) * (1 << 128 | 1 << 127 | 1 << 126 | 1 << 121 | 1)) >> 1
    return total


def dots(pairs: list[tuple[int, int]]) -> list[int]:
    words = [
        np.frombuffer(b"".join(pair[i].to_bytes(16, "little") for pair in pairs), dtype=np.int32) for i in range(2)
    ]
    out = torch.zeros(4 * len(pairs), dtype=torch.int32)
    fill_dots[(1,)](*(torch.from_numpy(each.copy()) for each in words), out, lanes=len(pairs))
    made = out.numpy().tobytes()
    return [int.from_bytes(made[i : i + 16], "little") for i in range(0, len(made), 16)]


def test_polyval_is_that_of_the_rfc() -> None:
    """The examples of RFC 8452's appendix A, and elements of all bits, of one and of any beside another method."""
    a, b, wanted, key, first, second, hashed = (
        int.from_bytes(bytes.fromhex(text), "little")
        for text in (
            "66e94bd4ef8a2c3b884cfa59ca342b2e", "ff000000000000000000000000000000", "ebe563401e7e91ea3ad6426b8140c394",
            "25629347589242761d31f826ba4b757b", "4f4f95668c83dfb6401762bb2d01a262", "d1a24ddd2721d006bbe45f20d3c9f362",
            "f7a3b47b846119fae5b7866cf5e5b77e",
        )
    )  # fmt: skip
    most = 2**128 - 1
    pairs = [(a, b), (first, key), (most, most), (most, 1), (1 << 127, 1 << 127), (1 << 127, most), (a, key), (0, a)]
    found = dots(pairs)
    assert found == [dot_bit_by_bit(*pair) for pair in pairs]
    assert found[0] == wanted
    assert dots([(found[1] ^ second, key)]) == [hashed]


def flipped(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 4]) + message[at + 1 :]
