"""The public grid: nearest points, nested steps, the same bits in both forms, and doors that stay shut."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.downlink.grid import BLOCK_COORDINATES, Grid, Point, check_run, check_weights, shift_of
from cepam.kernels.numpy.keystream import stream_words

RUN = b"a run"
UNIT = Fraction(1, 2**40)


def exact_point(grid: Grid, values: Any, shift: int) -> list[int]:
    """The nearest grid points by rational numbers alone: the oracle of `Grid.nearest`."""
    words = stream_words(grid.key, 0, np.arange(len(values)))
    step, points = 2**shift * UNIT, []
    for value, word in zip(values, words):
        dither = (int(word) % 2**48) % 2**shift * UNIT
        unit = Fraction(round(Fraction(float(value)) / UNIT)) * UNIT
        points.append(int((unit - dither + step / 2) // step))
    return points


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=20),
    st.integers(20, 48),
    st.sampled_from(["numba", "numpy"]),
)
def test_points_are_the_nearest_by_rational_arithmetic(values: list[float], shift: int, backend: Any) -> None:
    grid, weights = Grid(RUN, backend), np.array(values, dtype=np.float32)
    point = grid.nearest(weights, shift)
    assert point.steps.tolist() == exact_point(grid, weights, shift)
    off = np.abs(grid.weights(point).astype(np.float64) - weights)
    assert (off <= 2.0 ** (shift - 41) + 2.0**-41 + np.spacing(np.abs(weights) + 2.0 ** (shift - 40))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_forms_agree_over_blocks_and_threads(dtype: Any) -> None:
    weights = np.random.default_rng(1).normal(size=17 * BLOCK_COORDINATES + 5).astype(dtype)
    one, other = Grid(RUN, "numba", threads=2), Grid(RUN, "numpy", threads=1)
    point = one.nearest(weights, 34)
    np.testing.assert_array_equal(point.steps, other.nearest(weights, 34).steps)
    np.testing.assert_array_equal(one.weights(point), other.weights(point))


def test_a_finer_grid_contains_every_coarser_one() -> None:
    grid = Grid(RUN)
    weights = np.random.default_rng(2).normal(size=500)
    coarse = grid.nearest(weights, 36)
    for shift in (36, 35, 33, 27):
        moved = grid.decode(coarse, shift, [b""])
        np.testing.assert_array_equal(grid.weights(moved), grid.weights(coarse))


def test_what_led_to_a_point_can_be_taken_back() -> None:
    grid, draw = Grid(RUN), np.random.default_rng(3)
    weights = draw.normal(size=9000)
    before = grid.nearest(weights, 36)
    for shift in (36, 35, 30):
        after = grid.nearest(weights + draw.normal(size=9000) * 0.01, shift)
        back = grid.before(after, grid.encode(before, after), 36)
        np.testing.assert_array_equal(back.steps, before.steps)


def test_the_dither_leaves_no_bias_and_no_dead_zone() -> None:
    """Equal small weights move on the average by what they are, though each sits still or moves a whole step.

    Mean of 2**17 coordinates with a standard deviation of at most step/2: a chance of 1e-9 is 6.2 of its deviations.
    The control rounds without dither, and must lose the move altogether.
    """
    count, step = 2**17, 2.0**-6
    grid, weights = Grid(RUN), np.full(2**17, 0.3 * 2.0**-6)
    mean = float(grid.weights(grid.nearest(weights, shift_of(step))).astype(np.float64).mean())
    margin = 6.2 * step / 2 / np.sqrt(count)
    assert abs(mean - weights[0]) < margin
    assert abs(float((np.rint(weights / step) * step).mean()) - weights[0]) > margin


def test_runs_have_grids_of_their_own() -> None:
    weights = np.zeros(64)
    first, second = (Grid(run).weights(Grid(run).nearest(weights, 38)) for run in (b"one", b"two"))
    assert (first != second).mean() > 0.9


@pytest.mark.parametrize(
    ("step", "shift"), [(1.0, 40), (1.9999, 40), (2.0, 41), (0.75, 39), (2.0**-40, 0), (256.0, 48), (1e9, 48)]
)
def test_a_step_is_rounded_down_to_a_power_of_two(step: float, shift: int) -> None:
    assert shift_of(step) == shift


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), 2.0**-41, True, "1"])
def test_a_step_must_be_a_number_in_range(step: Any) -> None:
    with pytest.raises(ValueError, match="step must be"):
        shift_of(step)


@pytest.mark.parametrize(
    "weights",
    [
        np.array([np.nan], np.float32), np.array([1.0, np.inf]), np.array([-np.inf]), np.array([2.0**20 * 1.001]),
        np.array([1, 2]), np.zeros((2, 2)), np.array([1.0], np.float16), [[1.0]],
    ],
)  # fmt: skip
def test_weights_must_be_finite_vectors_within_reach(weights: Any) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        check_weights("weights", weights)


def test_a_step_too_fine_for_the_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="too fine"):
        Grid(RUN).nearest(np.array([1000.0]), 0)


@pytest.mark.parametrize("run", [b"", "", 7, None])
def test_a_run_has_a_name(run: Any) -> None:
    with pytest.raises(ValueError, match="run must be"):
        check_run(run)


def test_no_backend_of_another_name() -> None:
    with pytest.raises(ValueError, match="backend must be one of"):
        Grid(RUN, "cuda")  # type: ignore[arg-type]


def test_the_largest_points_come_back() -> None:
    grid, weights = Grid(RUN), np.array([2.0**20, -(2.0**20)])
    for shift in (31, 40, 48):
        point = grid.nearest(weights, shift)
        again = grid.decode(2, shift, grid.encode(2, point))
        np.testing.assert_array_equal(again.steps, point.steps)
        assert isinstance(again, Point)
