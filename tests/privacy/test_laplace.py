"""Laplace noise under l2 clipping: the honest pure figure and the zCDP one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cepam import L1, L2, Gaussian, Laplace
from cepam.privacy import (
    Mechanism,
    Sampling,
    delta,
    epsilon,
    epsilon_of_zcdp,
    pure_epsilon,
    slack,
    zcdp_rho,
)
from cepam.privacy.mechanisms.laplace import pure_gap


def mechanism(b: float, rounds: int = 1, clip=L2(1.0), coordinates: int | None = 6422) -> Mechanism:  # noqa: B008
    return Mechanism.uniform(
        30, Laplace(b), clip, Sampling("replacement", 15), 1666, rounds=rounds, coordinates=coordinates
    )


def test_the_pure_figure_is_attained() -> None:
    """x and x' at opposite corners of the l1 ball inside the l2 ball: the loss reaches sqrt(m) 2 gamma/b."""
    m, b = 16, 3.0
    corner = np.full(m, 1.0 / math.sqrt(m))
    assert np.linalg.norm(corner) == pytest.approx(1.0)
    largest = np.abs(2 * corner).sum() / b  # any output beyond both corners has this loss
    assert pure_gap(mechanism(b, coordinates=m), 0) == pytest.approx(largest)


def test_l1_needs_no_dimension() -> None:
    assert pure_gap(mechanism(0.5, clip=L1(1.0), coordinates=None), 0) == 4.0
    with pytest.raises(ValueError, match="coordinates"):
        pure_gap(mechanism(0.5, coordinates=None), 0)


@pytest.mark.parametrize("shift", [(2.0,), (1.0, 1.0), (0.5,) * 16, (1.9, 0.3, 0.2)])
@pytest.mark.parametrize("b", [0.7, 3.0])
def test_renyi_divergence_of_shifted_laplace_is_under_the_zcdp_line(shift: tuple, b: float) -> None:
    for order in (1.1, 2.0, 5.0, 20.0):
        total = 0.0
        for v in shift:  # the closed form of the Laplace mechanism's Renyi divergence
            t = v / b
            terms = [
                math.log(order / (2 * order - 1)) + (order - 1) * t,
                math.log((order - 1) / (2 * order - 1)) - order * t,
            ]
            total += np.logaddexp(*terms) / (order - 1)
        assert total <= order * sum((v / b) ** 2 for v in shift) / 2 + 1e-12


def test_rho_and_its_epsilon() -> None:
    assert zcdp_rho(mechanism(4.0, 80), 0) == pytest.approx(80 * 0.5**2 / 2)
    rho = 0.1
    plain = rho + 2 * math.sqrt(rho * math.log(1e5))
    assert epsilon_of_zcdp(rho, 1e-5) < plain
    gaussian = Mechanism.uniform(1, Gaussian(1.0), L2(math.sqrt(2 * rho) / 2), Sampling("all"), 10)
    assert epsilon_of_zcdp(rho, 1e-5) >= epsilon(gaussian, 1e-5)  # a Gaussian is rho-zCDP: never below its truth
    assert epsilon_of_zcdp(0.0, 1e-5) == 0.0


def test_like_a_gaussian_of_the_same_scale() -> None:
    """zCDP costs a few per cent against a Gaussian of standard deviation b without sampling."""
    laplace = Mechanism.uniform(1, Laplace(40.0), L2(1.0), Sampling("all"), 10, rounds=80)
    gaussian = Mechanism.uniform(1, Gaussian(40.0), L2(1.0), Sampling("all"), 10, rounds=80)
    assert 1.0 < epsilon(laplace, 1e-5) / epsilon(gaussian, 1e-5) < 1.15


def test_the_smaller_of_both_figures_is_quoted() -> None:
    small = mechanism(4000.0, 2)
    assert epsilon(small, 0.0) == pytest.approx(pure_epsilon(small, 0))
    assert epsilon(small, 1e-5) <= epsilon(small, 0.0) + slack(small).epsilon


@pytest.mark.parametrize("rounds", [1, 80])
def test_delta_inverts_epsilon(rounds: int) -> None:
    one = mechanism(8.0, rounds)
    at = epsilon(one, 1e-5)
    assert delta(one, at) == pytest.approx(1e-5, rel=1e-3)
    assert delta(one, at) <= 1e-5
    pure = pure_epsilon(one, 0) + slack(one).epsilon
    assert delta(one, pure) == slack(one).at(pure)  # what rounding adds is all that is left


def test_absent_and_gaussian_edges() -> None:
    away = mechanism(4.0).without([0])
    assert pure_epsilon(away, 0) == 0.0
    assert zcdp_rho(away, 0) == 0.0
    gaussian = Mechanism.uniform(1, Gaussian(1.0), L2(1.0), Sampling("all"), 10)
    assert zcdp_rho(gaussian, 0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="pure"):
        pure_gap(gaussian, 0)
