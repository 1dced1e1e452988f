"""Dropout compensation: the same noise whoever replies, through the real encoder, with a control that must fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cepam import Address, Codec, Key
from cepam.distributions.laws import Gaussian
from cepam.lattices.lattice import D4, Integer
from cepam.privacy import DropoutCompensation, server_noise
from cepam.privacy.cohorts.dropouts import MOST_SHARES, NoiseShare, stand_in
from cepam.privacy.numerics.smoothing import blends

MANY = 200_000
RARE = 1e-9


def of_the_law(noise: np.ndarray, sigma: float) -> bool:
    """Whether noise has the Gaussian law: its variance, and its whole shape, each alarmed with chance 1e-9."""
    squares = float((noise**2).sum()) / sigma**2
    tail = 2 * min(stats.chi2.cdf(squares, len(noise)), stats.chi2.sf(squares, len(noise)))
    return bool(tail > RARE and stats.kstest(noise / sigma, "norm").pvalue > RARE)


@given(total=st.floats(1e-3, 1e3), cap=st.integers(1, 10**6), share=st.floats(0, 1))
def test_the_total_is_the_same_whoever_replies(total: float, cap: int, share: float) -> None:
    compensation, replies = DropoutCompensation(total, cap), int(share * cap)
    made = math.hypot(compensation.share * math.sqrt(replies), compensation.missing(replies))
    assert total * (1 - 1e-15) <= made <= total * (1 + 1e-14)
    assert (compensation.missing(cap), compensation.law.scale) == (0.0, compensation.share)


@pytest.mark.parametrize("replies", [0, 1, 3])
def test_what_is_published_has_the_total_noise(replies: int) -> None:
    compensation = DropoutCompensation(2.0, 3)
    codec = Codec(compensation.law)
    update = np.full(MANY, 0.25)
    summed = np.zeros(MANY)
    for client in range(replies):
        at = Address(Key.generate(), round=0, client=client)
        summed += codec.decode(codec.encode(update, at), at)
    sigma = compensation.missing(replies)
    noise = summed + (server_noise(sigma, MANY) if sigma else 0.0) - replies * update
    assert of_the_law(noise, 2.0)
    if replies < 3:
        assert not of_the_law(summed - replies * update + 1e-9, 2.0)  # without the server's part


def test_the_servers_noise_is_secret_exact_and_on_the_grid() -> None:
    first, second = server_noise(0.3, MANY), server_noise(0.3, MANY)
    assert of_the_law(first, 0.3)
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 6.2 / math.sqrt(MANY)
    grid = Codec(Gaussian(0.3), Integer(1)).grid
    assert np.array_equal(first, np.round(first / grid) * grid)


def test_one_draw_for_all_shares_that_are_alike_blends_with_any_reply() -> None:
    """Steps of the grids, a reply's being 1: the theorem's condition, by a search that knows nothing of shares."""
    for cap, replies in ((2, 1), (1379, 1), (1379, 900), (MOST_SHARES, 1), (MOST_SHARES, 40)):
        server = math.ldexp(1.0, math.frexp(math.sqrt(cap - replies))[1] - 1)
        assert blends((*[1.0] * replies, server))
    assert not blends((1.0, 2.0**13))  # what a cap of 2^26 would make


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="cap must be at most"):
        DropoutCompensation(1.0, MOST_SHARES + 1)
    with pytest.raises(ValueError, match="replies"):
        DropoutCompensation(1.0, 3).missing(4)
    for total, cap in ((0.0, 3), (1.0, 0)):
        with pytest.raises(ValueError, match=r"total|cap"):
            DropoutCompensation(total, cap)


def test_the_server_stands_in_on_the_grids_of_those_who_are_missing() -> None:
    """Noise of weight 1 would lie on a grid at odds with theirs, and the sum would tell the two apart."""
    missing = {NoiseShare(20_011.0, 0.3, D4): 5, NoiseShare(7.0, 1.0): 1, NoiseShare(3.0, 2.0): 0}
    made = stand_in(missing, MANY)
    assert [weight for weight, _ in made] == [7.0, 20_011.0, 20_011.0]
    alone = 20_011.0 * 0.3 * math.sqrt(5)
    for sigma, (_, noise) in zip((1.0, 0.3, 0.3 * 2), made):
        step = 2.0 ** (math.frexp(sigma)[1] - 13)
        assert not (noise % step).any()
        # A quarter of the sample's deviation would be far outside: seven deviations.
        assert np.std(noise) == pytest.approx(sigma, rel=7 / math.sqrt(2 * MANY))
    both = 20_011.0 * (made[1][1] + made[2][1])
    assert np.std(both) == pytest.approx(alone, rel=7 / math.sqrt(2 * MANY))
    step = math.ldexp(20_011.0, math.frexp(0.3)[1])
    assert blends((step, 2.0 * step, 2.0 * step))
    assert not blends((step, 2.0 ** math.frexp(alone)[1]))  # as one vector of weight 1 it did not blend
    at = Address(Key.simulated(1), round=3, client=0)
    first, second, third = (noise for _, noise in stand_in(missing, 50, at))
    np.testing.assert_array_equal(second, stand_in(missing, 50, at)[1][1])
    assert np.abs(second - third).max() > 0
    assert np.abs(first - second).max() > 0
