"""The paper's three quantizers by themselves: SDQ, RSUQ and LRSUQ, on real vectors, without coding or sealing.

They run on the reference kernels. `cepam.Codec` is LRSUQ plus an entropy code plus a seal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cepam.kernels.model.plan import MOST_TRIALS, Floats, Ints, Plan, cell_plan, layered_plan
from cepam.kernels.numpy import quantizer
from cepam.kernels.numpy.nearest import nearest
from cepam.keys import Address
from cepam.noise.lattices import Integer, Lattice
from cepam.noise.laws import Law

_PATIENCE = 1 << 13

Membership = Callable[[Floats], npt.NDArray[np.bool_]]


def _rows(plan: Plan, x: npt.ArrayLike) -> Ints:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (np.abs(values) > plan.reach).any():
        raise ValueError(f"x must be a finite vector with coordinates up to {plan.reach:.3g} in size")
    rows = np.zeros(-(-len(values) // plan.n) * plan.n, dtype=np.int64)
    rows[: len(values)] = np.trunc(values / plan.unit).astype(np.int64)
    return rows.reshape(-1, plan.n)


def _vector(plan: Plan, at: Address, h: Ints, m: Ints, size: int | None, released: bool = False) -> Floats:
    """The quantized vector, on the public grid where it is `released`."""
    units = quantizer.reconstruct(plan, at.derive().noise, h, m)
    whole, unit = (quantizer.to_grid(units), plan.grid) if released else (units, plan.unit)
    return (whole.astype(np.float64) * unit).reshape(-1)[:size]


@dataclass(frozen=True)
class SDQ:
    """Subtractive dithering: the error is uniform on the lattice's cell (volume step^n) and independent of x.

    Paper: Definition 1.
    """

    step: float
    lattice: Lattice = field(default_factory=lambda: Integer(1))

    @property
    def plan(self) -> Plan:
        """The quantizer's numbers."""
        return cell_plan(self.lattice, float(self.step))

    def quantize(self, x: npt.ArrayLike, at: Address) -> Ints:
        """M, one row of lattice coordinates a sub-vector."""
        return quantizer.quantize(self.plan, at.derive().noise, _rows(self.plan, x))[1]

    def reconstruct(self, m: Ints, at: Address, size: int | None = None) -> Floats:
        """The quantized vector, from M and the shared dithers."""
        return _vector(self.plan, at, np.ones(len(m), dtype=np.int64), m, size)


@dataclass(frozen=True)
class RSUQ:
    """Rejection-sampled dithering: the error is uniform on a set A inside the lattice's cell, independent of x.

    `inside` gets errors as rows of an (N, n) array and says which lie in A. A must lie inside the Voronoi cell of the
    lattice scaled to volume step^n, or the law is that of A's part in the cell.

    Paper: Definition 2.
    """

    step: float
    inside: Membership
    lattice: Lattice = field(default_factory=lambda: Integer(1))

    @property
    def plan(self) -> Plan:
        """The numbers of the dithering underneath."""
        return cell_plan(self.lattice, float(self.step))

    def quantize(self, x: npt.ArrayLike, at: Address) -> tuple[Ints, Ints]:
        """(H, M): the accepted trial, counted from 1, and lattice coordinates."""
        plan, key = self.plan, at.derive().noise
        rows = _rows(plan, x)
        ids = np.arange(len(rows), dtype=np.int64)
        h, m = np.zeros(len(rows), dtype=np.int64), np.zeros_like(rows)
        active = ids
        for trial in range(MOST_TRIALS):
            if not len(active):
                return h, m
            b = np.full(len(active), plan.step, dtype=np.int64)
            point, error = nearest(plan, rows[active] - quantizer.dither(plan, key, trial, active, b), b)
            ends = np.asarray(self.inside(error.astype(np.float64) * plan.unit), dtype=np.bool_)
            h[active[ends]] = trial + 1
            m[active[ends]] = point[ends]
            active = active[~ends]
            if trial == _PATIENCE and not h.any():
                break
        raise ValueError(f"{len(active)} sub-vectors were refused {trial + 1} times: is the set A empty or tiny?")

    def reconstruct(self, h: Ints, m: Ints, at: Address, size: int | None = None) -> Floats:
        """The quantized vector, from (H, M) and the shared dithers."""
        return _vector(self.plan, at, h, m, size)


@dataclass(frozen=True)
class LRSUQ:
    """Layered rejection-sampled dithering: the error follows the law, independent of x.

    Paper: Definition 3. `reconstruct` returns multiples of the public grid; `released=False` returns the point itself,
    which reveals its layer and must not leave the server (docs/exactness.md, the layer leak).
    """

    law: Law
    lattice: Lattice = field(default_factory=lambda: Integer(1))

    @property
    def plan(self) -> Plan:
        """The quantizer's numbers."""
        return layered_plan(self.law, self.lattice)

    def quantize(self, x: npt.ArrayLike, at: Address) -> tuple[Ints, Ints]:
        """(H, M): the accepted trial, counted from 1, and lattice coordinates."""
        return quantizer.quantize(self.plan, at.derive().noise, _rows(self.plan, x))

    def reconstruct(self, h: Ints, m: Ints, at: Address, size: int | None = None, released: bool = True) -> Floats:
        """The quantized vector, from (H, M) and the shared randomness."""
        return _vector(self.plan, at, h, m, size, released)
