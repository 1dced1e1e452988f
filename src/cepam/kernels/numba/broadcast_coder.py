"""Differences of two points of the broadcast's grid as bytes, and the grid's own arithmetic, compiled.

A place is a whole number of units of 2**-RESOLUTION. The grid of shift t holds the places that are congruent to the
dither modulo 2**t, so a finer grid contains every coarser one; a point is the quotient that names such a place.

A difference is mostly zeros. Three kinds of decision code it: is it zero, is it positive, how large is it. Contexts are
half octaves of a local mean of sizes, which starts at the block's own and follows what was decoded. Contexts start
from the odds of a two-sided geometric law of that mean: a block has little to learn (docs/wire.md, section 12).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.broadcast_contexts import (
    BYTES_A_COORDINATE,
    CODE_BITS,
    CODES,
    CONTEXTS,
    DITHER_BITS,
    DITHER_STREAM,
    FRACTION,
    LARGEST_BITS,
    NOTHING,
    RESOLUTION,
    SIGN_AT,
    SIGN_RATE,
    SIZE_AT,
    SIZE_CODES,
    SIZE_CONTEXTS,
    WINDOW,
    ZERO_RATE,
    first_odds,
)
from cepam.kernels.format.plan import Ints, key_words
from cepam.kernels.numba.compiling import compiled, inlined
from cepam.kernels.numba.keystream import fill_words, start_lanes
from cepam.kernels.numba.range_coder import (
    chance,
    choose,
    finish,
    fresh,
    learn,
    log,
    start,
    walk_header,
    walk_size,
    within,
)


class BlockMemory(NamedTuple):
    """Working memory for one block; one for each thread."""

    state: Any
    words: Any
    odds: Any
    out: Any


def memory_for(count: int) -> BlockMemory:
    """Working memory for blocks of up to `count` coordinates."""
    return BlockMemory(
        state=np.empty(256, dtype=np.uint32),
        words=np.empty(-(-count // 128) * 256, dtype=np.uint32),
        odds=np.empty(CONTEXTS, dtype=np.uint16),
        out=np.empty(count * BYTES_A_COORDINATE + 16, dtype=np.uint8),
    )


@compiled
def fill_dithers(key: Any, first: Any, work: Any, dithers: Any) -> None:
    """Fills in the dithers of coordinates from number `first` (a multiple of 8) on: 48 bits of a word each."""
    start_lanes(key, work.state)
    count = len(dithers)
    fill_words(work.state, DITHER_STREAM, first >> 3, work.words[: -(-count // 128) * 256])
    words = work.words.view(np.uint64)
    for i in range(count):
        dithers[i] = np.int64(words[i] & np.uint64((1 << DITHER_BITS) - 1))


@compiled
def places_of_values(values: Any, places: Any) -> None:
    """Fills in the whole units nearest to the values."""
    for i in range(len(values)):
        places[i] = np.int64(np.rint(np.float64(values[i]) * 2.0**RESOLUTION))


@compiled
def places_of_points(points: Any, dithers: Any, shift: Any, places: Any) -> None:
    """Fills in where points of the grid of this shift lie."""
    mask = (np.int64(1) << shift) - 1
    for i in range(len(points)):
        places[i] = (np.int64(points[i]) << shift) + (dithers[i] & mask)


@compiled
def nearest_points(places: Any, dithers: Any, shift: Any, points: Any) -> None:
    """Fills in the points of the grid of this shift nearest to the places, of two equally near the upper one."""
    mask = (np.int64(1) << shift) - 1
    half = (np.int64(1) << shift) >> 1
    for i in range(len(places)):
        points[i] = (places[i] - (dithers[i] & mask) + half) >> shift


@compiled
def values_of_places(places: Any, values: Any) -> None:
    """Fills in the float32 values of the places: to float64, then to float32, each rounded to nearest."""
    for i in range(len(places)):
        values[i] = np.float32(np.float64(places[i]) * 2.0**-RESOLUTION)


@compiled
def measure_scale(d: Any) -> Any:
    """The block's scale code: half octaves of the mean of |d|, in 0..CODES - 1; NOTHING if all are zero."""
    total = np.int64(0)
    for i in range(len(d)):
        total += abs(d[i])
    if total == 0:
        return np.int64(NOTHING)
    return code_of((total << FRACTION) // len(d))


@inlined
def code_of(size: Any) -> Any:
    """Half octaves of a size in units of 2**-FRACTION."""
    return within((log(size) + 64) >> 7, CODES - 1)


@inlined
def size_of_code(code: Any) -> Any:
    """A size in units of 2**-FRACTION whose half octaves are `code`."""
    return ((2 + (code & 1)) << (code >> 1)) >> 1


@inlined
def walk(data: Any, state: Any, d: Any, scale: Any, odds: Any, decoding: Any) -> Any:
    """Codes all coordinates of a block in either direction; the coder's state afterwards."""
    whole = size_of_code(scale)
    sized, signed = whole, np.int64(0)
    for i in range(len(d)):
        code = code_of((sized + whole) >> 1)
        moved = d[i] != 0
        state, moved = choose(data, state, moved, chance(odds, code), decoding)
        learn(odds, code, moved, ZERO_RATE)
        size = np.int64(0)
        if moved:
            side = SIGN_AT + (1 + (signed > 0) - (signed < 0))
            rise = d[i] > 0
            state, rise = choose(data, state, rise, chance(odds, side), decoding)
            learn(odds, side, rise, SIGN_RATE)
            skip = max((code >> 1) - FRACTION - 4, 0)
            row = within(code - 2 * skip - 2 * FRACTION + SIZE_CODES - 8, SIZE_CODES - 1)
            base = SIZE_AT + row * SIZE_CONTEXTS
            state, size = walk_size(data, state, abs(d[i]), base, skip, LARGEST_BITS, odds, decoding)
            d[i] = size if rise else -size
            signed = d[i]
        else:
            d[i] = 0
        sized += ((size << FRACTION) - sized) >> WINDOW
    return state


@compiled
def encode_block(d: Any, prior: Any, work: Any) -> Any:
    """The length of the stream in `work.out`; a block of zeros has none.

    Guarantee: `decode_block` on exactly these bytes gives d back (tests/downlink/test_coder.py).
    """
    scale = measure_scale(d)
    if scale == NOTHING:
        return np.int64(0)
    for i in range(CONTEXTS):
        work.odds[i] = prior[i]
    state, _ = walk_header(work.out, fresh(), scale, CODE_BITS, False)
    return finish(work.out, walk(work.out, state, d, scale, work.odds, False))


@compiled
def decode_block(data: Any, prior: Any, work: Any, d: Any) -> None:
    """Fills d from a stream of `encode_block`.

    Guarantee: any bytes decode to some d, under 2**32 in size, in bounded time (tests/downlink/test_coder.py).
    """
    state, scale = walk_header(data, start(data), 0, CODE_BITS, True)
    if scale >= CODES:
        for i in range(len(d)):
            d[i] = 0
        return
    for i in range(CONTEXTS):
        work.odds[i] = prior[i]
    walk(data, state, d, scale, work.odds, True)


@cache
def _prior() -> Any:
    return first_odds()


class CompiledLoop:
    """The compiled kernels; they release the interpreter's lock."""

    def __init__(self, key: bytes) -> None:
        self.key = key_words(key)

    def dithers(self, first: int, count: int) -> Ints:
        out = np.empty(count, dtype=np.int64)
        fill_dithers(self.key, first, memory_for(count), out)
        return out

    def places_of_values(self, values: npt.NDArray[Any]) -> Ints:
        out = np.empty(len(values), dtype=np.int64)
        places_of_values(np.ascontiguousarray(values), out)
        return out

    def places_of_points(self, points: npt.NDArray[Any], dithers: Ints, shift: int) -> Ints:
        out = np.empty(len(points), dtype=np.int64)
        places_of_points(np.ascontiguousarray(points), dithers, shift, out)
        return out

    def nearest_points(self, places: Ints, dithers: Ints, shift: int) -> Ints:
        out = np.empty(len(places), dtype=np.int64)
        nearest_points(places, dithers, shift, out)
        return out

    def values_of_places(self, places: Ints) -> npt.NDArray[np.float32]:
        out = np.empty(len(places), dtype=np.float32)
        values_of_places(places, out)
        return out

    def encode(self, blocks: list[Ints]) -> list[bytes]:
        work, streams = memory_for(max(map(len, blocks), default=0)), []
        for block in blocks:
            length = encode_block(block, _prior(), work)
            streams.append(work.out[:length].tobytes())
        return streams

    def decode(self, streams: list[bytes], lengths: list[int]) -> list[Ints]:
        work, blocks = memory_for(max(lengths, default=0)), []
        for stream, length in zip(streams, lengths):
            blocks.append(np.empty(length, dtype=np.int64))
            decode_block(np.frombuffer(bytearray(stream), dtype=np.uint8), _prior(), work, blocks[-1])
        return blocks
