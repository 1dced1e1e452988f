"""Rivals that add noise and then compress: what comes back, how many bytes, and how code is counted."""

from __future__ import annotations

import numpy as np
import pytest

from cepam import fl
from cepam.distributions.laws import Gaussian
from cepam.keys import Address, Key
from cepam_peers.updates import NoiseThenQsgd, NoiseThenSign, SketchThenNoise, lines_of, pooled

QUIET = Gaussian(1e-9)
M = 37


def at(round: int) -> Address:
    return Address(Key(bytes(range(32))), round=round, client=0, run=bytes(16))


@pytest.fixture
def update() -> np.ndarray:
    return np.random.default_rng(3).normal(size=M).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_qsgd_is_unbiased_and_as_small_as_it_says(update: np.ndarray, bits: int) -> None:
    codec = NoiseThenQsgd(QUIET, M, bits)
    message = codec.encode(update, at(0))
    assert len(message) == 4 + -(-M * bits // 8)
    step = 2.0 * np.abs(update).max() / (2**bits - 1)
    assert np.abs(codec.decode(message, at(0)) - update).max() <= 1.001 * step
    mean = np.mean([codec.decode(codec.encode(update, at(k)), at(k)) for k in range(400)], axis=0)
    assert np.abs(mean - update).max() <= 8.0 * step / 2.0 / 400**0.5  # eight deviations: 37 chances of 1e-15


def test_sign_keeps_signs_and_one_size(update: np.ndarray) -> None:
    codec = NoiseThenSign(QUIET, M)
    message = codec.encode(update, at(0))
    assert len(message) == 4 + 5
    np.testing.assert_allclose(codec.decode(message, at(0)), np.sign(update) * np.abs(update).mean(), rtol=1e-5)


def test_a_sketch_is_half_as_long_and_right_on_average(update: np.ndarray) -> None:
    codec = SketchThenNoise(Gaussian(0.01), M)
    mean = np.mean([codec.decode(codec.encode(update, at(k)), at(k)) for k in range(400)], axis=0)
    assert np.linalg.norm(mean - update) < 0.2 * np.linalg.norm(update)  # fixed draws; one alone is a norm away
    assert np.linalg.norm(codec.decode(codec.encode(update, at(0)), at(0)) - update) > 0.5 * np.linalg.norm(update)


def test_docstrings_are_no_code() -> None:
    assert 8 <= lines_of((NoiseThenSign,)) <= 20
    assert lines_of((NoiseThenSign, NoiseThenQsgd)) > lines_of((NoiseThenQsgd,))


def test_one_party_holds_all_records() -> None:
    data = pooled(fl.synthetic(20, 10))
    assert (data.clients, len(data.owners if data.owners is not None else ())) == (("all",), 20)
