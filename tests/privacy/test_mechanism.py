"""The record: what is charged is what was sent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cepam import L1, L2, Gaussian, Laplace, UniformBall
from cepam.privacy import Client, Mechanism, Sampling


def uniform(**more) -> Mechanism:
    return Mechanism.uniform(30, Gaussian(0.25), L2(1.0), Sampling("replacement", 15), 2000, **more)


def test_chances() -> None:
    assert Sampling("replacement", 15).sampling_rate(1666) == pytest.approx(8.97e-3, rel=1e-3)
    assert Sampling("without", 15).sampling_rate(2000) == 15 / 2000
    assert Sampling("poisson", 32).sampling_rate(2000) == 0.016
    assert Sampling("all").sampling_rate(7) == 1.0
    assert Sampling("replacement", 3).sampling_rate(1) == 1.0


def test_mu_is_two_gamma_over_the_noise_of_the_sum() -> None:
    assert uniform().mu(0) == pytest.approx(2 / (0.25 * math.sqrt(30)))
    assert uniform(colluders=29).mu(0) == pytest.approx(2 / 0.25)


def test_unequal_clients_by_hand_and_the_loudest_collude() -> None:
    clients = (Client(Gaussian(1.0), 10, 0.5), Client(Gaussian(3.0), 10, 0.2), Client(Gaussian(1.0), 10, 0.3))
    mechanism = Mechanism(clients, L2(0.7), Sampling("all"))
    assert mechanism.mu(0) == pytest.approx(2 * 0.7 * 0.5 / math.hypot(0.5, 0.6, 0.3))
    assert mechanism.mu(0, colluders=1) == pytest.approx(2 * 0.7 * 0.5 / math.hypot(0.5, 0.3))  # 0.6 is out
    assert mechanism.mu(0, colluders=2) == pytest.approx(2 * 0.7)
    assert mechanism.hidden_by(0, 1) == (0, 2)


def test_weights_matter_only_up_to_a_factor() -> None:
    one = Mechanism((Client(Gaussian(1.0), 10, 0.5), Client(Gaussian(2.0), 10, 0.5)), L2(1.0), Sampling("all"))
    ten = Mechanism((Client(Gaussian(1.0), 10, 5.0), Client(Gaussian(2.0), 10, 5.0)), L2(1.0), Sampling("all"))
    assert one.mu(1) == pytest.approx(ten.mu(1))


def test_absent_clients_lend_no_noise_and_pay_nothing() -> None:
    mechanism = uniform().without([3, 4])
    assert mechanism.mu(0) == pytest.approx(2 / (0.25 * math.sqrt(28)))
    assert mechanism.mu(3) == 0.0


def test_examples_share_the_expected_batch() -> None:
    sigma = 1.1 * math.sqrt(30) / 960
    mechanism = Mechanism.uniform(
        30, Gaussian(sigma), L2(1.0), Sampling("poisson", 32), 2000, adjacency="add-remove", clipped="example"
    )
    assert mechanism.mu(0) == pytest.approx(1 / 1.1)
    replaced = Mechanism.uniform(30, Gaussian(sigma), L2(1.0), Sampling("poisson", 32), 2000, clipped="example")
    assert replaced.mu(0) == pytest.approx(2 / 1.1)


def test_laplace_is_charged_by_its_own_noise() -> None:
    mechanism = Mechanism.uniform(30, Laplace(0.5), L1(1.0), Sampling("all"), 10)
    assert mechanism.charge(0).shift.size == pytest.approx(4.0)
    assert mechanism.charge(0, 29) == mechanism.charge(0)


def test_a_client_may_draw_its_own_number() -> None:
    clients = (Client(Gaussian(1.0), 100), Client(Gaussian(1.0), 1000, draws=50))
    mechanism = Mechanism(clients, L2(1.0), Sampling("poisson", 10))
    assert mechanism.sampling_rate(0) == pytest.approx(0.1)
    assert mechanism.sampling_rate(1) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sampling("shuffle", 3), "sampling"),
        (lambda: Sampling("replacement", 2.5), "draws"),
        (lambda: Sampling("replacement", 0), "draws"),
        (lambda: Client(UniformBall(1.0), 10), "law"),
        (lambda: Client(Gaussian(1.0), 0), "records"),
        (lambda: Client(Gaussian(1.0), 10, 0.0), "weight"),
        (lambda: uniform(rounds=0), "rounds"),
        (lambda: uniform(colluders=30), "colluders"),
        (lambda: uniform(adjacency="none"), "adjacency"),
        (lambda: uniform(clipped="example"), "poisson"),
        (lambda: uniform(coordinates=0), "coordinates"),
        (lambda: uniform().without([30]), "absent"),
        (lambda: Mechanism((), L2(1.0), Sampling("all")), "client"),
        (lambda: Mechanism.uniform(2, Gaussian(1.0), L2(1.0), Sampling("without", 20), 10), "draws"),
        (lambda: Mechanism((Client(Gaussian(1.0), 1), Client(Laplace(1.0), 1)), L2(1.0), Sampling("all")), "family"),
        (lambda: uniform().with_noise([1.0]), "scales"),
    ],
)
def test_nonsense_is_refused_by_name(make, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_a_clipped_sum_of_examples_under_laplace_noise_is_charged_what_it_moves() -> None:
    """The attack: a record adds 0.1 in a coordinate of its own to a sum that the l1 clip of the whole then scales."""
    mechanism = Mechanism.uniform(
        1, Laplace(1.0), L1(1.0), Sampling("poisson", 10), 100, adjacency="add-remove", clipped="example"
    )
    clip, without, with_it = mechanism.clip, np.array([1.0, 0.0]), np.array([1.0, 0.1])
    moved = clip.measure(clip.apply(with_it) - clip.apply(without))
    assert moved == pytest.approx(0.1818, abs=1e-4)
    assert mechanism.distance(0) == 0.2 >= moved
    assert mechanism.charge(0).shift.size == 0.2
    assert replace(mechanism, clip=L2(1.0)).distance(0) == 0.1  # in l2 a clip is a projection


def test_a_client_may_have_a_clip_of_its_own() -> None:
    loose = Client(Gaussian(1.0), 10, 0.5, clip=L2(3.0))
    mechanism = Mechanism((loose, Client(Gaussian(1.0), 10, 0.5)), L2(1.0), Sampling("all"))
    assert (mechanism.distance(0), mechanism.distance(1)) == (6.0, 2.0)
    assert mechanism.mu(0) == pytest.approx(3 * mechanism.mu(1))
    with pytest.raises(ValueError, match="one norm"):
        Mechanism((replace(loose, clip=L1(1.0)),), L2(1.0), Sampling("all"))
