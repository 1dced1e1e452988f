"""Nearest points of E8 in vector registers: eight coordinates at once, emitted as LLVM vector code.

A plain loop over the coordinates vectorises in part only, and where the largest error lies is nobody's guess.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cepam.kernels.numba.lanes import DOUBLES, LONG, LONGS, call, data_of, filled, spread

_NONE = filled(LONGS, 0)


@intrinsic
def nearest_eight(typingctx: Any, target: Any, b: Any, z: Any, error: Any) -> Any:
    """Whether the nearest point of 2b E8 is odd, and how far it is, squared; fills its halves z and its error.

    Even points are 2b D8, odd ones are shifted by b: both come from one quotient, and an error of b less the other's.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = [
            builder.bitcast(data_of(context, builder, signature, arguments, i), LONGS.as_pointer()) for i in (0, 2, 3)
        ]
        odd, square, halves, errors = _emit(builder, builder.load(places[0], align=8), arguments[1])
        builder.store(halves, places[1], align=8)
        builder.store(errors, places[2], align=8)
        return context.make_tuple(builder, signature.return_type, (builder.zext(odd, LONG), square))

    return types.Tuple((types.int64, types.float64))(target, types.int64, z, error), codegen


def _emit(builder: Any, target: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    half, side = spread(builder, b, LONGS), spread(builder, builder.add(b, b), LONGS)
    inverse = builder.fdiv(filled(DOUBLES, 1.0), builder.sitofp(side, DOUBLES))
    guess = builder.fmul(builder.sitofp(target, DOUBLES), inverse)
    q = builder.fptosi(call(builder, "llvm.floor.v8f64", DOUBLES, guess), LONGS)
    rest = builder.sub(target, builder.mul(q, side))
    q = builder.add(q, builder.sext(builder.icmp_signed("<", rest, _NONE), LONGS))
    q = builder.add(q, builder.zext(builder.icmp_signed(">=", rest, side), LONGS))
    rest = builder.sub(target, builder.mul(q, side))
    upper = builder.icmp_signed(">=", rest, half)
    error = builder.sub(builder.select(upper, side, _NONE), rest)
    away = builder.select(builder.icmp_signed("<", error, _NONE), builder.sub(_NONE, error), error)
    worst, least = (call(builder, f"llvm.vector.reduce.{way}.v8i64", LONG, away) for way in ("smax", "smin"))
    even = _repair(builder, builder.add(q, builder.zext(upper, LONGS)), error, _at(builder, away, worst), side)
    odd = _repair(builder, q, builder.sub(half, rest), _at(builder, away, least), side)
    squares = [_square_length(builder, each[1]) for each in (odd, even)]
    nearer = builder.fcmp_ordered("<", *squares)
    square, halves, error = (builder.select(nearer, *each) for each in (squares, *zip(odd, even)))
    return nearer, square, halves, error


def _repair(builder: Any, z: Any, error: Any, farthest: Any, side: Any) -> tuple[Any, Any]:
    """(z, error) with the first of the farthest coordinates moved to its second nearest value, if their sum is odd."""
    lanes = ir.IntType(8)
    parity = builder.trunc(call(builder, "llvm.vector.reduce.add.v8i64", LONG, z), ir.IntType(1))
    bits = builder.bitcast(farthest, lanes)
    first = builder.select(parity, builder.and_(bits, builder.sub(lanes(0), bits)), lanes(0))
    moved, up = builder.bitcast(first, farthest.type), builder.icmp_signed("<=", error, _NONE)
    step = builder.select(up, filled(LONGS, 1), filled(LONGS, -1))
    shift = builder.select(up, side, builder.sub(_NONE, side))
    return (
        builder.add(z, builder.select(moved, step, _NONE)),
        builder.add(error, builder.select(moved, shift, _NONE)),
    )


def _square_length(builder: Any, error: Any) -> Any:
    """The squared length in float64, added up from the first coordinate on, as everywhere."""
    values = builder.sitofp(error, DOUBLES)
    squares = builder.fmul(values, values)
    total = ir.Constant(ir.DoubleType(), 0.0)
    for i in range(8):
        total = builder.fadd(total, builder.extract_element(squares, ir.IntType(32)(i)))
    return total


def _at(builder: Any, away: Any, value: Any) -> Any:
    return builder.icmp_signed("==", away, spread(builder, value, LONGS))
