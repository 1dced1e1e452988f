"""A description lowered once to plain numbers: what the kernels of every backend read.

All positions are integers in one *unit*, a power of two of about 2^-40 of the noise scale; the public grid that decoded
vectors live on is 2^28 units, about 2^-12 of the noise scale.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Law, check_scale
from cepam.distributions.radius import SHAPE, SMALLEST, radius_table
from cepam.lattices.geometry import CoordinateOrder, exact_inverse
from cepam.lattices.lattice import Lattice, Search

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GRID_BITS = 28
SCALE_BITS = 40
RANGE_BITS = 61
LEAST_ACCEPTANCE = 1e-3
MOST_TRIALS = 1 << 16
_LARGEST_RADIUS_BITS = 48
_RARE_OCTAVE = 58


class Accept(IntEnum):
    """Which errors end the rejection sampling."""

    L1_BALL = 0
    L2_BALL = 1
    CELL = 2


@dataclass(frozen=True, eq=False)
class Plan:
    """The numbers of one quantizer."""

    search: Search
    accept: Accept
    n: int
    words: int
    unit: float
    scale: float
    step: int
    inverse_ball: float
    table: Floats
    basis: Ints
    box: Ints
    inverse: Floats
    relevant: Ints
    steps: Ints
    determinant: int
    trials: int
    walk: CoordinateOrder

    @property
    def grid(self) -> float:
        """The public grid: decoded values are its multiples."""
        return math.ldexp(self.unit, GRID_BITS)

    @property
    def reach(self) -> float:
        """The largest magnitude of a coordinate that the format carries: at least a million noise scales."""
        return math.ldexp(self.unit, RANGE_BITS)

    def fingerprint(self) -> bytes:
        """32 bytes that two plans share exactly when they quantize alike."""
        digest = hashlib.sha256(b"cepam plan v1")
        digest.update(bytes([int(self.search), int(self.accept), self.n]))
        digest.update(np.array([self.unit, self.scale, self.inverse_ball], dtype="<f8").tobytes())
        digest.update(np.array([self.step], dtype="<i8").tobytes())
        for array in (self.table, self.basis, self.box, self.inverse):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()


@lru_cache(maxsize=64)
def layered_plan(law: Law, lattice: Lattice) -> Plan:
    """The plan of the layered quantizer (Paper: LRSUQ) for a law on a lattice; refuses hopeless pairs."""
    share = lattice.acceptance(law.norm)
    if share < LEAST_ACCEPTANCE:
        raise ValueError(
            f"{law.name} noise on {lattice.name} would accept one trial in {1 / share:,.0f} (at least one in"
            f" {1 / LEAST_ACCEPTANCE:,.0f} is required): choose a lattice of lower dimension"
        )
    n = lattice.dimension
    unit, scale = _units(law.scale)
    table = radius_table(law, n).reshape(-1)
    _check_radii(law, table, scale)
    accept = Accept.L1_BALL if law.norm == "l1" else Accept.L2_BALL
    return _plan(lattice, accept, unit, scale, 0, table, 1.0 / lattice.ball_radius(law.norm), _most_trials(share))


@lru_cache(maxsize=64)
def cell_plan(lattice: Lattice, step: float) -> Plan:
    """The plan of the subtractive dithered quantizer (Paper: SDQ): a lattice whose cells have volume step^n."""
    check_scale("step", step)
    unit, scale = _units(step)
    side = round(scale / lattice.determinant ** (1.0 / lattice.dimension))
    return _plan(lattice, Accept.CELL, unit, scale, max(side, 1), np.zeros(8), 1.0 / lattice.ball_radius("l2"), 1)


def _most_trials(acceptance: float) -> int:
    """So many trials that all are refused with chance under 2^-100 only: what a decoder has to put up with."""
    if acceptance > 1 - 1e-9:
        return 1
    return min(math.ceil(-100 * math.log(2) / math.log1p(-acceptance)), MOST_TRIALS)


def _units(scale: float) -> tuple[float, float]:
    exponent = math.frexp(scale)[1] - 1
    unit = math.ldexp(1.0, exponent - SCALE_BITS)
    return unit, scale / unit


def _check_radii(law: Law, table: Floats, scale: float) -> None:
    rows = table.reshape(SHAPE)
    largest, rare = rows.sum(axis=-1).max(), rows[0, _RARE_OCTAVE, 0, 0]
    if not (largest * scale < 2.0**_LARGEST_RADIUS_BITS and rare > SMALLEST):
        raise ValueError(
            f"{law!r} has latent radii from {rare:.3g} to {largest:.3g} scales; the format carries 2^-30 to 2^7"
            " scales: change what the law calls its scale, or cut its tails"
        )


def _plan(
    lattice: Lattice,
    accept: Accept,
    unit: float,
    scale: float,
    step: int,
    table: Floats,
    inverse_ball: float,
    trials: int,
) -> Plan:
    n, basis, general = lattice.dimension, lattice.basis, lattice.search is Search.GENERAL
    steps = lattice.relevant if general else np.zeros((0, n), dtype=np.int64)
    return Plan(
        search=lattice.search,
        accept=accept,
        n=n,
        words=n + 2 if general else n,
        unit=unit,
        scale=scale,
        step=step,
        inverse_ball=inverse_ball,
        table=table,
        basis=basis,
        box=lattice.box,
        inverse=exact_inverse(basis),
        relevant=steps @ basis.T,
        steps=steps,
        determinant=lattice.determinant,
        trials=trials,
        walk=lattice.walk,
    )
