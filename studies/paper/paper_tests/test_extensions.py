"""Future work of the paper at a small effort: bounds hold, controls exceed them, larger batches help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cepam.fl.config.presets import SMALL_DOWNLINK
from cepam_paper import downlink_case, extensions
from cepam_paper.section import Table
from cepam_paper.theory.bowls import QuadraticClients


@pytest.fixture(scope="module")
def nonconvex() -> dict[str, Any]:
    return extensions.nonconvex(120, 8, 3)


@pytest.fixture(scope="module")
def minibatches() -> dict[str, Any]:
    return extensions.minibatches(150, 10, 3)


def test_gradients_stay_under_the_bound_and_not_far_under_it(nonconvex: dict[str, Any]) -> None:
    assert nonconvex["held_everywhere"] is True
    assert len(nonconvex["cases"]) == len(extensions.CASES)
    assert all(one["bound_over_mean"] < 50 for one in nonconvex["cases"].values())
    for one in nonconvex["cases"].values():
        assert one["downlink_error"] <= one["downlink_bound"]
    grids = [one["downlink_error"] for one in nonconvex["cases"].values() if one["downlink_bound"] > 0]
    assert len(grids) == 2
    assert min(grids) > 0


def test_clipping_is_idle_where_its_bias_is_zero(nonconvex: dict[str, Any]) -> None:
    for one in nonconvex["cases"].values():
        assert (one["bias"] == 0) == (one["clipped"] == 0) or one["bias"] > 0
    assert max(one["clipped"] for one in nonconvex["cases"].values()) > 0.5


def test_a_broken_assumption_breaks_the_bound(nonconvex: dict[str, Any]) -> None:
    fast, opposed = nonconvex["controls"]["rate"], nonconvex["controls"]["clipping"]
    assert fast["mean"] > 3 * fast["formula"], "a learning rate above 1/L"
    assert fast["mean_within"] < fast["bound_within"], "the same problem at 1/L"
    assert opposed["mean"] > 2 * opposed["formula"], "clipping taken for unbiased"
    assert opposed["mean"] < opposed["bound"], "with its bias"


def test_larger_batches_lower_the_gap_and_the_bound(minibatches: dict[str, Any]) -> None:
    assert minibatches["held_everywhere"] is True
    one, many = minibatches["cases"]["1"], minibatches["cases"]["64"]
    assert many["gap_high"] < one["gap_low"]
    assert many["bound"] < one["bound"]
    exact, quantized = minibatches["local"]["exact"], minibatches["local"]["quantized"]
    assert quantized["kappa"] > 0 == exact["kappa"]
    assert quantized["bound"] > exact["bound"]


def test_tables_show_every_case(nonconvex: dict[str, Any], minibatches: dict[str, Any]) -> None:
    made: list[Table] = [extensions.nonconvex_table(nonconvex), extensions.minibatch_table(minibatches)]
    assert [len(table.rows) for table in made] == [len(extensions.CASES) + 3, len(extensions.BATCHES) + 2]
    assert [row[-1] for row in made[0].rows][-3:] == ["NO", "NO", "yes"]
    assert all(len(row) == len(table.columns) for table in made for row in table.rows)


@pytest.fixture(scope="module")
def lagging() -> dict[str, Any]:
    return downlink_case.hysteresis(120, 6, 3)


def test_the_rule_of_the_presets_is_covered_and_the_worst_of_its_size_too(lagging: dict[str, Any]) -> None:
    assert lagging["held_everywhere"] is True
    rule, worst = lagging["cases"].values()
    assert 0.75 < rule["steps_off"] <= lagging["farthest"] + 1e-3, "the zone is used, and the cap holds"
    assert rule["error_share"] < 1
    assert worst["error_share"] == pytest.approx(1.0)
    assert worst["gap"] > 5 * rule["gap"]
    assert worst["gap"] < worst["recursion"] < worst["bound"]


def test_weights_that_never_move_exceed_the_bound(lagging: dict[str, Any]) -> None:
    control = lagging["control"]
    assert control["error_share"] > 1
    assert control["held"] is False
    assert control["gap_low"] > control["bound"]


def test_its_rule_is_that_of_the_presets() -> None:
    chosen = SMALL_DOWNLINK
    told = (chosen["downlink_step_factor"], chosen["downlink_step_exponent"], chosen["downlink_hysteresis"])
    assert told == (downlink_case.FACTOR, downlink_case.EXPONENT, downlink_case.ZONE)


def test_the_table_has_both_cases_and_the_control(lagging: dict[str, Any]) -> None:
    table = downlink_case.hysteresis_table(lagging)
    assert [row[-1] for row in table.rows] == ["yes", "yes", "NO"]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_constants_of_quadratic_clients_are_exact() -> None:
    draw = np.random.default_rng(0)
    problem = QuadraticClients(draw.standard_normal((3, 4, 5)), np.linspace(0.5, 3.0, 5), (0.2, 0.3, 0.5))
    w = draw.standard_normal(5)
    each = problem.gradient(w, problem.records)
    assert problem.gradients.variances == pytest.approx(
        np.square(each - each.mean(axis=1, keepdims=True)).sum(axis=2).mean(axis=1)
    )
    values = (np.square(w - problem.records) @ problem.curvatures / 2).mean(axis=1) @ np.array(problem.weights)
    assert values - problem.constants.least_value == pytest.approx(problem.gaps(w))
    between = (np.square(problem.centres - problem.minimum) @ problem.curvatures / 2) @ np.array(problem.weights)
    assert problem.constants.heterogeneity == pytest.approx(between)
    assert (problem.constants.convexity, problem.constants.smoothness) == (0.5, 3.0)
