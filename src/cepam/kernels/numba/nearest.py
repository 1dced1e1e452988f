"""Nearest lattice points, compiled: rounding, then the lattice's own rule; one sub-vector at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels.numba.gosset import nearest_eight
from cepam.kernels.numba.integers import compiled, floor_divide, inlined


@inlined
def nearest_cubic(target: Any, b: Any, n: Any, z: Any, error: Any) -> None:
    """Fills z and error with the nearest point of b Z^n and its difference from the target."""
    half = b >> 1
    for i in range(n):
        z[i] = floor_divide(target[i] + half, b)
        error[i] = z[i] * b - target[i]


@inlined
def nearest_checkerboard(target: Any, b: Any, n: Any, z: Any, error: Any) -> None:
    """The same for b D_n: round, then move the worst coordinate if the sum is odd."""
    nearest_cubic(target, b, n, z, error)
    total = np.int64(0)
    worst = 0
    for i in range(n):
        total += z[i]
        if abs(error[i]) > abs(error[worst]):
            worst = i
    if total & 1:
        step = np.int64(1) if error[worst] <= 0 else np.int64(-1)
        z[worst] += step
        error[worst] += step * b


@inlined
def square_length(error: Any, n: Any) -> Any:
    """The squared length in float64, added up from the first coordinate on."""
    total = 0.0
    for i in range(n):
        e = np.float64(error[i])
        total += e * e
    return total


@inlined
def nearest_gosset(target: Any, b: Any, j: Any, error: Any, spare: Any) -> Any:
    """The error's squared length; fills j (lattice coordinates) and error for b times 2 E8."""
    z = spare[0]
    odd, square = nearest_eight(target, b, z, error)
    j[0] = 2 * z[0] + odd
    total = np.int64(0)
    for i in range(1, 7):
        j[i] = z[i] - z[0]
        total += j[i]
    j[7] = (z[7] - z[0] - total) >> 1
    return square


@inlined
def nearest_hexagonal(basis: Any, target: Any, b: Any, j: Any, error: Any, spare: Any) -> None:
    """The better of two rectangular lattices, one of them shifted by half a cell."""
    for i in range(2):
        half = basis[i, 1] * b
        j[i] = 2 * floor_divide(target[i] + half, 2 * half)
        error[i] = j[i] * half - target[i]
        spare[0, i] = 2 * floor_divide(target[i], 2 * half) + 1
        spare[1, i] = spare[0, i] * half - target[i]
    if square_length(spare[1], 2) < square_length(error, 2):
        for i in range(2):
            j[i] = spare[0, i]
            error[i] = spare[1, i]
    j[0] = (j[0] - j[1]) >> 1


@compiled
def nearest_general(p: Any, target: Any, b: Any, j: Any, error: Any) -> None:
    """Rounding in the reduced basis, then slicing by the Voronoi-relevant vectors."""
    n, scale = p.n, np.float64(b)
    for i in range(n):
        total = 0.0
        for k in range(n):
            total += p.inverse[i, k] * np.float64(target[k])
        j[i] = np.int64(np.floor(total / scale + 0.5))
    for i in range(n):
        error[i] = -target[i]
        for k in range(n):
            error[i] += b * p.basis[i, k] * j[k]
    for _ in range(64):
        moved = False
        for v in range(len(p.relevant)):
            dot = 0.0
            for k in range(n):
                dot += np.float64(-error[k]) * p.relevant[v, k]
            count = np.int64(np.floor(dot / (scale * p.squares[v]) + 0.5))
            if count != 0:
                moved = True
                for k in range(n):
                    error[k] += b * count * np.int64(p.relevant[v, k])
                    j[k] += count * p.steps[v, k]
        if not moved:
            return


@inlined
def nearest(p: Any, target: Any, b: Any, j: Any, error: Any, spare: Any) -> Any:
    """The error's squared length; fills j and error for the lattice of the plan."""
    if p.search == 2:
        return nearest_gosset(target, b, j, error, spare)
    if p.search == 0:
        nearest_cubic(target, b, p.n, j, error)
    elif p.search == 1:
        nearest_checkerboard(target, b, p.n, j, error)
        total = np.int64(0)
        for i in range(p.n - 1):
            total += j[i]
        j[p.n - 1] = (j[p.n - 1] - total) >> 1
    elif p.search == 3:
        nearest_hexagonal(p.basis, target, b, j, error, spare)
    else:
        nearest_general(p, target, b, j, error)
    return square_length(error, p.n)
