"""Exact geometry of small integer lattices: reduced bases, coset boxes, Voronoi-relevant vectors.

Everything here runs once, when a lattice is made; the kernels only read the results.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def reduce_basis(basis: Ints) -> Ints:
    """A basis of the same lattice with short, nearly orthogonal columns (Lenstra, Lenstra, Lovász; exact)."""
    rows = [[int(v) for v in column] for column in basis.T]
    n, k = len(rows), 1
    while k < n:
        for j in range(k - 1, -1, -1):
            shift = round(_projection(rows, k, j))
            if shift:
                rows[k] = [a - shift * b for a, b in zip(rows[k], rows[j])]
        if _is_ordered(rows, k):
            k += 1
        else:
            rows[k], rows[k - 1] = rows[k - 1], rows[k]
            k = max(k - 1, 1)
    return np.array(rows, dtype=np.int64).T.copy()


def is_reduced(basis: Ints) -> bool:
    """Whether `reduce_basis` leaves this basis of full rank as it is; found in one pass, whatever the basis."""
    rows = [[int(v) for v in column] for column in basis.T]
    vectors = _orthogonal(rows, len(rows))
    size = [sum(v * v for v in vector) for vector in vectors]
    for k, row in enumerate(rows):
        along = [sum(a * b for a, b in zip(row, vectors[j])) / size[j] for j in range(k)]
        if any(round(each) for each in along):
            return False
        if k and size[k] < (Fraction(99, 100) - along[-1] ** 2) * size[k - 1]:
            return False
    return True


def _orthogonal(rows: list[list[int]], count: int) -> list[list[Fraction]]:
    done: list[list[Fraction]] = []
    for row in rows[:count]:
        vector = [Fraction(v) for v in row]
        for other in done:
            factor = Fraction(sum(a * b for a, b in zip(row, other))) / sum(b * b for b in other)
            vector = [v - factor * b for v, b in zip(vector, other)]
        done.append(vector)
    return done


def _projection(rows: list[list[int]], k: int, j: int) -> Fraction:
    other = _orthogonal(rows, j + 1)[j]
    return Fraction(sum(a * b for a, b in zip(rows[k], other))) / sum(b * b for b in other)


def _is_ordered(rows: list[list[int]], k: int) -> bool:
    vectors = _orthogonal(rows, k + 1)
    size = [sum(v * v for v in vector) for vector in vectors]
    return size[k] >= (Fraction(99, 100) - _projection(rows, k, k - 1) ** 2) * size[k - 1]


def triangular_box(basis: Ints) -> Ints:
    """The diagonal of a triangular basis of the lattice: the box [0, h_1) x … x [0, h_n) meets each coset once."""
    columns = [[int(v) for v in column] for column in basis.T]
    n = len(columns)
    for row in range(n):
        while True:
            live = [c for c in range(row, n) if columns[c][row] != 0]
            if len(live) <= 1:
                break
            pivot = min(live, key=lambda c: abs(columns[c][row]))
            for c in live:
                if c != pivot:
                    factor = columns[c][row] // columns[pivot][row]
                    columns[c] = [a - factor * b for a, b in zip(columns[c], columns[pivot])]
        if not live:
            raise ValueError("the basis is singular")
        columns[row], columns[live[0]] = columns[live[0]], columns[row]
    return np.array([abs(columns[i][i]) for i in range(n)], dtype=np.int64)


def exact_inverse(basis: Ints) -> npt.NDArray[np.float64]:
    """The inverse, computed in fractions and rounded once: the same bits on every machine."""
    n = len(basis)
    rows = [[Fraction(int(v)) for v in row] + [Fraction(int(i == k)) for k in range(n)] for i, row in enumerate(basis)]
    for i in range(n):
        pivot = next(k for k in range(i, n) if rows[k][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for k in range(n):
            if k != i and rows[k][i]:
                rows[k] = [v - rows[k][i] * w for v, w in zip(rows[k], rows[i])]
    return np.array([[float(v) for v in row[n:]] for row in rows])


def closest_vectors(basis: Ints, target: npt.NDArray[np.float64]) -> tuple[float, list[tuple[int, ...]]]:
    """The least squared distance from target to the lattice and every coordinate vector that attains it.

    Schnorr-Euchner enumeration: depth first over the triangular factor, cutting branches that are already too far.
    """
    q, r = np.linalg.qr(basis.astype(np.float64))
    goal = q.T @ target
    n = len(goal)
    best: list[tuple[int, ...]] = []
    limit = float("inf")
    j = np.zeros(n)

    def descend(level: int, spent: float) -> None:
        nonlocal best, limit
        centre = (goal[level] - r[level, level + 1 :] @ j[level + 1 :]) / r[level, level]
        first = np.rint(centre)
        for offset in itertools.count():
            alive = False
            for value in {first + offset, first - offset}:
                cost = spent + float((centre - value) * r[level, level]) ** 2
                if cost > limit + 1e-9 * (1 + limit if limit < float("inf") else 1):
                    continue
                alive = True
                j[level] = value
                if level:
                    descend(level - 1, cost)
                elif cost < limit - 1e-9 * (1 + cost):
                    limit, best = cost, [tuple(int(v) for v in j)]
                else:
                    best.append(tuple(int(v) for v in j))
            if not alive:
                return

    descend(n - 1, 0.0)
    return limit, best


def relevant_vectors(basis: Ints) -> Ints:
    """The Voronoi-relevant vectors, one of each pair +-v, as coordinate rows.

    Voronoi's theorem: v bounds the cell exactly when +-v are the only shortest vectors of the coset v + 2L.
    """
    n = len(basis)
    found: list[tuple[int, ...]] = []
    for parity in itertools.product((0, 1), repeat=n):
        if any(parity):
            half = basis.astype(np.float64) @ (np.array(parity) / 2.0)
            _, nearest = closest_vectors(basis, half)
            vectors = {tuple(p - 2 * v for p, v in zip(parity, point)) for point in nearest}
            if len(vectors) == 2:
                found.append(max(vectors))
    return np.array(sorted(found), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class CoordinateOrder:
    """An order in which the coordinates of a lattice point are told one by one, each given those before it.

    Along axis i lie parallel hyperplanes of the lattice, `length` apart; a point's coordinate j_i picks one of them.
    `axes` (rows, of length 1/length) measure a vector along the axes, `shear` says how far the hyperplanes shift for
    each unit of an earlier coordinate. Exact fractions, correctly rounded, so that all machines agree.
    """

    order: Ints
    axes: npt.NDArray[np.float64]
    shear: npt.NDArray[np.float64]
    spacing: Ints


def orthogonal_walk(basis: Ints) -> CoordinateOrder:
    """The walk along the Gram-Schmidt vectors: along the coordinate axes themselves where the basis is triangular."""
    n = len(basis)
    columns = [[int(v) for v in column] for column in basis.T]
    told_last = list(range(n))
    if not np.triu(basis, 1).any():
        told_last.reverse()
    vectors = _orthogonal([columns[i] for i in told_last], n)
    axes, shear, spacing = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n, dtype=np.int64)
    for place, (i, vector) in enumerate(zip(told_last, vectors)):
        square = sum(v * v for v in vector)
        axes[i] = [float(v / square) for v in vector]
        for earlier in told_last[place + 1 :]:
            shear[i, earlier] = float(sum(a * v for a, v in zip(columns[earlier], vector)) / square)
        length = math.isqrt(int(square * 2**40))
        spacing[i] = (int(np.float64(length).view(np.int64)) >> 44) - (1023 + 20) * 256
    return CoordinateOrder(np.array(told_last[::-1], dtype=np.int64), axes, shear, spacing)
