"""Nearest points of E8 in vector registers: eight coordinates at once, emitted as LLVM vector code.

A plain loop over the coordinates vectorises in part only, and where the largest error lies is nobody's guess.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LONG = ir.IntType(64)
_LONGS, _DOUBLES = ir.VectorType(_LONG, 8), ir.VectorType(ir.DoubleType(), 8)
_NONE = ir.Constant(_LONGS, [0] * 8)


@intrinsic
def nearest_eight(typingctx: Any, target: Any, b: Any, z: Any, error: Any) -> Any:
    """Whether the nearest point of 2b E8 is an odd one; fills its halves z and its difference from the target.

    Even points are 2b D8, odd ones are shifted by b: both come from one quotient, and an error of b less the other's.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = [
            builder.bitcast(
                context.make_array(signature.args[i])(context, builder, value=arguments[i]).data, _LONGS.as_pointer()
            )
            for i in (0, 2, 3)
        ]
        odd, halves, errors = _emit(builder, builder.load(places[0], align=8), arguments[1])
        builder.store(halves, places[1], align=8)
        builder.store(errors, places[2], align=8)
        return builder.zext(odd, _LONG)

    return types.int64(target, types.int64, z, error), codegen


def _emit(builder: Any, target: Any, b: Any) -> tuple[Any, Any, Any]:
    half, side = _spread(builder, b), _spread(builder, builder.add(b, b))
    inverse = builder.fdiv(ir.Constant(_DOUBLES, [1.0] * 8), builder.sitofp(side, _DOUBLES))
    guess = builder.fmul(builder.sitofp(target, _DOUBLES), inverse)
    q = builder.fptosi(_call(builder, "llvm.floor.v8f64", guess, _DOUBLES), _LONGS)
    rest = builder.sub(target, builder.mul(q, side))
    q = builder.add(q, builder.sext(builder.icmp_signed("<", rest, _NONE), _LONGS))
    q = builder.add(q, builder.zext(builder.icmp_signed(">=", rest, side), _LONGS))
    rest = builder.sub(target, builder.mul(q, side))
    upper = builder.icmp_signed(">=", rest, half)
    error = builder.sub(builder.select(upper, side, _NONE), rest)
    away = builder.select(builder.icmp_signed("<", error, _NONE), builder.sub(_NONE, error), error)
    worst, least = (_call(builder, f"llvm.vector.reduce.{way}.v8i64", away, _LONG) for way in ("smax", "smin"))
    even = _repair(builder, builder.add(q, builder.zext(upper, _LONGS)), error, _at(builder, away, worst), side)
    odd = _repair(builder, q, builder.sub(half, rest), _at(builder, away, least), side)
    nearer = builder.fcmp_ordered("<", _square_length(builder, odd[1]), _square_length(builder, even[1]))
    return nearer, builder.select(nearer, odd[0], even[0]), builder.select(nearer, odd[1], even[1])


def _repair(builder: Any, z: Any, error: Any, farthest: Any, side: Any) -> tuple[Any, Any]:
    """(z, error) with the first of the farthest coordinates moved to its second nearest value, if their sum is odd."""
    lanes = ir.IntType(8)
    parity = builder.trunc(_call(builder, "llvm.vector.reduce.add.v8i64", z, _LONG), ir.IntType(1))
    bits = builder.bitcast(farthest, lanes)
    first = builder.select(parity, builder.and_(bits, builder.sub(lanes(0), bits)), lanes(0))
    moved, up = builder.bitcast(first, farthest.type), builder.icmp_signed("<=", error, _NONE)
    step = builder.select(up, ir.Constant(_LONGS, [1] * 8), ir.Constant(_LONGS, [-1] * 8))
    shift = builder.select(up, side, builder.sub(_NONE, side))
    return (
        builder.add(z, builder.select(moved, step, _NONE)),
        builder.add(error, builder.select(moved, shift, _NONE)),
    )


def _square_length(builder: Any, error: Any) -> Any:
    """The squared length in float64, added up from the first coordinate on, as everywhere."""
    values = builder.sitofp(error, _DOUBLES)
    squares = builder.fmul(values, values)
    total = ir.Constant(ir.DoubleType(), 0.0)
    for i in range(8):
        total = builder.fadd(total, builder.extract_element(squares, ir.IntType(32)(i)))
    return total


def _spread(builder: Any, number: Any) -> Any:
    first = builder.insert_element(ir.Constant(_LONGS, ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8))


def _at(builder: Any, away: Any, value: Any) -> Any:
    return builder.icmp_signed("==", away, _spread(builder, value))


def _call(builder: Any, name: str, vector: Any, gives: Any) -> Any:
    kind = ir.FunctionType(gives, [vector.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [vector])
