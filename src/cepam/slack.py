"""How far decoded vectors are from the ideal law, as a bound: what finite words cost, to be added to delta.

The argument is in docs/exactness.md, "What is left".
"""

from __future__ import annotations

import math

import numpy as np

from cepam.kernels.model.plan import GRID_BITS, layered_plan
from cepam.noise.lattices import Lattice, Search
from cepam.noise.laws import Gaussian, Laplace, Law

WORD_BITS = 64
EXACT_TABLE = 2.0**-51.5
FLOAT_TABLE = 2.0**-46
_BEYOND_TABLE = 2.0**-61
_NODES = 4096


def distance_per_coordinate(law: Law, lattice: Lattice) -> float:
    """A bound on the total-variation distance, a coordinate, between decoded noise and the law on the grid.

    Guarantee: table accuracies are those that tests/noise/test_radius.py checks.
    """
    n = lattice.dimension
    return (_dither_distance(law, lattice) + _latent_distance(law, n)) / n


def slack_on_delta(distance: float, rounds: int, clients: int, coordinates: int, epsilon: float) -> float:
    """What to add to delta for a whole run: (1 + e^epsilon) · rounds · clients · coordinates · distance."""
    return (1.0 + math.exp(epsilon)) * rounds * clients * coordinates * distance


def _dither_distance(law: Law, lattice: Lattice) -> float:
    """Of one sub-vector: each interval of dithers that makes a grid cell is off by at most one word."""
    plan, n = layered_plan(law, lattice), lattice.dimension
    radius = _mean_radius(law, n) * plan.scale
    first_trial = n == 1 and lattice.search is Search.CUBIC
    side = 2 * radius + 1 if first_trial else radius * plan.inverse_ball + 2
    sides = np.ones(n) if lattice.search is Search.GENERAL else lattice.box
    intervals = float((sides * side / 2.0**GRID_BITS + 2).sum())
    condition = 1.0 if first_trial else 2.0 / lattice.acceptance(law.norm)
    return 0.5 * intervals * 2.0**-WORD_BITS * condition


def _latent_distance(law: Law, n: int) -> float:
    """Of one sub-vector: a relative error of the radius costs n times itself."""
    table = EXACT_TABLE if type(law) in (Gaussian, Laplace) else FLOAT_TABLE
    comparison = (n + 2) * 2.0**-54 if n > 1 else 0.0
    return n * (table + comparison) + _BEYOND_TABLE


def _mean_radius(law: Law, n: int) -> float:
    half = (np.arange(_NODES) + 0.5) / (2 * _NODES)
    return float(np.concatenate([law.radius_below(half, n), law.radius_above(half, n)]).mean())
