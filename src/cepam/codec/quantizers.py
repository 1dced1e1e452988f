"""The paper's three quantizers by themselves: SDQ, RSUQ and LRSUQ, on real vectors, without coding or sealing.

SDQ and LRSUQ run on the GPU that a tensor is on, or on the compiled kernels, to the same integers and vectors. RSUQ,
which asks a function of the user's, has its trials on the reference kernels. `cepam.Codec` is LRSUQ plus an entropy
code plus a seal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Law
from cepam.kernels.dispatch import gpu_of
from cepam.kernels.format.plan import MOST_TRIALS, Floats, Ints, Plan, cell_plan, cpu_only, layered_plan
from cepam.kernels.numpy import quantizer
from cepam.kernels.numpy.quantizer import nearest
from cepam.keys import Address
from cepam.lattices.lattice import Integer, Lattice

if TYPE_CHECKING:
    import torch

_PATIENCE = 1 << 13

Membership = Callable[[Floats], npt.NDArray[np.bool_]]


def _rows(plan: Plan, x: npt.ArrayLike) -> Ints:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (np.abs(values) > plan.reach).any():
        raise ValueError(f"x must be a finite vector with coordinates up to {plan.reach:.3g} in size")
    rows = np.zeros(-(-len(values) // plan.n) * plan.n, dtype=np.int64)
    rows[: len(values)] = np.trunc(values / plan.unit).astype(np.int64)
    return rows.reshape(-1, plan.n)


def _quantize(plan: Plan, at: Address, x: Any) -> tuple[Any, Any]:
    """(H, M) where x is: on its GPU, or on the compiled kernels."""
    gpu = gpu_of(x)
    if gpu is not None:
        _check_on_gpu(plan)
        found: tuple[Any, Any] = gpu.quantize(plan, at.derive().noise, x)
        return found
    from cepam.kernels.numba import backend as compiled

    return compiled.quantize(plan, at.derive().noise, _rows(plan, x))


def _reconstruct(plan: Plan, at: Address, h: Any, m: Any, size: int | None, released: bool = False) -> Any:
    """The quantized vector where M is, on the public grid where it is `released`."""
    gpu = gpu_of(m)
    if gpu is not None:
        _check_on_gpu(plan)
        return gpu.reconstruct(plan, at.derive().noise, h, m, released)[:size]
    from cepam.kernels.numba import backend as compiled

    units = compiled.reconstruct(plan, at.derive().noise, *_symbols(plan, h, m))
    whole, unit = (quantizer.to_grid(units), plan.grid) if released else (units, plan.unit)
    return (whole.astype(np.float64) * unit).reshape(-1)[:size]


def _symbols(plan: Plan, h: npt.ArrayLike, m: npt.ArrayLike) -> tuple[Ints, Ints]:
    trials, points = (np.ascontiguousarray(each, dtype=np.int64) for each in (h, m))
    if points.shape != (len(points), plan.n) or trials.shape != (len(points),) or (trials < 1).any():
        raise ValueError(
            f"h must be trials from 1 on and m rows of {plan.n}, as quantize returned them,"
            f" got shapes {trials.shape} and {points.shape}"
        )
    return trials, points


def _check_on_gpu(plan: Plan) -> None:
    missing = cpu_only("adaptive", plan.search, plan.n)
    if missing:
        raise ValueError(f"{missing} has no quantizer on a GPU: pass x.cpu(), or a lattice such as cepam.E8")


@dataclass(frozen=True)
class SDQ:
    """Subtractive dithered quantization, without coding or sealing.

    Args:
        step: Side of a cube with the volume of a cell.
        lattice: The lattice.

    Paper: Definition 1.

    Guarantee: The error is uniform on the lattice's cell (volume step^n) and independent of x. A tensor on a GPU is
    quantized there, to the CPU's integers and vectors (tests/identity/test_triton_symbols.py).
    """

    step: float
    lattice: Lattice = field(default_factory=lambda: Integer(1))

    @property
    def plan(self) -> Plan:
        """The quantizer's numbers."""
        return cell_plan(self.lattice, float(self.step))

    @overload
    def quantize(self, x: torch.Tensor, at: Address) -> Any: ...

    @overload
    def quantize(self, x: npt.ArrayLike, at: Address) -> Ints: ...

    def quantize(self, x: Any, at: Address) -> Any:
        """Quantize a vector.

        Args:
            x: A vector of floats, or a tensor on a GPU.
            at: The address of the dithers. Use it once.

        Returns:
            M, one row of lattice coordinates per sub-vector; on a GPU int32, or int64 as `LRSUQ.quantize` says.

        Raises:
            ValueError: x is not a finite vector, or out of range.
        """
        return _quantize(self.plan, at, x)[1]

    @overload
    def reconstruct(self, m: torch.Tensor, at: Address, size: int | None = None) -> Any: ...

    @overload
    def reconstruct(self, m: Ints, at: Address, size: int | None = None) -> Floats: ...

    def reconstruct(self, m: Any, at: Address, size: int | None = None) -> Any:
        """Return the quantized vector, float64, from M and the shared dithers.

        Args:
            m: What `quantize` returned.
            at: The same address.
            size: The length of x. Default: that of whole sub-vectors.

        Returns:
            The quantized vector.
        """
        one = m.new_ones(1).expand(len(m)) if gpu_of(m) else np.ones(len(m), dtype=np.int64)
        return _reconstruct(self.plan, at, one, m, size)


@dataclass(frozen=True)
class RSUQ:
    """Rejection-sampled universal quantization, without coding or sealing, on the CPU.

    Args:
        step: Side of a cube with the volume of a cell.
        inside: Takes errors as rows of an (N, n) array, and says which lie in the set A.
        lattice: The lattice.

    Paper: Definition 2.

    Guarantee: The error is uniform on A and independent of x. Condition: A lies inside the Voronoi cell of the lattice
    scaled to volume step^n; otherwise the error is uniform on the part of A in the cell.
    """

    step: float
    inside: Membership
    lattice: Lattice = field(default_factory=lambda: Integer(1))

    @property
    def plan(self) -> Plan:
        """The numbers of the dithering underneath."""
        return cell_plan(self.lattice, float(self.step))

    def quantize(self, x: npt.ArrayLike, at: Address) -> tuple[Ints, Ints]:
        """Quantize a vector.

        Args:
            x: A vector of floats.
            at: The address of the dithers. Use it once.

        Returns:
            (H, M): the accepted trial of each sub-vector, counted from 1, and its lattice coordinates.

        Raises:
            ValueError: x is not a finite vector, is out of range, or A seems to be empty.
        """
        _check_on_cpu("x", x)
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
        """Return the quantized vector, float64, from (H, M) and the shared dithers.

        Args:
            h: The trials that `quantize` returned.
            m: The lattice coordinates that `quantize` returned.
            at: The same address.
            size: The length of x. Default: that of whole sub-vectors.

        Returns:
            The quantized vector.

        Raises:
            ValueError: `m` is on a GPU.
        """
        _check_on_cpu("m", m)
        found: Floats = _reconstruct(self.plan, at, h, m, size)
        return found


def _check_on_cpu(name: str, given: Any) -> None:
    if gpu_of(given):
        raise ValueError(
            f"{name} is on {given.device}, but RSUQ asks a function of yours on the CPU: pass {name}.cpu(), or use"
            " LRSUQ(UniformBall(radius), lattice), which has a ball for the set A and runs on a GPU"
        )


@dataclass(frozen=True)
class LRSUQ:
    """Layered rejection-sampled universal quantization, without coding or sealing.

    Args:
        law: The distribution of the error.
        lattice: The lattice.

    Paper: Definition 3. `reconstruct` returns multiples of the public grid; `released=False` returns the point itself,
    which reveals its layer and must not leave the server (docs/proofs/finite-precision.md, "The layer leak").

    Guarantee: The error follows `law` and is independent of x. A tensor on a GPU is quantized there, to the CPU's
    integers and vectors (tests/identity/test_triton_symbols.py).
    """

    law: Law
    lattice: Lattice = field(default_factory=lambda: Integer(1))

    @property
    def plan(self) -> Plan:
        """The quantizer's numbers."""
        return layered_plan(self.law, self.lattice)

    @overload
    def quantize(self, x: torch.Tensor, at: Address) -> tuple[Any, Any]: ...

    @overload
    def quantize(self, x: npt.ArrayLike, at: Address) -> tuple[Ints, Ints]: ...

    def quantize(self, x: Any, at: Address) -> tuple[Any, Any]:
        """Quantize a vector.

        Args:
            x: A vector of floats, or a tensor on a GPU.
            at: The address of latents and dithers. Use it once.

        Returns:
            (H, M): the accepted trial of each sub-vector, counted from 1, and its lattice coordinates. On a GPU both
            are int32, and in one dimension H, which is always 1 there, takes no memory. M is int64 where it might not
            fit: a coordinate has more than 31 bits or, in one dimension, x one of some thousand noise scales.

        Raises:
            ValueError: x is not a finite vector, or out of range.
        """
        return _quantize(self.plan, at, x)

    @overload
    def reconstruct(
        self, h: torch.Tensor, m: torch.Tensor, at: Address, size: int | None = None, released: bool = True
    ) -> Any: ...

    @overload
    def reconstruct(self, h: Ints, m: Ints, at: Address, size: int | None = None, released: bool = True) -> Floats: ...

    def reconstruct(self, h: Any, m: Any, at: Address, size: int | None = None, released: bool = True) -> Any:
        """Return the quantized vector, float64, from (H, M) and the shared randomness.

        Args:
            h: The trials that `quantize` returned.
            m: The lattice coordinates that `quantize` returned.
            at: The same address.
            size: The length of x. Default: that of whole sub-vectors.
            released: Return multiples of the public grid. False returns the point itself, which reveals its layer and
                must not leave the server (docs/exactness.md, the layer leak).

        Returns:
            The quantized vector.
        """
        return _reconstruct(self.plan, at, h, m, size, released)
