"""The layer leak: can someone who sees a released vector, but no key, find the layer U it was made on?

Given U the noise is only uniform on a ball, so whoever knows U can rule updates out for certain. A quantizer
whose dither has few bits leaks U through the output's low digits; ours does not, and the public grid is a
second wall.
docs/proofs/finite-precision.md has the argument.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from math import gcd, lcm

import numpy as np
import numpy.typing as npt
import pytest

import cepam
from cepam.kernels.format.plan import GRID_BITS
from cepam.kernels.numpy import quantizer as reference

Floats = npt.NDArray[np.float64]
SIGMA = 0.01
GRID = cepam.LRSUQ(cepam.Gaussian(SIGMA), cepam.Integer(8)).plan.grid
COARSE_BITS = 24
VECTORS = 40


def coarse_quantizer(x: Floats, rng: np.random.Generator) -> tuple[Floats, float]:
    """(y, U): layered dithering on Z^n in float64 with a 24-bit dither, as one would write it at first."""
    layer = SIGMA * np.sqrt(rng.chisquare(len(x) + 2))
    while True:
        v = rng.integers(0, 1 << COARSE_BITS, len(x)) / 2.0**COARSE_BITS - 0.5
        m = np.rint(x / (2 * layer) - v)
        y = 2 * layer * (m + v)
        if ((y - x) ** 2).sum() <= layer**2:
            return y, layer


def recover_layer(y: Floats) -> float | None:
    """U from y alone, or None: coordinates are integers times 2U / 2^24, so ratios are short fractions."""
    if (y == 0).any():
        return None
    ratios = [Fraction(float(v / y[0])).limit_denominator(1 << COARSE_BITS) for v in y]
    if any(abs(float(r) * y[0] / v - 1) > 2.0**-50 for r, v in zip(ratios, y)):
        return None  # the digits of y do not fit any layer with a 24-bit dither
    first = lcm(*(r.denominator for r in ratios))
    numbers = [int(first * r) for r in ratios]
    step = abs(float(y[0])) / (first / reduce(gcd, [first, *numbers]))
    if first > 1 << (COARSE_BITS + 1):
        return None
    return step * 2.0**COARSE_BITS / 2


def is_found(y: Floats, layer: float) -> bool:
    guess = recover_layer(y)
    return guess is not None and abs(guess / layer - 1) < 1e-9


def on_grid(y: Floats) -> Floats:
    return np.rint(y / GRID) * GRID


def test_the_attack_finds_the_layer_of_a_coarse_dither_without_the_grid(rng: np.random.Generator) -> None:
    x = np.full(8, 0.3 * SIGMA)
    drawn = [coarse_quantizer(x, rng) for _ in range(VECTORS)]
    assert sum(is_found(y, layer) for y, layer in drawn) >= VECTORS - 3  # a common factor of all eight k_i: 1 in 250


def test_the_found_layer_rules_updates_out_for_certain(rng: np.random.Generator) -> None:
    truth, rival = np.zeros(8), np.full(8, 2.0 * SIGMA)
    ruled_out = 0
    for _ in range(VECTORS):
        y, _ = coarse_quantizer(truth, rng)
        layer = recover_layer(y)
        ruled_out += layer is not None and float(((y - rival) ** 2).sum()) > layer**2
        assert layer is None or float(((y - truth) ** 2).sum()) <= layer**2 * (1 + 1e-9)
    assert ruled_out >= VECTORS * 3 // 4


def test_the_grid_defeats_the_attack_on_a_coarse_dither(rng: np.random.Generator) -> None:
    x = np.full(8, 0.3 * SIGMA)
    drawn = [coarse_quantizer(x, rng) for _ in range(VECTORS)]
    assert sum(is_found(on_grid(y), layer) for y, layer in drawn) == 0
    # Every other layer has a point of its own coarse lattice in the same grid cell, so y fits them all alike.
    for y, _ in drawn:
        steps = 2 * SIGMA * np.sqrt(rng.chisquare(10, 50)) / 2.0**COARSE_BITS
        nearest = np.rint(on_grid(y)[:, None] / steps) * steps
        assert (np.rint(nearest / GRID) == np.rint(y / GRID)[:, None]).all()


@pytest.mark.parametrize("released", [False, True])
def test_the_attack_finds_no_layer_of_ours(released: bool, address: cepam.Address) -> None:
    quantizer = cepam.LRSUQ(cepam.Gaussian(SIGMA), cepam.Integer(8))
    x = np.full(8 * VECTORS, 0.3 * SIGMA)
    h, m = quantizer.quantize(x, address)
    y = quantizer.reconstruct(h, m, address, released=released).reshape(-1, 8)
    radius, _ = reference.layers(quantizer.plan, address.derive().noise, np.arange(VECTORS))
    assert sum(is_found(row, r * quantizer.plan.unit) for row, r in zip(y, radius)) == 0


def words_that_give(low: int, high: int, side: int) -> int:
    """How many of the 2^64 words w have low <= (w * side) >> 64 < high."""
    return -(-(high << 64) // side) + (-(low << 64) // side)


def test_every_layer_explains_an_output_of_ours_equally_well(address: cepam.Address) -> None:
    """The likelihood of a layer B, counted exactly: 1/B before the grid to 2^-20, after it to 2^-48."""
    quantizer = cepam.LRSUQ(cepam.Gaussian(SIGMA), cepam.Integer(1))
    plan = quantizer.plan
    h, m = quantizer.quantize(np.zeros(VECTORS), address)
    units = reference.reconstruct(plan, address.derive().noise, h, m)[:, 0]
    _, sides = reference.layers(plan, address.derive().noise, np.arange(1000, 1000 + VECTORS))
    worst_point, worst_cell = 0.0, 0.0
    for y in map(int, units):
        cell = int(reference.to_grid(np.array([y]))[0]) << GRID_BITS
        for side in map(int, sides):
            dither = y % side  # y = side * M + dither has exactly one solution, whatever the layer
            chance = Fraction(words_that_give(dither, dither + 1, side) * side, 1 << 64)
            worst_point = max(worst_point, abs(float(chance - 1)))
            start = (cell - (1 << (GRID_BITS - 1))) % side
            end = start + (1 << GRID_BITS)
            if end <= side:
                chance = Fraction(words_that_give(start, end, side) * side, 1 << (64 + GRID_BITS))
                worst_cell = max(worst_cell, abs(float(chance - 1)))
    assert worst_point < 2.0**-20
    assert worst_cell < 2.0**-48
