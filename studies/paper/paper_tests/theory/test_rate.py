"""The rate formula against real messages, scipy's entropies and a brute-force count."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import cepam
from cepam.kernels.numpy.quantizer import layers
from cepam_paper.theory.descent import seeded_key
from cepam_paper.theory.rate import (
    code_bits,
    golomb_length,
    paper_point_bits,
    paper_points,
    rate,
    reachable_point_bits,
    reachable_points,
    trial_entropy,
)

CASES = [
    (cepam.Gaussian(0.01), cepam.Integer(1)),
    (cepam.Gaussian(0.2), cepam.A2),
    (cepam.Gaussian(0.05), cepam.E8),
    (cepam.Laplace(0.01), cepam.Integer(2)),
]


@pytest.mark.parametrize(("law", "lattice"), CASES, ids=str)
def test_real_messages_cost_what_the_formula_says(law: cepam.Law, lattice: cepam.Lattice) -> None:
    size, messages = 2048, 30
    codec = cepam.Codec(law, lattice, coder="paper", bound=1.0)
    updates = np.random.default_rng(1).standard_normal((messages, size)) / 60
    bits = np.array(
        [code_bits(codec, x, cepam.Address(seeded_key(3), round=i, client=0)) for i, x in enumerate(updates)]
    )
    stated, error = rate(law, lattice, 1.0, size), bits.std(ddof=1) / math.sqrt(messages)
    # Zero to seven bits fill the last byte. Four standard errors: a false alarm in 16,000 runs, and seeds are fixed.
    assert stated.spent - 4 * error <= bits.mean() <= stated.spent + 7 + 4 * error
    # Control: the literal formula is a long way off, and so is the one for twice the noise.
    assert bits.mean() - stated.printed > 100 * error
    louder = type(law)(2 * law.scale)  # type: ignore[call-arg]
    assert abs(bits.mean() - rate(louder, lattice, 1.0, size).spent) > 20 * error


def test_point_bits_are_those_of_a_direct_count() -> None:
    """On the integers M(U) is the set of whole numbers in (X + L - beta P) / beta, counted here by hand."""
    sigma, gamma, draws = 0.03, 1.0, 200_000
    half = sigma * stats.chi(df=3).rvs(size=draws, random_state=5)
    width = 2 * half
    low, high = np.ceil((-gamma - half - width) / width), np.floor((gamma + half) / width)
    bits = np.ceil(np.log2(high - low + 1))
    stated = rate(cepam.Gaussian(sigma), cepam.Integer(1), gamma, 1).point_bits
    assert abs(bits.mean() - stated) < 4 * bits.std() / math.sqrt(draws) + 1e-3


@pytest.mark.parametrize("ratio", [0.4, 1.3, 2.6])
def test_reachable_points_are_those_that_trials_reach(ratio: float) -> None:
    """Z^2 with beta = 1 and r = 1/2: every accepted M of many trials, x on and in the disc of radius ratio/2."""
    draw, trials = np.random.default_rng(0), 1_000_000
    angle, share = draw.uniform(0, 2 * np.pi, trials), np.where(draw.random(trials) < 0.7, 1.0, draw.random(trials))
    x = (ratio / 2 * share)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    dither = draw.random((trials, 2))
    m = np.rint(x - dither)
    kept = m[np.square(m + dither - x).sum(axis=1) <= 0.25]
    found, stated = len(np.unique(kept, axis=0)), reachable_points(cepam.Integer(2), 1 + ratio)
    # Points that touch the disc in a sliver may be missed by chance, never added.
    assert stated - 2 <= found <= stated


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("reach", [1.0, 1.7, 2.0, 6.3, 11.0])
def test_cells_that_meet_the_ball_are_counted_as_if_listed(n: int, reach: float) -> None:
    """Z^n: every cell [M, M + 1] around the ball, its nearest point by hand."""
    radius, most = reach / 2, int(reach) + 2
    grid = np.stack(np.meshgrid(*[np.arange(-most, most + 1)] * n, indexing="ij"), axis=-1).reshape(-1, n)
    nearest = np.clip(0, grid, grid + 1)
    assert reachable_points(cepam.Integer(n), reach) == (np.square(nearest).sum(axis=1) <= radius**2).sum()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_points_that_are_sent_are_among_those_that_can_be_reached(n: int) -> None:
    """Real (H, M) of updates on the sphere of norm 1: the cell of every M meets the ball of radius 1 + r."""
    law, lattice = cepam.Gaussian(0.05), cepam.Integer(n)
    quantizer = cepam.LRSUQ(law, lattice)
    rows = np.random.default_rng(n).standard_normal((3000, n))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    at = cepam.Address(seeded_key(n), round=0, client=0)
    _, m = quantizer.quantize(rows.reshape(-1), at)
    radius, b = layers(quantizer.plan, at.derive().noise, np.arange(3000))
    nearest = np.clip(0, m, m + 1)
    inside = np.linalg.norm(nearest, axis=1) <= (1.0 / quantizer.plan.unit + radius) / b * (1 + 1e-9) + 1e-9
    assert inside.all()
    # Control: a bound a tenth too small is seen.
    assert not (np.linalg.norm(nearest, axis=1) <= (0.9 / quantizer.plan.unit + radius) / b).all()


def test_a_box_around_the_points_costs_a_little_more_in_the_plane_and_nothing_on_the_line() -> None:
    law = cepam.Gaussian(0.05)
    line = rate(law, cepam.Integer(1), 1.0, 1).point_bits
    assert reachable_point_bits(law, cepam.Integer(1), 1.0) == pytest.approx(line, abs=0.01)
    for lattice in (cepam.Integer(2), cepam.A2):
        assert 0 < rate(law, lattice, 1.0, 2).point_bits - reachable_point_bits(law, lattice, 1.0) < 1.5


@pytest.mark.parametrize("p", [0.006, 0.1, 0.2537, 0.5, 0.6169, 0.9069])
def test_trials_cost_their_entropy_and_golomb_a_little_more(p: float) -> None:
    entropy = float(stats.geom(p).entropy()) / math.log(2)
    assert trial_entropy(p) == pytest.approx(entropy, rel=1e-9)
    run, q = max(1, math.ceil(-math.log(2 - p) / math.log(1 - p))), 1 - p
    full = math.ceil(math.log2(run))
    longer = (q ** ((1 << full) - run) - q**run) / (1 - q**run) if run > 1 else 0.0
    assert golomb_length(p) == pytest.approx(1 / (1 - q**run) + max(full - 1, 0) + longer, rel=1e-9)
    assert entropy <= golomb_length(p) <= entropy + 1


def test_certain_acceptance_costs_nothing() -> None:
    assert trial_entropy(1.0) == golomb_length(1.0) == 0.0


def test_refusals() -> None:
    with pytest.raises(ValueError, match="size"):
        rate(cepam.Gaussian(1.0), cepam.Integer(1), 1.0, 0)
    with pytest.raises(ValueError, match="bound"):
        rate(cepam.Gaussian(1.0), cepam.Integer(1), -1.0, 5)
    with pytest.raises(ValueError, match="dimensions up to 3"):
        reachable_points(cepam.E8, 2.0)
    with pytest.raises(ValueError, match="l2 balls"):
        reachable_point_bits(cepam.Laplace(1.0), cepam.Integer(2), 1.0)
    codec = cepam.Codec(cepam.Gaussian(1.0), cepam.Integer(1), coder="paper", bound=1.0)
    with pytest.raises(ValueError, match="one block"):
        code_bits(codec, np.zeros(9000), cepam.Address(seeded_key(0), round=0, client=0))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_points_of_the_papers_cell_are_those_that_a_listing_finds(n: int) -> None:
    """M counts where the cube around it meets the ball, cube by cube; the cell [0, 1)^n gives other numbers."""
    for reach in (1.0, 1.9, 2.0, 3.3, 7.7, 12.4):
        radius, most = reach / 2, int(reach) + 2
        listed = 0
        for point in itertools.product(range(-most, most + 1), repeat=n):
            nearest = [max(abs(c) - 0.5, 0.0) for c in point]
            listed += sum(c * c for c in nearest) <= radius**2
        assert paper_points(n, reach) == listed
    assert any(paper_points(n, reach) != reachable_points(cepam.Integer(n), reach) for reach in (1.5, 3.3, 5.0))


def test_the_papers_formula_at_its_own_noise() -> None:
    assert paper_point_bits(cepam.Gaussian(0.01), 1, 1.0, 2000) == pytest.approx(6.660, abs=1e-3)
    assert reachable_point_bits(cepam.Gaussian(0.01), cepam.Integer(1), 1.0, 2000) == pytest.approx(6.638, abs=1e-3)
