"""Clips keep their bound after rounding, and keep direction, type and what is small enough already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cepam

CLIPS = [cepam.L1, cepam.L2]


@pytest.mark.parametrize("make", CLIPS)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    update=arrays(
        st.sampled_from([np.float32, np.float64]), st.integers(0, 40), elements=st.floats(-1e6, 1e6, width=32)
    ),
    bound=st.floats(1e-6, 1e6),
)
def test_the_bound_holds_after_rounding(make: Any, update: np.ndarray, bound: float) -> None:
    clip = make(bound)
    clipped = clip.apply(update)
    assert clip.measure(clipped) <= bound
    assert clipped.dtype == update.dtype
    assert clipped.shape == update.shape
    if clip.measure(update) <= bound:
        assert np.array_equal(clipped, update)
    else:
        assert clip.measure(clipped) >= bound * (1 - 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", CLIPS)
def test_direction_is_kept(make: Any, dtype: Any) -> None:
    update = np.random.default_rng(1).normal(size=10_000).astype(dtype)
    clipped = make(1.0).apply(update)
    factor = clipped / update
    assert np.allclose(factor, factor[0], rtol=1e-6)
    assert 1 - 1e-6 < make(1.0).measure(clipped) <= 1.0


@pytest.mark.parametrize("make", CLIPS)
def test_update_is_not_touched(make: Any) -> None:
    update = np.ones(10)
    make(0.5).apply(update)
    assert np.array_equal(update, np.ones(10))


def test_norms() -> None:
    assert cepam.L1(1.0).measure(np.array([3.0, -4.0])) == 7.0
    assert cepam.L2(1.0).measure(np.array([3.0, -4.0])) == 5.0
    assert (cepam.L1(1.0).norm, cepam.L2(1.0).norm) == ("l1", "l2")
    assert cepam.L2(1.0).measure(np.zeros(0)) == 0.0


def test_norm_is_added_up_in_float64() -> None:
    assert cepam.L1(1.0).measure(np.full(2**24 + 8, 1.0, dtype=np.float32)) == 2**24 + 8


@pytest.mark.parametrize("make", CLIPS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_has_no_norm_is_refused(make: Any, bad: float) -> None:
    with pytest.raises(ValueError, match="cannot clip"):
        make(1.0).apply(np.array([1.0, bad]))


@pytest.mark.parametrize("make", CLIPS)
@pytest.mark.parametrize("bound", [0, -1.0, np.nan, np.inf, "1", None, True])
def test_bounds_are_checked_at_the_door(make: Any, bound: Any) -> None:
    with pytest.raises(ValueError, match="bound"):
        make(bound)


def test_a_clip_is_a_clip() -> None:
    assert isinstance(cepam.L2(1.0), cepam.Clip)
    assert cepam.L2(1.0) == cepam.L2(1.0)
    assert cepam.L2(1.0) != cepam.L1(1.0)
