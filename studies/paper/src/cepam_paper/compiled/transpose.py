"""From rows to lanes and back: sixteen rows of numbers as vectors that hold one number of each row, and sums over both.

Like the operations on tiles these are written as vectors, not left to the compiler to find.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cepam_paper.compiled.register_tiles import LANES, Signed, data_of

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_LONG = ir.IntType(64)


def _at(context: Any, builder: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    """Where the numbers from this flat index on stand as one vector."""
    return builder.bitcast(builder.gep(data_of(context, builder, kind, array), [index]), vector.as_pointer())


def _shuffled(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of LANES vectors: in every round neighbours at twice the distance trade half of their lanes."""
    half = 1
    while half < LANES:
        low = [n if not n & half else n + LANES - half for n in range(LANES)]
        high = [n + half if not n & half else n + LANES for n in range(LANES)]
        made = list(rows)
        for n in range(LANES):
            if not n & half:
                made[n] = _shuffled(builder, rows[n], rows[n + half], low)
                made[n + half] = _shuffled(builder, rows[n], rows[n + half], high)
        rows, half = made, 2 * half
    return rows


@intrinsic
def to_lanes(typing: Any, source: Any, rows: Any, column: Any, out: Any) -> Signed:
    """Write source[rows[l], column + n] to lane l of out[column + n], for LANES columns n."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, picks, start, target = arguments
        width = builder.extract_value(context.make_array(source)(context, builder, array).shape, 1)
        kind = context.get_data_type(source.dtype)
        read = []
        for lane in range(LANES):
            row = builder.load(builder.gep(context.make_array(rows)(context, builder, picks).data, [_LONG(lane)]))
            at = _at(
                context, builder, source, array, builder.add(builder.mul(row, width), start), ir.VectorType(kind, LANES)
            )
            vector = builder.load(at, align=1)
            read.append(vector if kind == ir.FloatType() else builder.uitofp(vector, _FLOATS))
        for n, vector in enumerate(_transposed(builder, read)):
            place = builder.mul(builder.add(start, _LONG(n)), _LONG(LANES))
            builder.store(vector, _at(context, builder, out, target, place, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(source, rows, types.int64, out), emit


@intrinsic
def to_rows(typing: Any, source: Any, column: Any, rows: Any, out: Any) -> Signed:
    """Write lane l of source[column + n] to out[rows[l], column + n], for LANES columns n and the rows given."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, picks, target = arguments
        width = builder.extract_value(context.make_array(out)(context, builder, target).shape, 1)
        chosen = context.make_array(rows)(context, builder, picks)
        places = [builder.mul(builder.add(start, _LONG(n)), _LONG(LANES)) for n in range(LANES)]
        read = [builder.load(_at(context, builder, source, array, at, _FLOATS), align=4) for at in places]
        for lane, vector in enumerate(_transposed(builder, read)):
            with builder.if_then(builder.icmp_signed("<", _LONG(lane), builder.extract_value(chosen.shape, 0))):
                row = builder.load(builder.gep(chosen.data, [_LONG(lane)]))
                at = builder.add(builder.mul(row, width), start)
                builder.store(vector, _at(context, builder, out, target, at, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(source, types.int64, rows, out), emit


@intrinsic
def add_squares(typing: Any, source: Any, sums: Any) -> Signed:
    """Add to each lane's number in `sums` the squares of its column of `source`, in double precision."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = builder.extract_value(context.make_array(source)(context, builder, arguments[0]).shape, 0)
        total = cgutils.alloca_once(builder, _DOUBLES)
        to = _at(context, builder, sums, arguments[1], _LONG(0), _DOUBLES)
        builder.store(builder.load(to, align=8), total)
        with cgutils.for_range(builder, count) as each:
            at = _at(context, builder, source, arguments[0], builder.mul(each.index, _LONG(LANES)), _FLOATS)
            wide = builder.fpext(builder.load(at, align=4), _DOUBLES)
            builder.store(builder.fadd(builder.load(total), builder.fmul(wide, wide)), total)
        builder.store(builder.load(total), to, align=8)
        return context.get_dummy_value()

    return types.void(source, sums), emit


@intrinsic
def weigh(typing: Any, source: Any, at: Any, factors: Any) -> Signed:
    """The sum over lanes of source[at] times `factors`, pair by pair."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.mul(arguments[1], _LONG(LANES))
        vector = builder.load(_at(context, builder, source, arguments[0], place, _FLOATS), align=4)
        factor = builder.load(_at(context, builder, factors, arguments[2], _LONG(0), _FLOATS), align=4)
        vector, half = builder.fmul(vector, factor), LANES // 2
        while half:
            low, high = list(range(half)), list(range(half, 2 * half))
            vector = builder.fadd(_shuffled(builder, vector, vector, low), _shuffled(builder, vector, vector, high))
            half //= 2
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return types.float32(source, types.int64, factors), emit
