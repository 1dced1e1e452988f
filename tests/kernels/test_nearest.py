"""Nearest points: compiled and NumPy agree with each other and with a search through all near points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cepam.kernels.format.plan import Plan, layered_plan
from cepam.kernels.numba import quantizer as vector
from cepam.kernels.numba.compiling import kernel_plan
from cepam.kernels.numpy import quantizer as reference
from tests.corpus import LATTICES, LAWS


def plan_of(lattice: str) -> Plan:
    return layered_plan(LAWS["gaussian"], LATTICES[lattice])


@pytest.mark.parametrize("reach", [2**20, 2**44, 2**61])
@pytest.mark.parametrize("lattice", LATTICES)
def test_compiled_is_the_reference(lattice: str, reach: int) -> None:
    plan, rng = plan_of(lattice), np.random.default_rng(4)
    target = rng.integers(-reach, reach, size=(300, plan.n))
    b = rng.integers(2**36, 2**41, size=300) // max(int(plan.box.max()) if lattice in ("A2", "skew") else 1, 1) + 2**13
    j, error = reference.nearest(plan, target, b)
    point, miss, spare = np.empty(16, dtype=np.int64), np.empty(16, dtype=np.int64), np.empty((4, 16), dtype=np.int64)
    numbers = kernel_plan(plan)
    for r in range(len(target)):
        vector.nearest(numbers, target[r].copy(), b[r], point, miss, spare)
        assert point[: plan.n].tolist() == j[r].tolist()
        assert miss[: plan.n].tolist() == error[r].tolist()
        exact = [int(b[r]) * sum(int(g) * int(v) for g, v in zip(row, j[r])) for row in plan.basis]
        assert [p - int(t) for p, t in zip(exact, target[r])] == error[r].tolist()


def test_ties_of_e8_fall_alike() -> None:
    plan, rng = plan_of("E8"), np.random.default_rng(9)
    numbers, spare = kernel_plan(plan), np.empty((4, 16), dtype=np.int64)
    point, miss = np.empty(8, dtype=np.int64), np.empty(8, dtype=np.int64)
    for side in (1, 2, 3, 8):
        target, b = rng.integers(-5 * side, 5 * side, size=(200, 8)), np.full(200, side, dtype=np.int64)
        j, error = reference.nearest(plan, target, b)
        for r in range(200):
            vector.nearest(numbers, target[r].copy(), b[r], point, miss, spare)
            assert (point.tolist(), miss.tolist()) == (j[r].tolist(), error[r].tolist())


@pytest.mark.parametrize("lattice", ["Z2", "A2", "Z3", "D4", "skew"])
def test_no_near_point_is_nearer(lattice: str) -> None:
    plan, rng = plan_of(lattice), np.random.default_rng(5)
    b = np.full(60, 2**20, dtype=np.int64)
    side = int(np.abs(plan.basis).max()) * 2**20
    target = rng.integers(-3 * side, 3 * side, size=(60, plan.n))
    _, error = reference.nearest(plan, target, b)
    found = (error.astype(np.float64) ** 2).sum(axis=1)
    for step in itertools.product((-2, -1, 0, 1, 2), repeat=plan.n):
        other = error + b[:, None] * (np.array(step) @ plan.basis.T)
        assert ((other.astype(np.float64) ** 2).sum(axis=1) >= found * (1 - 1e-12)).all()


@pytest.mark.parametrize("lattice", LATTICES)
def test_lattice_points_are_their_own_nearest(lattice: str) -> None:
    plan, rng = plan_of(lattice), np.random.default_rng(6)
    j = rng.integers(-50, 50, size=(100, plan.n))
    b = np.full(100, 12345, dtype=np.int64)
    found, error = reference.nearest(plan, 12345 * (j @ plan.basis.T), b)
    assert np.array_equal(found, j)
    assert not error.any()
