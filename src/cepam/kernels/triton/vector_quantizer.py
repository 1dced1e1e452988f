"""The quantizer on vector lattices in Triton: a lane carries one sub-vector through its trials.

Trials end at different times. A lane that is done takes its next sub-vector at once, so that no lane waits for the
slowest of its warp; each has `share` of them, and the lanes of a program lie side by side in memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.model import plan
from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, side_by_side, stream_words
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    INVERSE_BALL,
    PER_UNIT,
    REACH,
    SCALE,
    grid_value,
    radius_of_word,
    units_of,
)
from cepam.kernels.triton.nearest import nearest

L1_BALL = tl.constexpr(int(plan.Accept.L1_BALL))
CELL = tl.constexpr(int(plan.Accept.CELL))
MOST_TRIALS = tl.constexpr(plan.MOST_TRIALS)


@triton.jit(do_not_specialize=["first", "rows"])
def fill_radii(keys, table, numbers, radii, first, rows, lanes: tl.constexpr):
    """Fills radii (clients, rows) with latent radii; `first` is a multiple of 8."""
    client = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    at = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    stream = tl.full((), LATENT_STREAM, tl.int64)
    words = side_by_side(stream_words(load_key(keys, client), stream, (first >> 3) + block, ROUNDS), lanes)
    tl.store(radii + client * rows + at, radius_of_word(words, table, tl.load(numbers + SCALE)), mask=at < rows)


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
def dither_words(key, trial, row, n: tl.constexpr):
    """The n keystream words of sub-vectors (64-bit numbers) in trials counted from 0."""
    begin = row * n
    offset = (begin & 7).to(tl.int32)
    stream = trial.to(tl.int64) + (LATENT_STREAM + 1)
    words = stream_words(key, stream, begin >> 3, ROUNDS)
    # With n = 3, 5, 6, 7 or more than 8, a sub-vector's words run over the end of a block.
    if 8 % n != 0:
        words = words + stream_words(key, stream, (begin >> 3) + 1, ROUNDS)
    if n == 8:
        return words
    words = skip_words(words, offset, 4)
    words = skip_words(words, offset, 2)
    words = skip_words(words, offset, 1)
    out = ()
    for i in tl.static_range(n):
        out += (words[i],)
    return out


@triton.jit
def scale_of(radius, numbers, step, accept: tl.constexpr):
    """The lattice's integer scale B of sub-vectors with these latent radii."""
    if accept == CELL:
        return (radius * 0.0).to(tl.int64) + step
    else:
        return (radius * tl.load(numbers + INVERSE_BALL)).to(tl.int64) + 2


@triton.jit
def draw_dither(key, trial, row, b, box: tl.constexpr, n: tl.constexpr):
    """The dithers of sub-vectors, a tuple of n tensors."""
    words = dither_words(key, trial, row, n)
    d = ()
    for i in tl.static_range(n):
        d += (tl.umulhi(words[i], (b * box[i]).to(tl.uint64)).to(tl.int64),)
    return d


@triton.jit
def is_accepted(error, square, radius, accept: tl.constexpr, n: tl.constexpr):
    """Whether errors lie in the superlevel ball."""
    if accept == CELL:
        return square >= 0
    elif accept == L1_BALL:
        total = tl.abs(error[0])
        for i in tl.static_range(1, n):
            total = total + tl.abs(error[i])
        return total <= radius
    else:
        return square <= radius * radius


@triton.jit
def load_row(x, numbers, row, count, needed, n: tl.constexpr):
    """A sub-vector in units, zeros past the end, and whether a value is not finite or beyond reach."""
    units, refused = (), row < 0
    for i in tl.static_range(n):
        value = tl.load(x + row * n + i, mask=needed & (row * n + i < count), other=0.0).to(tl.float64)
        units += (units_of(value, tl.load(numbers + PER_UNIT)),)
        refused = refused | ~(tl.abs(value) <= tl.load(numbers + REACH))
    return units, refused


@triton.jit(do_not_specialize=["step", "first", "rows", "count", "x_stride", "h_stride"])
def quantize_vector(
    x, keys, radii, numbers, step, h, m, flags, first, rows, count, x_stride, h_stride,
    search: tl.constexpr, accept: tl.constexpr, n: tl.constexpr, box: tl.constexpr,
    first_half: tl.constexpr, second_half: tl.constexpr, lanes: tl.constexpr, share: tl.constexpr,
):  # fmt: skip
    """Fills (H, M) of sub-vectors first, first + 1, …; flags what is not finite or too large for the symbols.

    A client's values are `count` of `x_stride`, its sub-vectors `rows` of `h_stride`: a wave through a longer update.
    """
    client = tl.program_id(1).to(tl.int64)
    key = load_key(keys, client)
    x, radii, h, m = x + client * x_stride, radii + client * rows, h + client * h_stride, m + client * h_stride * n
    row = tl.program_id(0).to(tl.int64) * (lanes * share) + tl.arange(0, lanes)
    end = tl.minimum((tl.program_id(0).to(tl.int64) + 1) * (lanes * share), rows)
    active = row < end
    target, refused = load_row(x, numbers, row, count, active, n)
    radius = tl.load(radii + row, mask=active, other=1.0e6)
    trial = row.to(tl.int32) * 0
    while tl.max(active.to(tl.int32)) > 0:
        b = scale_of(radius, numbers, step, accept)
        d = draw_dither(key, trial, first + row, b, box, n)
        rest = ()
        for i in tl.static_range(n):
            rest += (target[i] - d[i],)
        j, error, square = nearest(rest, b, search, n, first_half, second_half)
        done = active & (is_accepted(error, square, radius, accept, n) | (trial >= MOST_TRIALS - 1))
        tl.store(h + row, trial + 1, mask=done)
        for i in tl.static_range(n):
            symbol = j[i].to(m.dtype.element_ty)
            tl.store(m + row * n + i, symbol, mask=done)
            refused = refused | (done & (symbol.to(tl.int64) != j[i]))
        trial = tl.where(done, 0, trial + 1)
        row = tl.where(done, row + lanes, row)
        active = row < end
        fresh = done & active
        next_target, next_refused = load_row(x, numbers, row, count, fresh, n)
        kept = ()
        for i in tl.static_range(n):
            kept += (tl.where(fresh, next_target[i], target[i]),)
        target = kept
        refused = refused | next_refused
        radius = tl.load(radii + row, mask=fresh, other=0.0) + tl.where(fresh, 0.0, radius)
    tl.store(flags + trial * 0, 1, mask=refused)


@triton.jit(do_not_specialize=["step", "first", "rows", "count", "x_stride", "h_stride"])
def reconstruct_vector(
    h, m, keys, radii, numbers, step, out, flags, first, rows, count, x_stride, h_stride,
    accept: tl.constexpr, n: tl.constexpr, box: tl.constexpr, basis: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Fills out with B (M + V_H) on the public grid; a flag where a point lies outside the range of the format."""
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    inside = row < rows
    radius = tl.load(radii + client * rows + row, mask=inside, other=1.0e6)
    b = scale_of(radius, numbers, step, accept)
    trial = tl.load(h + client * h_stride + row, mask=inside, other=1) - 1
    d = draw_dither(load_key(keys, client), trial, first + row, b, box, n)
    j = ()
    for i in tl.static_range(n):
        j += (tl.load(m + (client * h_stride + row) * n + i, mask=inside, other=0).to(tl.int64),)
    for i in tl.static_range(n):
        point, size = j[0] * basis[i * n], j[0].to(tl.float64) * basis[i * n]
        for k in tl.static_range(1, n):
            point = point + j[k] * basis[i * n + k]
            size = size + j[k].to(tl.float64) * basis[i * n + k]
        value = grid_value(b * point + d[i], tl.load(numbers + GRID))
        here = inside & (row * n + i < count)
        tl.store(out + client * x_stride + row * n + i, value.to(out.dtype.element_ty), mask=here)
        tl.store(flags + row * 0, 1, mask=inside & ~(tl.abs(size) * b.to(tl.float64) < FURTHEST))
