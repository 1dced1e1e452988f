"""What a lane keeps from one segment of its block to the next in one dimension: [program][word][lane], 64 bits each."""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.triton.range_coder import Coder, Stream
from cepam.kernels.triton.scalar_model import OCTAVE, TICKS, Scales, power

LOW, SPAN, AT, WORD, SIZED, SIGNED, ACROSS, COLUMN, BUSY, HEADER, FIRST, SIZE, START, ROOM = (
    tl.constexpr(i) for i in range(14)
)
STATE = 14
"""Words of a lane: its coder, its model, what it codes (header, first coordinate, how many) and where (`Stream`)."""
_STATE = tl.constexpr(STATE)


@triton.jit
def state_of(state, own, lanes):
    """Lanes `own` in the state of this program."""
    return state + tl.program_id(0).to(tl.int64) * lanes * _STATE + own


@triton.jit
def load_state(state, word: tl.constexpr, lanes):
    """A word of each lane's state that has 32 bits."""
    return tl.load(state + word * lanes).to(tl.int32)


@triton.jit
def keep_coder(state, coder, lanes: tl.constexpr):
    """Writes the range coder's state of each lane."""
    tl.store(state + LOW * lanes, coder.low.to(tl.int64, bitcast=True))
    tl.store(state + SPAN * lanes, coder.span.to(tl.int64, bitcast=True))
    tl.store(state + AT * lanes, coder.at.to(tl.int64))
    tl.store(state + WORD * lanes, coder.word.to(tl.int64))


@triton.jit
def find_coder(state, lanes: tl.constexpr):
    """What `keep_coder` wrote."""
    low, span = tl.load(state + LOW * lanes), tl.load(state + SPAN * lanes)
    at, word = load_state(state, AT, lanes), tl.load(state + WORD * lanes).to(tl.uint32)
    return Coder(low.to(tl.uint64, bitcast=True), span.to(tl.uint64, bitcast=True), at, word)


@triton.jit
def keep_scales(state, scales, column, busy, lanes: tl.constexpr):
    """Writes the model's state of each lane: scales, column of its row, whether some k was not zero."""
    tl.store(state + SIZED * lanes, scales.sized)
    tl.store(state + SIGNED * lanes, scales.signed)
    tl.store(state + ACROSS * lanes, scales.across)
    tl.store(state + COLUMN * lanes, column.to(tl.int64))
    tl.store(state + BUSY * lanes, busy.to(tl.int64))


@triton.jit
def find_scales(state, lanes: tl.constexpr):
    """The scales that `keep_scales` wrote."""
    sized, signed = tl.load(state + SIZED * lanes), tl.load(state + SIGNED * lanes)
    return Scales(sized, signed, tl.load(state + ACROSS * lanes))


@triton.jit
def find_stream(state, data, lanes: tl.constexpr):
    """Where each lane reads its words, or writes them."""
    return Stream(data + tl.load(state + START * lanes), load_state(state, ROOM, lanes))


@triton.jit
def begin_block(state, coder, header, block, stream, lanes: tl.constexpr):
    """Writes each lane's state before its first coordinate; of a block it takes where it begins among all coordinates
    and how many it has, of a stream where its words start and their room."""
    sized = power(((header >> 11) & 1) * 128 + TICKS * OCTAVE).to(tl.int64)
    keep_coder(state, coder, lanes)
    keep_scales(state, Scales(sized, sized * 0, sized), header * 0, header * 0, lanes)
    tl.store(state + HEADER * lanes, header.to(tl.int64))
    tl.store(state + FIRST * lanes, block[0])
    tl.store(state + SIZE * lanes, block[1].to(tl.int64))
    tl.store(state + START * lanes, stream[0])
    tl.store(state + ROOM * lanes, stream[1].to(tl.int64))
