"""Tiles of vectors: the four operations from which every pass of a network is built, one example in each lane.

An array with rows of LANES floats is a list of vectors; a flat array is a list of numbers, each read into all lanes.
A tile is outs by places vectors that stay in registers. Every lane is computed by itself and in the order written, so
a result depends neither on the neighbours in the other lanes, nor on alignment, nor on what the compiler vectorises.
The lengths of the tuples `outs` and `places` give a tile's shape; their contents do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 16
SIX, FOUR, ONE = (0,) * 6, (0,) * 4, (0,)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
Signed = tuple[Any, Callable[..., Any]]


def vectors(count: int) -> npt.NDArray[np.float32]:
    """Room for so many vectors, not filled, that starts where a vector loads in one go."""
    block = np.empty((count + 1) * LANES, dtype=np.float32)
    skip = (-block.ctypes.data // block.itemsize) % LANES
    return block[skip : skip + count * LANES].reshape(count, LANES)


class Lanes(types.Type):
    """The compiler's type of one vector."""

    def __init__(self) -> None:
        super().__init__(name=f"Lanes({LANES})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _tile(outs: Any, places: Any) -> Any:
    return types.UniTuple(Lanes(), len(outs) * len(places))  # type: ignore[attr-defined]


def data_of(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Where an array's numbers begin."""
    if kind.layout != "C":
        raise TypeError(f"vectors are read from arrays without gaps, got {kind}")
    return context.make_array(kind)(context, builder, value).data


def _vector_at(builder: Any, data: Any, index: Any) -> Any:
    at = builder.gep(data, [builder.mul(index, ir.Constant(index.type, LANES))])
    return builder.bitcast(at, _VECTOR.as_pointer())


def _spread(builder: Any, number: Any, kind: Any) -> Any:
    """The number in all lanes."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _load(builder: Any, kind: Any, data: Any, index: Any) -> Any:
    """The vector at this place, or the number at this place in all lanes."""
    if kind.ndim == 2:
        return builder.load(_vector_at(builder, data, index), align=4)
    return _spread(builder, builder.load(builder.gep(data, [index])), _VECTOR)


def _steps(builder: Any, start: Any, step: Any, count: int) -> list[Any]:
    return [builder.add(start, builder.mul(step, ir.Constant(step.type, n))) for n in range(count)]


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32"), [a, b, c])


@intrinsic
def blank(typing: Any, outs: Any, places: Any) -> Signed:
    """A tile of zeros."""
    made = _tile(outs, places)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return cgutils.pack_array(builder, [ir.Constant(_VECTOR, [0.0] * LANES)] * made.count, _VECTOR)

    return made(outs, places), emit


@intrinsic
def take(typing: Any, outs: Any, places: Any, source: Any, at: Any) -> Signed:
    """A tile whose line o holds source[at + o] in all places."""
    made = _tile(outs, places)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = data_of(context, builder, source, arguments[2])
        lines = _steps(builder, arguments[3], ir.Constant(ir.IntType(64), 1), len(outs))
        vectors = [_load(builder, source, data, line) for line in lines]
        return cgutils.pack_array(builder, [v for v in vectors for _ in places], _VECTOR)

    return made(outs, places, source, types.int64), emit


@intrinsic
def add(
    typing: Any, tile: Any, outs: Any, places: Any, a: Any, a_at: Any, a_step: Any, b: Any, b_at: Any, b_step: Any
) -> Signed:
    """The tile with a[a_at + o * a_step] * b[b_at + p * b_step] added at (o, p)."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held, _, _, a_array, a_start, a_pace, b_array, b_start, b_pace = arguments
        a_data, b_data = data_of(context, builder, a, a_array), data_of(context, builder, b, b_array)
        left = [_load(builder, a, a_data, at) for at in _steps(builder, a_start, a_pace, len(outs))]
        right = [_load(builder, b, b_data, at) for at in _steps(builder, b_start, b_pace, len(places))]
        pairs = [(x, y) for x in left for y in right]
        old = cgutils.unpack_tuple(builder, held, len(pairs))
        return cgutils.pack_array(builder, [_multiply_add(builder, x, y, c) for (x, y), c in zip(pairs, old)], _VECTOR)

    long = types.int64
    return tile(tile, outs, places, a, long, long, b, long, long), emit


@intrinsic
def put(typing: Any, tile: Any, outs: Any, places: Any, target: Any, at: Any, step: Any) -> Signed:
    """Write the tile's (o, p) to target[at + o * step + p]."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held, _, _, array, start, pace = arguments
        data = data_of(context, builder, target, array)
        vectors = iter(cgutils.unpack_tuple(builder, held, len(outs) * len(places)))
        for line in _steps(builder, start, pace, len(outs)):
            for place in _steps(builder, line, ir.Constant(ir.IntType(64), 1), len(places)):
                builder.store(next(vectors), _vector_at(builder, data, place), align=4)
        return context.get_dummy_value()

    return types.void(tile, outs, places, target, types.int64, types.int64), emit


@intrinsic
def enter(typing: Any, source: Any, at: Any) -> Signed:
    """The largest value so far, source[at], and its place in the window, zero."""
    made = types.UniTuple(Lanes(), 2)  # type: ignore[attr-defined]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = _load(builder, source, data_of(context, builder, source, arguments[0]), arguments[1])
        return cgutils.pack_array(builder, [first, ir.Constant(_VECTOR, [0.0] * LANES)], _VECTOR)

    return made(source, types.int64), emit


@intrinsic
def contest(typing: Any, held: Any, source: Any, at: Any, place: Any) -> Signed:
    """The largest value and its place, after source[at] at `place` has come; what is no number wins."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        best, where = cgutils.unpack_tuple(builder, arguments[0], 2)
        value = _load(builder, source, data_of(context, builder, source, arguments[1]), arguments[2])
        number = _spread(builder, arguments[3], _VECTOR)
        larger = builder.fcmp_unordered(">", value, best)
        won = [builder.select(larger, value, best), builder.select(larger, number, where)]
        return cgutils.pack_array(builder, won, _VECTOR)

    return held(held, source, types.int64, types.float32), emit


@intrinsic
def award(typing: Any, prize: Any, winner: Any, at: Any, place: Any, target: Any, to: Any) -> Signed:
    """Add prize[at] to target[to] in the lanes whose winner[at] is `place`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, won = (_load(builder, k, data_of(context, builder, k, v), arguments[2])
                      for k, v in ((prize, arguments[0]), (winner, arguments[1])))  # fmt: skip
        mine = builder.fcmp_ordered("==", won, _spread(builder, arguments[3], _VECTOR))
        given = builder.select(mine, given, ir.Constant(_VECTOR, [0.0] * LANES))
        place_of = _vector_at(builder, data_of(context, builder, target, arguments[4]), arguments[5])
        builder.store(builder.fadd(builder.load(place_of, align=4), given), place_of, align=4)
        return context.get_dummy_value()

    return types.void(prize, winner, types.int64, types.float32, target, types.int64), emit
