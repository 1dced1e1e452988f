"""The range coder of `numba.range_coder` in Triton: one coder a lane, every function takes part where `active` says so.

The state of a lane is a `Coder`. An encoder keeps the last word it made in `word`, where a carry
costs nothing, and `at` counts words, that one included; a decoder keeps the next word there, read long before it is
needed. Encoders write native 32-bit words to slots of `room` words; `gather_blocks` puts the bytes in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

ALL = tl.constexpr(0xFFFFFFFF)


class Coder(NamedTuple):
    """The state of a lane's coder; `low` is a decoder's code."""

    low: Any
    span: Any
    at: Any
    word: Any


class Stream(NamedTuple):
    """Where a lane's words are: an encoder's slot of `room` words, a decoder's `room` bytes."""

    data: Any
    room: Any


@triton.jit
def any_of(mask):
    """Whether the mask holds in some lane of the program."""
    return tl.max(mask.to(tl.int32), 0) > 0


@triton.jit
def code_bit(coder, stream, p, bit, active, decoding: tl.constexpr):
    """One decision with chance p of a 1 (in 2^-16): the coder and the bit afterwards."""
    low, span, at, word = coder.low, coder.span, coder.at, coder.word
    bound = (span >> 16) * p.to(tl.uint64)
    if decoding:
        bit = low < bound
        moved = tl.where(bit, low, low - bound)
    else:
        moved = tl.where(bit, low, low + bound)
    carried = active & (moved < low)
    low, span = tl.where(active, moved, low), tl.where(active, tl.where(bit, bound, span - bound), span)
    full = active & ((span >> 32) == 0)
    # A lane moves a word once in some fifty decisions: most decisions of few lanes have nothing to do with memory.
    if decoding:
        if any_of(full):
            low = tl.where(full, (low << 32) | word.to(tl.uint64), low)
            word = tl.where(full, get_word(stream.data, at, stream.room, full), word)
            span, at = tl.where(full, span << 32, span), at + full.to(tl.int32)
    else:
        if any_of(full | carried):
            word = settle(stream.data, at, word, stream.room, carried)
            put_word(stream.data, at - 1, word, stream.room, full)
            word = tl.where(full, (low >> 32).to(tl.uint32), word)
            low, span = tl.where(full, low << 32, low), tl.where(full, span << 32, span)
            at = at + full.to(tl.int32)
    return Coder(low, span, at, word), bit


@triton.jit
def settle(data, at, word, room, carried):
    """The last word after a carry; the words before it change too if it is all ones."""
    spilled = carried & (word == ALL)
    if any_of(spilled):
        carry(data, at - 2, room, spilled)
    return tl.where(carried, word + 1, word)


@triton.jit
def carry(data, at, room, active):
    """Adds one to the number that ends with word `at` in memory."""
    while any_of(active):
        value = peek(data, at, room, active) + 1
        put_word(data, at, value, room, active)
        active = active & (value == 0) & (at > 0)
        at = at - 1


@triton.jit
def peek(data, at, room, active):
    """A word that an encoder has written."""
    inside = active & (at >= 0) & (at < room)
    return tl.load(data + at, mask=inside, other=0).to(tl.uint32, bitcast=True)


@triton.jit
def put_word(data, at, word, room, active):
    """Writes a word if it has a place: a stream that outgrows its slot is found by its length."""
    tl.store(data + at, word.to(tl.int32, bitcast=True), mask=active & (at >= 0) & (at < room))


@triton.jit
def get_word(data, at, room, active):
    """Word `at` of a stream of `room` bytes, zeros past the end."""
    word = tl.zeros_like(at).to(tl.uint32)
    for i in tl.static_range(4):
        byte = tl.load(data + at * 4 + i, mask=active & (at * 4 + i < room), other=0)
        word = (word << 8) | byte.to(tl.uint32)
    return word


@triton.jit
def start_encoder(none):
    """The state of encoders at the first decision; `none` is a 32-bit zero of each lane."""
    low = none.to(tl.uint64)
    return Coder(low, low - 1, none, none.to(tl.uint32))


@triton.jit
def start_decoder(stream, active):
    """The state of decoders at the first decision."""
    data, room = stream.data, stream.room
    zero = tl.zeros_like(room)
    first, second = get_word(data, zero, room, active), get_word(data, zero + 1, room, active)
    low = (first.to(tl.uint64) << 32) | second.to(tl.uint64)
    return Coder(low, tl.zeros_like(low) - 1, zero + 3, get_word(data, zero + 2, room, active))


@triton.jit
def finish(coder, stream, active):
    """The bytes of the shortest streams that still decode; more than 4 * room - 1 where the slot is too small."""
    low, span, at, data, room = coder.low, coder.span, coder.at, stream.data, stream.room
    value = low
    for i in tl.static_range(7):
        rounded = ((low + (0xFFFFFFFFFFFFFFFF >> (56 - 8 * i))) >> (8 + 8 * i)) << (8 + 8 * i)
        value = tl.where(rounded - low < span, rounded, value)
    zero = tl.zeros_like(low)
    value = tl.where(zero - low < span, zero, value)
    word = settle(data, at, coder.word, room, active & (value < low))
    put_word(data, at - 1, word, room, active)
    put_word(data, at, (value >> 32).to(tl.uint32), room, active)
    put_word(data, at + 1, value.to(tl.uint32), room, active)
    length = 4 * at + 8
    going = active & (length <= 4 * room)
    while any_of(going):
        last = peek(data, (length - 1) >> 2, room, going) >> (24 - 8 * ((length - 1) & 3)).to(tl.uint32)
        going = going & (length > 0) & ((last & 255) == 0)
        length = length - going.to(tl.int32)
    return length


@triton.jit(do_not_specialize=["room"], do_not_specialize_on_alignment=["lengths"])
def gather_blocks(slots, lengths, starts, out, room, chunk: tl.constexpr):
    """Copies each lane's words to its place among the message's bytes, highest byte first."""
    lane = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + lane)
    start = tl.load(starts + lane)
    begin = 0
    while begin < length:
        at = begin + tl.arange(0, chunk)
        word = tl.load(slots + lane * room + (at >> 2), mask=at < length, other=0)
        tl.store(out + start + at, (word >> (24 - 8 * (at & 3))).to(tl.uint8), mask=at < length)
        begin += chunk
