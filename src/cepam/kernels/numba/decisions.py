"""Decisions of the adaptive coders, compiled: logarithms, chances that learn, sizes and plain bits.

Logarithms are the upper bits of an exactly converted float64 (8 bits of mantissa, linear between powers of two), so all
arithmetic here is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels.model.scalar_contexts import FLOOR, OCTAVE, SIZE_RATE
from cepam.kernels.numba.integers import inlined
from cepam.kernels.numba.range_coder import get_bit, put_bit


@inlined
def log(value: Any) -> Any:
    """256 times a piecewise linear log2 of a non-negative value below 2**53 (0 counts as 1)."""
    return (np.float64(value | 1).view(np.int64) >> 44) - 1023 * OCTAVE


@inlined
def power(exponent: Any) -> Any:
    """The inverse of `log`, for 0 <= exponent < 31 octaves."""
    return ((OCTAVE + (exponent & 255)) << (exponent >> 8)) >> 8


@inlined
def within(value: Any, top: Any) -> Any:
    """`value` held in 0..top."""
    return min(max(value, 0), top)


@inlined
def learn(odds: Any, at: Any, bit: Any, rate: Any) -> None:
    """Moves the probability in context `at` towards `bit` by 2**-rate of the way."""
    p = np.int64(odds[at])
    odds[at] = np.uint16(p + (((65535 if bit else 0) - p) >> rate))


@inlined
def chance(odds: Any, at: Any) -> Any:
    """The 16-bit probability that the decision in context `at` is 1."""
    return min(max(np.int64(odds[at]), FLOOR), 65536 - FLOOR)


@inlined
def choose(data: Any, state: Any, bit: Any, p: Any, decoding: Any) -> Any:
    """One decision in either direction: (state, bit)."""
    if decoding:
        return get_bit(data, state, p)
    return put_bit(data, state, bit, p), bit


@inlined
def walk_size(data, state, value, base, skip, most, odds, decoding):  # type: ignore[no-untyped-def]
    """Codes a size of at least 1, of at most `most` bits: `skip` low ones plainly, the rest by exponent and mantissa.

    The exponent in unary and the first bit of the mantissa have contexts, 24 from `base` on.
    """
    plain = value & ((1 << skip) - 1)
    rest = (value >> skip) + (1 if skip else 0)
    places = log(rest) >> 8
    length = 0
    going = True
    while going and length < most - skip:
        context = base + min(length, 19)
        state, going = choose(data, state, length < places, chance(odds, context), decoding)
        learn(odds, context, going, SIZE_RATE)
        if going:
            length += 1
    value = 1
    for place in range(length - 1, -1, -1):
        bit = ((rest >> place) & 1) == 1
        if place == length - 1:
            context = base + 20 + min(length, 4) - 1
            state, bit = choose(data, state, bit, chance(odds, context), decoding)
            learn(odds, context, bit, SIZE_RATE)
        else:
            state, bit = choose(data, state, bit, 32768, decoding)
        value = (value << 1) | (1 if bit else 0)
    for place in range(skip - 1, -1, -1):
        bit = ((plain >> place) & 1) == 1
        state, bit = choose(data, state, bit, 32768, decoding)
        value = (value << 1) | (1 if bit else 0)
    if skip:
        value = max(value - (1 << skip), 1)
    return state, value


@inlined
def walk_header(data: Any, state: Any, value: Any, bits: Any, decoding: Any) -> Any:
    """Codes `bits` plain bits of side information, highest first; an empty stream decodes as ones."""
    got = 0
    for place in range(bits - 1, -1, -1):
        bit = ((value >> place) & 1) == 1
        state, bit = choose(data, state, bit, 32768, decoding)
        got = (got << 1) | (1 if bit else 0)
    return state, got
