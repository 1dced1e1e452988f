"""The noise of opened sums, by the package's own certificate: every client's share, all of it, and nothing more.

False-alarm rate: 1e-3 for a certificate with fixed keys, 1e-9 for each other test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

import cepam
from cepam.secure_aggregation import MaskedSumCodec, fit
from cepam.secure_aggregation.channel import SecAggChannel
from cepam.verify import statistics as goodness
from cepam.verify.certificate import verify

KEY = cepam.Key(bytes(range(32)))
SHARE, CLIENTS = 0.01, 4


class OneIsSilent(SecAggChannel):
    """The control: the first client adds no noise."""

    def _noised(self, code: MaskedSumCodec, part: np.ndarray, client: int, secret: bytes) -> np.ndarray:
        return (
            np.rint(part / code.grid).astype(np.int64) if client == 0 else super()._noised(code, part, client, secret)
        )


def test_the_sum_carries_the_noise_of_all_clients() -> None:
    certificate = verify(SecAggChannel(cepam.Gaussian(SHARE), CLIENTS), samples=10_000, key=KEY)
    assert certificate.passed, certificate.failures


def test_a_client_without_noise_is_seen() -> None:
    assert not verify(OneIsSilent(cepam.Gaussian(SHARE), CLIENTS), samples=10_000, key=KEY).passed


def test_a_coarse_sum_carries_gaussian_noise_and_the_rounding_that_it_says() -> None:
    size, clients = 200_000, 5
    code = fit(cepam.Gaussian(SHARE), clients, size, 0.3)
    assert code.bits <= 9
    rng = np.random.default_rng(3)
    x = rng.normal(0, 0.02, (clients, size))
    keys = [rng.bytes(32) for _ in range(clients)]
    parts = [code.mask(code.noised(x[i], rng.bytes(32)), [(keys[i], 1)]) for i in range(clients)]
    error = code.open(parts, [(key, 1) for key in keys]) - x.sum(axis=0)

    def transform(share: float) -> np.ndarray:
        """The distribution function of Gaussian noise plus `clients` uniforms of one cell."""
        steps = 64
        uniform = np.ones(1)
        for _ in range(clients):
            uniform = np.convolve(uniform, np.full(steps, 1 / steps))
        shifts = (np.arange(len(uniform)) - (len(uniform) - 1) / 2) * code.cell / steps
        nodes = np.linspace(error.min(), error.max(), 2001)
        law = special.ndtr((nodes[:, None] - shifts) / (share * math.sqrt(clients))) @ uniform
        return np.interp(error, nodes, law)

    u = transform(SHARE)
    assert goodness.kolmogorov_smirnov(u).p_value > 1e-9
    assert goodness.uniformity(u).p_value > 1e-9
    labels = goodness.probability_labels(u)
    assert goodness.independence(goodness.value_labels(x.sum(axis=0)), labels).p_value > 1e-9
    assert goodness.independence(goodness.value_labels(x[0]), labels).p_value > 1e-9
    assert goodness.uniformity(transform(SHARE * 0.97)).p_value < 1e-9


@pytest.mark.parametrize("clients", [2, 6])
def test_the_variance_is_the_noise_and_a_twelfth_of_the_cell(clients: int) -> None:
    size = 100_000
    code = fit(cepam.Gaussian(SHARE), clients, size, 0.1)
    rng = np.random.default_rng(clients)
    keys = [(rng.bytes(32), 1) for _ in range(clients)]
    total = code.open([code.mask(code.noised(np.zeros(size), rng.bytes(32)), [key]) for key in keys], keys)
    expected = clients * (SHARE**2 + code.cell**2 / 12)
    assert total.var() == pytest.approx(expected, rel=7 * math.sqrt(2 / size))
