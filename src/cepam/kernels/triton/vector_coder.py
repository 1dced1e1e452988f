"""The entropy coder on vector lattices in Triton: a lane quantizes and codes a block, or decodes and reconstructs one.

Trials end at different times. In each step of the loop a lane makes one trial of its own sub-vector; a lane whose
trial is accepted codes its point and goes on to its next sub-vector, so that no lane waits for the slowest of its warp.
As in one dimension a program has as many threads as lanes, and what fills the stage is not inlined.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.model import scalar_contexts
from cepam.kernels.model import vector_contexts as contexts
from cepam.kernels.triton.range_coder import Coder, Stream, any_of, finish, start_decoder
from cepam.kernels.triton.scalar_model import OCTAVE, TICKS, code_header, code_modelled, log, power, within
from cepam.kernels.triton.scalar_stage import lanes_of
from cepam.kernels.triton.vector_model import MARKS, RATE, SAME, WIDES, Row, code_point, follow, mark_of, wide_of
from cepam.kernels.triton.vector_quantizer import (
    CELL,
    LENGTH,
    MINE,
    OUTCOME,
    RADIUS,
    ROW,
    SCALE_AT,
    STAGED,
    TRIAL,
    ZERO,
    ZERO_LENGTH,
    put_points,
    put_zeros,
    stage_dither,
    stage_nearest,
    stage_outcome,
    stage_targets,
)

VECTOR_CONTEXTS, NOTHING = tl.constexpr(contexts.CONTEXTS), tl.constexpr(scalar_contexts.NOTHING)
_STAGED = tl.constexpr(STAGED)
SHARE = tl.constexpr(2)
"""A point is coded once this share of a program's lanes has one to code: half of them."""


@triton.jit
def stage_trial(
    stage, x, wide, double, keys, numbers, step, begin, total, count, blocks, per_block, search: tl.constexpr,
    accept: tl.constexpr, n: tl.constexpr, box: tl.constexpr, basis: tl.constexpr, order: tl.constexpr,
    lanes: tl.constexpr, decoding: tl.constexpr,
):  # fmt: skip
    """One trial of every lane, from its staged row, trial and radius to its staged outcome."""
    stage_dither(stage, keys, numbers, step, begin, total, count, blocks, per_block, accept, n, box, lanes)
    stage_nearest(stage, stage + ZERO * lanes, search, n, basis, lanes)
    if not decoding:
        stage_targets(stage, x, wide, double, numbers, begin, total, count, blocks, per_block, n, lanes)
        stage_nearest(stage, stage + MINE * lanes, search, n, basis, lanes)
    stage_outcome(stage, accept, n, order, lanes, decoding)


@triton.jit
def walk_rows(
    coder, stream, x, wide, double, flags, scale, keys, radii, numbers, step, trials, means, walk,
    odds, stage, begin, total, count, blocks, per_block, search: tl.constexpr, accept: tl.constexpr, n: tl.constexpr,
    box: tl.constexpr, basis: tl.constexpr, order: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr,
):  # fmt: skip
    """Codes the sub-vectors of each lane, and fills x when decoding; the coder's state, and 1 where a lane did
    something that a zero update would not have done, -1 where no trial was accepted."""
    own = tl.program_id(0) * lanes + tl.arange(0, lanes)
    _, _, _, size = lanes_of(begin, total, count, blocks, per_block * n, own)
    mine, anchor = stage + tl.arange(0, lanes), (scale & 1) * 128 + TICKS * OCTAVE
    sized, shift, coded = power(anchor).to(tl.int64), (scale >> 1) - TICKS, scale != NOTHING
    row, trial, busy = tl.zeros_like(scale), tl.zeros_like(scale), tl.zeros_like(scale)
    active, waiting, radii = size > 0, size < 0, radii + own.to(tl.int64) * per_block
    latent = tl.load(radii, mask=active, other=1.0e6)
    while any_of(active):
        tl.store(mine + ROW * lanes, row.to(tl.int64))
        tl.store(mine + TRIAL * lanes, trial.to(tl.int64))
        tl.store(mine + RADIUS * lanes, latent.to(tl.int64, bitcast=True))
        # A lane that waits makes the same trial again, which changes nothing.
        stage_trial(
            stage, x, wide, double, keys, numbers, step, begin, total, count, blocks, per_block, search, accept, n, box,
            basis, order, lanes, decoding,
        )  # fmt: skip
        outcome, b = tl.load(mine + OUTCOME * lanes).to(tl.int32), tl.load(mine + SCALE_AT * lanes)
        radius = tl.load(mine + RADIUS * lanes).to(tl.float64, bitcast=True)
        length = tl.load(mine + ZERO_LENGTH * lanes).to(tl.float64, bitcast=True)
        z = within((15 * log(sized) + anchor) >> 4, 31 * OCTAVE - 1)
        offset, fresh = shift * OCTAVE + z, active & (waiting == 0)
        wides, inside = wide_of(log(radius.to(tl.int64)) - offset), (outcome & 1) == 1
        context = (tl.where(inside, MARKS, 0) + mark_of(length, radius, offset, MARKS - 1)) * WIDES + wides
        # Both decisions' odds and the next row's radius are read together, so that their latencies are one. None has a
        # sign: it is added, which the compiler cannot know to change nothing, so it moves no read behind a decision.
        learning = fresh & coded
        q = tl.load(odds + context * lanes, mask=learning, other=0)
        same_q = tl.load(odds + (SAME + context) * lanes, mask=learning, other=0)
        ahead = tl.load(radii + row + 1, mask=active & ((row + 1) * n < size), other=1.0e6)
        q += (same_q | (ahead.to(tl.int64, bitcast=True) >> 32).to(tl.int32)) >> 31
        ends, same = inside, inside | True
        if not decoding:
            ends, same = (outcome & 2) == 2, (outcome & 4) == 4
            busy = tl.where(fresh & ((ends != inside) | (ends & (same == 0))), 1, busy)
        if accept != CELL:
            coder, told, q = code_modelled(coder, stream, q, ends, learning, RATE, decoding)
            tl.store(odds + context * lanes, q, mask=learning)
            ends = (coded & told) | ((coded == 0) & ends)
        done = fresh & ends
        coder, told, same_q = code_modelled(coder, stream, same_q, same, done & coded, RATE, decoding)
        tl.store(odds + (SAME + context) * lanes, same_q, mask=done & coded)
        waiting = waiting | (done & coded & (told == 0))
        done = done & (waiting == 0)
        if decoding:
            tl.store(mine + OUTCOME * lanes, done.to(tl.int64))
            put_zeros(stage, x, wide, double, numbers, begin, total, count, blocks, per_block, n, lanes)
        # Points are coded for many lanes at once: a lane with one waits until enough others have one, or all do.
        many = tl.sum(waiting.to(tl.int32), 0)
        if (many * SHARE >= lanes) | (many == tl.sum(active.to(tl.int32), 0)):
            coder = code_point(coder, stream, odds, walk, Row(mine, b, offset), waiting, n, lanes, decoding)
            if decoding:
                tl.store(mine + OUTCOME * lanes, waiting.to(tl.int64))
                put_points(
                    stage, x, wide, double, flags, numbers, begin, total, count, blocks, per_block, accept, n, basis,
                    order, lanes,
                )  # fmt: skip
            length = tl.where(waiting, tl.load(mine + LENGTH * lanes).to(tl.float64, bitcast=True), length)
            done, waiting = done | waiting, size < 0
        sized = follow(sized, z, means, length, radius, offset, wides, done)
        lost = fresh & (ends == 0) & (trial + 1 >= trials)
        busy = tl.where(lost, -1, busy)
        trial = tl.where(done, 0, trial + (fresh & (ends == 0)).to(tl.int32))
        row, latent = row + done.to(tl.int32), tl.where(done, ahead, latent)
        active = active & (lost == 0) & (row * n < size)
    return coder, busy


@triton.jit
def places_of(odds, stage, lanes: tl.constexpr):
    """This program's own contexts at this thread's lane, and its stage."""
    program = tl.program_id(0).to(tl.int64) * lanes
    return odds + program * VECTOR_CONTEXTS + tl.arange(0, lanes), stage + program * _STAGED


@triton.jit(
    do_not_specialize=["double", "step", "trials", "begin", "total", "count", "blocks", "per_block", "room"],
    do_not_specialize_on_alignment=["x", "wide", "headers", "lengths"],
)
def encode_vectors(
    x, wide, double, keys, radii, numbers, step, trials, means, walk, headers, odds, stage, slots, lengths, begin,
    total, count, blocks, per_block, room, search: tl.constexpr, accept: tl.constexpr, n: tl.constexpr,
    box: tl.constexpr, basis: tl.constexpr, order: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Codes a wave of blocks from lane number `begin` on into slots of `room` words; `lengths` gets their bytes, -1
    where no trial was accepted."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane, _, _, size = lanes_of(begin, total, count, blocks, per_block * n, mine)
    odds, stage = places_of(odds, stage, lanes)
    live = size > 0
    header = tl.load(headers + lane, mask=live, other=0)
    low = tl.zeros_like(lane).to(tl.uint64)
    at, word = tl.zeros_like(size), tl.zeros_like(size).to(tl.uint32)
    stream = Stream(slots + mine.to(tl.int64) * room, room)
    coder, _ = code_header(Coder(low, low - 1, at, word), stream, header, live, 7, False)
    coder, busy = walk_rows(
        coder, stream, x, wide, double, lengths, header, keys, radii, numbers, step, trials, means,
        walk, odds, stage, begin, total, count, blocks, per_block, search, accept, n, box, basis, order, lanes, False,
    )  # fmt: skip
    ended = tl.where(busy < 0, -1, finish(coder, stream, busy > 0) * busy)
    tl.store(lengths + mine, ended, mask=live)


@triton.jit(
    do_not_specialize=["double", "step", "trials", "begin", "total", "count", "blocks", "per_block"],
    do_not_specialize_on_alignment=["x", "wide", "data", "starts", "lengths"],
)
def decode_vectors(
    x, wide, double, keys, radii, numbers, step, trials, means, walk, data, starts, lengths, odds, stage, flags, begin,
    total, count, blocks, per_block, search: tl.constexpr, accept: tl.constexpr, n: tl.constexpr, box: tl.constexpr,
    basis: tl.constexpr, order: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Decodes a wave of blocks from lane number `begin` on into x; a flag where a block makes no sense."""
    mine = tl.program_id(0) * lanes + tl.arange(0, lanes)
    lane, _, _, size = lanes_of(begin, total, count, blocks, per_block * n, mine)
    odds, stage = places_of(odds, stage, lanes)
    live = size > 0
    data = data + tl.load(starts + lane, mask=live, other=0)
    stream = Stream(data, tl.load(lengths + lane, mask=live, other=0))
    coder, scale = code_header(start_decoder(stream, live), stream, size * 0, live, 7, True)
    _coder, busy = walk_rows(
        coder, stream, x, wide, double, flags, scale, keys, radii, numbers, step, trials, means,
        walk, odds, stage, begin, total, count, blocks, per_block, search, accept, n, box, basis, order, lanes, True,
    )  # fmt: skip
    tl.store(flags + busy * 0, 1, mask=busy < 0)
