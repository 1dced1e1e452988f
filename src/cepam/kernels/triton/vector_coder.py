"""The entropy coder on vector lattices in Triton, and its context model.

What a loop over coordinates must index lies in the stage: the error of the point that a zero update would end at, and
how far the point lies from it, in the order in which coordinates are told.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.format import scalar_contexts
from cepam.kernels.format import vector_contexts as contexts
from cepam.kernels.triton.layers import TRIALS, lanes_of, load_place, own_lanes
from cepam.kernels.triton.range_coder import Stream, any_of, finish, start_decoder, start_encoder
from cepam.kernels.triton.scalar_model import (
    LARGEST,
    OCTAVE,
    TICKS,
    Jump,
    KnownOdds,
    code_header,
    code_jump,
    code_modelled,
    find_odds,
    log,
    power,
    within,
)
from cepam.kernels.triton.vector_quantizer import (
    APART,
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

MARKS, WIDES, MEAN_MARKS = (tl.constexpr(i) for i in (contexts.MARKS, contexts.WIDES, contexts.MEAN_MARKS))
FRACTIONS, ROWS, ROW_CONTEXTS = (tl.constexpr(i) for i in (contexts.FRACTIONS, contexts.ROWS, contexts.ROW))
SAME, STAY, SIDE, SIZE = (tl.constexpr(i) for i in (contexts.SAME, contexts.STAY, contexts.SIDE, contexts.SIZE))
RATE, MOST_BITS = tl.constexpr(contexts.RATE), tl.constexpr(contexts.LARGEST_BITS)
FARTHEST, LONGEST = tl.constexpr(contexts.FARTHEST), tl.constexpr(contexts.LONGEST)


class CodedRow(NamedTuple):
    """A lane's row: its stage, the lattice's scale, and the logarithm of the local one."""

    stage: Any
    b: Any
    offset: Any


@triton.jit
def mark_of(length, radius, offset, top):
    """Half octaves of the margin over the local scale."""
    margin = tl.minimum(tl.abs(radius - length), LONGEST).to(tl.int64)
    return within((log(margin) - offset + 6 * OCTAVE) >> 7, top)


@triton.jit
def wide_of(value):
    """Octaves of a radius or a spacing over the local scale, from their logarithm."""
    return within((value + 2 * OCTAVE) >> 8, WIDES - 1)


@triton.jit
def follow(sized, z, means, length, radius, offset, wide, active):
    """The local scale once the length of a decoded sub-vector is known."""
    mark = mark_of(length, radius, offset, MEAN_MARKS - 1)
    mean = tl.load(means + (tl.where(length <= radius, MEAN_MARKS, 0) + mark) * WIDES + wide)
    found = tl.minimum(tl.maximum((power(z).to(tl.int64) * mean) >> 8, 1), LARGEST)
    return sized + tl.where(active, ((found - sized) * 5) >> 4, 0)


@triton.jit
def centre_of(axis, stage, b, n: tl.constexpr, lanes: tl.constexpr):
    """Where a zero update would lie along this axis, given the coordinates told before (the shear of others is 0)."""
    centre = tl.zeros_like(b).to(tl.float64)
    for k in tl.static_range(n):
        centre -= tl.load(axis + k) * tl.load(stage + (ZERO + 8 + k) * lanes).to(tl.float64, bitcast=True)
    centre = centre / b.to(tl.float64)
    for k in tl.static_range(n):
        centre -= tl.load(axis + n + k) * tl.load(stage + (APART + k) * lanes).to(tl.float64)
    return tl.minimum(tl.maximum(centre, -FARTHEST), FARTHEST)


@triton.jit
def code_point(coder, stream, odds, walk, row, active, n: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr):
    """Codes points that are not M0, coordinate by coordinate; how far they lie from it is staged afterwards."""
    stage, b, offset = row.stage, row.b, row.offset
    near = tl.zeros_like(offset) + 1
    for place in range(n):
        axis = walk + place * (2 * n + 1)
        centre = centre_of(axis, stage, b, n, lanes)
        goal = tl.floor(centre + 0.5).to(tl.int64)
        rest = centre - goal.to(tl.float64)
        up, fraction = rest >= 0.0, within((tl.abs(rest) * (2 * FRACTIONS)).to(tl.int32), FRACTIONS - 1)
        level = tl.where((near == 1) & (place == n - 1), 2, near)
        spacing = log(b) + tl.load(axis + 2 * n).to(tl.int32) - offset
        cell = fraction * WIDES + wide_of(spacing)
        jump = tl.load(stage + (APART + place) * lanes) - goal
        skip = within((-spacing - 5 * OCTAVE) >> 8, MOST_BITS - 4)
        size = SIZE + within((spacing + skip * OCTAVE + 6 * OCTAVE) >> 7, ROWS - 1) * ROW_CONTEXTS
        contexts = (STAY + tl.where(goal != 0, 0, level) * (FRACTIONS * WIDES) + cell, SIDE + cell, size)
        q = find_odds(odds, contexts, active, lanes)
        # No odds have a sign: it is added so that the compiler moves no read behind the first decision.
        stay_q = q[0] + ((q[1] | q[2]) >> 31)
        coder, stays, stay_q = code_modelled(coder, stream, stay_q, jump == 0, active, RATE, decoding)
        tl.store(odds + contexts[0] * lanes, stay_q, mask=active)
        moving, found = active & (stays == 0), goal
        if any_of(moving):
            asked, known = Jump(jump, up, skip), KnownOdds(contexts, q)
            coder, told, _side, _size = code_jump(
                coder, stream, odds, asked, known, moving, MOST_BITS, lanes, decoding
            )  # fmt: skip
            found = tl.where(moving, goal + told, goal)
        tl.store(stage + (APART + place) * lanes, found, mask=active)
        near = tl.where(found != 0, 0, near)
    return coder


VECTOR_CONTEXTS, NOTHING = tl.constexpr(contexts.CONTEXTS), tl.constexpr(scalar_contexts.NOTHING)
_STAGED = tl.constexpr(STAGED)
SHARE = tl.constexpr(2)
"""A point is coded once this share of a program's lanes has one to code: half of them."""


@triton.jit
def stage_trial(stage, x, draws, place, shape: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr):
    """One trial of every lane, from its staged row, trial and radius to its staged outcome."""
    stage_dither(stage, draws, place, shape, lanes)
    stage_nearest(stage, stage + ZERO * lanes, shape, lanes)
    if not decoding:
        stage_targets(stage, x, draws.numbers, place, shape, lanes)
        stage_nearest(stage, stage + MINE * lanes, shape, lanes)
    stage_outcome(stage, shape, lanes, decoding)


class Trial(NamedTuple):
    """How a trial came out: what was staged of it, and where it lies in the local scale."""

    outcome: Any
    b: Any
    radius: Any
    length: Any
    z: Any
    offset: Any
    wides: Any
    context: Any


@triton.jit
def ask_trial(mine, row, trial, latent, lanes: tl.constexpr):
    """Stages what a trial is made from."""
    tl.store(mine + ROW * lanes, row.to(tl.int64))
    tl.store(mine + TRIAL * lanes, trial.to(tl.int64))
    tl.store(mine + RADIUS * lanes, latent.to(tl.int64, bitcast=True))


@triton.jit
def read_trial(mine, sized, anchor, shift, lanes: tl.constexpr):
    """The trial that was staged, beside the local scale."""
    outcome, b = tl.load(mine + OUTCOME * lanes).to(tl.int32), tl.load(mine + SCALE_AT * lanes)
    radius = tl.load(mine + RADIUS * lanes).to(tl.float64, bitcast=True)
    length = tl.load(mine + ZERO_LENGTH * lanes).to(tl.float64, bitcast=True)
    z = within((15 * log(sized) + anchor) >> 4, 31 * OCTAVE - 1)
    offset = shift * OCTAVE + z
    wides, inside = wide_of(log(radius.to(tl.int64)) - offset), (outcome & 1) == 1
    context = (tl.where(inside, MARKS, 0) + mark_of(length, radius, offset, MARKS - 1)) * WIDES + wides
    return Trial(outcome, b, radius, length, z, offset, wides, context)


@triton.jit
def tell_trial(
    coder, stream, odds, trial, ahead, asked, accept: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr
):
    """The coder, whether a trial ends its row, whether at a point to tell, and whether a zero update would have done
    otherwise; `asked` says which lanes make a trial, and which are coded at all."""
    fresh, coded = asked
    inside, learning = (trial.outcome & 1) == 1, fresh & coded
    # Both decisions' odds and the next row's radius are read together, so that their latencies are one. None has a
    # sign: it is added, which the compiler cannot know to change nothing, so it moves no read behind a decision.
    q = tl.load(odds + trial.context * lanes, mask=learning, other=0)
    same_q = tl.load(odds + (SAME + trial.context) * lanes, mask=learning, other=0)
    q += (same_q | (ahead.to(tl.int64, bitcast=True) >> 32).to(tl.int32)) >> 31
    ends, same, changed = inside, inside | True, fresh
    if not decoding:
        ends, same = (trial.outcome & 2) == 2, (trial.outcome & 4) == 4
        changed = fresh & ((ends != inside) | (ends & (same == 0)))
    if accept != CELL:
        coder, told, q = code_modelled(coder, stream, q, ends, learning, RATE, decoding)
        tl.store(odds + trial.context * lanes, q, mask=learning)
        ends = (coded & told) | ((coded == 0) & ends)
    done = fresh & ends & coded
    coder, told, same_q = code_modelled(coder, stream, same_q, same, done, RATE, decoding)
    tl.store(odds + (SAME + trial.context) * lanes, same_q, mask=done)
    return coder, ends, done & (told == 0), changed


@triton.jit
def walk_rows(coder, stream, scale, x, given, place, shape: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr):
    """Codes the sub-vectors of each lane, and fills x when decoding; the coder's state, and 1 where a lane did
    something that a zero update would not have done, -1 where no trial was accepted."""
    n: tl.constexpr = shape.n
    own, numbers, program = own_lanes(lanes), given.draws.numbers, tl.program_id(0).to(tl.int64) * lanes
    _, _, _, size = lanes_of(place, n, own)
    odds, stage = given.odds + program * VECTOR_CONTEXTS + tl.arange(0, lanes), given.stage + program * _STAGED
    mine, anchor, shift = stage + tl.arange(0, lanes), (scale & 1) * 128 + TICKS * OCTAVE, (scale >> 1) - TICKS
    sized, coded, trials = power(anchor).to(tl.int64), scale != NOTHING, tl.load(numbers + TRIALS).to(tl.int32)
    row, trial, busy = tl.zeros_like(scale), tl.zeros_like(scale), tl.zeros_like(scale)
    active, waiting, radii = size > 0, size < 0, given.radii + own.to(tl.int64) * place.per_block
    latent = tl.load(radii, mask=active, other=1.0e6)
    while any_of(active):
        ask_trial(mine, row, trial, latent, lanes)
        # A lane that waits makes the same trial again, which changes nothing.
        stage_trial(stage, x, given.draws, place, shape, lanes, decoding)
        found, fresh = read_trial(mine, sized, anchor, shift, lanes), active & (waiting == 0)
        ahead, length = tl.load(radii + row + 1, mask=active & ((row + 1) * n < size), other=1.0e6), found.length
        coder, ends, apart, changed = tell_trial(
            coder, stream, odds, found, ahead, (fresh, coded), shape.accept, lanes, decoding
        )  # fmt: skip
        if not decoding:
            busy = tl.where(changed, 1, busy)
        waiting, done = waiting | apart, fresh & ends & ((waiting | apart) == 0)
        if decoding:
            tl.store(mine + OUTCOME * lanes, done.to(tl.int64))
            put_zeros(stage, x, numbers, place, shape, lanes)
        # Points are coded for many lanes at once: a lane with one waits until enough others have one, or all do.
        many = tl.sum(waiting.to(tl.int32), 0)
        if (many * SHARE >= lanes) | (many == tl.sum(active.to(tl.int32), 0)):
            point = CodedRow(mine, found.b, found.offset)
            coder = code_point(coder, stream, odds, given.walk, point, waiting, n, lanes, decoding)
            if decoding:
                tl.store(mine + OUTCOME * lanes, waiting.to(tl.int64))
                put_points(stage, x, numbers, given.flags, place, shape, lanes)
            length = tl.where(waiting, tl.load(mine + LENGTH * lanes).to(tl.float64, bitcast=True), length)
            done, waiting = done | waiting, size < 0
        sized = follow(sized, found.z, given.means, length, found.radius, found.offset, found.wides, done)
        lost = fresh & (ends == 0) & (trial + 1 >= trials)
        busy, trial = tl.where(lost, -1, busy), tl.where(done, 0, trial + (fresh & (ends == 0)).to(tl.int32))
        row, latent = row + done.to(tl.int32), tl.where(done, ahead, latent)
        active = active & (lost == 0) & (row * n < size)
    return coder, busy


@triton.jit(do_not_specialize=["room"], do_not_specialize_on_alignment=["x", "headers", "lengths"])
def encode_vectors(
    x, headers, slots, lengths, given, place, room, shape: tl.constexpr, lanes: tl.constexpr
):  # fmt: skip
    """Codes a wave of blocks into slots of `room` words; `lengths` gets their bytes, -1 where no trial was accepted."""
    place, mine = load_place(place), own_lanes(lanes)
    lane, _, _, size = lanes_of(place, shape.n, mine)
    live, stream = size > 0, Stream(slots + mine.to(tl.int64) * room, room)
    scale = tl.load(headers + lane, mask=live, other=0)
    coder, _ = code_header(start_encoder(size * 0), stream, scale, live, 7, False)
    coder, busy = walk_rows(coder, stream, scale, x, given, place, shape, lanes, False)
    ended = tl.where(busy < 0, -1, finish(coder, stream, busy > 0) * busy)
    tl.store(lengths + mine, ended, mask=live)


@triton.jit(do_not_specialize_on_alignment=["x", "data", "starts", "lengths"])
def decode_vectors(x, data, starts, lengths, given, place, shape: tl.constexpr, lanes: tl.constexpr):
    """Decodes a wave of blocks into x; a flag where a block makes no sense."""
    place = load_place(place)
    lane, _, _, size = lanes_of(place, shape.n, own_lanes(lanes))
    live = size > 0
    start, room = tl.load(starts + lane, mask=live, other=0), tl.load(lengths + lane, mask=live, other=0)
    stream = Stream(data + start, room)
    coder, scale = code_header(start_decoder(stream, live), stream, size * 0, live, 7, True)
    _coder, busy = walk_rows(coder, stream, scale, x, given, place, shape, lanes, True)
    tl.store(given.flags + busy * 0, 1, mask=busy < 0)
