"""The search coder of `coder="auto"`: when it is taken, who reads it, and that it is refused like any other message."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import cepam
from cepam.codec.batch import decode_many, encode_many, why_not_on_gpu
from cepam.codec.tree import decode_tree, encode_tree
from cepam.errors import CepamError, MalformedMessage, SealBroken, WrongAddress
from cepam.kernels.dispatch import RUN, RUNS, sample_of
from tests.corpus import AT, DOUBLE, SCALE, SEARCHED, TRAVELS, open_payload, seal_payload, varint

CODEC = cepam.Codec(cepam.Gaussian(SCALE))
LAYERED = replace(CODEC, coder="layered")
QUIET = np.random.default_rng(1).normal(size=3000) * SCALE * 0.05


def test_a_quiet_update_takes_far_fewer_bytes() -> None:
    x = np.tile(QUIET, 10)
    assert 4 * len(CODEC.encode(x, AT)) < len(LAYERED.encode(x, AT))


def test_a_loud_update_takes_the_layered_quantizer() -> None:
    message, other = CODEC.encode(20.0 * QUIET, AT), LAYERED.encode(20.0 * QUIET, AT)
    assert not message[0] & SEARCHED
    assert len(message) == len(other)
    assert (CODEC.decode(message, AT) == LAYERED.decode(other, AT)).all()


def test_the_choice_is_the_updates_alone() -> None:
    x, codec = np.random.default_rng(6).normal(size=5000), cepam.Codec(cepam.Gaussian(1.0))
    assert codec.suits_search(0.2 * x)
    assert not codec.suits_search(0.6 * x)
    assert not codec.suits_search(0.2 * x[:500])
    for bad in (math.nan, math.inf):
        assert not codec.suits_search(np.append(0.1 * x, bad))


@pytest.mark.parametrize("size", [0, RUN * RUNS, RUN * RUNS + 1, RUN * RUNS + 16, 10**6 + 3])
def test_the_sample_is_runs_spread_evenly_and_its_own_sample(size: int) -> None:
    """So that a tensor's sample alone is fetched from its GPU, and says what the whole would."""
    x, step = np.arange(size), max(size // RUNS, RUN)
    wanted = [each for start in range(0, size // RUNS * RUNS, step) for each in range(start, start + RUN)]
    assert sample_of(x).tolist() == wanted
    assert sample_of(sample_of(x)).tolist() == wanted


@pytest.mark.parametrize(
    "codec",
    [
        cepam.Codec(cepam.Laplace(SCALE)),
        cepam.Codec(cepam.Gaussian(SCALE), cepam.E8),
        cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(2)),
    ],
)
def test_other_laws_and_named_lattices_are_never_searched(codec: cepam.Codec) -> None:
    assert not codec.searches
    assert not codec.encode(QUIET, AT)[0] & SEARCHED
    layered = replace(codec, coder="layered")
    assert codec.fingerprint == layered.fingerprint


def test_the_integers_may_be_named() -> None:
    named = cepam.Codec(cepam.Gaussian(SCALE), "Z1")
    assert named == CODEC
    assert named.encode(QUIET, AT)[0] & SEARCHED


def test_a_codec_without_the_coder_refuses_its_messages() -> None:
    with pytest.raises(WrongAddress, match="another codec"):
        LAYERED.decode(CODEC.encode(QUIET, AT), AT)
    with pytest.raises(WrongAddress, match="search"):  # also where the seal is good
        LAYERED.decode(seal_payload(bytes(9), LAYERED, flags=SEARCHED | TRAVELS), AT)


def test_plain_dithering_has_no_such_coder() -> None:
    assert not cepam.DitheredCodec(SCALE).searches
    with pytest.raises(ValueError, match="'auto', 'layered' or 'paper'"):
        cepam.DitheredCodec(SCALE, coder="search")  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [replace(AT, round=8), replace(AT, client=4), replace(AT, run=b"x")])
def test_another_address_does_not_open(other: cepam.Address) -> None:
    with pytest.raises(SealBroken):
        CODEC.decode(CODEC.encode(QUIET, AT), other)


def test_damage_is_refused() -> None:
    message = CODEC.encode(QUIET, AT)
    for at in range(len(message)):
        damaged = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        with pytest.raises(CepamError):
            CODEC.decode(damaged, AT)
    with pytest.raises(CepamError):
        CODEC.decode(message[:-1], AT)


def test_a_size_that_was_not_expected_is_refused_before_it_is_allocated() -> None:
    payload = varint(2**40) + b"\x10"
    with pytest.raises(MalformedMessage):
        CODEC.decode(seal_payload(payload, CODEC, flags=SEARCHED | TRAVELS | DOUBLE), AT)
    with pytest.raises(CepamError):
        CODEC.decode(CODEC.encode(QUIET, AT), AT, size=2999)


def test_bad_values_are_refused() -> None:
    for bad in (np.nan, np.inf, 1e9 * SCALE):
        with pytest.raises(ValueError, match=r"NaN|beyond"):
            CODEC.encode(np.append(QUIET, bad), AT)


def test_padding_covers_the_length() -> None:
    codec, lengths = replace(CODEC, padding=64), set()
    for round in range(8):
        at = replace(AT, round=round)
        message = codec.encode(QUIET, at)
        lengths.add(len(message))
        assert (codec.decode(message, at) == CODEC.decode(CODEC.encode(QUIET, at), at)).all()
    assert lengths == {64}


def test_rows_of_a_batch_choose_each_for_itself() -> None:
    rows = np.stack([QUIET, 20.0 * QUIET, 0.0 * QUIET])
    addresses = [replace(AT, client=i) for i in range(3)]
    messages = encode_many(CODEC, rows, addresses)
    assert [message[0] & SEARCHED for message in messages] == [SEARCHED, 0, SEARCHED]
    found = decode_many(CODEC, messages, addresses)
    for row, at, message, vector in zip(rows, addresses, messages, found):
        assert message == CODEC.encode(row, at)
        assert (vector == CODEC.decode(message, at)).all()


def test_trees_take_it() -> None:
    tree = {"a": QUIET[:1000].reshape(10, 100), "b": [QUIET[1000:]]}
    message = encode_tree(CODEC, tree, AT, clip=cepam.L2(1.0))
    assert message[0] & SEARCHED
    assert decode_tree(CODEC, message, AT, tree)["a"].shape == (10, 100)


def test_a_gpu_codes_it() -> None:
    assert why_not_on_gpu(CODEC) is None
    assert why_not_on_gpu(LAYERED) is None


def test_noise_of_two_rounds_is_not_the_same() -> None:
    one, two = (CODEC.decode(CODEC.encode(QUIET, at), at) - QUIET for at in (AT, replace(AT, round=8)))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.1


def test_used_addresses_are_claimed() -> None:
    used = cepam.UsedAddresses()
    CODEC.encode(QUIET, AT, used)
    with pytest.raises(WrongAddress):
        CODEC.encode(QUIET, AT, used)


def test_a_segment_decodes_without_the_others() -> None:
    x = np.random.default_rng(2).normal(size=(1 << 18) + 1000) * SCALE * 0.03
    message = CODEC.encode(x, AT)
    whole = CODEC.decode(message, AT)
    contents, task = CODEC.open(message, AT)
    out = np.empty(1000)
    from cepam.kernels.numba.search_coder import decode_span

    decode_span(task, [contents.blocks[1]], 1 << 18, out)
    assert (whole[1 << 18 :] == out).all()
    assert open_payload(message, CODEC).startswith(varint(len(x)))
