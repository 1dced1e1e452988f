"""The keystream against published vectors, and the compiled lanes against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numba import njit

from cepam.kernels.format.plan import LATENT_STREAM, dither_stream, key_words, layered_plan
from cepam.kernels.numba.compiling import kernel_plan, scratch_for
from cepam.kernels.numba.keystream import LANES, chacha20_lanes, fill_words, start_lanes
from cepam.kernels.numba.quantizer import first_words, pick_words, words_ahead
from cepam.kernels.numpy import keystream as reference
from cepam.kernels.numpy.keystream import chacha, stream_words
from cepam.kernels.numpy.quantizer import radius_of_word
from tests.corpus import LATTICES, LAWS, SECRET

# RFC 8439, section 2.3.2: (key, words 12 to 15 of the state, keystream block).
RFC_BLOCK = (
    bytes(range(32)),
    "01000000 00000009 0000004a 00000000",
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
)
# RFC 8439, appendix A.1, test vectors 1 and 2.
RFC_ZERO = {
    0: "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    1: "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
}
# draft-strombergson-chacha-test-vectors, TC1 (256-bit key, all zero), first block.
ZERO_BLOCK = {
    8: "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
    "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42",
    12: "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f"
    "0564f879d27ae3c02ce82834acfa8c793a629f2ca0de6919610be82f411326be",
}


def block_bytes(key: bytes, tail: list[int], rounds: int) -> bytes:
    return chacha(key, np.array([tail], dtype=np.uint32), rounds)[0].astype("<u4").tobytes()


def test_block_of_rfc_8439() -> None:
    key, tail, expected = RFC_BLOCK
    # The RFC prints the counter as a number and the nonce as bytes: 1 is stored as 01 00 00 00.
    words = np.frombuffer(bytes.fromhex(tail), dtype="<u4").tolist()
    assert words[0] == 1
    assert block_bytes(key, words, 20).hex() == expected


@pytest.mark.parametrize("counter", RFC_ZERO)
def test_zero_key_of_rfc_8439(counter: int) -> None:
    assert block_bytes(bytes(32), [counter, 0, 0, 0], 20).hex() == RFC_ZERO[counter]


@pytest.mark.parametrize("rounds", ZERO_BLOCK)
def test_fewer_rounds(rounds: int) -> None:
    assert block_bytes(bytes(32), [0, 0, 0, 0], rounds).hex() == ZERO_BLOCK[rounds]


def test_twenty_rounds_agree_with_openssl() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        key, nonce = rng.bytes(32), bytearray(rng.bytes(16))
        nonce[3] &= 127  # eight blocks must not wrap the library's 32-bit counter
        stream = Cipher(algorithms.ChaCha20(key, bytes(nonce)), mode=None).encryptor().update(bytes(512))
        tails = np.tile(np.frombuffer(bytes(nonce), dtype="<u4"), (8, 1)).astype(np.uint32)
        tails[:, 0] += np.arange(8, dtype=np.uint32)
        assert chacha(key, tails, 20).astype("<u4").tobytes() == stream


def test_default_is_twelve_rounds() -> None:
    tail = np.array([[5, 6, 7, 8]], dtype=np.uint32)
    assert reference.ROUNDS == 12
    assert np.array_equal(chacha(SECRET, tail), chacha(SECRET, tail, 12))


@njit  # type: ignore[untyped-decorator]
def twenty(state, out):  # type: ignore[no-untyped-def]
    chacha20_lanes(state, out)


def test_compiled_lanes_against_rfc_8439() -> None:
    state, out = np.empty(256, dtype=np.uint32), np.empty(256, dtype=np.uint32)
    start_lanes(key_words(RFC_BLOCK[0]), state)
    tail = np.frombuffer(bytes.fromhex(RFC_BLOCK[1]), dtype="<u4")
    for i in range(4):
        state[(12 + i) * LANES : (13 + i) * LANES] = tail[i]
    twenty(state, out)
    for lane in range(LANES):
        assert out[lane * 16 : lane * 16 + 16].astype("<u4").tobytes().hex() == RFC_BLOCK[2]


@pytest.mark.parametrize("stream", [0, 1, 65536, 2**32 - 1, 2**32, 2**40 + 3])
@pytest.mark.parametrize("first", [0, 1, 1000, 2**32 - 8, 2**32 + 1, 2**45])
def test_compiled_words_are_the_reference_words(stream: int, first: int) -> None:
    state, out = np.empty(256, dtype=np.uint32), np.empty(512, dtype=np.uint32)
    start_lanes(key_words(SECRET), state)
    fill_words(state, stream, first, out)
    index = first * 8 + np.arange(256, dtype=np.int64)
    assert np.array_equal(out.view(np.uint64), stream_words(SECRET, stream, index))


@pytest.mark.parametrize("lattice", LATTICES)
@pytest.mark.parametrize("row", [0, 1, 127, 12345, 2**33 + 5])
def test_compiled_dither_words_are_the_reference_words(lattice: str, row: int) -> None:
    plan = layered_plan(LAWS["gaussian"], LATTICES[lattice])
    numbers, scratch = kernel_plan(plan), scratch_for(plan)
    start_lanes(key_words(SECRET), scratch.state)
    index = row * plan.words + np.arange(plan.words, dtype=np.int64)
    for trial in (0, 16, 65520):
        words_ahead(numbers, scratch.state, row, trial, scratch.ahead)
        for lane in (0, 7):
            pick_words(numbers, row, lane, scratch.ahead, scratch.words)
            expected = stream_words(SECRET, dither_stream(trial + lane), index)
            assert np.array_equal(scratch.words[: plan.words], expected)
    first_words(numbers, scratch, row)
    for trial, words in enumerate(scratch.dithers.view(np.uint64)):
        found = words.reshape(128, plan.words)[row & 127]
        assert np.array_equal(found, stream_words(SECRET, dither_stream(trial), index))
    expected = radius_of_word(plan, stream_words(SECRET, LATENT_STREAM, np.arange(row & ~127, (row | 127) + 1)))
    assert np.array_equal(scratch.radii, expected)


def test_words_do_not_depend_on_how_they_are_asked_for() -> None:
    index = np.random.default_rng(1).integers(0, 2**40, size=(50, 3))
    together = stream_words(SECRET, 9, index)
    for i, j in np.ndindex(*index.shape):
        assert stream_words(SECRET, 9, index[i : i + 1, j])[0] == together[i, j]


def test_every_stream_and_word_has_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structural: the map from (stream, index) to (state, place in the block) is one to one."""
    seen: list[np.ndarray] = []

    def remember(key: bytes, tail: np.ndarray, rounds: int = 12) -> np.ndarray:
        seen.append(tail.copy())
        return np.repeat(tail, 4, axis=1)

    monkeypatch.setattr(reference, "chacha", remember)
    index = np.array([0, 8, 16, 8 * 2**32, 8 * (2**32 + 1), 2**62], dtype=np.int64)
    streams = [LATENT_STREAM, dither_stream(0), dither_stream(65535), 2**32, 2**32 + 1]
    for stream in streams:
        reference.stream_words(SECRET, stream, index)
    states = {tuple(row) for tails in seen for row in tails.tolist()}
    assert len(states) == len(streams) * len(index)
