"""Sums of losses: next to nothing above sums in exact rational arithmetic, at any delta, and equal to a library's."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from cepam.privacy.composition.losses import (
    COARSE,
    LossMasses,
    LossSum,
    discretize,
    epsilon_of,
    spacing_of,
    summed,
    tilt_for_delta,
    tilt_for_epsilon,
)
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, LaplaceShift
from cepam.privacy.mechanisms.mechanism import SubsampledMechanism
from tests.privacy import oracle

BITS = 40


def dyadic(seed: int, size: int, lower: int) -> LossMasses:
    """Masses that are multiples of 2^-40, some of them tiny, so that exact sums are integers."""
    rng = np.random.default_rng(seed)
    weights = rng.random(size) * np.exp(-0.9 * np.arange(size))
    units = np.maximum(1, np.floor(weights / weights.sum() * 2**BITS * 0.999)).astype(np.int64)
    return LossMasses(0.25, lower, units / 2.0**BITS, float((2**BITS - units.sum()) / 2.0**BITS))


def exact(parts: list[tuple[LossMasses, int]]) -> tuple[int, list[Fraction], Fraction]:
    """The sum's masses by schoolbook convolution of integers."""
    lower, total, unit = 0, [1], 1
    for part, many in parts:
        units = [int(mass * 2**BITS) for mass in part.masses]
        for _ in range(many):
            made = [0] * (len(total) + len(units) - 1)
            for i, a in enumerate(total):
                for j, b in enumerate(units):
                    made[i + j] += a * b
            lower, total, unit = lower + part.lower, made, unit * 2**BITS
    masses = [Fraction(mass, unit) for mass in total]
    return lower, masses, 1 - sum(masses)


def exact_delta(parts: list[tuple[LossMasses, int]], epsilon: float) -> Fraction:
    lower, masses, beyond = exact(parts)
    total = beyond
    for i, mass in enumerate(masses):
        loss = (lower + i) * 0.25
        if loss > epsilon:
            total += mass * Fraction(-math.expm1(epsilon - loss))
    return total


PARTS = [(dyadic(1, 24, -1), 5), (dyadic(2, 17, 0), 3)]


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0, 9.0])
@pytest.mark.parametrize("tilt", [0.05, 0.5, 1.0, None])
def test_never_below_the_exact_sum(epsilon: float, tilt: float | None) -> None:
    found = summed(PARTS, tilt or tilt_for_epsilon(PARTS, epsilon)).delta(epsilon)
    want = float(exact_delta(PARTS, epsilon))
    assert want * (1 - 1e-12) <= found
    if tilt is None:
        assert found <= want * (1 + 1e-6)


def without_beyond(parts: list[tuple[LossMasses, int]]) -> list[tuple[LossMasses, int]]:
    return [(LossMasses(p.spacing, p.lower, p.masses, 0.0), many) for p, many in parts]


@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-12, 1e-20])
def test_a_tiny_delta_is_as_exact_as_a_large_one(delta: float) -> None:
    """With nothing beyond, tails far under what a plain transform resolves: at 1e-20 as at 1e-3."""
    parts = without_beyond(PARTS)
    missing = exact(parts)[2]
    epsilon = summed(parts, tilt_for_delta(parts, delta)).epsilon(delta)
    truth = float(exact_delta(parts, epsilon) - missing)
    assert delta * (1 - 1e-4) <= truth <= delta * (1 + 1e-9)


def test_a_plain_transform_would_be_below_the_truth() -> None:
    """The control: without tilt and bound the same sum is off by some 1e-17 absolute, which 1e-20 does not survive."""
    parts = without_beyond(PARTS)
    lower, masses, _ = exact(parts)
    size = len(masses)
    product = np.ones(size // 2 + 1, dtype=complex)
    for part, many in parts:
        product = product * np.fft.rfft(part.masses, size) ** many
    plain = np.fft.irfft(product, size)
    deep = [i for i, mass in enumerate(masses) if mass < Fraction(1, 10**20)]
    assert min(plain[i] - float(masses[i]) for i in deep) < -1e-19
    assert lower < 0


def test_the_bound_covers_what_the_transform_rounds_off() -> None:
    parts = without_beyond(PARTS)
    lower, masses, _ = exact(parts)
    for tilt in (0.05, 0.5, 1.5):
        found: LossSum = summed(parts, tilt)
        norm = sum(float(mass) * math.exp(tilt * (lower + i) * 0.25) for i, mass in enumerate(masses))
        start = found.lower - lower
        want = [
            float(masses[start + i]) * math.exp(tilt * (found.lower + i) * 0.25) / norm
            if 0 <= start + i < len(masses)
            else 0.0
            for i in range(len(found.masses))
        ]
        assert np.abs(found.masses - want).sum() <= found.error


def test_cut_moves_the_tail_beyond() -> None:
    part = PARTS[0][0]
    shorter = part.cut(1e-6)
    assert len(shorter.masses) < len(part.masses)
    assert part.beyond < shorter.beyond <= part.beyond + 1e-6
    assert shorter.masses.sum() + shorter.beyond == pytest.approx(1.0, abs=1e-12)
    assert part.cut(0.0) is part


CHARGES = [
    SubsampledMechanism(GaussianShift(1.46), 0.0075),
    SubsampledMechanism(GaussianShift(1.46), 0.0075, "add-remove"),
    SubsampledMechanism(GaussianShift(0.3), 0.9, "add-remove"),
    SubsampledMechanism(LaplaceShift(2.0), 0.05),
    SubsampledMechanism(LaplaceShift(2.0), 1.0, "add-remove"),
    SubsampledMechanism(GaussianShift(36.5), 0.009),
]


@pytest.mark.parametrize("charge", CHARGES, ids=repr)
@pytest.mark.parametrize("rounds", [3, 80])
def test_the_library_gives_the_same(charge: SubsampledMechanism, rounds: int) -> None:
    """dp-accounting, through its public calls, from the same discretized round."""
    pld_pmf = pytest.importorskip("dp_accounting.pld.pld_pmf")
    privacy_loss_distribution = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

    made = [
        pld_pmf.DensePLDPmf(one.spacing, one.lower, one.masses, one.beyond, True)
        for one in discretize(charge, spacing_of(charge, COARSE))
    ]
    with np.errstate(over="ignore"):
        theirs = privacy_loss_distribution.PrivacyLossDistribution(*made).self_compose(rounds, 1e-15)
    for delta in (1e-5, 1e-2, 0.3):
        ours = epsilon_of(((charge, rounds),), delta, COARSE)
        want = min(rounds * charge.largest_loss, float(theirs.get_epsilon_for_delta(delta)))
        assert ours == pytest.approx(want, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("delta", [1e-12, 1e-11, 1e-10, 1e-7])
@pytest.mark.parametrize(("mu", "sampling_rate", "rounds"), [(1.46, 0.0075, 80), (2.4, 0.0075, 600), (0.3, 0.9, 200)])
def test_small_deltas_against_the_oracle(mu: float, sampling_rate: float, rounds: int, delta: float) -> None:
    """Where noise of a transform once put epsilon 2.4e-4 under the truth. The oracle is good to some 1e-5 of delta."""
    for adjacency, kinds in oracle.KINDS.items():
        found = epsilon_of(((SubsampledMechanism(GaussianShift(mu), sampling_rate, adjacency), rounds),), delta)  # type: ignore[arg-type]
        truth = max(oracle.delta([(mu, sampling_rate, rounds)], kind, found) for kind in kinds)
        assert delta * (1 - 1e-3) <= truth <= delta * (1 + 1e-5)
