"""The compiled quantizers: latent radii, dithers, nearest lattice points and trials.

For many coordinates eight words go abreast, in vector registers. Each takes a row of eight coefficients out of the
table, and the rows are turned in registers; 128-bit products are made of 32-bit halves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cepam.distributions.radius import COEFFICIENTS, OCTAVES, SEGMENTS
from cepam.kernels.format.plan import LATENT_STREAM
from cepam.kernels.numba.compiling import (
    DOUBLES,
    LONG,
    LONGS,
    call,
    compiled,
    data_of,
    filled,
    floor_divide,
    inlined,
    leading_zeros,
    multiply_high,
    pasted,
    spread,
    vector_at,
)
from cepam.kernels.numba.keystream import chacha_half, fill_words, start_lanes


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
            places = [builder.extract_element(row, ir.IntType(32)(i)) for i in range(8)]
            radius = _radii(builder, rows, places, t, arguments[3])
            builder.store(finish(builder, radius), vector_at(builder, target, arguments[1], kind), align=8)
            return context.get_dummy_value()

        return types.void(words, types.int64, table, types.float64, out), codegen

    return fill


_EVEN, _ODD = (0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15)
_LOW, _HIGH = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)


def _shuffled(builder: Any, a: Any, b: Any, order: Iterable[int]) -> Any:
    lanes = list(order)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def _radii(builder: Any, rows: Any, places: list[Any], t: Any, scale: Any) -> Any:
    """The radii of eight words, whose coefficients begin at these places of the table."""
    half, coefficients = ir.VectorType(ir.DoubleType(), 4), []

    def four(word: int, first: int) -> Any:
        return builder.load(vector_at(builder, rows, builder.add(places[word], LONG(first)), half), align=8)

    for first in (0, 4):
        pairs = [_shuffled(builder, four(i, first), four(i + 4, first), range(8)) for i in range(4)]
        even, odd = ([_shuffled(builder, a, b, order) for a, b in (pairs[:2], pairs[2:])] for order in (_EVEN, _ODD))
        coefficients += [_shuffled(builder, a, b, order) for order in (_LOW, _HIGH) for a, b in (even, odd)]
    value = coefficients.pop()
    while coefficients:
        value = builder.fadd(builder.fmul(value, t), coefficients.pop())
    return builder.fmul(value, spread(builder, scale, DOUBLES))


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


@intrinsic
def eight_places(typingctx: Any, words: Any, first: Any, places: Any, inside: Any) -> Any:
    """Fills where in the table the rows of eight latent words begin, and where in their segments the words lie."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        w, rows, out = (data_of(context, builder, signature, arguments, i) for i in (0, 2, 3))
        row, t = _rows_and_places(builder, builder.load(vector_at(builder, w, arguments[1], LONGS), align=8))
        builder.store(row, vector_at(builder, rows, arguments[1], LONGS), align=8)
        builder.store(t, vector_at(builder, out, arguments[1], DOUBLES), align=8)
        return context.get_dummy_value()

    return types.void(words, types.int64, places, inside), codegen


@intrinsic
def eight_errors(
    typingctx: Any, dithers: Any, places: Any, inside: Any, first: Any, table: Any, scale: Any, inverse: Any,
    errors: Any, values: Any, at: Any,
) -> Any:  # fmt: skip
    """Fills errors and values with the quantizer's errors at zero of eight coordinates, in units and times `inverse`.

    Of words whose `eight_places` are known: out of a register, places would be moved one by one.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        w, lanes, parts, rows, out, scaled = (
            data_of(context, builder, signature, arguments, i) for i in (0, 1, 2, 4, 7, 8)
        )
        first = arguments[3]
        dither = builder.load(vector_at(builder, w, first, LONGS), align=8)
        t = builder.load(vector_at(builder, parts, first, DOUBLES), align=8)
        found = [builder.load(builder.gep(lanes, [builder.add(first, LONG(i))])) for i in range(8)]
        width = _width(builder, _radii(builder, rows, found, t, arguments[5]))
        place = _multiply_high(builder, dither, width)
        upper = builder.icmp_signed(">", place, builder.lshr(width, filled(LONGS, 1)))
        error = builder.sub(place, builder.select(upper, width, filled(LONGS, 0)))
        value = builder.fmul(builder.sitofp(error, DOUBLES), spread(builder, arguments[6], DOUBLES))
        builder.store(error, vector_at(builder, out, arguments[9], LONGS), align=8)
        builder.store(value, vector_at(builder, scaled, arguments[9], DOUBLES), align=8)
        return context.get_dummy_value()

    whole, real = types.int64, types.float64
    return types.void(dithers, places, inside, whole, table, real, real, errors, values, whole), codegen


def _multiply_high(builder: Any, word: Any, width: Any) -> Any:
    """The upper 64 bits of word times width, which is below 2^49 (`_check_radii` of `format.plan`).

    A width is cut at 25 bits: cut at 32, LLVM sees what it is and multiplies one lane after the other.
    """

    def cut(value: Any, bits: int) -> tuple[Any, Any]:
        return builder.lshr(value, filled(LONGS, bits)), builder.and_(value, filled(LONGS, (1 << bits) - 1))

    (word_high, word_low), (width_high, width_low) = cut(word, 32), cut(width, 25)
    lower = builder.add(builder.mul(word_low, width_high), cut(builder.mul(word_low, width_low), 25)[0])
    middle = builder.add(builder.mul(word_high, width_low), cut(lower, 7)[0])
    upper, rest = cut(builder.mul(word_high, width_high), 7)
    return builder.add(upper, cut(builder.add(builder.shl(rest, filled(LONGS, 25)), middle), 32)[0])


@compiled
def widths_and_dithers(plan: Any, key: Any, state: Any, first: Any, count: Any, words: Any, b: Any, d: Any) -> None:
    """Fills b and d with the widths B and dithers D of `count` coordinates from number `first` (a multiple of 8) on."""
    start_lanes(key, state)
    some = words[: -(-count // 128) * 256]
    if plan.accept == 2:
        for i in range(count):
            b[i] = plan.step
    else:
        fill_words(state, LATENT_STREAM, first >> 3, some)
        fill_widths(some.view(np.uint64), plan.table, plan.scale, b[:count])
    fill_words(state, LATENT_STREAM + 1, first >> 3, some)
    fill_dithers(some.view(np.uint64), b[:count], d)


@compiled
def quantize_scalar(x: Any, b: Any, d: Any, m: Any) -> None:
    """Fills m with the nearest multiples (Paper: M), x in units."""
    for i in range(len(x)):
        m[i] = floor_divide(x[i] - d[i] + (b[i] >> 1), b[i])


@compiled
def reconstruct_scalar(m: Any, b: Any, d: Any, half: Any, shift: Any, grid: Any, out: Any) -> Any:
    """Fills out with decoded values on the public grid; False if a point lies outside the range of the format."""
    outside = np.int64(0)
    for i in range(len(m)):
        outside += np.int64(abs(np.float64(m[i]) * np.float64(b[i])) >= 2.0**62)
        out[i] = np.float64((m[i] * b[i] + d[i] + half) >> shift) * grid
    return outside == 0


@compiled
def to_units(values: Any, per_unit: Any, units: Any) -> None:
    """Fills units with values cut toward zero to whole units, so that no norm grows."""
    for i in range(len(values)):
        units[i] = np.int64(np.float64(values[i]) * per_unit)


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


@inlined
def nearest_cubic(target: Any, b: Any, n: Any, z: Any, error: Any) -> None:
    """Fills z and error with the nearest point of b Z^n and its difference from the target."""
    half = b >> 1
    for i in range(n):
        z[i] = floor_divide(target[i] + half, b)
        error[i] = z[i] * b - target[i]


@inlined
def nearest_checkerboard(target: Any, b: Any, n: Any, z: Any, error: Any) -> None:
    """The same for b D_n: round, then move the worst coordinate if the sum is odd."""
    nearest_cubic(target, b, n, z, error)
    total = np.int64(0)
    worst = 0
    for i in range(n):
        total += z[i]
        if abs(error[i]) > abs(error[worst]):
            worst = i
    if total & 1:
        step = np.int64(1) if error[worst] <= 0 else np.int64(-1)
        z[worst] += step
        error[worst] += step * b


@inlined
def square_length(error: Any, n: Any) -> Any:
    """The squared length in float64, added up from the first coordinate on."""
    total = 0.0
    for i in range(n):
        e = np.float64(error[i])
        total += e * e
    return total


@inlined
def nearest_e8(target: Any, b: Any, j: Any, error: Any, spare: Any) -> Any:
    """The error's squared length; fills j (lattice coordinates) and error for b times 2 E8."""
    z = spare[0]
    odd, square = nearest_eight(target, b, z, error)
    j[0] = 2 * z[0] + odd
    total = np.int64(0)
    for i in range(1, 7):
        j[i] = z[i] - z[0]
        total += j[i]
    j[7] = (z[7] - z[0] - total) >> 1
    return square


@inlined
def nearest_hexagonal(basis: Any, target: Any, b: Any, j: Any, error: Any, spare: Any) -> None:
    """The better of two rectangular lattices, one of them shifted by half a cell."""
    for i in range(2):
        half = basis[i, 1] * b
        j[i] = 2 * floor_divide(target[i] + half, 2 * half)
        error[i] = j[i] * half - target[i]
        spare[0, i] = 2 * floor_divide(target[i], 2 * half) + 1
        spare[1, i] = spare[0, i] * half - target[i]
    if square_length(spare[1], 2) < square_length(error, 2):
        for i in range(2):
            j[i] = spare[0, i]
            error[i] = spare[1, i]
    j[0] = (j[0] - j[1]) >> 1


@compiled
def nearest_general(p: Any, target: Any, b: Any, j: Any, error: Any) -> None:
    """Rounding in the reduced basis, then slicing by the Voronoi-relevant vectors."""
    n, scale = p.n, np.float64(b)
    for i in range(n):
        total = 0.0
        for k in range(n):
            total += p.inverse[i, k] * np.float64(target[k])
        j[i] = np.int64(np.floor(total / scale + 0.5))
    for i in range(n):
        error[i] = -target[i]
        for k in range(n):
            error[i] += b * p.basis[i, k] * j[k]
    for _ in range(64):
        moved = False
        for v in range(len(p.relevant)):
            dot = 0.0
            for k in range(n):
                dot += np.float64(-error[k]) * p.relevant[v, k]
            count = np.int64(np.floor(dot / (scale * p.squares[v]) + 0.5))
            if count != 0:
                moved = True
                for k in range(n):
                    error[k] += b * count * np.int64(p.relevant[v, k])
                    j[k] += count * p.steps[v, k]
        if not moved:
            return


@inlined
def nearest(p: Any, target: Any, b: Any, j: Any, error: Any, spare: Any) -> Any:
    """The error's squared length; fills j and error for the lattice of the plan."""
    if p.search == 2:
        return nearest_e8(target, b, j, error, spare)
    if p.search == 0:
        nearest_cubic(target, b, p.n, j, error)
    elif p.search == 1:
        nearest_checkerboard(target, b, p.n, j, error)
        total = np.int64(0)
        for i in range(p.n - 1):
            total += j[i]
        j[p.n - 1] = (j[p.n - 1] - total) >> 1
    elif p.search == 3:
        nearest_hexagonal(p.basis, target, b, j, error, spare)
    else:
        nearest_general(p, target, b, j, error)
    return square_length(error, p.n)


@inlined
def is_accepted(p: Any, error: Any, square: Any, radius: Any) -> Any:
    """Whether an error of this squared length lies in the superlevel ball."""
    if p.accept == 2 or (p.n == 1 and p.search == 0):
        return True
    if p.accept == 0:
        total = np.int64(0)
        for i in range(p.n):
            total += abs(error[i])
        return np.float64(total) <= radius
    return square <= radius * radius


@inlined
def layer_of(p: Any, w: Any, row: Any) -> Any:
    """The latent radius and the lattice's scale B of a sub-vector, from the words around it."""
    if p.accept == 2:
        return 0.0, np.int64(p.step)
    radius = w.radii[row & 127]
    if p.n == 1 and p.search == 0:
        return radius, 2 * np.int64(np.floor(radius)) + 1
    return radius, np.int64(np.floor(radius * p.inverse_ball)) + 2


@inlined
def coset(p: Any, high: Any, low: Any, point: Any, back: Any) -> None:
    """Fills point with a short representative of a coset of the unscaled lattice."""
    size = np.uint64(p.determinant)
    product = high * size
    carried = np.uint64(product + multiply_high(low, size) < product)
    index = np.int64(multiply_high(high, size) + carried)
    for i in range(p.n):
        point[i] = index % p.box[i]
        index //= p.box[i]
    for i in range(p.n):
        total = 0.0
        for k in range(p.n):
            total += p.inverse[i, k] * np.float64(point[k])
        back[i] = np.int64(np.floor(total + 0.5))
    for i in range(p.n):
        for k in range(p.n):
            point[i] -= p.basis[i, k] * back[k]


@inlined
def dither_of(p: Any, words: Any, b: Any, d: Any, spare: Any) -> None:
    """Fills d with the dither that these keystream words stand for."""
    if p.search != 4:
        for i in range(p.n):
            d[i] = np.int64(multiply_high(words[i], np.uint64(b * p.box[i])))
        return
    coset(p, words[0], words[1], d, spare[0])
    for i in range(p.n):
        d[i] = b * d[i] + np.int64(multiply_high(words[i + 2], np.uint64(b)))


@pasted
def draw_radii(p: Any, w: Any, row: Any) -> None:
    """Fills the latent radii of the 128 sub-vectors around `row`, so that no trial waits for its own."""
    if p.accept != 2:
        fill_words(w.state, LATENT_STREAM, (row & ~127) >> 3, w.latent)
        for i in range(0, 128, 8):
            eight_radii(w.latent.view(np.uint64), np.int64(i), p.table, p.scale, w.radii)


@pasted
def first_words(p: Any, w: Any, row: Any) -> None:
    """Fills the latent radii and the first trials' dither words of the 128 sub-vectors around `row`."""
    draw_radii(p, w, row)
    for trial in range(len(w.dithers)):
        fill_words(w.state, LATENT_STREAM + 1 + trial, ((row & ~127) >> 3) * p.words, w.dithers[trial])


@inlined
def words_ahead(p: Any, state: Any, row: Any, trial: Any, ahead: Any) -> None:
    """Fills ahead (up to three keystream blocks for each of eight trials) for one sub-vector, from `trial` on."""
    begin = row * p.words
    for lane in range(8):
        stream = np.uint64(LATENT_STREAM + 1 + trial + lane)
        state[14 * 16 + lane] = np.uint32(stream & np.uint64(0xFFFFFFFF))
        state[15 * 16 + lane] = np.uint32(stream >> np.uint64(32))
    for k in range(((begin & 7) + p.words + 7) >> 3):
        block = np.uint64((begin >> 3) + k)
        for lane in range(8):
            state[12 * 16 + lane] = np.uint32(block & np.uint64(0xFFFFFFFF))
            state[13 * 16 + lane] = np.uint32(block >> np.uint64(32))
        chacha_half(state, ahead[k * 128 : k * 128 + 128])


@inlined
def pick_words(p: Any, row: Any, lane: Any, ahead: Any, words: Any) -> None:
    """Fills words with the dither words of one of the eight trials."""
    whole = ahead.view(np.uint64)
    offset = (row * p.words) & 7
    for i in range(p.words):
        words[i] = whole[((offset + i) >> 3) * 64 + lane * 8 + ((offset + i) & 7)]


@inlined
def draw_dither(p: Any, w: Any, row: Any, trial: Any, b: Any, d: Any) -> None:
    """Fills d with the dither of a trial; trials are asked for in order, from 0 on."""
    if trial < len(w.dithers):
        dither_of(p, w.dithers[trial].view(np.uint64)[(row & 127) * p.words :], b, d, w.spare)
        return
    lane = (trial - len(w.dithers)) & 7
    if lane == 0:
        words_ahead(p, w.state, row, trial, w.ahead)
    pick_words(p, row, lane, w.ahead, w.words)
    dither_of(p, w.words, b, d, w.spare)


@compiled
def quantize_rows(p: Any, w: Any, key: Any, x: Any, first: Any, h: Any, m: Any) -> Any:
    """Fills (H, M) of sub-vectors first, first + 1, …; False if some trial never ended."""
    start_lanes(key, w.state)
    d, error = w.work[0], w.work[1]
    for r in range(len(x)):
        row = first + r
        if r == 0 or row & 127 == 0:
            first_words(p, w, row)
        radius, b = layer_of(p, w, row)
        h[r] = 0
        for trial in range(p.trials):
            draw_dither(p, w, row, trial, b, d)
            for i in range(p.n):
                d[i] = x[r, i] - d[i]
            square = nearest(p, d, b, m[r], error, w.spare)
            if is_accepted(p, error, square, radius):
                h[r] = trial + 1
                break
        if h[r] == 0:
            return False
    return True


@compiled
def reconstruct_rows(p: Any, w: Any, key: Any, h: Any, m: Any, first: Any, units: Any) -> Any:
    """Fills units with B (M + V_H); False if a point lies outside the range of the format."""
    start_lanes(key, w.state)
    d = w.work[0]
    for r in range(len(h)):
        row = first + r
        if r == 0 or row & 127 == 0:
            draw_radii(p, w, row)
        _, b = layer_of(p, w, row)
        words_ahead(p, w.state, row, h[r] - 1, w.ahead)
        pick_words(p, row, 0, w.ahead, w.words)
        dither_of(p, w.words, b, d, w.spare)
        if not place(p, b, d, m[r], units[r]):
            return False
    return True


@inlined
def place(p: Any, b: Any, d: Any, j: Any, units: Any) -> Any:
    """Fills units with b times the lattice point j, plus the dither; False outside the range of the format."""
    for i in range(p.n):
        size = 0.0
        point = np.int64(0)
        for k in range(p.n):
            size += np.float64(p.basis[i, k]) * np.float64(j[k])
            point += p.basis[i, k] * j[k]
        if not abs(size) * np.float64(b) < 2.0**62:
            return False
        units[i] = b * point + d[i]
    return True
