"""Intervals to labels, by hand: what excludes a claim, what shows it, and what can do neither."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from cepam_paper.estimate import estimate, median
from cepam_paper.verdict import Estimate, Label
from cepam_paper.weighing import (
    ANY,
    alike,
    bends,
    improvement,
    improvements,
    mainly,
    ratio_of_means,
    reproduced,
    together,
)

Floats = npt.NDArray[np.float64]
HOLDS, REPAIRED, INCONCLUSIVE, FAILS, *_ = Label
ALONE = Estimate(5.0, -math.inf, math.inf, 1)


def one(low: float, high: float, seeds: int = 0) -> Estimate:
    return Estimate((low + high) / 2, low, high, seeds)


@pytest.mark.parametrize(
    ("low", "high", "label"),
    [
        (0.1, 0.5, HOLDS),
        (0.5, 0.8, HOLDS),
        (1.2, 1.5, REPAIRED),
        (-0.1, 0.5, INCONCLUSIVE),
        (-9.0, 9.0, INCONCLUSIVE),
        (-0.1, 0.39, FAILS),
        (0.1, 0.3, FAILS),
        (-2.0, -1.0, FAILS),
    ],
)
def test_an_improvement_of_0_4_to_1(low: float, high: float, label: Label) -> None:
    assert improvement(one(low, high), 0.4, 1.0) is label


def test_one_seed_decides_nothing() -> None:
    assert improvement(ALONE, ANY) is INCONCLUSIVE
    assert improvements([ALONE, one(0.5, 0.9)], ANY) is INCONCLUSIVE
    assert alike([ALONE], 0.5) is INCONCLUSIVE
    assert bends(ALONE, ALONE) is INCONCLUSIVE
    assert reproduced([ALONE], [one(93.0, 94.0)], 1.0) is INCONCLUSIVE
    assert str(ALONE) == "+5.00 (one seed, no interval)"


def test_an_interval_at_another_level_is_students() -> None:
    values = np.array([0.1, 0.4, 0.2, 0.9, 0.3])
    spread = values.std(ddof=1) / 5**0.5
    made = [stats.t.ppf(1 - chance / 2, 4) * spread for chance in (0.05, 0.01)]
    mean = float(values.mean())
    found = Estimate(mean, mean - made[0], mean + made[0], 5).at(0.01)
    assert found.half == pytest.approx(made[1])
    assert Estimate(0.0, -1.96, 1.96).at(0.1).high == pytest.approx(1.645, abs=1e-3)


def test_many_comparisons_exclude_a_true_claim_no_more_often_than_one() -> None:
    """Twelve true effects of 0.5: about 1 in 20 sets may fail with the correction, 1 in 4 without it."""
    draw = np.random.default_rng(1)
    failed = {"together": 0, "each": 0}
    for _ in range(400):
        values = 0.5 + draw.normal(size=(12, 10))
        half = stats.t.ppf(0.975, 9) * values.std(axis=1, ddof=1) / 10**0.5
        found = [Estimate(m, m - h, m + h, 10) for m, h in zip(values.mean(axis=1), half)]
        failed["together"] += improvements(found, 0.5) is FAILS
        failed["each"] += any(improvement(each, 0.5) is FAILS for each in found)
    # 400 sets: 20 expected at most (10 here, one side counts), and five standard deviations more are 42.
    assert failed["together"] <= 42
    assert failed["each"] > 60


def test_alike_needs_intervals_inside_the_bound() -> None:
    assert alike([one(-0.2, 0.2, 10)], 0.5) is HOLDS
    assert alike([one(-0.2, 0.2, 10), one(-0.9, 0.3, 10)], 0.5) is INCONCLUSIVE
    assert alike([one(-0.2, 0.2, 10), one(0.9, 1.1, 10)], 0.5) is FAILS


def test_a_wide_interval_reproduces_nothing() -> None:
    printed = [one(93.0, 94.0)]
    assert reproduced([one(93.2, 93.6)], printed, 1.0) is HOLDS
    assert reproduced([one(88.0, 98.0)], printed, 1.0) is INCONCLUSIVE, "it overlaps by its width alone"
    assert reproduced([one(92.3, 92.7)], printed, 1.0) is INCONCLUSIVE
    assert reproduced([one(91.0, 91.5)], printed, 1.0) is FAILS
    assert reproduced([one(93.2, 93.6), one(91.0, 91.5)], printed * 2, 1.0) is FAILS


def test_a_sentence_without_a_size_is_excluded_by_a_loss_alone() -> None:
    assert improvement(one(0.05, 0.2), ANY) is HOLDS
    assert improvement(one(-0.3, 0.3), ANY) is INCONCLUSIVE
    assert improvement(one(-0.3, -0.1), ANY) is FAILS


def paired(part: Floats, whole: Floats) -> Estimate:
    """The ratio of two arms' means by the estimates that a part keeps of them."""
    kept = [estimate([float(v) for v in values]) for values in (part, whole, part - whole)]
    return ratio_of_means(*(Estimate(one["mean"], one["low"], one["high"], one["seeds"]) for one in kept))


def arms(draw: np.random.Generator, seeds: int) -> tuple[Floats, Floats]:
    """Two arms whose means are 1.2 and 2.4 and that share a part of their spread."""
    shared = draw.normal(0, 0.4, seeds)
    return 1.2 + 0.5 * shared + draw.normal(0, 0.3, seeds), 2.4 + shared + draw.normal(0, 0.3, seeds)


def test_the_interval_of_a_ratio_is_the_bootstraps_where_there_are_many_seeds() -> None:
    draw = np.random.default_rng(3)
    part, whole = arms(draw, 400)
    found, rows = paired(part, whole), draw.integers(0, 400, (20_000, 400))
    oracle = np.quantile(part[rows].mean(1) / whole[rows].mean(1), (0.025, 0.975))
    width = oracle[1] - oracle[0]
    assert [found.low, found.high] == pytest.approx(oracle, abs=0.05 * width)
    # Control: arms taken as independent have an interval of another width.
    apart = ratio_of_means(*(Estimate(m, m - h, m + h, 400) for m, h in ((1.2, 0.036), (2.4, 0.049), (-1.2, 0.061))))
    assert abs((apart.high - apart.low) / width - 1) > 0.1


def test_the_interval_of_a_ratio_covers_it_with_ten_seeds() -> None:
    """4,000 studies: six standard errors are 0.021. Control: the change over a mean that is taken as known."""
    draw, sure, naive = np.random.default_rng(4), 0, 0
    for _ in range(4000):
        part, whole = arms(draw, 10)
        found = paired(part, whole)
        sure += found.low <= 0.5 <= found.high
        change = estimate([float(v) for v in (part - whole) / whole.mean()])
        naive += change["low"] <= -0.5 <= change["high"]
    assert sure / 4000 == pytest.approx(0.95, abs=0.021)
    assert abs(naive / 4000 - 0.95) > 0.021


def test_a_ratio_to_what_may_be_nothing_has_no_interval() -> None:
    assert math.isinf(ratio_of_means(one(0.5, 1.5), one(-0.1, 4.1), one(-2.0, 0.0)).high)
    assert math.isinf(ratio_of_means(ALONE, ALONE, ALONE).low)


def test_mainly_is_more_than_half_of_one_scale_and_not_less_than_half_of_the_other() -> None:
    assert mainly(one(0.3, 0.49)) is HOLDS
    assert mainly(one(0.3, 0.51)) is INCONCLUSIVE
    assert mainly(one(0.6, 0.7)) is INCONCLUSIVE, "half of the mean square is gone, of its root a third"
    assert mainly(one(0.72, 0.9)) is FAILS
    assert mainly(ALONE) is INCONCLUSIVE


def test_a_median_has_an_interval_for_values_without_a_mean() -> None:
    """Cauchy values: the interval of ten covers the median 97.9 times of 100."""
    draw = np.random.default_rng(0)
    made = [median(list(draw.standard_cauchy(10))) for _ in range(4000)]
    covered = np.mean([value["low"] <= 0 <= value["high"] for value in made])
    # Six standard errors are 0.0136.
    assert covered == pytest.approx(1 - 2 * stats.binom.cdf(1, 10, 0.5), abs=0.0136)
    assert median([3.0, 1.0, 2.0]) == {"median": 2.0, "low": None, "high": None, "seeds": 3}


def test_a_bend_rises_and_then_rises_less() -> None:
    assert bends(one(1.0, 2.0), one(-0.5, 0.5)) is HOLDS
    assert bends(one(1.0, 2.0), one(0.5, 1.5)) is INCONCLUSIVE
    assert bends(one(1.0, 2.0), one(2.5, 3.5)) is FAILS
    assert bends(one(-2.0, -1.0), one(-9.0, -8.0)) is FAILS


def test_all_at_once_is_as_weak_as_the_weakest() -> None:
    assert together([HOLDS, HOLDS]) is HOLDS
    assert together([HOLDS, REPAIRED]) is REPAIRED
    assert together([REPAIRED, INCONCLUSIVE]) is INCONCLUSIVE
    assert together([INCONCLUSIVE, FAILS]) is FAILS
