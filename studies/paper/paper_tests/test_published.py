"""The published arithmetic: what it does to an update, against closed forms, and that the exact codec differs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import cepam
from cepam.errors import MalformedMessage
from cepam.noise.laws import Gaussian, Laplace
from cepam_paper.published import PublishedChannel, mean_gain

KEY = cepam.Key(bytes(range(32)))


def decoded(law: Gaussian | Laplace, n: int, value: float, count: int = 60_000) -> np.ndarray:
    channel = PublishedChannel(law, n, (count,))
    at = cepam.Address(KEY, round=1, client=0)
    return channel.decode(channel.encode(np.full(count, value, dtype=np.float32), at), at).astype(np.float64)


@pytest.mark.parametrize(("n", "gain"), [(1, 4 / np.pi), (2, 3 * np.pi / 8), (3, 32 / (9 * np.pi))])
def test_mean_gain_is_that_of_two_independent_radii(n: int, gain: float) -> None:
    assert mean_gain(Gaussian(0.01), n) == pytest.approx(gain, rel=1e-12)
    chi = stats.chi(n + 2)
    assert chi.mean() * chi.expect(lambda r: 1 / r) == pytest.approx(gain, rel=1e-6)


def test_laplace_gain_is_two() -> None:
    assert mean_gain(Laplace(0.3)) == 2.0
    gamma = stats.gamma(2)
    assert gamma.mean() * gamma.expect(lambda r: 1 / r) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(("n", "ratio"), [(1, 0.5), (2, 0.0), (3, 0.0)])
def test_at_zero_the_noise_is_half_of_sigma_or_nothing(n: int, ratio: float) -> None:
    assert decoded(Gaussian(0.01), n, 0.0).std() / 0.01 == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_constant_comes_out_multiplied_by_the_gain(n: int) -> None:
    values = decoded(Gaussian(0.01), n, 0.05, 240_000)
    error = values.std() / values.size**0.5 * n**0.5
    assert abs(values.mean() / 0.05 - mean_gain(Gaussian(0.01), n)) < 6 * error / 0.05
    assert abs(values.mean() / 0.05 - 1.0) > 12 * error / 0.05


@pytest.mark.parametrize("n", [2, 3])
def test_in_two_and_three_dimensions_directions_come_through(n: int) -> None:
    """No privacy at all: the sign of every coordinate that is not tiny is the update's own."""
    update = np.random.default_rng(4).normal(scale=0.02, size=999).astype(np.float32)
    channel, at = PublishedChannel(Gaussian(0.01), n, (999,)), cepam.Address(KEY, round=0, client=0)
    values = channel.decode(channel.encode(update, at), at)
    large = np.abs(update) > 0.005
    assert (np.sign(values[large]) == np.sign(update[large])).all()
    exact = cepam.Codec(Gaussian(0.01), cepam.Integer(n))
    assert (np.sign(exact.decode(exact.encode(update, at), at)[large]) != np.sign(update[large])).any()


def test_dithers_start_anew_at_every_tensor_and_round_and_radii_do_not() -> None:
    channel = PublishedChannel(Gaussian(1.0), 1, (5, 5))
    first, later = cepam.Address(KEY, round=0, client=0), cepam.Address(KEY, round=1, client=0)
    dither = channel._dither(first, b"encoder")
    assert (dither[:5] == dither[5:]).all()
    assert (dither == channel._dither(later, b"encoder")).all()
    assert (dither != channel._dither(first, b"decoder")).any()
    assert (channel._radii(first, b"encoder") != channel._radii(later, b"encoder")).all()


def test_tensors_are_padded_one_by_one_and_come_back_whole() -> None:
    channel, at = PublishedChannel(Gaussian(1e-6), 3, (4, 2, 7)), cepam.Address(KEY, round=0, client=0)
    update = np.arange(13, dtype=np.float32)
    values = channel.decode(channel.encode(update, at), at)
    assert values.shape == (13,)
    assert values[0] == pytest.approx(0.0, abs=1e-6)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="n = 1, 2, 3"):
        PublishedChannel(Laplace(0.1), 2, (4,))
    with pytest.raises(ValueError, match="sizes"):
        PublishedChannel(Gaussian(0.1), 1, ())
    channel, at = PublishedChannel(Gaussian(0.1), 1, (4,)), cepam.Address(KEY, round=0, client=0)
    with pytest.raises(ValueError, match="4 coordinates"):
        channel.encode(np.zeros(5, dtype=np.float32), at)
    with pytest.raises(MalformedMessage):
        channel.decode(b"123", at)
