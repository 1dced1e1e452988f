"""Nearest lattice points in NumPy: which point of B times the lattice is closest to an integer vector.

Each routine returns lattice coordinates and the error (point minus target). Inside the largest ball of the cell, less
the margin that B leaves, the answer is exact; on the cell's boundary ties are broken alike for all translates.
"""

from __future__ import annotations

import numpy as np

from cepam.kernels.model.plan import Floats, Ints, Plan
from cepam.noise.lattices import Search

MOST_PASSES = 64


def nearest(plan: Plan, target: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Coordinates (N, n) and errors (N, n) of the points nearest to the rows of target, lattices scaled by b (N)."""
    side = b[:, None]
    if plan.search is Search.CUBIC:
        return _cubic(target, side)
    if plan.search is Search.CHECKERBOARD:
        z = _checkerboard(target, side)
        return _checkerboard_coordinates(z), z * side - target
    if plan.search is Search.GOSSET:
        z = _gosset(target, side)
        return _gosset_coordinates(z), z * side - target
    if plan.search is Search.HEXAGONAL:
        return _hexagonal(plan, target, side)
    return _general(plan, target, side)


def _cubic(target: Ints, side: Ints) -> tuple[Ints, Ints]:
    z = (target + (side >> 1)) // side
    return z, z * side - target


def _checkerboard(target: Ints, side: Ints) -> Ints:
    """Points of D_n (integers with an even sum): round, then move the worst coordinate if the sum is odd."""
    z, error = _cubic(target, side)
    worst = np.argmax(np.abs(error), axis=1)
    rows = np.arange(len(z))
    toward = np.where(error[rows, worst] <= 0, 1, -1)
    z[rows, worst] += np.where(z.sum(axis=1) & 1, toward, 0)
    return z


def _checkerboard_coordinates(z: Ints) -> Ints:
    j = z.copy()
    j[:, -1] = (z[:, -1] - z[:, :-1].sum(axis=1)) >> 1
    return j


def _gosset(target: Ints, side: Ints) -> Ints:
    """Points of 2 E8: the better of the even points (2 D8) and the odd ones (2 D8 + 1)."""
    even = 2 * _checkerboard(target, 2 * side)
    odd = 2 * _checkerboard(target - side, 2 * side) + 1
    closer = _square(even * side - target) <= _square(odd * side - target)
    return np.where(closer[:, None], even, odd)


def _gosset_coordinates(z: Ints) -> Ints:
    j = np.empty_like(z)
    j[:, 0] = z[:, 0]
    j[:, 1:7] = (z[:, 1:7] - z[:, :1]) >> 1
    j[:, 7] = (z[:, 7] - z[:, 0] - 2 * j[:, 1:7].sum(axis=1)) >> 2
    return j


def _hexagonal(plan: Plan, target: Ints, side: Ints) -> tuple[Ints, Ints]:
    """The better of two rectangular lattices, one of them shifted by half a cell."""
    half = plan.basis[:, 1] * side
    best_z, best_error = None, None
    for shift in (0, 1):
        z, error = _cubic(target - shift * half, 2 * half)
        doubled = 2 * z + shift
        if best_z is None or best_error is None:
            best_z, best_error = doubled, error
        else:
            closer = _square(best_error) <= _square(error)
            best_z = np.where(closer[:, None], best_z, doubled)
            best_error = np.where(closer[:, None], best_error, error)
    assert best_z is not None
    assert best_error is not None
    j = best_z.copy()
    j[:, 0] = (best_z[:, 0] - best_z[:, 1]) >> 1
    return j, best_error


def _general(plan: Plan, target: Ints, side: Ints) -> tuple[Ints, Ints]:
    """Rounding in the reduced basis, then slicing by the Voronoi-relevant vectors until none comes closer."""
    n, scale = plan.n, side[:, 0].astype(np.float64)
    j = np.empty_like(target)
    for i in range(n):
        total = np.zeros(len(target))
        for k in range(n):
            total = total + plan.inverse[i, k] * target[:, k].astype(np.float64)
        j[:, i] = np.floor(total / scale + 0.5).astype(np.int64)
    rest = target - side * (j @ plan.basis.T)
    squares = _square(plan.relevant)
    for _ in range(MOST_PASSES):
        moved = False
        for vector, step, square in zip(plan.relevant, plan.steps, squares):
            dot = np.zeros(len(target))
            for k in range(n):
                dot = dot + rest[:, k].astype(np.float64) * float(vector[k])
            count = np.floor(dot / (scale * square) + 0.5).astype(np.int64)
            if count.any():
                moved = True
                rest = rest - side * (count[:, None] * vector)
                j = j + count[:, None] * step
        if not moved:
            break
    return j, -rest


def _square(rows: Ints) -> Floats:
    total = np.zeros(len(rows))
    for i in range(rows.shape[1]):
        value = rows[:, i].astype(np.float64)
        total = total + value * value
    return total
