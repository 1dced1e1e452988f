"""The model of `model.vector_contexts` in Triton: which context a trial, a point and its coordinates are coded in.

What a loop over coordinates must index lies in the stage: the error of the point that a zero update would end at, and
how far the point lies from it, in the order in which coordinates are told.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.model import vector_contexts as contexts
from cepam.kernels.triton.range_coder import any_of
from cepam.kernels.triton.scalar_model import (
    LARGEST,
    OCTAVE,
    Jump,
    KnownOdds,
    code_jump,
    code_modelled,
    find_odds,
    log,
    power,
    within,
)
from cepam.kernels.triton.vector_quantizer import APART, ZERO

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
