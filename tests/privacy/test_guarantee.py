"""Per-client guarantees, against whom."""

from __future__ import annotations

import pytest

from cepam import L2, Gaussian
from cepam.privacy import Client, Mechanism, Sampling, epsilon, report


def test_three_adversaries_of_the_private_preset() -> None:
    sigma = 1.1 * 30**0.5 / 960
    mechanism = Mechanism.uniform(
        30,
        Gaussian(sigma),
        L2(1.0),
        Sampling("poisson", 32),
        2000,
        rounds=600,
        adjacency="add-remove",
        clipped="example",
    )
    every = report(mechanism, 1e-5)
    assert [g.client for g in every] == list(range(30))
    assert every[7].outsider == pytest.approx(1.967, rel=5e-4)
    assert every[7].curious == pytest.approx(2.03, abs=5e-3)
    assert every[7].colluding == pytest.approx(230, rel=5e-3)


def test_own_noise_weight_records_and_delta() -> None:
    clients = tuple(Client(Gaussian(0.5 * (k + 1)), 500 * (k + 1), 0.25) for k in range(4))
    mechanism = Mechanism(clients, L2(1.0), Sampling("replacement", 5), 10)
    deltas = [1e-4, 1e-5, 1e-6, 1e-7]
    every = report(mechanism, deltas)
    for k, guarantee in enumerate(every):
        assert guarantee.delta == deltas[k]
        assert guarantee.noise_scale == 0.5 * (k + 1)
        assert guarantee.outsider == epsilon(mechanism, deltas[k], k)
        assert guarantee.outsider <= guarantee.curious <= guarantee.colluding
        alone = Mechanism((clients[k],), L2(1.0), Sampling("replacement", 5), 10)
        assert guarantee.colluding == pytest.approx(epsilon(alone, deltas[k]), rel=1e-9)


def test_a_single_client_has_nobody_to_fear_but_outsiders() -> None:
    mechanism = Mechanism.uniform(1, Gaussian(1.0), L2(1.0), Sampling("all"), 10)
    only = report(mechanism, 1e-5)[0]
    assert only.outsider == only.curious == only.colluding


def test_deltas_must_fit() -> None:
    mechanism = Mechanism.uniform(3, Gaussian(1.0), L2(1.0), Sampling("all"), 10)
    with pytest.raises(ValueError, match="delta"):
        report(mechanism, [1e-5, 1e-5])
