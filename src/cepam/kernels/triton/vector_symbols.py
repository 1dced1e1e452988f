"""Symbols on vector lattices in Triton: a lane carries one sub-vector through its trials.

Trials end at different times: a lane that is done takes the next sub-vector of its program's, so that none waits for
the slowest. Launch with `enable_fp_fusion=False`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.model import plan
from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, side_by_side, stream_words
from cepam.kernels.triton.layers import FURTHEST, PER_UNIT, REACH, STEP
from cepam.kernels.triton.nearest import nearest
from cepam.kernels.triton.scalar_symbols import REFUSED, WIDE, value_of
from cepam.kernels.triton.vector_quantizer import is_accepted, scale_of

MOST_TRIALS = tl.constexpr(plan.MOST_TRIALS)
UNENDED = tl.constexpr(2)
"""The flag, after those of `scalar_symbols`, of a sub-vector whose trials were all refused."""


class WaveDraws(NamedTuple):
    """What sub-vectors are drawn from: keys, the latent radii of a wave, and the plan's numbers."""

    keys: Any
    radii: Any
    numbers: Any


@triton.jit
def skip_words(words, offset, step: tl.constexpr):
    """Words moved down by `step` where the offset has that bit."""
    moved = ()
    for i in tl.static_range(len(words)):
        if i + step < len(words):
            moved += (tl.where((offset & step) != 0, words[i + step], words[i]),)
        else:
            moved += (words[i],)
    return moved


@triton.jit
def draw_dither(keys, trial, row, b, shape):
    """The dithers of sub-vectors (64-bit numbers) in trials counted from 0, a tuple of n tensors."""
    n: tl.constexpr = shape.n
    key, begin, stream = load_key(keys, 0), row * n, trial.to(tl.int64) + (LATENT_STREAM + 1)
    words = stream_words(key, stream, begin >> 3, ROUNDS)
    # With n = 3, 5, 6 or 7, a sub-vector's words run over the end of a block.
    if 8 % n != 0:
        words = words + stream_words(key, stream, (begin >> 3) + 1, ROUNDS)
    if n != 8:
        offset = (begin & 7).to(tl.int32)
        words = skip_words(skip_words(skip_words(words, offset, 4), offset, 2), offset, 1)
    d = ()
    for i in tl.static_range(n):
        d += (tl.umulhi(words[i], (b * shape.box[i]).to(tl.uint64)).to(tl.int64),)
    return d


@triton.jit
def load_targets(x, numbers, row, count, d, n: tl.constexpr):
    """(sub-vectors in units less dithers, zeros past the end; whether all their values are finite and within reach)."""
    target, good = (), row >= 0
    for i in tl.static_range(n):
        value = tl.load(x + row * n + i, mask=row * n + i < count, other=0.0).to(tl.float64)
        value = value * tl.load(numbers + PER_UNIT)
        good = good & (tl.abs(value) <= REACH)
        target += (value.to(tl.int64) - d[i],)
    return target, good


@triton.jit
def store_points(m, row, j, done, n: tl.constexpr, lanes: tl.constexpr):
    """Writes lattice coordinates of lanes that are done; whether they fit the symbols."""
    above, symbols = tl.zeros_like(row), ()
    for i in tl.static_range(n):
        above = above | ((j[i] + 2147483648) >> 32)
        symbols += (j[i].to(m.dtype.element_ty),)
    if n == 8:
        tl.store(m + row[:, None] * 8 + tl.arange(0, 8)[None, :], side_by_side(symbols, lanes), mask=done[:, None])
    else:
        for i in tl.static_range(n):
            tl.store(m + row * n + i, symbols[i], mask=done)
    return (above == 0) | (m.dtype.element_ty == tl.int64)


@triton.jit(do_not_specialize=["first", "count"], do_not_specialize_on_alignment=["x"])
def quantize_vectors(x, h, m, flags, drawn, first, count, shape: tl.constexpr, tile: tl.constexpr):
    """Fills (H, M) of sub-vectors `first`, `first` + 1, …; trials begin with the one that h holds, counted from 1."""
    n: tl.constexpr = shape.n
    lanes: tl.constexpr = tile[0]
    each: tl.constexpr = tile[0] * tile[1]
    begin = first + tl.program_id(0).to(tl.int64) * each
    end = tl.minimum(begin + each, (count - 1) // n + 1)
    row, taken, left = begin + tl.arange(0, lanes), begin + lanes, (end - begin).to(tl.int32)
    step = tl.load(drawn.numbers + STEP).to(tl.int64)
    trial = tl.load(h + tl.minimum(row, end - 1)) - 1
    while left > 0:
        held = tl.minimum(row, end - 1)
        radius = tl.load(drawn.radii + (held - first))
        b = scale_of(radius, drawn.numbers, step, shape.accept)
        d = draw_dither(drawn.keys, trial, held, b, shape)
        target, good = load_targets(x, drawn.numbers, held, count, d, n)
        j, error, square = nearest(target, b, shape.search, n, shape.basis[n - 1], shape.basis[n * n - 1])
        ends = is_accepted(error, square, radius, shape.accept, n)
        done = (row < end) & (ends | (trial >= MOST_TRIALS - 1))
        tl.store(h + row, trial + 1, mask=done)
        fits = store_points(m, row, j, done, n, lanes)
        tl.store(flags + row * 0 + REFUSED, 1, mask=~good)
        tl.store(flags + row * 0 + WIDE, 1, mask=done & ~fits)
        tl.store(flags + row * 0 + UNENDED, 1, mask=done & ~ends)
        order = tl.cumsum(done.to(tl.int32), 0)
        row = tl.where(done, taken + order - 1, row)
        finished = tl.sum(done.to(tl.int32), 0)
        taken, left = taken + finished, left - finished
        trial = tl.where(done, tl.load(h + tl.minimum(row, end - 1), mask=done, other=0) - 1, trial + 1)


@triton.jit(do_not_specialize=["first", "count"], do_not_specialize_on_alignment=["h", "m"])
def reconstruct_vectors(h, m, out, flags, drawn, first, count, shape: tl.constexpr, tile: tl.constexpr):
    """Fills out with B (M + V_H) of sub-vectors `first`, `first` + 1, …; flags points outside the format's range.

    `tile` has the lanes of a program, and whether values are released on the public grid.
    """
    n: tl.constexpr = shape.n
    lanes: tl.constexpr = tile[0]
    rows = (count - 1) // n + 1
    row = first + tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    held = tl.minimum(row, rows - 1)
    step = tl.load(drawn.numbers + STEP).to(tl.int64)
    b = scale_of(tl.load(drawn.radii + (held - first)), drawn.numbers, step, shape.accept)
    d = draw_dither(drawn.keys, tl.load(h + held) - 1, held, b, shape)
    j, good = (), row >= 0
    for i in tl.static_range(n):
        j += (tl.load(m + held * n + i).to(tl.int64),)
    for i in tl.static_range(n):
        point, size = tl.zeros_like(b), b.to(tl.float64) * 0.0
        for k in tl.static_range(n):
            if shape.basis[i * n + k] != 0:
                point = point + j[k] * shape.basis[i * n + k]
                size = size + j[k].to(tl.float64) * shape.basis[i * n + k]
        good = good & (tl.abs(size) * b.to(tl.float64) < FURTHEST)
        value = value_of(b * point + d[i], drawn.numbers, tile[1])
        tl.store(out + row * n + i, value, mask=row * n + i < count)
    tl.store(flags + row * 0 + REFUSED, 1, mask=~good)
