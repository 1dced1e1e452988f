"""The rule of `lattice="auto"`."""

from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam.lattices.automatic import RUN, RUNS, sample_of, suits_eight


def test_entries_alike_take_eight_at_any_noise() -> None:
    x = np.random.default_rng(0).normal(size=6422).astype(np.float32)
    for scale in (1e-4, 0.1, 1.0, 100.0):
        assert suits_eight(x, scale)


def test_sparse_entries_take_eight_only_under_large_noise() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=6422) * (draw.random(6422) < 0.05)
    assert suits_eight(x, 100.0)
    assert not suits_eight(x, 1.0)
    assert not suits_eight(x, 1e-3)


@pytest.mark.parametrize("size", [0, 1, 7, RUN - 1, RUN, RUN + 1, RUN * RUNS - 1, 10**6 + 3])
def test_any_size(size: int) -> None:
    assert suits_eight(np.ones(size), 1.0) == (size > 0)
    assert not suits_eight(np.zeros(size), 1.0)


@pytest.mark.parametrize("size", [0, RUN * RUNS, RUN * RUNS + 1, RUN * RUNS + 16, 10**6 + 3])
def test_the_sample_is_runs_spread_evenly_and_its_own_sample(size: int) -> None:
    """So that a tensor's sample alone is fetched from its GPU, and says what the whole would."""
    x, step = np.arange(size), max(size // RUNS, RUN)
    wanted = [each for start in range(0, size // RUNS * RUNS, step) for each in range(start, start + RUN)]
    assert sample_of(x).tolist() == wanted
    assert sample_of(sample_of(x)).tolist() == wanted


def test_huge_entries_do_not_overflow() -> None:
    x = np.zeros(5000)
    x[0] = 1e300
    assert not suits_eight(x, 1e-30)


def test_the_message_says_which() -> None:
    at = cepam.Address(cepam.Key(bytes(32)), round=0, client=0)
    draw = np.random.default_rng(0)
    dense = draw.normal(size=3000)
    sparse = dense * (draw.random(3000) < 0.02)
    codec = cepam.Codec(cepam.Gaussian(0.1))
    assert (codec.choose(dense), codec.choose(sparse)) == (1, 0)
    for x in (dense, sparse):
        assert np.abs(codec.decode(codec.encode(x, at), at) - x).max() < 0.7
    assert cepam.Codec(cepam.Laplace(0.1)).lattices == (cepam.Integer(1),)
