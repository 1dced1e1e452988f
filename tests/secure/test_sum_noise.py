"""The noise of opened sums, by the package's own certificate: every client's share, all of it, and nothing more.

False-alarm rate: 1e-3 for a certificate with fixed keys, 1e-9 for each other test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special

import cepam
from cepam.keys import Address, hkdf
from cepam.secure import SumCodec, fit
from cepam.verify import statistics as goodness
from cepam.verify.certificate import verify

KEY = cepam.Key(bytes(range(32)))
SHARE, CLIENTS = 0.01, 4


@dataclass(frozen=True)
class SumChannel:
    """A sum as something to certify: the update is dealt out to the clients, masked, added up and opened."""

    clients: int = CLIENTS
    silent: int = 0
    law: cepam.Law = cepam.Gaussian(SHARE * math.sqrt(CLIENTS))  # noqa: RUF009
    lattices: tuple[cepam.Lattice, ...] = (cepam.Integer(1),)
    bound: float = 400.0

    @property
    def grid(self) -> float:
        return self.code(1).grid

    def code(self, size: int) -> SumCodec:
        return SumCodec(cepam.Gaussian(SHARE), size, 32, 1)

    def encode(self, update: np.ndarray, at: Address) -> bytes:
        part = np.asarray(update) / self.clients
        code, keys = self.code(len(part)), [self.secret(at, b"%d" % i) for i in range(self.clients)]
        drawn = [code.noised(part, hkdf(key, b"", b"noise", 32)) for key in keys[self.silent :]]
        plain = np.rint(part / code.grid).astype(np.int64)
        drawn = [plain] * self.silent + drawn
        return b"".join(code.mask(y, [(key, 1)]) for y, key in zip(drawn, keys))

    def decode(self, message: bytes, at: Address) -> np.ndarray:
        size = len(message) // (4 * self.clients)
        parts = [message[4 * size * i : 4 * size * (i + 1)] for i in range(self.clients)]
        return self.code(size).open(parts, [(self.secret(at, b"%d" % i), 1) for i in range(self.clients)])

    def secret(self, at: Address, label: bytes) -> bytes:
        return hkdf(at.derive().noise, b"", label, 32)


def test_the_sum_carries_the_noise_of_all_clients() -> None:
    certificate = verify(SumChannel(), samples=10_000, key=KEY)
    assert certificate.passed, certificate.failures


def test_a_client_without_noise_is_seen() -> None:
    assert not verify(SumChannel(silent=1), samples=10_000, key=KEY).passed


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
