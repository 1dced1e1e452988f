"""Lattices: acceptance, nearest points against brute force, boxes that meet each coset once."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

import cepam
from cepam.kernels.format.plan import cell_plan
from cepam.kernels.numpy.quantizer import nearest
from cepam.lattices.geometry import closest_vectors, triangular_box
from cepam.lattices.lattice import A2, D4, E8, Integer, Lattice, lattice_named

Ints = npt.NDArray[np.int64]
SKEW = Lattice([[1.0, 0.3, 0.1], [0.0, 1.0, 0.2], [0.0, 0.0, 1.1]])
A3 = Lattice([[1, 1, 0], [1, 0, 1], [0, 1, 1]])
D5 = Lattice(np.array([[1, 1, 0, 0, 0], [1, -1, 0, 0, 0], [0, 1, -1, 0, 0], [0, 0, 1, -1, 0], [0, 0, 0, 1, -1]]).T)
LATTICES = {
    "Z1": cepam.Integer(1),
    "Z3": cepam.Integer(3),
    "A2": cepam.A2,
    "D4": cepam.D4,
    "E8": cepam.E8,
    "skew": SKEW,
    "A3": A3,
    "D5": D5,
}


@pytest.mark.parametrize(
    ("lattice", "share"),
    [
        (cepam.Integer(1), 1.0),
        (cepam.Integer(2), math.pi / 4),
        (cepam.Integer(3), math.pi / 6),
        (cepam.A2, math.pi / (2 * math.sqrt(3))),
        (cepam.D4, math.pi**2 / 16),
        (cepam.E8, math.pi**4 / 384),
        (A3, math.pi / (3 * math.sqrt(2))),
        (D5, math.pi**2 / (15 * math.sqrt(2))),
    ],
)
def test_l2_acceptance_is_the_packing_density(lattice: Lattice, share: float) -> None:
    assert lattice.acceptance("l2") == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize(
    ("lattice", "share"),
    [
        *((cepam.Integer(n), 1 / math.factorial(n)) for n in (1, 2, 3, 4)),
        (cepam.D4, 1 / 3),
        (cepam.E8, 2 / 315),
    ],
)
def test_l1_acceptance(lattice: Lattice, share: float) -> None:
    assert lattice.acceptance("l1") == pytest.approx(share, rel=1e-12)


def test_l1_acceptance_of_the_hexagonal_lattice() -> None:
    assert cepam.A2.acceptance("l1") == pytest.approx(1 / math.sqrt(3), rel=1e-6)


def test_hopeless_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="lower dimension"):
        cepam.Codec(cepam.Laplace(1.0), lattice=cepam.Integer(8))


@pytest.mark.parametrize(
    "bad",
    [
        [[1.0, 2.0], [2.0, 4.0]],
        [[1.0, 2.0]],
        np.eye(9),
        [[np.nan, 0.0], [0.0, 1.0]],
    ],
)
def test_generators_that_make_no_lattice_are_refused(bad: npt.ArrayLike) -> None:
    with pytest.raises(ValueError, match="generator"):
        Lattice(bad)


def neighbours(name: str, lattice: Lattice, target: Ints, b: int) -> Ints:
    """Lattice points around the target that are sure to include the nearest one."""
    if name == "E8":
        points = []
        for odd in (0, 1):
            low = np.floor((target / b - odd) / 2).astype(np.int64)
            steps = 2 * (low + np.array(list(itertools.product((0, 1), repeat=8)))) + odd
            points.append(steps[steps.sum(axis=1) % 4 == 0])
        return b * np.concatenate(points)
    centre = np.rint(np.linalg.solve(lattice.basis.astype(float) * b, target)).astype(np.int64)
    reach = 2 if lattice.dimension > 4 else 3
    around = np.array(list(itertools.product(range(-reach, reach + 1), repeat=lattice.dimension)))
    return b * ((centre + around) @ lattice.basis.T)


@pytest.mark.parametrize("name", LATTICES)
def test_nearest_points_against_brute_force(name: str) -> None:
    lattice, rng = LATTICES[name], np.random.default_rng(3)
    plan = cell_plan(lattice, 1.0)
    count, n = 60, lattice.dimension
    b = np.full(count, plan.step, dtype=np.int64)
    spread = int(plan.step * abs(lattice.basis).max() * 5)
    target = rng.integers(-spread, spread, (count, n))
    coordinates, error = nearest(plan, target, b)
    assert np.array_equal(plan.step * (coordinates @ lattice.basis.T) - target, error)
    for row, found in zip(target, error):
        rivals = neighbours(name, lattice, row, plan.step) - row
        best = (rivals.astype(float) ** 2).sum(axis=1).min()
        assert (found.astype(float) ** 2).sum() <= best * (1 + 1e-12)


@pytest.mark.parametrize("name", ["skew", "A3", "D5", "D4"])
def test_the_enumeration_finds_the_closest_vectors(name: str) -> None:
    lattice, rng = LATTICES[name], np.random.default_rng(4)
    size = abs(lattice.basis).max()
    for _ in range(20):
        target = rng.uniform(-4 * size, 4 * size, lattice.dimension)
        square, points = closest_vectors(lattice.basis, target)
        rivals = neighbours(name, lattice, target, 1) - target
        assert square == pytest.approx((rivals**2).sum(axis=1).min(), rel=1e-9)
        for point in points:
            assert ((lattice.basis @ np.array(point) - target) ** 2).sum() == pytest.approx(square, rel=1e-6)


@pytest.mark.parametrize("name", ["Z3", "A2", "D4", "E8", "A3", "D5"])
def test_the_box_meets_every_coset_once(name: str) -> None:
    lattice = LATTICES[name]
    determinant = round(abs(np.linalg.det(lattice.basis.astype(float))))
    assert lattice.determinant == determinant
    points = np.stack(np.meshgrid(*[np.arange(h) for h in lattice.box], indexing="ij"), -1)
    points = points.reshape(-1, lattice.dimension)
    # Two points share a coset exactly when adj(basis) times them agree modulo the determinant.
    adjugate = np.rint(np.linalg.inv(lattice.basis.astype(float)) * determinant).astype(np.int64)
    classes = np.unique(((points @ adjugate.T) % determinant) @ (determinant ** np.arange(lattice.dimension)))
    assert len(points) == len(classes) == determinant


def test_the_box_of_a_triangular_basis_is_its_diagonal() -> None:
    assert triangular_box(np.array([[3, 0], [1, 5]])).tolist() == [3, 5]


def test_equal_generators_make_equal_lattices() -> None:
    again = Lattice([[1, 1, 0], [1, 0, 1], [0, 1, 1]])
    assert again == A3
    assert hash(again) == hash(A3)
    assert A3 != SKEW


def test_names_of_lattices() -> None:
    assert [lattice_named(name) for name in ("Z1", "Z3", "A2", "D4", "E8")] == [Integer(1), Integer(3), A2, D4, E8]
    assert cepam.Codec(cepam.Gaussian(1.0), "E8") == cepam.Codec(cepam.Gaussian(1.0), E8)
    for wrong in ("Z0", "Z11", "Z", "e8", ""):
        with pytest.raises(ValueError, match="lattice must be A2, D4, E8 or Z1 to Z10"):
            lattice_named(wrong)
