"""Future work of the paper at a small effort: bounds hold, controls exceed them, larger batches help."""

from __future__ import annotations

from typing import Any

import pytest

from cepam_paper import extensions
from cepam_paper.section import Table


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
