"""How kernels are compiled and cached, the plan as they take it, and small helpers that they share.

Numba files a compiled kernel under its qualified name and looks again at the kernel's own file only; a constant that it
read from another module would stay what it was. With the stamp a changed source or table is another name, wherever
Numba keeps its cache (beside the source, or in the user's folder for an install that cannot be written to).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cepam.kernels.format.plan import Plan

Kernel = TypeVar("Kernel", bound=Callable[..., object])
PACKAGE = Path(__file__).parents[2]
FOLDERS = ("kernels", "distributions", "lattices")


def stamp_of(package: Path, folders: Iterable[str] = FOLDERS) -> str:
    """Sixteen digits that change with any source or table which kernels may have compiled in: in folders, or files."""
    places = [package / folder for folder in folders]
    files = (file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*"))))
    found = (file for file in files if file.suffix in (".py", ".npz", ".npy"))
    digest = hashlib.sha256()
    for file in found:
        digest.update(str(file.relative_to(package)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


STAMP = stamp_of(PACKAGE)


def stamped(kernel: Kernel, stamp: str = STAMP) -> Kernel:
    """The same function, under a name that carries the stamp: to be compiled with Numba's cache."""
    kernel.__qualname__ = f"{kernel.__qualname__}_{stamp}"
    return kernel


def _forget(folder: Path) -> None:
    """Removes what other sources were compiled to, beside our own; what cannot be removed stays, and does no harm."""
    with suppress(OSError):
        for file in folder.iterdir():
            if file.suffix in (".nbi", ".nbc") and STAMP not in file.name:
                file.unlink()


_forget(Path(__file__).parent / "__pycache__")


TRIALS_AT_ONCE = 4
"""First trials whose words are made for many sub-vectors at once; later ones are made for one, eight trials ahead."""

# Without Numba's runtime no kernel can allocate, and no kernel counts references to the arrays it passes along, which
# took most of the time of the vector kernels. Scratch space comes from the caller. C calls none, so no way to do so is
# compiled. (Without Python's way E8 would compile in six sevenths of the time, and a call of an inlined kernel crash.)
_options = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
_compiled = njit(cache=True, **_options)
_inlined = njit(cache=True, forceinline=True, **_options)
_pasted = njit(inline="always", **_options)


def compiled(kernel: Any) -> Any:
    """The kernel, compiled once for these sources."""
    return _compiled(stamped(kernel))


def inlined(kernel: Any) -> Any:
    """The kernel, compiled into each of its callers."""
    return _inlined(stamped(kernel))


def pasted(kernel: Any) -> Any:
    """The kernel, part of its caller before that is compiled. For a large one that a kernel calls once: inlined, it
    would be compiled and optimised alone first."""
    return _pasted(stamped(kernel))


class KernelPlan(NamedTuple):
    """The fields of a plan that kernels read, with plain integers for its enumerations; axes and shear transposed."""

    search: int
    accept: int
    n: int
    words: int
    scale: float
    step: int
    inverse_ball: float
    table: Any
    basis: Any
    box: Any
    inverse: Any
    relevant: Any
    steps: Any
    squares: Any
    determinant: int
    trials: int
    order: Any
    straight: bool
    axes: Any
    shear: Any
    spacing: Any


class LayerPlan(NamedTuple):
    """The few of them that widths and dithers in one dimension take: a kernel looks at all it is given."""

    accept: int
    step: int
    scale: float
    table: Any


class Scratch(NamedTuple):
    """Working memory of the kernels on vector lattices; one for each thread."""

    state: Any
    ahead: Any
    latent: Any
    radii: Any
    dithers: Any
    words: Any
    spare: Any
    work: Any
    odds: Any
    centres: Any


def scratch_for(plan: Plan, contexts: int = 0) -> Scratch:
    """Fresh working memory for a plan."""
    return Scratch(
        state=aligned(256, np.uint32),
        ahead=aligned(3 * 128, np.uint32),
        latent=aligned(256, np.uint32),
        radii=aligned(128, np.float64),
        dithers=aligned((min(TRIALS_AT_ONCE, plan.trials), 256 * plan.words), np.uint32),
        words=aligned(16, np.uint64),
        spare=aligned((4, 16), np.int64),
        work=aligned((8, 16), np.int64),
        odds=aligned(contexts, np.uint16),
        centres=aligned(16, np.float64),
    )


def aligned(shape: int | tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """New memory that begins where a cache line does: a vector across two of them is slow to be read back."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy that may be written to: Numba compiles anew for read-only arrays, and pickling forgets that they were."""
    return np.array(array, order="C")


@lru_cache(maxsize=64)
def kernel_plan(plan: Plan) -> KernelPlan:
    """The plan as kernels read it, of the same types in every process: what one has compiled the others find."""
    vectors = plan.relevant.astype(np.float64)
    return KernelPlan(
        search=int(plan.search),
        accept=int(plan.accept),
        n=plan.n,
        words=plan.words,
        scale=plan.scale,
        step=plan.step,
        inverse_ball=plan.inverse_ball,
        table=_own(plan.table),
        basis=_own(plan.basis),
        box=_own(plan.box),
        inverse=_own(plan.inverse),
        relevant=_own(vectors),
        steps=_own(plan.steps),
        squares=(vectors**2).sum(axis=1),
        determinant=plan.determinant,
        trials=plan.trials,
        order=_own(plan.walk.order),
        straight=not (plan.walk.axes - np.diag(np.diag(plan.walk.axes))).any(),
        axes=_own(plan.walk.axes.T),
        shear=_own(plan.walk.shear.T),
        spacing=_own(plan.walk.spacing),
    )


@inlined
def in_eight(p: Any) -> Any:
    """The plan of E8 with what it always has as constants, so that loops over eight coordinates are unrolled."""
    return KernelPlan(
        2, p.accept, 8, 8, p.scale, p.step, p.inverse_ball, p.table, p.basis, p.box, p.inverse, p.relevant, p.steps,
        p.squares, p.determinant, p.trials, p.order, p.straight, p.axes, p.shear, p.spacing,
    )  # fmt: skip


@lru_cache(maxsize=64)
def layer_plan(plan: Plan) -> LayerPlan:
    """What `scalar_quantizer.widths_and_dithers` reads of a plan."""
    return LayerPlan(int(plan.accept), plan.step, plan.scale, _own(plan.table))


@intrinsic
def multiply_high(typingctx: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of a 128-bit product."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        x, y = (builder.zext(value, wide) for value in arguments)
        return builder.trunc(builder.lshr(builder.mul(x, y), ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def leading_zeros(typingctx: Any, a: Any) -> Any:
    """The number of zero bits above the highest set bit of a 64-bit word."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@inlined
def floor_divide(t: Any, b: Any) -> Any:
    """floor(t / b): a float64 quotient, put right by its integer remainder (exact while it is under 2^51)."""
    q = np.int64(np.floor(np.float64(t) / np.float64(b)))
    rest = t - q * b
    return q - np.int64(rest < 0) + np.int64(rest >= b)


LONG = ir.IntType(64)
LONGS, DOUBLES = ir.VectorType(LONG, 8), ir.VectorType(ir.DoubleType(), 8)


def data_of(context: Any, builder: Any, signature: Any, arguments: Any, i: int) -> Any:
    """Where the numbers of an array lie that is the i-th argument of an intrinsic."""
    return context.make_array(signature.args[i])(context, builder, value=arguments[i]).data


def vector_at(builder: Any, data: Any, place: Any, kind: Any) -> Any:
    """A pointer to the vector that begins at a place of an array."""
    return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())


def spread(builder: Any, number: Any, kind: Any) -> Any:
    """A vector that has the number in every lane."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, _lanes([0] * kind.count))


def filled(kind: Any, number: float) -> Any:
    """A constant vector that has the number in every lane."""
    return ir.Constant(kind, [number] * kind.count)


def transpose(builder: Any, rows: list[Any]) -> list[Any]:
    """As many vectors as they have lanes, the i-th with the i-th lanes of the rows: rounds of interleaving pairs."""
    count = len(rows)
    low, high = (_lanes([start + i // 2 + (i % 2) * count for i in range(count)]) for start in (0, count // 2))
    for _ in range(count.bit_length() - 1):
        pairs = [(rows[i], rows[i + count // 2]) for i in range(count // 2)]
        rows = [builder.shuffle_vector(a, b, which) for a, b in pairs for which in (low, high)]
    return rows


def call(builder: Any, name: str, gives: Any, *arguments: Any) -> Any:
    """What one of LLVM's own functions gives."""
    kind = ir.FunctionType(gives, [each.type for each in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _lanes(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)


def _transposed(scaled: bool) -> Any:
    """Codegen that moves eight rows of eight integers, turned."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = 4 if scaled else 3
        source, out = (data_of(context, builder, signature, arguments, i) for i in (0, target))
        rows = []
        for i in range(8):
            place = builder.add(arguments[1], builder.mul(arguments[2], LONG(i)))
            rows.append(builder.load(vector_at(builder, source, place, LONGS), align=8))
        for i, row in enumerate(transpose(builder, rows)):
            place = builder.add(arguments[target + 1], builder.mul(arguments[target + 2], LONG(i)))
            if scaled:
                row = builder.fmul(builder.sitofp(row, DOUBLES), spread(builder, arguments[3], DOUBLES))
            builder.store(row, vector_at(builder, out, place, row.type), align=8)
        return context.get_dummy_value()

    return codegen


@intrinsic
def transpose_eight(typingctx: Any, source: Any, at: Any, stride: Any, out: Any, begin: Any, apart: Any) -> Any:
    """Eight runs of eight integers, `stride` from each other, turned into eight others, `apart` from each other."""
    return types.void(source, types.int64, types.int64, out, types.int64, types.int64), _transposed(False)


@intrinsic
def transpose_scaled(
    typingctx: Any, source: Any, at: Any, stride: Any, scale: Any, out: Any, begin: Any, apart: Any
) -> Any:
    """The same, times a float64."""
    whole = types.int64
    return types.void(source, whole, whole, types.float64, out, whole, whole), _transposed(True)
