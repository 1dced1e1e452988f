"""The public sketch: unbiased, of the right norm, the same at both ends, and clipped after it.

False-alarm rate: seven standard errors, under 1e-11 each.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy.linalg import hadamard

from cepam.secure_aggregation.sketch import Sketch

from . import sums
from .sums import Cohort, cohort, run_round


def seed(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def matrix(sketch: Sketch) -> np.ndarray:
    return np.stack([sketch.apply(row) for row in np.eye(sketch.coordinates)], axis=1)


@pytest.mark.parametrize(("coordinates", "size"), [(1, 1), (5, 3), (16, 16), (33, 20), (64, 7)])
def test_it_is_signs_hadamard_and_rows(coordinates: int, size: int) -> None:
    sketch = Sketch(coordinates, size, seed(1))
    found = matrix(sketch)
    signs = np.where(sketch._flips, -1.0, 1.0)
    expected = hadamard(sketch.padded)[sketch._rows][:, :coordinates] * signs / np.sqrt(size)
    assert np.allclose(found, expected, atol=1e-12)
    assert len(set(sketch._rows.tolist())) == size
    x, y = np.random.default_rng(0).normal(size=coordinates), np.random.default_rng(1).normal(size=size)
    assert sketch.apply(x) @ y == pytest.approx(x @ sketch.restore(y))


def test_restoring_is_unbiased_and_costs_what_it_says() -> None:
    coordinates, size, tries = 48, 16, 1500
    x = np.random.default_rng(2).normal(size=coordinates)
    found = np.array([(s := Sketch(coordinates, size, seed(i))).restore(s.apply(x)) for i in range(tries)])
    spread = found.std(axis=0) / np.sqrt(tries)
    assert (np.abs(found.mean(axis=0) - x) < 7 * spread).all()
    # |x|^2 / m' a coordinate, less what is sampled without replacement.
    assert found.var(axis=0).mean() == pytest.approx((x @ x) / size, rel=0.3)
    # The control: without the signs the mean over rows alone is fine, over one fixed set of rows it is not.
    fixed = Sketch(coordinates, size, seed(0))
    assert np.abs(fixed.restore(fixed.apply(x)) - x).max() > 7 * spread.max()


def test_the_norm_is_kept_on_average_and_exactly_by_the_whole_transform() -> None:
    x = np.random.default_rng(3).normal(size=100)
    whole = Sketch(100, 128, seed(4))
    assert np.linalg.norm(whole.apply(x)) == pytest.approx(np.linalg.norm(x))
    assert np.allclose(whole.restore(whole.apply(x)), x)
    squares = np.array([(Sketch(100, 20, seed(i)).apply(x) ** 2).sum() for i in range(500)])
    assert squares.mean() == pytest.approx(x @ x, abs=7 * squares.std() / np.sqrt(len(squares)))


def test_both_ends_have_the_same_map() -> None:
    here, there = Sketch(1000, 100, seed(5)), Sketch(1000, 100, seed(5))
    x = np.random.default_rng(6).normal(size=1000).astype(np.float32)
    assert here.apply(x).tobytes() == there.apply(x.astype(np.float64)).tobytes()
    assert here._rows.tobytes() == there._rows.tobytes()
    marks = hashlib.sha256(np.packbits(here._flips).tobytes() + here._rows.astype("<i8").tobytes()).hexdigest()
    assert marks == GOLDEN
    assert not np.array_equal(here.apply(x), Sketch(1000, 100, seed(6)).apply(x))


GOLDEN = "2e764bb219d95049703e4261fcf3419e4de0cc4515c916718caf617739d1780e"


def test_rows_are_mapped_alike_and_the_norm_of_a_product_is_a_product() -> None:
    """Residuals times features, row by row: what a linear head's gradient of one example is."""
    rng = np.random.default_rng(11)
    residual, features = rng.normal(size=4), rng.normal(size=(3, 25)).astype(np.float32)
    sketch, alone = Sketch(100, 32, seed(3), rows=4), Sketch(25, 8, seed(3))
    for one, square in zip(features, sketch.squares(features)):
        found = sketch.apply(np.outer(residual, one).reshape(-1))
        assert np.allclose(found.reshape(4, 8), np.outer(residual, alone.apply(one)), atol=1e-12)
        norm = (found**2).sum()
        assert norm <= residual @ residual * square <= norm * (1 + 2.0**-13)
    y = rng.normal(size=32)
    assert np.allclose(sketch.restore(y).reshape(4, 25), [alone.restore(part) for part in y.reshape(4, 8)])


def test_a_round_with_a_sketch() -> None:
    """The node clips the sketch, not the update; the server restores the sum of all sketches."""
    coordinates, size, clients = 500, 128, 5
    group: Cohort = cohort(clients, size)
    rng = np.random.default_rng(8)
    updates = {name: rng.normal(size=coordinates) / np.sqrt(4 * coordinates) for name in group.nodes}
    asked = sums.settings(4, coordinates=size, clients=clients)
    sketch = Sketch.of(asked, coordinates)
    group.updates = {name: sketch.apply(update) for name, update in updates.items()}
    _, total = run_round(group, asked)
    restored = sketch.restore(total)
    x = np.sum(list(updates.values()), axis=0)
    deviation = np.sqrt(clients * (sums.NOISE**2 + asked.codec.cell**2 / 12) + (x @ x) / size)
    assert np.abs(restored - x).max() < 9 * deviation
    assert np.linalg.norm(restored - x) < 1.5 * deviation * np.sqrt(coordinates)
    assert Sketch.of(sums.settings(4, coordinates=size, position=1), coordinates).seed != sketch.seed


def test_an_update_that_the_map_makes_long_is_clipped_after_it() -> None:
    """One row of the map is the worst update: its sketch is longer than it is."""
    sketch = Sketch(64, 4, seed(9))
    worst = sketch.restore(np.array([1.0, 0, 0, 0]))
    worst /= np.linalg.norm(worst)
    assert np.linalg.norm(sketch.apply(worst)) > 2.0
    size = 4
    group = cohort(5, size)
    group.updates = {name: sketch.apply(worst) * 1e6 for name in group.nodes}
    asked = sums.settings(4, coordinates=size)
    _, total = run_round(group, asked)
    assert np.linalg.norm(total) < 5 + 9 * sums.NOISE * np.sqrt(5 * size) + np.sqrt(size) * 5 * asked.codec.cell


def test_doors() -> None:
    for wrong in ((0, 1, seed(0)), (10, 0, seed(0)), (10, 17, seed(0)), (10, 4, b"")):
        with pytest.raises(ValueError, match=r"coordinates|size|seed"):
            Sketch(*wrong)
    for wrong in ((12, 4, 5), (12, 5, 4), (12, 24, 4)):
        with pytest.raises(ValueError, match=r"rows|multiple of 4"):
            Sketch(*wrong[:2], seed(0), wrong[2])
    sketch = Sketch(10, 4, seed(0))
    with pytest.raises(ValueError, match="10 coordinates"):
        sketch.apply(np.zeros(9))
    with pytest.raises(ValueError, match="4 numbers"):
        sketch.restore(np.zeros(5))
