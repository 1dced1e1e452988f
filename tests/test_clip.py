"""Clips keep their bound after rounding, and keep direction, type, device and what is small enough already."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cepam
from cepam.clip import clip_factors, clip_rows, margin

torch = pytest.importorskip("torch")
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


TYPES = [np.float16, np.float32, np.float64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def of_type(values: np.ndarray, dtype: Any) -> Any:
    return torch.tensor(values).to(dtype) if isinstance(dtype, torch.dtype) else values.astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("make", CLIPS)
@pytest.mark.parametrize("bound", [1e-6, 0.3, 1.0])
def test_the_margin_holds_in_every_type(make: Any, dtype: Any, bound: float) -> None:
    """Also where rounding up to a type's smallest number makes a vector grow (float16 under 1e-6)."""
    rng = np.random.default_rng(7)
    for scale in (1e-3, 1.0, 50.0):
        update = of_type(rng.normal(size=3000) * scale, dtype)
        clipped = make(bound).apply(update)
        assert make(bound).measure(clipped) <= bound
        assert clipped.dtype == update.dtype
        assert type(clipped) is type(update)
        again = make(bound).apply(clipped)
        assert (again == clipped).all()


def test_without_the_margin_rounding_breaks_the_bound() -> None:
    """The control: the bare factor, in float32, ends above the bound for some updates."""
    rng, over = np.random.default_rng(3), 0
    for _ in range(200):
        update = rng.normal(size=50).astype(np.float32)
        bare = (update * (1.0 / cepam.L2(1.0).measure(update))).astype(np.float32)
        over += cepam.L2(1.0).measure(bare) > 1.0
        assert cepam.L2(1.0).measure(cepam.L2(1.0).apply(update)) <= 1.0
    assert over > 20


@pytest.mark.parametrize("make", CLIPS)
def test_tensors_and_arrays_are_clipped_alike(make: Any) -> None:
    update = np.random.default_rng(5).normal(size=(30, 7)).astype(np.float32)
    ours, theirs = make(0.5).apply(update), make(0.5).apply(torch.tensor(update, requires_grad=True))
    assert theirs.shape == update.shape
    assert not theirs.requires_grad
    assert np.allclose(ours, theirs.numpy(), rtol=2e-7, atol=0)
    assert make(0.5).measure(theirs) == pytest.approx(make(0.5).measure(ours), rel=1e-6)


@pytest.mark.parametrize("make", CLIPS)
@pytest.mark.parametrize("update", [np.array([3, 4]), np.array([True]), np.array([1j]), torch.tensor([3, 4]), [3, 4]])
def test_whole_numbers_are_refused(make: Any, update: Any) -> None:
    with pytest.raises(ValueError, match="floating-point"):
        make(1.0).apply(update)


@pytest.mark.parametrize("make", CLIPS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, torch.float32], ids=str)
def test_what_has_no_norm_is_zero_where_silence_would_tell(make: Any, bad: float, dtype: Any) -> None:
    update = of_type(np.array([1.0, bad, 3.0, 4.0]), dtype)
    for cuts in (None, [2, 4]):
        zero = make(1.0).apply_or_zero(update, cuts)
        assert zero.dtype == update.dtype
        assert (zero == 0).all()
        with pytest.raises(ValueError, match="cannot clip"):
            make(1.0).apply(update, cuts)
    fine = of_type(np.array([3.0, 4.0]), dtype)
    assert (make(1.0).apply_or_zero(fine) == make(1.0).apply(fine)).all()


@pytest.mark.parametrize("dtype", [np.float32, torch.float32], ids=str)
@pytest.mark.parametrize("make", CLIPS)
def test_tensor_by_tensor(make: Any, dtype: Any) -> None:
    update = of_type(np.random.default_rng(2).normal(size=12), dtype)
    clip, cuts = make(0.6), [2, 5, 12]
    clipped, own = clip.apply(update, cuts), make(0.2 if make is cepam.L1 else 0.6 / 3**0.5)
    for begin, end in zip([0, 2, 5], cuts):
        assert (clipped[begin:end] == own.apply(update[begin:end])).all()
        assert own.measure(clipped[begin:end]) == pytest.approx(own.bound, rel=1e-6)
    assert clip.measure(clipped) <= clip.bound
    assert own.whole(3).bound == pytest.approx(clip.bound, rel=1e-15)
    for wrong in ([], [5, 2, 12], [2, 5]):
        with pytest.raises(ValueError, match="cuts"):
            clip.apply(update, wrong)


@pytest.mark.parametrize("dtype", [np.float32, torch.float32], ids=str)
@pytest.mark.parametrize("cuts", [None, [3, 8]])
@pytest.mark.parametrize("make", CLIPS)
def test_rows_are_clipped_as_each_would_be(make: Any, cuts: list[int] | None, dtype: Any) -> None:
    rows = np.random.default_rng(4).normal(size=(6, 8))
    rows[2, 5], rows[4] = np.nan, 0.0
    held, clips = of_type(rows, dtype), [make(bound) for bound in (0.1, 1.0, 1.0, 100.0, 1.0, 2.0)]
    clipped, norms = clip_rows(held, clips, cuts)
    assert clipped.dtype == held.dtype
    for row, clip, before, norm in zip(clipped, clips, held, norms):
        assert (row == clip.apply_or_zero(before, cuts)).all()
        assert float(norm) == pytest.approx(clip.measure(before), nan_ok=True)
    assert not np.isfinite(float(norms[2]))
    assert (clipped[2] == 0).all()


def test_rows_are_checked_at_the_door() -> None:
    with pytest.raises(ValueError, match="one clip for each row"):
        clip_rows(np.zeros((2, 3)), [cepam.L2(1.0)])
    with pytest.raises(ValueError, match="same norm"):
        clip_rows(np.zeros((2, 3)), [cepam.L2(1.0), cepam.L1(1.0)])
    with pytest.raises(TypeError, match=r"cepam\.L1 or cepam\.L2"):
        cepam.Clip(1.0)


@pytest.mark.parametrize("dtype", [np.float32, torch.float32], ids=str)
def test_factors_bring_a_vector_within_its_bound_even_rounded(dtype: Any) -> None:
    """As an engine clips each example: the factor is rounded to float32, and the product again."""
    rows = of_type(np.random.default_rng(6).normal(size=(400, 60)), dtype)
    norms = clip_rows(rows, [cepam.L2(1.0)] * len(rows))[1]
    factors = of_type(np.asarray(clip_factors(norms, 1.0, rows.dtype)), dtype)
    assert max(cepam.L2(1.0).measure(row) for row in rows * factors[:, None]) <= 1.0
    odd = np.array([0.5, 1.0, 2.0, np.nan, np.inf])
    assert clip_factors(odd, 1.0, np.float64).tolist() == [1.0, 1.0, 0.5 * (1.0 - margin(np.float64)), 0.0, 0.0]


def test_no_torch_unless_a_tensor_comes() -> None:
    code = "import sys, numpy, cepam; cepam.L2(1.0).apply(numpy.ones(9)); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sensitivity_of_an_update() -> None:
    assert cepam.L2(0.5).sensitivity() == 1.0
    assert cepam.L1(0.5).sensitivity("add-remove", weight=0.1) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="clipped"):
        cepam.L2(1.0).sensitivity(unit="batch")  # type: ignore[arg-type]


def test_sensitivity_of_an_example() -> None:
    assert cepam.L2(1.0).sensitivity("add-remove", "example", batch=10) == 0.1
    assert cepam.L2(1.0).sensitivity("replace", "example", batch=10, weight=2.0) == 0.4
    assert cepam.L1(1.0).sensitivity("add-remove", "example", batch=10) == 0.2
    assert cepam.L1(1.0).sensitivity("replace", "example", batch=1) == 2.0  # never over two bounds, once clipped
    assert cepam.L1(1.0).sensitivity("add-remove", "example", batch=0.25) == 4.0  # that of a sum that is not


def test_the_attack_on_a_clipped_sum() -> None:
    """A record that adds 0.1 in a coordinate of its own moves an l1-clipped sum by 0.182: over 0.1, within the 0.2."""
    sums = np.array([[1.0, 0.0], [1.0, 0.1]])
    for clip in (cepam.L1(1.0), cepam.L2(1.0)):
        moved = clip.measure(clip.apply(sums[1]) - clip.apply(sums[0]))
        if clip.norm == "l1":
            assert moved == pytest.approx(0.2 / 1.1, rel=1e-9)
            assert moved > 1.8 * 0.1
        assert moved <= clip.sensitivity("add-remove", "example", batch=10)


@pytest.mark.parametrize("make", CLIPS)
def test_no_search_finds_a_larger_shift(make: Any) -> None:
    rng, clip, step = np.random.default_rng(9), make(1.0), 0.1
    worst = 0.0
    for _ in range(3000):
        at, move = rng.laplace(size=4) ** 3, rng.laplace(size=4) ** 3
        at, move = at / clip.measure(at) * rng.uniform(0.9, 1.3), move / clip.measure(move) * step
        worst = max(worst, clip.measure(clip.apply(at + move) - clip.apply(at)))
    assert worst <= clip.sensitivity("add-remove", "example", batch=10) * (1 + 1e-9)
    assert worst > (0.13 if make is cepam.L1 else 0.09)
