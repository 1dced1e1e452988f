"""The noise of decoded streams, whitened by C: independent again, over 64 rounds through the real codec.

Statistic: the 2,016 correlations of 64 rounds over 20,000 coordinates, which a right stream makes chi-square.
False-alarm rate: 1e-9 a test, and the key is fixed. Power: a decay that is 1 % wrong leaves correlations of 0.0096
times a power of the decay, which adds about 1,000 to a statistic of 2,016 ± 63; it must fail at the same level.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import cepam
from cepam.privacy import CorrelatedNoise
from cepam.verify import statistics

ROUNDS, SIZE, SIGMA = 64, 20_000, 0.01
FALSE_ALARM = 1e-9
CARRY = CorrelatedNoise(0.9617, slices=31)
ROOT = CorrelatedNoise.from_matrix([1.0, 0.5, 0.375, 0.3125, 0.2734375, 0.24609375, 0.2255859375, 0.20947265625])
LATTICES = {"Z1": cepam.Integer(1), "E8": cepam.E8}


def stream(sends: CorrelatedNoise, takes: CorrelatedNoise, lattice, key: cepam.Key) -> tuple[np.ndarray, np.ndarray]:
    """The clipped updates of 64 rounds, and what the server holds of them."""
    codec, rng = cepam.Codec(cepam.Gaussian(SIGMA), lattice=lattice), np.random.default_rng(4)
    sender, receiver, drift = sends.sender(SIZE), takes.receiver(SIZE), rng.normal(size=SIZE)
    x, y = [], []
    for t in range(ROUNDS):  # updates of a training run: much the same from round to round
        update = cepam.L2(0.1).apply(drift + rng.normal(size=SIZE))
        at, position = cepam.Address(key, round=t, client=0), sender.position
        x.append(update)
        y.append(receiver.take(codec.decode(codec.encode(sender.next(update), at), at), position))
    return np.array(x), np.array(y)


def whitened(errors: np.ndarray, link: CorrelatedNoise) -> tuple[float, float]:
    """p-values of the correlations between rounds, and of the rounds' variances, after undoing C^-1."""
    white = link.matrix(ROUNDS) @ errors / SIGMA
    products = white @ white.T / np.sqrt(SIZE)
    between = float((products[np.triu_indices(ROUNDS, 1)] ** 2).sum())
    return (
        float(stats.chi2.sf(between, ROUNDS * (ROUNDS - 1) // 2)),
        float(stats.chi2.sf(((np.diag(products) - np.sqrt(SIZE)) ** 2 / 2).sum(), ROUNDS)),
    )


@pytest.mark.parametrize("link", [CARRY, ROOT], ids=["decay", "root"])
@pytest.mark.parametrize("lattice", LATTICES.values(), ids=LATTICES)
def test_what_the_server_holds_is_the_update_and_the_matrix_noise(
    link: CorrelatedNoise, lattice, key: cepam.Key
) -> None:
    x, y = stream(link, link, lattice, key)
    assert min(whitened(y - x, link)) > FALSE_ALARM


def test_control_a_carry_one_percent_wrong_fails(key: cepam.Key) -> None:
    """At the server, at the client, or in the description that whitens."""
    wrong = CorrelatedNoise(0.99 * CARRY.decay, 31)
    for sends, takes, white in ((CARRY, wrong, CARRY), (wrong, CARRY, CARRY), (CARRY, CARRY, wrong)):
        x, y = stream(sends, takes, cepam.Integer(1), key)
        assert whitened(y - x, white)[0] < FALSE_ALARM


def test_control_noise_that_was_never_undone_fails(key: cepam.Key) -> None:
    x, y = stream(CARRY, CorrelatedNoise(), cepam.Integer(1), key)
    assert whitened(y - CARRY.matrix(ROUNDS) @ x, CARRY)[0] < FALSE_ALARM


def test_a_sum_over_rounds_is_quieter_than_independent_noise_would_make_it(key: cepam.Key) -> None:
    x, y = stream(CARRY, CARRY, cepam.Integer(1), key)
    summed = (y - x).sum(axis=0).std() / SIGMA
    want = np.sqrt(np.ones(ROUNDS) @ CARRY.noise_covariance(ROUNDS) @ np.ones(ROUNDS))
    assert summed == pytest.approx(want, rel=0.05)
    assert want < 0.2 * np.sqrt(ROUNDS * (1 + CARRY.decay**2))


def verdicts(sends: CorrelatedNoise, key: cepam.Key) -> list[float]:
    """p-values by the statistics of `cepam verify`: the law of the whitened noise, and covariances between rounds."""
    x, y = stream(sends, CARRY, cepam.Integer(1), key)
    white = CARRY.matrix(ROUNDS) @ (y - x)
    law = stats.norm.cdf(white / SIGMA)
    return [
        statistics.kolmogorov_smirnov(law.ravel()).p_value,
        statistics.uniformity(law.ravel()).p_value,
        statistics.variances(white.T[:, :8], SIGMA**2).p_value,
        statistics.covariances(white.T[:, :8]).p_value,
    ]


def test_the_whitened_stream_passes_the_certificates_tests_and_a_wrong_carry_fails(key: cepam.Key) -> None:
    assert min(verdicts(CARRY, key)) > FALSE_ALARM
    assert min(verdicts(CorrelatedNoise(0.95 * CARRY.decay, 31), key)) < FALSE_ALARM
