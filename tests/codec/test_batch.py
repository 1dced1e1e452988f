from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam.codec.batch import decode_each, encode_each, why_not_on_gpu
from cepam.errors import CepamError, MalformedMessage, WrongAddress

KEYS = [cepam.Key(bytes([i]) * 32) for i in range(5)]
PLACES = [cepam.Address(key, round=3, client=k) for k, key in enumerate(KEYS)]
CODECS = [
    cepam.Codec(cepam.Gaussian(0.01)),
    cepam.Codec(cepam.Laplace(0.02), cepam.A2, coder="paper", bound=9.0),
    cepam.DitheredCodec(0.01, padding=64),
]


def updates(dtype: type = np.float32, size: int = 300) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.02, (len(PLACES), size)).astype(dtype)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_the_single_messages(codec: cepam.Codec, dtype: type) -> None:
    x = updates(dtype)
    messages = cepam.encode_many(codec, x, PLACES)
    assert messages == [codec.encode(row, at) for row, at in zip(x, PLACES)]
    assert messages == cepam.encode_many(codec, list(x), PLACES)
    back = cepam.decode_many(codec, messages, PLACES, size=x.shape[1])
    assert back.dtype == dtype
    assert back.tobytes() == b"".join(codec.decode(m, at).tobytes() for m, at in zip(messages, PLACES))


def test_lengths_and_addresses_are_checked() -> None:
    codec, x = CODECS[0], updates()
    with pytest.raises(ValueError, match="updates and addresses must be as many, got 5 and 4"):
        cepam.encode_many(codec, x, PLACES[:4])
    with pytest.raises(ValueError, match="messages and addresses must be as many, got 0 and 5"):
        cepam.decode_many(codec, [], PLACES)
    with pytest.raises(ValueError, match="used once"):
        cepam.encode_many(codec, x[:2], [PLACES[0], PLACES[0]])
    assert cepam.encode_many(codec, x[:0], []) == []
    assert cepam.decode_many(codec, [], [], size=7).shape == (0, 7)


def test_a_refused_row_leaves_the_others_alone() -> None:
    codec, x = CODECS[0], updates()
    x[2, 7] = np.nan
    made = encode_each(codec, x, PLACES)
    assert isinstance(made[2], ValueError)
    assert [m for i, m in enumerate(made) if i != 2] == [codec.encode(x[i], PLACES[i]) for i in (0, 1, 3, 4)]
    with pytest.raises(ValueError, match="NaN"):
        cepam.encode_many(codec, x, PLACES)
    messages = cepam.encode_many(codec, updates(), PLACES)
    messages[1] = messages[1][:-1] + bytes([messages[1][-1] ^ 1])
    found = decode_each(codec, messages, PLACES)
    assert [isinstance(each, CepamError) for each in found] == [False, True, False, False, False]
    with pytest.raises(WrongAddress):
        cepam.decode_many(codec, messages, PLACES)


def test_used_addresses_and_sizes() -> None:
    codec, x, used = CODECS[0], updates(), cepam.UsedAddresses()
    messages = cepam.encode_many(codec, x, PLACES, used)
    assert all(at in used for at in PLACES)
    with pytest.raises(WrongAddress, match="used before"):
        cepam.encode_many(codec, x, PLACES, used)
    with pytest.raises(MalformedMessage, match="was expected"):
        cepam.decode_many(codec, messages, PLACES, size=299)
    mixed = [*messages[:4], codec.encode(x[4, :20], PLACES[4])]
    with pytest.raises(MalformedMessage, match="one size"):
        cepam.decode_many(codec, mixed, PLACES)


def test_what_a_gpu_codes() -> None:
    assert why_not_on_gpu(cepam.Codec(cepam.Gaussian(1.0), coder="layered")) is None
    assert why_not_on_gpu(cepam.DitheredCodec(0.1)) is None
    assert why_not_on_gpu(cepam.Codec(cepam.Laplace(1.0))) is None
    assert why_not_on_gpu(cepam.Codec(cepam.Gaussian(1.0), cepam.E8)) is None
    own = cepam.DitheredCodec(0.1, cepam.Lattice([[1.0, 0.3], [0.0, 1.1]]))
    assert "of one's own" in str(why_not_on_gpu(own))
    assert "10 dimensions" in str(why_not_on_gpu(cepam.DitheredCodec(0.1, cepam.Integer(10))))
    assert "paper" in str(why_not_on_gpu(CODECS[1]))
    assert "list" in str(why_not_on_gpu([]))
