"""What kernels that are emitted as LLVM vector code share: where arrays lie, numbers in all lanes, transposes.

One source runs at full width on AVX-512, AVX2 and NEON alike.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

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
