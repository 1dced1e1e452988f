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
from cepam.kernels.model.blocks import JoinedBlocks
from tests.corpus import AT
from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
gcm_siv = pytest.importorskip("cepam.kernels.triton.gcm_siv", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend, waves  # noqa: E402

KEYS, MARK = AT.derive(), bytes(range(100, 132))
LENGTHS = np.array([150, 0, 129])


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of eight blocks, hashed by four lanes: the interpreter takes a second for a round of AES."""
    monkeypatch.setattr(sealing, "CHUNK_BYTES", 128)
    monkeypatch.setattr(sealing, "LEAST_ON_GPU", 200)
    monkeypatch.setattr(gcm_siv, "HASHED", 4)


def sealed(data: Any, bucket: int | None = None) -> bytes:
    return wire.seal(wire.Contents(3 * 8192, False, 0, JoinedBlocks(data, LENGTHS)), KEYS, MARK, bucket)


def opens(message: bytes) -> wire.Contents:
    return wire.open_sealed(message, KEYS, MARK, [1], device="cpu")


def test_seals_are_those_of_the_library_and_open_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks and a short third under keys of their own. A flipped bit is found by the GPU in a chunk's text, and by
    the library in its tag, which the last chunk binds, even if the GPU were to find every chunk in order."""
    data = np.random.default_rng(1).integers(0, 256, LENGTHS.sum(), dtype=np.uint8)
    message = sealed(torch.from_numpy(data), 7)
    assert message == sealed(data, 7)
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


def flipped(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 4]) + message[at + 1 :]
