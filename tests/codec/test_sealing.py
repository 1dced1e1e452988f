"""Chunks of one message open together or not at all; one seal stays what it was."""

from __future__ import annotations

import hashlib
import os
import warnings
from itertools import permutations

import numpy as np
import pytest

import cepam
from cepam.codec import wire
from cepam.errors import MalformedMessage, SealBroken, WrongAddress
from tests.corpus import AT
from tests.oracle.wire_reader import open_seals

KEYS = AT.derive()
MARK = bytes(range(100, 132))
STEP = 16 + wire.SEAL_BYTES


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 bytes, so that a message has many."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", 16)


def contents_of(size: int, fill: int = 7, double: bool = False) -> wire.Contents:
    return wire.Contents(1, double, False, [bytes((fill + i) % 256 for i in range(size))])


def opens(message: bytes) -> bytes:
    return b"".join(wire.open_sealed(message, KEYS, MARK, 1).blocks)


def chunks_of(message: bytes) -> list[bytes]:
    return [message[start : start + STEP] for start in range(2, len(message), STEP)]


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("threads", [1, 3, None])
@pytest.mark.parametrize("padding", [None, 1, 7, 16, 100])
def test_every_length_comes_back(padding: int | None, threads: int | None) -> None:
    for size in range(70):
        message = wire.seal(contents_of(size), KEYS, MARK, padding, threads)
        assert opens(message) == contents_of(size).blocks[0]
        assert padding is None or len(message) % padding == 0
        least = wire.seal(contents_of(size), KEYS, MARK, 1)
        assert len(message) <= len(least) + STEP + 5 * (padding or 0)


@pytest.mark.usefixtures("short_chunks")
def test_every_flipped_bit_and_every_other_length_is_refused() -> None:
    message = wire.seal(contents_of(50), KEYS, MARK)
    assert len(chunks_of(message)) == 4
    for at in range(8 * len(message)):
        mangled = bytearray(message)
        mangled[at // 8] ^= 1 << at % 8
        with pytest.raises((MalformedMessage, WrongAddress)):
            opens(bytes(mangled))
    for length in range(len(message)):
        with pytest.raises(MalformedMessage):
            opens(message[:length])
    for extra in (b"\0", bytes(STEP), message[2 : 2 + STEP], message[2:]):
        with pytest.raises(MalformedMessage):
            opens(message + extra)


@pytest.mark.usefixtures("short_chunks")
def test_chunks_reordered_repeated_left_out_or_taken_from_elsewhere_are_refused() -> None:
    message, other = (wire.seal(contents_of(50, fill), KEYS, MARK) for fill in (7, 99))
    mine, theirs = chunks_of(message), chunks_of(other)
    for order in permutations(range(4)):
        if order != (0, 1, 2, 3):
            with pytest.raises(SealBroken):
                opens(message[:2] + b"".join(mine[i] for i in order))
    for kept in ([0, 1, 2], [0, 3], [0, 1, 3], [1, 2, 3], [0, 1, 1, 2, 3], [0, 1, 2, 3, 3]):
        with pytest.raises(MalformedMessage):
            opens(message[:2] + b"".join(mine[i] for i in kept))
    # A second message at the same address, which only a broken client makes: each chunk opens, together they do not.
    for i in range(4):
        mixed = [*mine[:i], theirs[i], *mine[i + 1 :]]
        with pytest.raises(SealBroken):
            opens(message[:2] + b"".join(mixed))


@pytest.mark.usefixtures("short_chunks")
def test_the_first_chunk_is_no_message_and_a_message_is_no_chunk() -> None:
    """One seal and the first of several have the same number; their nonces say which is the last."""
    short, long = wire.seal(contents_of(5), KEYS, MARK), wire.seal(contents_of(50), KEYS, MARK)
    for message in (long[: 2 + STEP], short + chunks_of(long)[1], long[: 2 + STEP] + short[2:]):
        with pytest.raises((MalformedMessage, WrongAddress)):
            opens(message)


def test_older_mechanisms_of_the_cipher_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def __init__(self, key: bytes) -> None:
            self._cipher = real(key)
            self.encrypt, self.decrypt = self._cipher.encrypt, self._cipher.decrypt

    monkeypatch.setattr(wire, "CHUNK_BYTES", 16)
    message, real = wire.seal(contents_of(50), KEYS, MARK), wire.cipher_of
    monkeypatch.setattr(wire, "cipher_of", Older)
    assert wire.seal(contents_of(50), KEYS, MARK) == message
    assert opens(message) == contents_of(50).blocks[0]


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_seals_too() -> None:
    """The threads that seal stay for the next message, but not in a child, which would wait for them for ever."""
    message = wire.seal(contents_of(200), KEYS, MARK, threads=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0 if wire.seal(contents_of(200), KEYS, MARK, threads=3) == message else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.usefixtures("short_chunks")
def test_a_chunk_that_fails_fails_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever thread meets it, and even where it looks like the end of the work."""

    def fail(cipher: object, way: str, nonce: bytes, *rest: object) -> None:
        if nonce[0] == 5:
            raise IndexError("out of chunks")

    monkeypatch.setattr(wire, "_into", fail)
    for threads in (1, 3):
        with pytest.raises(IndexError, match="out of chunks"):
            wire.seal(contents_of(200), KEYS, MARK, threads=threads)


def test_chunks_are_those_of_the_page() -> None:
    """The bytes are pinned, and a reader written from docs/wire.md finds the payload."""
    contents = contents_of(300_000)
    message = wire.seal(contents, KEYS, MARK)
    assert len(message) == 2 + 1 + 300_000 + 5 * 16
    assert hashlib.sha256(message).hexdigest()[:32] == "3a9dfedc1f281318243c794cd10ce476"
    assert open_seals(message, KEYS.seal, MARK) == b"\x01" + contents.blocks[0]


def test_a_long_update_goes_through_the_codec() -> None:
    codec = cepam.Codec(cepam.Gaussian(1e-4), cepam.Integer(1))
    x = np.random.default_rng(3).normal(0, 0.01, 200_000).astype(np.float32)
    message = codec.encode(x, AT)
    assert len(message) > wire.CHUNK_BYTES
    assert abs(codec.decode(message, AT) - x).max() < 1e-3
    with pytest.raises(SealBroken):
        codec.decode(message[:-1] + bytes([message[-1] ^ 1]), AT)
