"""The masked sum: the same bytes from both backends, the codec's own noise, and sums that come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

import cepam
from cepam.errors import MalformedMessage
from cepam.kernels.dispatch import decode_spans, encode_spans
from cepam.kernels.numpy import masks as plain
from cepam.secure_aggregation import MaskedSumCodec, fit

LAW = cepam.Gaussian(0.18)


def key(number: int) -> bytes:
    return bytes([number % 256]) * 32


def masks(count: int) -> list[tuple[bytes, int]]:
    return [(key(number), 1 if number % 3 else -1) for number in range(count)]


@pytest.mark.parametrize("size", [1, 255, 256, 8191, 8192, 20_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_noise_is_bit_for_bit_what_the_codec_decodes(size: int, dtype: type) -> None:
    code, codec = MaskedSumCodec(LAW, size, 7, 6000), cepam.Codec(LAW, lattice=cepam.Integer(1))
    update = np.random.default_rng(size).normal(0, 3, size).astype(dtype)
    job, out = codec.task(0, key(5)), np.empty(size)
    decode_spans("numba", 1, job, encode_spans("numba", 1, job, update), out)
    multiples = code.noised(update, key(5))
    assert np.array_equal(multiples * code.grid, out)
    assert np.array_equal(multiples, replace(code, backend="numpy").noised(update, key(5)))


def test_integers_keep_what_float32_would_round() -> None:
    code = MaskedSumCodec(LAW, 1000, 32, 1)
    update = np.full(1000, 2.0**13, dtype=np.float32)
    multiples = code.noised(update, key(1))
    assert (multiples > 2**24).all()
    assert (multiples % 2 == 1).any()
    assert not np.array_equal((multiples * code.grid).astype(np.float32) / code.grid, multiples)


def test_the_keystream_is_chacha20() -> None:
    expected = Cipher(algorithms.ChaCha20(key(9), bytes(16)), None).encryptor().update(bytes(4 * 5000))
    assert plain.keystream(key(9), 5000).astype("<u4").tobytes() == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 32), st.integers(1, 2000), st.integers(1, 2**32 - 1), st.integers(0, 5))
def test_both_backends_give_the_same_bytes_and_sums(bits: int, size: int, gain: int, count: int) -> None:
    code = MaskedSumCodec(LAW, size, bits, gain)
    slow = replace(code, backend="numpy")
    multiples = np.random.default_rng(size).integers(-(2**33), 2**33, size)
    message = code.mask(multiples, masks(count))
    assert message == slow.mask(multiples, masks(count))
    assert len(message) == code.message_bytes == -(-size * bits // 8)
    assert np.array_equal(code.open([message] * 3, masks(count)), slow.open([message] * 3, masks(count)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 32), st.binary(min_size=1, max_size=200))
def test_packing_is_one_to_one(bits: int, data: bytes) -> None:
    values = np.frombuffer(data * 4, dtype="<u4") >> np.uint32(32 - bits)
    assert np.array_equal(plain.unpack(plain.pack(values, bits), bits, len(values)), values)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 32), st.integers(1, 8), st.integers(1, 5000), st.integers(0, 2**31))
def test_the_sum_is_right_up_to_what_the_dropped_bits_hold(bits: int, clients: int, gain: int, seed: int) -> None:
    rng, size = np.random.default_rng(seed), 300
    code = MaskedSumCodec(LAW, size, bits, gain)
    reach = 2**31 // gain // 2
    parts = rng.integers(-reach // clients, reach // clients + 1, (clients, size))
    own = [[(rng.bytes(32), 1)] for _ in range(clients)]
    total = code.open([code.mask(part, [*own[i]]) for i, part in enumerate(parts)], [one[0] for one in own])
    width = 2 ** (32 - bits)
    error = total / code.grid * gain - gain * parts.sum(axis=0)
    wrapped = (error + 2**31) % 2**32 - 2**31
    assert (np.abs(wrapped) <= clients * (width - 1) / 2 + 1e-3).all()


def test_the_rounding_has_mean_zero_and_the_variance_of_irwin_hall() -> None:
    """False-alarm rate: seven standard errors, under 1e-11."""
    rng, size, clients, bits = np.random.default_rng(1), 200_000, 4, 6
    code = MaskedSumCodec(LAW, size, bits, 5)
    own = [(rng.bytes(32), 1) for _ in range(clients)]
    parts = rng.integers(-1000, 1000, (clients, size))
    total = code.open([code.mask(part, [mask]) for part, mask in zip(parts, own)], own)
    error = (total / code.grid - parts.sum(axis=0)) / (code.cell / code.grid)
    assert abs(error.mean()) < 7 * np.sqrt(clients / 12 / size)
    assert error.var() == pytest.approx(clients / 12, rel=7 * np.sqrt(2 / size))
    assert abs(np.corrcoef(error, parts[0])[0, 1]) < 7 / np.sqrt(size)


def test_bits_are_as_the_rule_says() -> None:
    code = fit(LAW, 30, 39_700, 1.5)
    assert code.bits == 7
    assert code.cell <= LAW.sigma
    assert code.span >= 2 * (1.5 + 8 * LAW.sigma * np.sqrt(30))
    wide = fit(LAW, 30, 39_700, 1.5, bits=4)
    assert wide.bits == 4
    assert wide.cell > LAW.sigma


def test_doors() -> None:
    with pytest.raises(ValueError, match="law"):
        MaskedSumCodec(cepam.Laplace(1.0), 5, 7, 1)  # type: ignore[arg-type]
    for wrong in ({"bits": 0}, {"bits": 33}, {"gain": 0}, {"coordinates": 0}, {"backend": "cuda"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            replace(MaskedSumCodec(LAW, 5, 7, 1), **wrong)
    code = MaskedSumCodec(LAW, 5, 7, 1)
    for update in (np.zeros(4), np.zeros(5, dtype=np.int64), np.full(5, np.nan), np.full(5, 1e30)):
        with pytest.raises(ValueError, match="update"):
            code.noised(update, key(0))
    for message in (bytes(4), bytes(6), bytes(4) + b"\xff"):
        with pytest.raises(MalformedMessage):
            code.open([message], [])
    with pytest.raises(ValueError, match="32 bits"):
        fit(LAW, 30, 100, 1e9)
