"""Lemmas on mini-batch gradients, each by another method: enumeration of all batches, or random vectors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from cepam.downlink.broadcast import Broadcast
from cepam_paper.theory.descent import clip_rows, quantized_downlink
from cepam_paper.theory.downlink import DownlinkError, downlink_error
from cepam_paper.theory.geman_mcclure import CURVED, STEEPEST, GemanMcClure, loss, scattered, slope
from cepam_paper.theory.gradients import ExampleSums, GradientBounds, clipping_loss, clipping_loss_bound
from cepam_paper.theory.synthetic import Kind, synthetic

Floats = npt.NDArray[np.float64]


def batches(gradients: Floats, size: int) -> Floats:
    """The mean gradient of every ordered batch drawn with replacement, all equally likely."""
    return np.array(
        [gradients[list(chosen)].mean(axis=0) for chosen in itertools.product(range(len(gradients)), repeat=size)]
    )


def clipped(vectors: Floats, clip: float) -> Floats:
    return clip_rows(vectors, clip)[0]


def test_clipping_moves_a_vector_by_the_excess_of_its_norm() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        x, clip = draw.standard_normal((1, 4)) * draw.exponential(2.0), float(draw.exponential(1.0)) + 1e-3
        moved = float(np.linalg.norm(x - clipped(x, clip)))
        assert moved == pytest.approx(float(clipping_loss(np.linalg.norm(x), clip)), abs=1e-12)
        assert moved <= float(clipping_loss_bound(np.square(x).sum(), clip)) + 1e-12
    at = float(clipping_loss(2.0, 1.0))
    assert at == float(clipping_loss_bound(4.0, 1.0)), "attained at twice the clipping norm"


def test_clipping_brings_no_two_vectors_farther_apart() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.standard_normal((2, 5000, 3)) * draw.exponential(2.0, (2, 5000, 1))
    apart = np.linalg.norm(clipped(x, 1.0) - clipped(y, 1.0), axis=1)
    assert (apart <= np.linalg.norm(x - y, axis=1) * (1 + 1e-12)).all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_batch_has_the_variance_of_a_record_over_its_size_and_clipping_adds_none(size: int) -> None:
    draw = np.random.default_rng(2)
    for _ in range(30):
        records = draw.standard_normal((4, 3)) * draw.exponential(2.0)
        of_one = float(records.var(axis=0).sum())
        every = batches(records, size)
        assert float(every.var(axis=0).sum()) == pytest.approx(of_one / size)
        clip = float(draw.exponential(1.0)) + 0.01
        bounds = GradientBounds(1.0, (1.0,), (9.0,), (of_one,), (math.inf,))
        assert float(clipped(every, clip).var(axis=0).sum()) <= float(bounds.variance(size, clip)[0]) * (1 + 1e-12)


def test_clipping_error_bounds_hold_by_enumeration_and_none_is_superfluous() -> None:
    draw, least = np.random.default_rng(3), set()
    for _ in range(400):
        records = draw.standard_normal((4, 2)) * draw.exponential(0.5) + draw.standard_normal(2) * draw.exponential(1.0)
        size, clip = int(draw.integers(1, 4)), float(draw.exponential(1.0)) + 0.05
        mean, norms = records.mean(axis=0), np.linalg.norm(records, axis=1)
        full, spread = float(np.linalg.norm(mean)), float(records.var(axis=0).sum())
        bounds = GradientBounds(1.0, (1.0,), (full,), (spread,), (float(norms.max()),))
        every = batches(records, size)
        found = float(np.linalg.norm(every - clipped(every, clip), axis=1).mean())
        bias = float(np.linalg.norm(clipped(every, clip).mean(axis=0) - mean))
        stated = float(bounds.clipping_error(size, clip)[0])
        assert bias <= found + 1e-12
        assert found <= stated + 1e-12
        assert np.square(every).sum(axis=1).mean() <= float(bounds.second_moment(size)[0]) * (1 + 1e-12)
        three = (
            float(clipping_loss(norms.max(), clip)), float(bounds.second_moment(size)[0]) / (4 * clip),
            spread / (4 * size * (clip - full)) if clip > full else math.inf,
        )  # fmt: skip
        least.add(int(np.argmin(three)) if stated > 0 else -1)
    assert least >= {0, 1, 2}


def test_sums_of_clipped_examples_by_enumeration_of_all_poisson_samples() -> None:
    """`update examples`: bias and variance of the sum over the expected size, for every subset of five records."""
    draw, tightest = np.random.default_rng(7), 0.0
    for _ in range(100):
        records = draw.standard_normal((5, 2)) * draw.exponential(1.0) + draw.standard_normal(2)
        clip, expected = float(draw.exponential(1.0)) + 0.05, int(draw.integers(1, 5))
        chance = expected / len(records)
        subsets = np.array(list(itertools.product([0, 1], repeat=5)), dtype=np.float64)
        share = (chance**subsets * (1 - chance) ** (1 - subsets)).prod(axis=1)
        sums = subsets @ clipped(records, clip) / expected
        mean = share @ sums
        variance = float(share @ np.square(sums - mean).sum(axis=1))
        full, norms = records.mean(axis=0), np.linalg.norm(records, axis=1)
        spread = float(np.square(records - full).sum(axis=1).mean())
        bounds = ExampleSums(1.0, (1.0,), (float(np.linalg.norm(full)),), (spread,), (float(norms.max()),))
        assert variance <= float(bounds.variance(expected, clip)[0]) * (1 + 1e-12)
        assert float(np.linalg.norm(mean - full)) <= float(bounds.clipping_error(expected, clip)[0]) + 1e-12
        tightest = max(tightest, variance / float(bounds.variance(expected, clip)[0]))
        plain = GradientBounds(1.0, (1.0,), bounds.full_norms, bounds.variances, bounds.sample_norms)
        assert float(bounds.clipping_error(expected, clip)[0]) >= float(plain.clipping_error(expected, clip)[0])
    assert tightest > 0.7


def test_control_a_larger_batch_does_not_lower_the_bias_below_the_full_gradients() -> None:
    """Clipping below the full gradient: more records do not help, and the bound says so."""
    bounds = GradientBounds(1.0, (1.0,), (2.0,), (1.0,), (5.0,))
    assert float(bounds.clipping_error(10**6, 1.0)[0]) == pytest.approx(1.0, rel=1e-5)
    assert float(bounds.clipping_error(10**6, 3.0)[0]) < 1e-6


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="2 numbers"):
        GradientBounds(1.0, (0.5, 0.5), (1.0,), (1.0, 1.0), (1.0, 1.0))
    bounds = GradientBounds(1.0, (1.0,), (1.0,), (1.0,), (1.0,))
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="batch"):
            bounds.variance(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clip"):
        bounds.clipping_error(1, 0.0)


def test_geman_mcclure_slopes_and_curvatures_are_as_stated() -> None:
    x = np.linspace(-30, 30, 200_001)
    assert slope(x) == pytest.approx(np.gradient(loss(x), x), abs=1e-6)
    assert float(np.abs(slope(x)).max()) == pytest.approx(STEEPEST, rel=1e-6)
    bends = np.gradient(slope(x), x)[1:-1]
    assert float(bends.max()) == pytest.approx(CURVED, rel=1e-5)
    assert float(bends.min()) == pytest.approx(-0.5, rel=1e-4), "it is not convex"


@pytest.mark.parametrize("heavy", [False, True])
def test_constants_of_the_nonconvex_problem_are_suprema(heavy: bool) -> None:
    """Random weights never exceed them, and a search comes near each."""
    problem = scattered(3, 2, 10, 1.0, 5)
    if heavy:
        problem = GemanMcClure(problem.records, np.linspace(0.5, 6.0, 30).reshape(3, 10), problem.weights)
    bounds, draw = problem.gradients, np.random.default_rng(6)
    line = np.linspace(problem.records.min() - 2, problem.records.max() + 2, 4000)
    w = np.stack(np.meshgrid(line[::20], line[::20], indexing="ij"), axis=-1).reshape(-1, 2)
    w = np.concatenate([w, draw.standard_normal((2000, 2)) * 5])
    for k in range(3):
        each = problem.gradient(w[:, None, :], problem.records[k], problem.heights[k])
        norms, full = np.linalg.norm(each, axis=2), np.linalg.norm(each.mean(axis=1), axis=1)
        spread = np.square(each - each.mean(axis=1, keepdims=True)).sum(axis=2).mean(axis=1)
        for found, stated in (
            (norms.max(), bounds.sample_norms[k]),
            (full.max(), bounds.full_norms[k]),
            (spread.max(), bounds.variances[k]),
        ):
            assert 0.9 * stated <= found <= stated
    assert float(problem.objective(w).min()) >= problem.least
    assert float(problem.objective(w).min()) <= problem.least + 0.05 * float(problem.heights.max())
    steps = draw.standard_normal((len(w), 2)) * 1e-4
    turned = np.linalg.norm(problem.full_gradient(w + steps) - problem.full_gradient(w), axis=1)
    assert (turned <= bounds.smoothness * np.linalg.norm(steps, axis=1) * (1 + 1e-6)).all()


@pytest.mark.parametrize("kind", ["logistic regression", "least squares"])
def test_constants_of_the_convex_problems_bound_what_is_met_on_the_domain(kind: Kind) -> None:
    problem, draw = synthetic(kind, 3, 4, 1.0, 1, records=20), np.random.default_rng(8)
    w = draw.standard_normal((500, 1, 4))
    w *= problem.radius / np.linalg.norm(w, axis=2, keepdims=True) * draw.random((500, 1, 1)) ** 0.25
    bounds = problem.gradients
    for k in range(3):
        each = problem.gradient(w, problem.features[k], problem.targets[k])
        mean = each.mean(axis=1)
        assert np.linalg.norm(mean, axis=1).max() <= bounds.full_norms[k]
        assert np.square(each - mean[:, None]).sum(axis=2).mean(axis=1).max() <= bounds.variances[k]


def test_the_real_downlink_stays_within_its_stated_error() -> None:
    draw = np.random.default_rng(9)
    start = draw.standard_normal((3, 5))
    send = quantized_downlink(lambda r: 0.1 / (r + 1), "test", start)
    weights = start
    for r in range(12):
        weights = weights + 0.05 * draw.standard_normal(weights.shape)
        off = np.linalg.norm(send(weights, r) - weights, axis=1)
        assert off.max() <= downlink_error(0.1 / (r + 1), 5, 8.0)
    assert off.max() > downlink_error(0.1 / 12, 5, 8.0) / 20, "the grid is felt"


def test_the_error_by_learning_rate_is_that_of_the_rule_for_the_step() -> None:
    first, noise = 0.5, 0.03
    for exponent in (0.0, 0.25, 0.5, 1.0):
        stated = DownlinkError.of_rule(256.0, noise, exponent, first, 7, 4.0, 1.25)
        for rate in (0.5, 0.1, 1e-3):
            step = Broadcast.step_for(rate, noise, 256.0, exponent, first)
            assert float(stated.at(rate)) == pytest.approx(downlink_error(step, 7, 4.0, 1.25))
    later = DownlinkError.of_rule(256.0, noise, 0.5, first, 7, 4.0, 1.25, late=4.0)
    early = DownlinkError.of_rule(256.0, noise, 0.5, first, 7, 4.0, 1.25)
    assert later.ratio == pytest.approx(2.0 * early.ratio), "the step of a rate four times as large"
