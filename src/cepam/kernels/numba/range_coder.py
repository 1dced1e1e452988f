"""A binary range coder in 64-bit integers that moves 32-bit words.

An interval [low, low + span) shrinks with every decision; `span` is kept at 2**32 or more, so a decision moves at
most one word. Probabilities are 16-bit and at least `FLOOR`, which keeps `span` above 2**21 before it is renewed.
All functions are scalar and meant to be inlined in other kernels: the state travels in locals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.kernels.numba.integers import inlined

Bytes = npt.NDArray[np.uint8]

_WORD = np.uint64(32)
_HALF = np.uint64(16)
_LEAST = np.uint64(1 << 32)
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def put_bit(out: Bytes, low: Any, span: Any, at: Any, bit: Any, p: Any) -> Any:
    """(low, span, at) after `bit` was coded, where 1 has probability `p` / 65536; `at` counts written bytes."""
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
    return low, span, at


@inlined
def get_bit(data: Bytes, code: Any, span: Any, at: Any, p: Any) -> Any:
    """(code, span, at, bit): the inverse of `put_bit`; `at` counts bytes read, zeros past the end included."""
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
    return code, span, at, bit


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
    """(code, span, at) of a decoder at the first decision."""
    return (get_word(data, 0) << _WORD) | get_word(data, 4), _ALL, 8


@inlined
def finish(out: Bytes, low: Any, span: Any, at: int) -> int:
    """The length of the shortest byte string that still decodes, once `low` has been settled into `out`.

    Guarantee: trailing zero bytes are never part of it, since a decoder reads zeros past the end.
    """
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
