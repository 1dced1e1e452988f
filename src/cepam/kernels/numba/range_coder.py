"""The compiled binary range coder, and the adaptive decisions coded with it.

An interval [low, low + span) shrinks with every decision; `span` is kept at 2**32 or more, so a decision moves at
most one word. Probabilities are 16-bit and at least `FLOOR`, which keeps `span` above 2**21 before it is renewed.
All functions are scalar and meant to be inlined in other kernels: the state travels by value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.scalar_contexts import FLOOR, OCTAVE, SIZE_RATE
from cepam.kernels.numba.compiling import inlined

Bytes = npt.NDArray[np.uint8]

_WORD = np.uint64(32)
_HALF = np.uint64(16)
_LEAST = np.uint64(1 << 32)
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Interval(NamedTuple):
    """The state of a coder: `low` (decoding: the code's distance from it), `span`, and bytes written or read."""

    low: Any
    span: Any
    at: Any


@inlined
def fresh() -> Any:
    """The state of an encoder before the first decision."""
    return Interval(_ZERO, _ALL, np.int64(0))


@inlined
def put_bit(out: Bytes, state: Any, bit: Any, p: Any) -> Any:
    """The state after `bit` was coded, where 1 has probability `p` / 65536."""
    low, span, at = state
    bound = (span >> _HALF) * np.uint64(p)
    if bit:
        span = bound
    else:
        raised = low + bound
        if raised < low:
            carry(out, at)
        low = raised
        span -= bound
    if span < _LEAST:
        put_word(out, at, low)
        at += 4
        low <<= _WORD
        span <<= _WORD
    return Interval(low, span, at)


@inlined
def get_bit(data: Bytes, state: Any, p: Any) -> Any:
    """(state, bit): the inverse of `put_bit`; bytes read count zeros past the end."""
    code, span, at = state
    bound = (span >> _HALF) * np.uint64(p)
    bit = code < bound
    if bit:
        span = bound
    else:
        code -= bound
        span -= bound
    if span < _LEAST:
        code = (code << _WORD) | get_word(data, at)
        at += 4
        span <<= _WORD
    return Interval(code, span, at), bit


@inlined
def carry(out: Bytes, at: int) -> None:
    """Adds one to the big-endian number written in `out[:at]`."""
    while at > 0:
        at -= 1
        out[at] = np.uint8((np.int64(out[at]) + 1) & 255)
        if out[at] != 0:
            return


@inlined
def put_word(out: Bytes, at: int, low: Any) -> None:
    """Writes the upper 32 bits of `low`, big-endian, at `at`. The caller owns the capacity."""
    out[at] = np.uint8((low >> np.uint64(56)) & np.uint64(255))
    out[at + 1] = np.uint8((low >> np.uint64(48)) & np.uint64(255))
    out[at + 2] = np.uint8((low >> np.uint64(40)) & np.uint64(255))
    out[at + 3] = np.uint8((low >> np.uint64(32)) & np.uint64(255))


@inlined
def get_word(data: Bytes, at: int) -> Any:
    """Four bytes of `data` at `at`, big-endian, zeros past the end."""
    word = _ZERO
    for place in range(at, at + 4):
        word <<= np.uint64(8)
        if place < data.size:
            word |= np.uint64(data[place])
    return word


@inlined
def start(data: Bytes) -> Any:
    """The state of a decoder before the first decision."""
    return Interval((get_word(data, 0) << _WORD) | get_word(data, 4), _ALL, np.int64(8))


@inlined
def finish(out: Bytes, state: Any) -> Any:
    """The length of the shortest byte string that still decodes, once `low` has been settled into `out`.

    Guarantee: trailing zero bytes are never part of it, since a decoder reads zeros past the end.
    """
    low, span, at = state
    for kept in range(9):
        mask = _ZERO if kept == 8 else _ALL >> np.uint64(8 * kept)
        value = (low + mask) & ~mask
        if value - low < span:
            break
    if value < low:
        carry(out, at)
    for place in range(kept):
        out[at + place] = np.uint8((value >> np.uint64(56 - 8 * place)) & np.uint64(255))
    at += kept
    while at > 0 and out[at - 1] == 0:
        at -= 1
    return at


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
