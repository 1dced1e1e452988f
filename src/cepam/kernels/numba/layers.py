"""Latent radii, widths and dithers from keystream words, compiled: the reference's operations in the same order.

For many coordinates eight words go abreast, in vector registers. Each takes a row of eight coefficients out of the
table, and the rows are turned in registers; 128-bit products are made of 32-bit halves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cepam.kernels.numba.integers import inlined, leading_zeros, multiply_high
from cepam.kernels.numba.lanes import DOUBLES, LONGS, call, data_of, filled, spread, transpose, vector_at
from cepam.noise.radius import COEFFICIENTS, OCTAVES, SEGMENTS


@inlined
def radius_of_word(word: Any, table: Any, scale: Any) -> Any:
    """The latent radius in units."""
    odd = (word << np.uint64(1)) | np.uint64(1)
    zeros = leading_zeros(odd)
    mantissa = odd << zeros
    segment = (mantissa >> np.uint64(58)) & np.uint64(31)
    row = np.int64(((word >> np.uint64(63)) * np.uint64(OCTAVES) + zeros) * np.uint64(32) + segment) * 8
    t = np.float64(np.int64((mantissa << np.uint64(6)) >> np.uint64(11))) * 2.0**-53
    value = table[row + 7]
    value = value * t + table[row + 6]
    value = value * t + table[row + 5]
    value = value * t + table[row + 4]
    value = value * t + table[row + 3]
    value = value * t + table[row + 2]
    value = value * t + table[row + 1]
    value = value * t + table[row]
    return value * scale


@inlined
def fill_widths(words: Any, table: Any, scale: Any, b: Any) -> None:
    """Fills b with the widths of coordinates: 2 floor(radius) + 1."""
    whole = len(b) & ~7
    for i in range(0, whole, 8):
        eight_widths(words, np.int64(i), table, scale, b)
    for i in range(whole, len(b)):
        b[i] = 2 * np.int64(radius_of_word(words[i], table, scale)) + 1


@inlined
def fill_dithers(words: Any, b: Any, d: Any) -> None:
    """Fills d with the dithers of coordinates of these widths: the upper 64 bits of word times width."""
    whole = len(b) & ~7
    for i in range(0, whole, 8):
        eight_dithers(words, np.int64(i), b, d)
    for i in range(whole, len(b)):
        d[i] = np.int64(multiply_high(words[i], np.uint64(b[i])))


def _eight(finish: Any, kind: Any) -> Any:
    """A kernel that fills out at eight places from the first on, with what `finish` makes of their radii."""

    @intrinsic
    def fill(typingctx: Any, words: Any, first: Any, table: Any, scale: Any, out: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            w, rows, target = (data_of(context, builder, signature, arguments, i) for i in (0, 2, 4))
            word = builder.load(vector_at(builder, w, arguments[1], LONGS), align=8)
            row, t = _rows_and_places(builder, word)
            found = []
            for i in range(8):
                at = builder.extract_element(row, ir.IntType(32)(i))
                found.append(builder.load(vector_at(builder, rows, at, DOUBLES), align=8))
            coefficients = transpose(builder, found)
            value = coefficients.pop()
            while coefficients:
                value = builder.fadd(builder.fmul(value, t), coefficients.pop())
            radius = builder.fmul(value, spread(builder, arguments[3], DOUBLES))
            builder.store(finish(builder, radius), vector_at(builder, target, arguments[1], kind), align=8)
            return context.get_dummy_value()

        return types.void(words, types.int64, table, types.float64, out), codegen

    return fill


def _width(builder: Any, radius: Any) -> Any:
    whole = builder.fptosi(radius, LONGS)
    return builder.add(builder.add(whole, whole), filled(LONGS, 1))


eight_widths = _eight(_width, LONGS)
eight_radii = _eight(lambda builder, radius: radius, DOUBLES)


def _rows_and_places(builder: Any, word: Any) -> tuple[Any, Any]:
    """Where in the table each word's row begins, and where in its segment the word lies, from 0 to 1."""

    def shifted(way: Any, value: Any, bits: int) -> Any:
        return way(value, filled(LONGS, bits))

    odd = builder.or_(shifted(builder.shl, word, 1), filled(LONGS, 1))
    zeros = call(builder, "llvm.ctlz.v8i64", LONGS, odd, ir.IntType(1)(0))
    mantissa = builder.shl(odd, zeros)
    segment = builder.and_(shifted(builder.lshr, mantissa, 58), filled(LONGS, SEGMENTS - 1))
    tail = builder.mul(shifted(builder.lshr, word, 63), filled(LONGS, OCTAVES))
    octave = builder.mul(builder.add(tail, zeros), filled(LONGS, SEGMENTS))
    row = builder.mul(builder.add(octave, segment), filled(LONGS, COEFFICIENTS))
    place = builder.sitofp(shifted(builder.lshr, shifted(builder.shl, mantissa, 6), 11), DOUBLES)
    return row, builder.fmul(place, filled(DOUBLES, 2.0**-53))


@intrinsic
def eight_dithers(typingctx: Any, words: Any, first: Any, b: Any, d: Any) -> Any:
    """Fills d at eight places from the first on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = (data_of(context, builder, signature, arguments, i) for i in (0, 2, 3))
        w, widths, out = (vector_at(builder, each, arguments[1], LONGS) for each in places)
        high = _multiply_high(builder, builder.load(w, align=8), builder.load(widths, align=8))
        builder.store(high, out, align=8)
        return context.get_dummy_value()

    return types.void(words, types.int64, b, d), codegen


def _multiply_high(builder: Any, word: Any, width: Any) -> Any:
    """The upper 64 bits of word times width, which is below 2^49 (`_check_radii` of `model.plan`).

    A width is cut at 25 bits: cut at 32, LLVM sees what it is and multiplies one lane after the other.
    """

    def cut(value: Any, bits: int) -> tuple[Any, Any]:
        return builder.lshr(value, filled(LONGS, bits)), builder.and_(value, filled(LONGS, (1 << bits) - 1))

    (word_high, word_low), (width_high, width_low) = cut(word, 32), cut(width, 25)
    lower = builder.add(builder.mul(word_low, width_high), cut(builder.mul(word_low, width_low), 25)[0])
    middle = builder.add(builder.mul(word_high, width_low), cut(lower, 7)[0])
    upper, rest = cut(builder.mul(word_high, width_high), 7)
    return builder.add(upper, cut(builder.add(builder.shl(rest, filled(LONGS, 25)), middle), 32)[0])
