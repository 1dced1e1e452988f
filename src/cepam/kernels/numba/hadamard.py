"""Walsh-Hadamard transforms of the compiled search coder, in vector registers, and what is done before and after them.

Steps of 1, 2, 4, … places in this order, like the reference: the same sums, only several steps between a load and a
store. Lanes of a register are first steps, registers later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cepam.kernels.numba.compiling import (
    DOUBLES,
    LONG,
    LONGS,
    call,
    compiled,
    data_of,
    filled,
    inlined,
    spread,
    vector_at,
)

_LN2_HIGH, _LN2_LOW, _PER_LN2 = 0.693147180369123816490, 1.90821492927058770002e-10, 1.4426950408889634
_MAGIC = 6755399441055744.0
_EXP = [1.0]
for _i in range(1, 12):
    _EXP.append(_EXP[-1] / _i)
_LANES = 8


def _lane_step(builder: Any, value: Any, step: int) -> Any:
    """Sums where a lane's number has a 0 at the step, differences where it has a 1: -b + a is a - b."""
    order = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [lane ^ step for lane in range(_LANES)])
    minus = ir.Constant(LONGS, [-(1 << 63) if lane & step else 0 for lane in range(_LANES)])
    signed = builder.bitcast(builder.xor(builder.bitcast(value, LONGS), minus), DOUBLES)
    return builder.fadd(signed, builder.shuffle_vector(value, value, order))


def _register_steps(builder: Any, values: list[Any]) -> list[Any]:
    step = 1
    while step < len(values):
        for i in range(len(values)):
            if not i & step:
                a, b = values[i], values[i + step]
                values[i], values[i + step] = builder.fadd(a, b), builder.fsub(a, b)
        step *= 2
    return values


def _pass(log_registers: int, source: Callable[..., Callable[[Any], Any]] | None, lanes: bool) -> Any:
    """An intrinsic (out, at, stride, …): the steps within 2^log_registers registers, `stride` places from each other.

    `source` says what is loaded for a place; without it, what is in out.
    """

    def build(signature_types: tuple[Any, ...]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            out = data_of(context, builder, signature, arguments, 0)
            more = [
                data_of(context, builder, signature, arguments, i)
                if isinstance(signature.args[i], types.Array)
                else arguments[i]
                for i in range(3, len(arguments))
            ]
            places = [builder.add(arguments[1], builder.mul(arguments[2], LONG(i))) for i in range(1 << log_registers)]
            targets = [vector_at(builder, out, place, DOUBLES) for place in places]
            if source is None:
                values = [builder.load(target, align=8) for target in targets]
            else:
                values = [source(builder, place, *more) for place in places]
            if lanes:
                for step in (1, 2, 4):
                    values = [_lane_step(builder, value, step) for value in values]
            for value, target in zip(_register_steps(builder, values), targets):
                builder.store(value, target, align=8)
            return context.get_dummy_value()

        return types.void(*signature_types), codegen

    return build


def _loaded(builder: Any, place: Any, source: Any) -> Any:
    return builder.load(vector_at(builder, source, place, DOUBLES), align=8)


def _product(builder: Any, place: Any, first: Any, second: Any) -> Any:
    return builder.fmul(_loaded(builder, place, first), _loaded(builder, place, second))


def _flipped(builder: Any, value: Any, bits: Any, place: Any) -> Any:
    """Eight numbers, negated where bits from a place on (a multiple of 8) are 1; a float64 or an integer each."""
    some = builder.load(builder.gep(builder.bitcast(bits, ir.IntType(8).as_pointer()), [builder.lshr(place, LONG(3))]))
    wide = builder.sext(builder.bitcast(some, ir.VectorType(ir.IntType(1), _LANES)), LONGS)
    if value.type == LONGS:
        return builder.sub(builder.xor(value, wide), wide)
    minus = builder.and_(wide, filled(LONGS, -(1 << 63)))
    return builder.bitcast(builder.xor(builder.bitcast(value, LONGS), minus), DOUBLES)


def _signed(builder: Any, place: Any, source: Any, bits: Any) -> Any:
    return _flipped(builder, _loaded(builder, place, source), bits, place)


def _intrinsics(log_registers: int) -> tuple[Any, Any, Any, Any]:
    """(later steps, first steps of what is there, of a product, of signed numbers) in so many registers."""
    later = _pass(log_registers, None, False)
    plain, product, signed = (_pass(log_registers, source, True) for source in (None, _product, _signed))

    @intrinsic
    def later_steps(typingctx: Any, out: Any, at: Any, stride: Any) -> Any:
        return later((out, at, stride))

    @intrinsic
    def first_steps(typingctx: Any, out: Any, at: Any, stride: Any) -> Any:
        return plain((out, at, stride))

    @intrinsic
    def first_of_product(typingctx: Any, out: Any, at: Any, stride: Any, first: Any, second: Any) -> Any:
        return product((out, at, stride, first, second))

    @intrinsic
    def first_of_signed(typingctx: Any, out: Any, at: Any, stride: Any, source: Any, bits: Any) -> Any:
        return signed((out, at, stride, source, bits))

    return later_steps, first_steps, first_of_product, first_of_signed


_two, _, _, _ = _intrinsics(1)
_four, _first_four, _product_four, _signed_four = _intrinsics(2)
_eight, _first_eight, _product_eight, _signed_eight = _intrinsics(3)
_sixteen, _, _, _ = _intrinsics(4)


@compiled
def _later(values: Any, size: Any) -> None:
    """The steps of 64 places and more."""
    step = np.int64(64)
    while step < size:
        left = size // step
        if left == 16 or left == 128:
            for at in range(0, size, 16 * step):
                for i in range(at, at + step, 8):
                    _sixteen(values, i, step)
            step *= 16
        elif left >= 8:
            for at in range(0, size, 8 * step):
                for i in range(at, at + step, 8):
                    _eight(values, i, step)
            step *= 8
        elif left == 4:
            for i in range(0, step, 8):
                _four(values, np.int64(i), step)
            step *= 4
        else:
            for i in range(0, step, 8):
                _two(values, np.int64(i), step)
            step *= 2


@compiled
def transform(values: Any, size: Any) -> None:
    """The Walsh-Hadamard transform of `size` numbers, 32 or more, in place."""
    if size == 32:
        _first_four(values, np.int64(0), np.int64(8))
    else:
        for at in range(0, size, 64):
            _first_eight(values, np.int64(at), np.int64(8))
        _later(values, size)


@compiled
def transform_product(values: Any, size: Any, first: Any, second: Any) -> None:
    """Fills values with the transform of a product."""
    if size == 32:
        _product_four(values, np.int64(0), np.int64(8), first, second)
    else:
        for at in range(0, size, 64):
            _product_eight(values, np.int64(at), np.int64(8), first, second)
        _later(values, size)


@compiled
def transform_signed(values: Any, size: Any, source: Any, bits: Any) -> None:
    """Fills values with the transform of numbers, negated where bits are 1."""
    if size == 32:
        _signed_four(values, np.int64(0), np.int64(8), source, bits)
    else:
        for at in range(0, size, 64):
            _signed_eight(values, np.int64(at), np.int64(8), source, bits)
        _later(values, size)


def _exponential(builder: Any, v: Any) -> Any:
    """e^v for v from -700 to 700, right to 2^-46."""

    def times(a: Any, number: float) -> Any:
        return builder.fmul(a, filled(DOUBLES, number))

    v = _bounded(builder, v)
    k = call(builder, "llvm.floor.v8f64", DOUBLES, builder.fadd(times(v, _PER_LN2), filled(DOUBLES, 0.5)))
    r = builder.fsub(builder.fsub(v, times(k, _LN2_HIGH)), times(k, _LN2_LOW))
    total = filled(DOUBLES, _EXP[-1])
    for coefficient in _EXP[-2::-1]:
        total = builder.fadd(builder.fmul(total, r), filled(DOUBLES, coefficient))
    return builder.fmul(total, _power_of_two(builder, k))


def _rough_exponential(builder: Any, v: Any) -> Any:
    """The same, right to 2^-22, in half the time; products may be fused with sums."""

    def sum_of(a: Any, b: Any, c: Any) -> Any:
        return call(builder, "llvm.fmuladd.v8f64", DOUBLES, a, b, c)

    v = _bounded(builder, v)
    k = call(builder, "llvm.floor.v8f64", DOUBLES, sum_of(v, filled(DOUBLES, _PER_LN2), filled(DOUBLES, 0.5)))
    r = sum_of(k, filled(DOUBLES, -_LN2_HIGH - _LN2_LOW), v)
    total = filled(DOUBLES, _EXP[6])
    for coefficient in _EXP[5::-1]:
        total = sum_of(total, r, filled(DOUBLES, coefficient))
    return builder.fmul(total, _power_of_two(builder, k))


def _bounded(builder: Any, v: Any) -> Any:
    for relation, bound in ((">", -700.0), ("<", 700.0)):
        edge = filled(DOUBLES, bound)
        v = builder.select(builder.fcmp_ordered(relation, v, edge), v, edge)
    return v


def _power_of_two(builder: Any, k: Any) -> Any:
    whole = builder.bitcast(builder.fadd(k, filled(DOUBLES, _MAGIC)), LONGS)
    return builder.bitcast(builder.shl(builder.add(whole, filled(LONGS, 1023)), filled(LONGS, 52)), DOUBLES)


def _exponentials_by(exponential: Any) -> Any:
    """An intrinsic (values, at, quarter, inverse, half, sums): replaces four times eight numbers v, a quarter of all
    from each other, by e^(v inverse - half); adds them up.

    `sums` has eight maxima, which are raised, and then a place for every sum of four.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, kept = (data_of(context, builder, signature, arguments, i) for i in (0, 5))
        inverse, half = (spread(builder, arguments[i], DOUBLES) for i in (3, 4))
        most = vector_at(builder, kept, LONG(0), DOUBLES)
        largest, found = builder.load(most, align=8), []
        for i in range(4):
            place = builder.add(arguments[1], builder.mul(arguments[2], LONG(i)))
            value = vector_at(builder, data, place, DOUBLES)
            found.append(exponential(builder, builder.fsub(builder.fmul(builder.load(value, align=8), inverse), half)))
            builder.store(found[i], value, align=8)
            largest = builder.select(builder.fcmp_ordered(">", found[i], largest), found[i], largest)
        total = builder.fadd(builder.fadd(found[0], found[2]), builder.fadd(found[1], found[3]))
        builder.store(total, vector_at(builder, kept, builder.add(arguments[1], LONG(_LANES)), DOUBLES), align=8)
        builder.store(largest, most, align=8)
        return context.get_dummy_value()

    @intrinsic
    def four_times(typingctx: Any, values: Any, at: Any, quarter: Any, inverse: Any, half: Any, sums: Any) -> Any:
        return types.void(values, at, quarter, inverse, half, sums), codegen

    return four_times


_exponentials, _rough_exponentials = (_exponentials_by(each) for each in (_exponential, _rough_exponential))


@compiled
def exponentials(values: Any, size: Any, inverse: Any, half: Any, sums: Any, exactly: Any) -> Any:
    """Replaces `size` numbers v by e^(v inverse - half); (their sum, the largest). `sums` has room for a quarter and 8.

    The second half is added to the first, until one number is left. Unless `exactly`, all are right to 2^-21 only.
    """
    quarter = size >> 2
    for i in range(8):
        sums[i] = 0.0
    if exactly:
        for i in range(0, quarter, 8):
            _exponentials(values, np.int64(i), quarter, inverse, half, sums)
    else:
        for i in range(0, quarter, 8):
            _rough_exponentials(values, np.int64(i), quarter, inverse, half, sums)
    while quarter > 1:
        quarter >>= 1
        low, high = sums[8 : 8 + quarter], sums[8 + quarter : 8 + 2 * quarter]
        for i in range(quarter):
            low[i] += high[i]
    largest = sums[0]
    for i in range(1, 8):
        largest = max(largest, sums[i])
    return sums[8], largest


def _permuted(builder: Any, value: Any, shift: Any) -> Any:
    """Eight integers, each in the lane of its number XOR a shift."""
    for step in (1, 2, 4):
        order = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [lane ^ step for lane in range(_LANES)])
        moved = builder.trunc(builder.lshr(shift, LONG(step.bit_length() - 1)), ir.IntType(1))
        value = builder.select(moved, builder.shuffle_vector(value, value, order), value)
    return value


@intrinsic
def _eight_seen(typingctx: Any, g: Any, bits: Any, shift: Any, y: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, signs, target = (data_of(context, builder, signature, arguments, i) for i in (0, 1, 3))
        place = builder.xor(arguments[4], builder.and_(arguments[2], LONG(~7)))
        value = builder.load(vector_at(builder, source, place, LONGS), align=8)
        value = _flipped(builder, _permuted(builder, value, arguments[2]), signs, arguments[4])
        builder.store(value, vector_at(builder, target, arguments[4], LONGS), align=8)
        return context.get_dummy_value()

    return types.void(g, bits, shift, y, at), codegen


@intrinsic
def _eight_unseen(typingctx: Any, y: Any, bits: Any, shift: Any, inverse: Any, g: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, signs, target = (data_of(context, builder, signature, arguments, i) for i in (0, 1, 4))
        place = builder.xor(arguments[5], builder.and_(arguments[2], LONG(~7)))
        value = builder.load(vector_at(builder, source, place, LONGS), align=8)
        value = _permuted(builder, _flipped(builder, value, signs, place), arguments[2])
        value = builder.fmul(builder.sitofp(value, DOUBLES), spread(builder, arguments[3], DOUBLES))
        builder.store(value, vector_at(builder, target, arguments[5], DOUBLES), align=8)
        return context.get_dummy_value()

    return types.void(y, bits, shift, inverse, g, at), codegen


@inlined
def see(g: Any, bits: Any, shift: Any, size: Any, y: Any) -> None:
    """Fills y with what a shift and signs make of a vector."""
    for at in range(0, size, 8):
        _eight_seen(g, bits, shift, y, np.int64(at))


@inlined
def undo(y: Any, bits: Any, shift: Any, size: Any, inverse: Any, g: Any) -> None:
    """Fills g with the vector of which a shift and signs make y, times `inverse`."""
    for at in range(0, size, 8):
        _eight_unseen(y, bits, shift, inverse, g, np.int64(at))
