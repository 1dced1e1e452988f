"""The paper's quantizers by themselves: SDQ is uniform on the cell, RSUQ on any set A inside it.

False-alarm rate: 1e-4 for each test; keys are fixed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import cepam
from cepam.verify import statistics as goodness

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
RATE = 1e-4
COUNT = 40_000
# Normalised second moments of the cells: Conway and Sloane, Sphere Packings, Lattices and Groups, table 2.3.
SECOND_MOMENT = {"Z1": 1 / 12, "Z3": 1 / 12, "A2": 0.0801875, "D4": 0.0766032, "E8": 0.0716821}
CELLS = {"Z1": cepam.Integer(1), "Z3": cepam.Integer(3), "A2": cepam.A2, "D4": cepam.D4, "E8": cepam.E8}


@pytest.mark.parametrize("name", CELLS)
def test_sdq_is_uniform_on_the_cell(name: str, address: cepam.Address, rng: np.random.Generator) -> None:
    lattice, step = CELLS[name], 0.37
    n = lattice.dimension
    quantizer = cepam.SDQ(step, lattice)
    x = rng.standard_t(2, COUNT * n)
    errors = (quantizer.reconstruct(quantizer.quantize(x, address), address) - x).reshape(-1, n)
    generator = lattice.basis * (step / lattice.determinant ** (1 / n))
    # Uniform modulo the lattice, and nearer to the origin than to other lattice vectors: uniform on the cell.
    cosets = (np.linalg.solve(generator, errors.T).T) % 1.0
    found = [goodness.kolmogorov_smirnov(column) for column in cosets.T]
    found.append(goodness.independence(goodness.value_labels(x[::n]), goodness.probability_labels(cosets[:, 0])))
    assert min(each.p_value for each in found) * len(found) > RATE
    shorts = np.array(list(np.ndindex(*(3,) * n)))[:: max(1, 3**n // 500)] - 1
    points = shorts @ generator.T
    near = (errors[:2000, None, :] - points[None]) ** 2
    assert ((errors[:2000] ** 2).sum(axis=1)[:, None] <= near.sum(axis=2) + 1e-9).all()
    squares = (errors**2).mean(axis=1) / step**2
    gap = abs(squares.mean() - SECOND_MOMENT[name])
    assert gap < 4.5 * squares.std() / COUNT**0.5


def annulus_sector(e: Floats) -> Flags:
    size, angle = np.hypot(e[:, 0], e[:, 1]), np.arctan2(e[:, 1], e[:, 0])
    return (size > 0.2) & (size < 0.45) & (angle > -1.0) & (angle < 2.0)


def l1_ball(e: Floats) -> Flags:
    return np.abs(e).sum(axis=1) <= 0.5


def crescent(e: Floats) -> Flags:
    return ((e**2).sum(axis=1) < 0.24) & (((e - [0.2, 0.0]) ** 2).sum(axis=1) > 0.09)


def two_islands(e: Floats) -> Flags:
    return (np.abs(np.abs(e) - 0.3) < 0.1).all(axis=1) & (e[:, 0] * e[:, 1] > 0)


def areas(inside: Callable[[Floats], Flags], side: int) -> Floats:
    """The share of A in each square of a grid over the cell, by a fine midpoint rule."""
    fine = 1920
    axis = (np.arange(fine) + 0.5) / fine - 0.5
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    filled = inside(points).reshape(side, fine // side, side, fine // side).sum(axis=(1, 3))
    return (filled / filled.sum()).ravel()


@pytest.mark.parametrize("inside", [annulus_sector, l1_ball, crescent, two_islands])
def test_rsuq_is_uniform_on_any_set(
    inside: Callable[[Floats], Flags], address: cepam.Address, rng: np.random.Generator
) -> None:
    quantizer = cepam.RSUQ(1.0, inside, cepam.Integer(2))
    x = rng.standard_t(2, 2 * COUNT) * 3
    h, m = quantizer.quantize(x, address)
    errors = (quantizer.reconstruct(h, m, address) - x).reshape(-1, 2)
    assert inside(errors).mean() > 1 - 1e-3  # x keeps more bits than the unit: a hair at the border
    side = 12
    cells = np.clip(((errors + 0.5) * side).astype(np.int64), 0, side - 1) @ [side, 1]
    wanted, counts = areas(inside, side), np.bincount(cells, minlength=side * side)
    used = wanted > 1e-3
    statistic = goodness.chi_square(counts[used], COUNT * wanted[used])
    assert statistic.p_value > RATE
    assert goodness.independence(goodness.value_labels(x[::2]), cells).p_value > RATE


def test_rsuq_refuses_an_empty_set(address: cepam.Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cepam.codec.quantizers.MOST_TRIALS", 64)
    nothing = cepam.RSUQ(1.0, lambda e: np.zeros(len(e), dtype=bool))
    with pytest.raises(ValueError, match="empty or tiny"):
        nothing.quantize(np.zeros(1), address)


def test_lrsuq_and_the_codec_give_the_same_vector(address: cepam.Address, rng: np.random.Generator) -> None:
    for law, lattice in ((cepam.Gaussian(0.1), cepam.E8), (cepam.Laplace(0.1), cepam.A2)):
        quantizer, codec = cepam.LRSUQ(law, lattice), cepam.Codec(law, lattice=lattice)
        x = rng.normal(0, 0.2, 24 * 50)
        h, m = quantizer.quantize(x, address)
        assert np.array_equal(quantizer.reconstruct(h, m, address), codec.decode(codec.encode(x, address), address))
