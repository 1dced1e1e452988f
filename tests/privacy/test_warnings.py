"""Each warning is triggered, and none without cause."""

from __future__ import annotations

import math

import pytest

from cepam import L2, Gaussian, Laplace
from cepam.privacy import Mechanism, Practice, Sampling, about_epsilon, epsilon, privacy_warnings


def uniform(sigma: float = 0.25, records: int = 2000, rounds: int = 80, **more) -> Mechanism:
    return Mechanism.uniform(30, Gaussian(sigma), L2(1.0), Sampling("replacement", 15), records, rounds=rounds, **more)


def codes(mechanism: Mechanism, at: float, delta: float, practice: Practice | None = None) -> set[str]:
    found = privacy_warnings(mechanism, at, delta, practice or Practice())
    for one in found:
        assert one.reason
        assert one.remedy
        assert "\n" not in str(one)
    return {one.code for one in found}


def test_a_sound_figure_needs_none() -> None:
    mechanism = uniform(coordinates=6422)
    assert codes(mechanism, epsilon(mechanism, 1e-5), 1e-5) == set()


def test_the_papers_figure_needs_several() -> None:
    mechanism = uniform(0.01, 1666, 1)
    got = codes(mechanism, 1.45, 9.69e-3, Practice(rounds=80, tensors=8))
    assert got == {"delta-over-1/n", "delta-is-free", "delta-insensitive", "not-the-whole-run", "per-tensor-clip"}


@pytest.mark.parametrize(("at", "code"), [(11.0, "large-epsilon"), (701.0, "no-guarantee")])
def test_epsilon(at: float, code: str) -> None:
    assert code in codes(uniform(), at, 1e-5)


def test_delta_at_least_one_over_n() -> None:
    assert "delta-over-1/n" in codes(uniform(), 1.0, 1 / 2000)
    assert "delta-over-1/n" not in codes(uniform(), 1.0, 1 / 2001)


def test_delta_free_over_many_rounds() -> None:
    assert "delta-is-free" in codes(uniform(0.01, 1666), 0.0, 0.6)
    assert "delta-is-free" not in codes(uniform(0.01, 1666), 1.0, 0.4)


def test_delta_insensitive_to_the_noise() -> None:
    mechanism = uniform(0.01, 1666, 1)
    just_under = 0.99 * mechanism.sampling_rate(0)
    assert "delta-insensitive" in codes(mechanism, epsilon(mechanism, just_under), just_under)
    sound = uniform()
    assert "delta-insensitive" not in codes(sound, epsilon(sound, 1e-5), 1e-5)


def test_delta_at_no_finite_epsilon_is_not_compared() -> None:
    """Epsilon is at most infinity whatever the noise is, so half the noise would always seem to do nothing."""
    mechanism = uniform(0.01, 1666, 1)
    just_under = 0.99 * mechanism.sampling_rate(0)
    assert "delta-insensitive" in codes(mechanism, epsilon(mechanism, just_under), just_under)  # the control
    got = codes(mechanism, math.inf, just_under)
    assert "no-guarantee" in got
    assert "delta-insensitive" not in got


def test_l2_clipped_laplace_called_pure() -> None:
    mechanism = Mechanism.uniform(30, Laplace(4.0), L2(1.0), Sampling("replacement", 15), 1666, coordinates=6422)
    assert "l2-laplace" in codes(mechanism, 5.0, 0.0)
    assert "l2-laplace" in codes(mechanism, 5.0, 1e-5, Practice(called_pure=True))
    assert "l2-laplace" not in codes(mechanism, 5.0, 1e-5)


def test_numerics() -> None:
    assert "numerics" in codes(uniform(coordinates=10**12), 2.05, 1e-5)


def test_practice() -> None:
    mechanism = uniform()
    assert codes(mechanism, 2.05, 1e-5, Practice(rounds=81)) == {"not-the-whole-run"}
    assert codes(mechanism, 2.05, 1e-5, Practice(tensors=8)) == {"per-tensor-clip"}
    assert codes(mechanism, 2.05, 1e-5, Practice(sampler_persists=True)) == {"sampler-persists"}
    assert codes(mechanism, 2.05, 1e-5, Practice(state_persists=True)) == {"state-persists"}
    honest = Mechanism.uniform(30, Gaussian(5.0), L2(1.0), Sampling("all"), 2000, rounds=80)
    assert codes(honest, 3.0, 1e-5, Practice(sampler_persists=True, state_persists=True)) == set()


def test_any_place_that_prints_an_epsilon_can_ask() -> None:
    assert about_epsilon(9.9) == []
    assert [one.code for one in about_epsilon(12.0)] == ["large-epsilon"]
    for void in (12_660.0, math.inf):
        (said,) = about_epsilon(void)
        assert said.code == "no-guarantee"
        assert "Calibrate" in said.remedy
