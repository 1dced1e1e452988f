"""The mechanism scaled down to words of a few bits and enumerated: the slack's bound holds on every lattice, by little.

Given a layer (an integer B and a radius r), the dither D is uniform on a box that meets every coset of B L once, made
from words by a multiply-high; the error is the point of D - x's coset inside the ball, if there is one. So the law of
an accepted error is known exactly: the product of the chances of its dither's coordinates. The codec is not called.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from cepam import A2, D4, E8, Gaussian, Integer, Laplace, Lattice, Law
from cepam.kernels.format.plan import layered_plan
from cepam.privacy.numerics.slack import relative_error

Ints = np.ndarray


def triangular(basis: Ints) -> Ints:
    """Rows that span the same lattice, each zero before its place: for reducing a point to the box."""
    rows, done = [list(map(int, column)) for column in basis.T], []
    for i in range(len(rows)):
        while sum(row[i] != 0 for row in rows) > 1:
            pivot = min((row for row in rows if row[i]), key=lambda row: abs(row[i]))
            for row in rows:
                if row is not pivot and row[i]:
                    times = row[i] // pivot[i]
                    row[:] = [a - times * b for a, b in zip(row, pivot)]
        pivot = next(row for row in rows if row[i])
        rows = [row for row in rows if row is not pivot]
        done.append([-a for a in pivot] if pivot[i] < 0 else pivot)
    return np.array(done)


def dither_of(points: Ints, rows: Ints, side: int) -> Ints:
    """The point of each coset of side · L that lies in the box."""
    left = points.copy()
    for i, row in enumerate(rows):
        left -= np.floor_divide(left[:, i], side * row[i])[:, None] * (side * row)
    return left


def chances(sides: int, bits: int) -> np.ndarray:
    """The chance of each value of floor(word · sides / 2^bits)."""
    return np.bincount((np.arange(1 << bits) * sides) >> bits, minlength=sides) / float(1 << bits)


def ball(n: int, radius: float) -> Ints:
    """All integer points of the Euclidean ball."""
    points = np.zeros((1, 0), dtype=np.int64)
    for _ in range(n):
        line = np.arange(-int(radius), int(radius) + 1)
        points = np.concatenate([np.repeat(points, len(line), 0), np.tile(line, len(points))[:, None]], axis=1)
        points = points[(points**2).sum(1) <= radius**2]
    return points


def cells(lattice: Lattice, layers: list[int], bits: int, grid: int, at: Ints) -> tuple[np.ndarray, np.ndarray]:
    """The ideal and the real chance of every public cell, for the input `at` and layers that are drawn alike."""
    rows, n = triangular(lattice.basis), lattice.dimension
    assert rows.diagonal().tolist() == lattice.box.tolist()
    kept = []
    for side in layers:
        radius = (side - 1) / 2 if n == 1 else lattice.ball_radius("l2") * (side - 2)
        points = ball(n, radius)
        dithers, weight = dither_of(points + at, rows, side), np.ones(len(points))
        for i in range(n):
            weight *= chances(side * int(lattice.box[i]), bits)[dithers[:, i]]
        kept.append(((points + at) >> grid, np.full(len(points), 1 / len(points)), weight / weight.sum()))
    labels = np.concatenate([label for label, _, _ in kept])
    labels -= labels.min(axis=0)
    _, place = np.unique(np.ravel_multi_index(tuple(labels.T), labels.max(axis=0) + 1), return_inverse=True)
    ideal, real = (np.concatenate([layer[k] for layer in kept]) / len(layers) for k in (1, 2))
    return np.bincount(place, weights=ideal), np.bincount(place, weights=real)


def bound(lattice: Lattice, layers: list[int], bits: int, grid: int) -> float:
    """eta of one sub-vector as `numerics` has it, with these words and grid: 4 · sum of h_i · B · 2^-(bits + grid)."""
    return 4.0 * int(lattice.box.sum()) * float(np.mean(layers)) * 2.0 ** -(bits + grid)


CASES = {
    "Z1": (Integer(1), list(range(101, 301, 2)), 14, 3),
    "Z2": (Integer(2), list(range(20, 90, 2)), 12, 2),
    "A2": (A2, [3], 22, 5),
    "D4": (D4, [8, 10, 12, 14], 12, 1),
    "E8": (E8, [4, 5], 11, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bound_holds_and_is_not_absurd(name: str) -> None:
    """Every cell within e^(±eta), up to less than one word where the last layer ends; and within 20 times of that."""
    lattice, layers, bits, grid = CASES[name]
    limit, worst = bound(lattice, layers, bits, grid), 0.0
    for seed in range(1 if name == "A2" else 3):
        at = np.random.default_rng(seed).integers(-10_000, 10_000, lattice.dimension)
        ideal, real = cells(lattice, layers, bits, grid, at)
        assert ideal.sum() == pytest.approx(1.0)
        assert np.maximum(0.0, ideal * math.exp(-limit) - real).sum() <= 2.0**-bits
        assert np.maximum(0.0, real - ideal * math.exp(limit)).sum() <= 2.0**-bits
        whole = ideal > 0.05 * ideal.max()
        worst = max(worst, float(np.abs(np.log(real[whole] / ideal[whole])).max()))
    assert worst > limit / 20


@pytest.mark.parametrize("name", ["Z1", "Z2", "D4"])
def test_shorter_words_break_the_bound(name: str) -> None:
    """The control: words six bits shorter than the bound assumes are found out, in a layer by itself."""
    lattice, layers, bits, grid = CASES[name]
    at, layer = np.random.default_rng(1).integers(-10_000, 10_000, lattice.dimension), layers[-1:]
    ideal, real = cells(lattice, layer, bits - 6, grid, at)
    assert np.maximum(0.0, ideal * math.exp(-bound(lattice, layer, bits, grid)) - real).sum() > 10 * 2.0**-bits


@pytest.mark.parametrize("lattice", [Integer(1), Integer(2), A2, D4, E8], ids=lambda lattice: lattice.name)
@pytest.mark.parametrize("law", [Gaussian(1.0), Laplace(1.9)], ids=["gaussian", "laplace"])
def test_what_is_charged_is_that_bound(lattice: Lattice, law: Law) -> None:
    """`numerics` charges the enumerated bound, with 64-bit words and the codec's grid, for the law's mean layer."""
    many = 8 * 10**7
    plan = layered_plan(law, lattice)
    half = (np.arange(4096) + 0.5) / 8192
    n = lattice.dimension
    mean = float(np.concatenate([law.radius_below(half, n), law.radius_above(half, n)]).mean()) * plan.scale
    side = 2 * mean + 1 if n == 1 else mean * plan.inverse_ball + 2
    want = 4.0 * int(lattice.box.sum()) * side * 2.0 ** -(64 + 28) * many / n
    table = 2.0 * 2.0**-50 * 2.0 * many
    assert want < relative_error(((law, lattice, many),)) <= 1.02 * (want + table) + 2 * n * 2.0**-54 * 2.0 * many
