"""Trials on vector lattices in Triton: a lane's sub-vector and the zero vector, quantized with the same dither."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.model import plan
from cepam.kernels.triton.keystream import (
    LATENT_STREAM,
    ROUNDS,
    ask_words,
    below_each_other,
    in_rows,
    load_key,
    stage_words,
    stream_words,
)
from cepam.kernels.triton.lanes import first_of, lanes_of, own_lanes
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    INVERSE_BALL,
    PER_UNIT,
    SCALE,
    STEP,
    grid_value,
    load_value,
    radius_of_word,
    store_value,
    units_of,
    values_from,
)
from cepam.kernels.triton.nearest import nearest, square_length

# Rows of the stage, each a 64-bit word a lane. The first three are what `stage_words` is asked.
WORDS, ROW, TRIAL, RADIUS, SCALE_AT, OUTCOME, ZERO_LENGTH, LENGTH = (
    tl.constexpr(i) for i in (3, 19, 20, 21, 22, 23, 24, 25)
)
DITHER, TARGET, ZERO, MINE, APART = (tl.constexpr(i) for i in (26, 34, 42, 58, 74))
STAGED = 82
L1_BALL = tl.constexpr(int(plan.Accept.L1_BALL))
CELL = tl.constexpr(int(plan.Accept.CELL))


class Given(NamedTuple):
    """What a wave works with beside updates and streams: draws and radii, the model's tables (means, the order and
    axes of telling), and every program's own contexts and stage; a decoder's flags."""

    draws: Any
    radii: Any
    means: Any
    walk: Any
    odds: Any
    stage: Any
    flags: Any


@triton.jit(do_not_specialize=["begin", "blocks", "per_block"])
def fill_radii(draws, radii, begin, blocks, per_block, lanes: tl.constexpr):
    """Fills radii (lanes of the wave, per_block) with latent radii: one row of programs for each coded block."""
    lane = tl.program_id(0).to(tl.int64)
    client, block = (begin + lane) // blocks, (begin + lane) % blocks
    eight = tl.program_id(1).to(tl.int64) * lanes + tl.arange(0, lanes)
    at = eight[:, None] * 8 + tl.arange(0, 8)[None, :]
    stream, number = tl.full((), LATENT_STREAM, tl.int64), block * (per_block >> 3) + eight
    words = below_each_other(stream_words(load_key(draws.keys, client), stream, number, ROUNDS), lanes)
    value = radius_of_word(words, draws.table, tl.load(draws.numbers + SCALE))
    tl.store(radii + lane * per_block + at, in_rows(value, lanes), mask=at < per_block)


@triton.jit
def scale_of(radius, numbers, step, accept: tl.constexpr):
    """The lattice's integer scale B of sub-vectors with these latent radii."""
    if accept == CELL:
        return (radius * 0.0).to(tl.int64) + step
    else:
        return (radius * tl.load(numbers + INVERSE_BALL)).to(tl.int64) + 2


@triton.jit
def sum_sizes(vector, n: tl.constexpr):
    """The sum of magnitudes, added up from the first coordinate on."""
    total = tl.abs(vector[0])
    for i in tl.static_range(1, n):
        total = total + tl.abs(vector[i])
    return total


@triton.jit
def is_accepted(error, square, radius, accept: tl.constexpr, n: tl.constexpr):
    """Whether errors lie in the superlevel ball."""
    if accept == CELL:
        return square >= 0
    elif accept == L1_BALL:
        return sum_sizes(error, n) <= radius
    else:
        return square <= radius * radius


@triton.jit(noinline=True)
def stage_nearest(stage, out, shape: tl.constexpr, lanes: tl.constexpr):
    """Writes coordinates (8 rows) and errors (8 rows) of the points nearest to the staged targets."""
    search: tl.constexpr = shape.search
    n: tl.constexpr = shape.n
    lane = tl.arange(0, lanes)
    target = load_rows(stage + TARGET * lanes + lane, n, lanes)
    b = tl.load(stage + SCALE_AT * lanes + lane)
    j, error, _ = nearest(target, b, search, n, shape.basis[n - 1], shape.basis[n * n - 1])
    for i in tl.static_range(n):
        tl.store(out + i * lanes + lane, j[i])
        tl.store(out + (8 + i) * lanes + lane, error[i].to(tl.int64, bitcast=True))


@triton.jit
def load_rows(stage, n: tl.constexpr, lanes: tl.constexpr):
    """n rows of the stage, as a tuple."""
    out = ()
    for i in tl.static_range(n):
        out += (tl.load(stage + i * lanes),)
    return out


@triton.jit
def load_errors(stage, n: tl.constexpr, lanes: tl.constexpr):
    """n rows of float64 of the stage, as a tuple."""
    out = ()
    for i in tl.static_range(n):
        out += (tl.load(stage + i * lanes).to(tl.float64, bitcast=True),)
    return out


@triton.jit
def length_of(vector, accept: tl.constexpr, n: tl.constexpr):
    """The length of vectors of whole numbers in the law's norm."""
    if accept == L1_BALL:
        return sum_sizes(vector, n).to(tl.float64)
    else:
        whole = ()
        for i in tl.static_range(n):
            whole += (vector[i].to(tl.float64),)
        return tl.sqrt(square_length(whole, n))


@triton.jit(noinline=True)
def stage_dither(stage, draws, place, shape: tl.constexpr, lanes: tl.constexpr):
    """Writes scale and dither of each lane's row and trial, and minus the dither as a target; for the whole cell also
    the radius."""
    accept: tl.constexpr = shape.accept
    n: tl.constexpr = shape.n
    _, client, block, _ = lanes_of(place, n, own_lanes(lanes))
    lane = stage + tl.arange(0, lanes)
    row, trial = tl.load(lane + ROW * lanes), tl.load(lane + TRIAL * lanes)
    word = (block * place.per_block + row) * n
    ask_words(stage, client, trial + (LATENT_STREAM + 1), word >> 3, lanes)
    stage_words(stage, stage + WORDS * lanes, draws.keys, lanes)
    # With n = 3, 5, 6 or 7, a sub-vector's words run over the end of a block.
    if 8 % n != 0:
        ask_words(stage, client, trial + (LATENT_STREAM + 1), (word >> 3) + 1, lanes)
        stage_words(stage, stage + (WORDS + 8) * lanes, draws.keys, lanes)
    step = tl.load(draws.numbers + STEP).to(tl.int64)
    b = scale_of(tl.load(lane + RADIUS * lanes).to(tl.float64, bitcast=True), draws.numbers, step, accept)
    if accept == CELL:
        radius = b.to(tl.float64) / tl.load(draws.numbers + INVERSE_BALL)
        tl.store(lane + RADIUS * lanes, radius.to(tl.int64, bitcast=True))
    tl.store(lane + SCALE_AT * lanes, b)
    words = load_rows(lane + (WORDS + (word & 7)) * lanes, n, lanes)
    for i in tl.static_range(n):
        d = tl.umulhi(words[i].to(tl.uint64, bitcast=True), (b * shape.box[i]).to(tl.uint64)).to(tl.int64)
        tl.store(lane + (DITHER + i) * lanes, d)
        tl.store(lane + (TARGET + i) * lanes, -d)


@triton.jit(noinline=True)
def stage_targets(stage, x, numbers, place, shape: tl.constexpr, lanes: tl.constexpr):
    """Writes the update's rows in units, zeros past the end, less the dither."""
    n: tl.constexpr = shape.n
    _, client, block, size = lanes_of(place, n, own_lanes(lanes))
    lane = stage + tl.arange(0, lanes)
    at, per_unit = tl.load(lane + ROW * lanes) * n, tl.load(numbers + PER_UNIT)
    there = values_from(x, place.double, first_of(place, n, client, block) + at)
    # All are read before the first is written, so that their latencies are one.
    dither, units = load_rows(lane + DITHER * lanes, n, lanes), ()
    for i in tl.static_range(n):
        units += (units_of(load_value(there, place.double, i, at + i < size), per_unit),)
    for i in tl.static_range(n):
        tl.store(lane + (TARGET + i) * lanes, units[i] - dither[i])


@triton.jit(noinline=True)
def stage_outcome(stage, shape: tl.constexpr, lanes: tl.constexpr, decoding: tl.constexpr):
    """Writes how a trial came out: the zero vector's length and acceptance and, encoding, the update's, how far its
    point lies from the zero vector's (in the order of telling), and the length of what will be decoded."""
    accept: tl.constexpr = shape.accept
    n: tl.constexpr = shape.n
    lane = stage + tl.arange(0, lanes)
    radius = tl.load(lane + RADIUS * lanes).to(tl.float64, bitcast=True)
    error = load_errors(lane + (ZERO + 8) * lanes, n, lanes)
    inside = is_accepted(error, square_length(error, n), radius, accept, n)
    tl.store(lane + ZERO_LENGTH * lanes, length_of(error, accept, n).to(tl.int64, bitcast=True))
    outcome = inside.to(tl.int64)
    if not decoding:
        error = load_errors(lane + (MINE + 8) * lanes, n, lanes)
        ends, same = is_accepted(error, square_length(error, n), radius, accept, n), inside | True
        for i in tl.static_range(n):
            apart = tl.load(lane + (MINE + shape.order[i]) * lanes) - tl.load(lane + (ZERO + shape.order[i]) * lanes)
            tl.store(lane + (APART + i) * lanes, apart)
            same = same & (apart == 0)
        outcome += 2 * ends.to(tl.int64) + 4 * same.to(tl.int64)
        units = ()
        for i in tl.static_range(n):
            target = tl.load(lane + (TARGET + i) * lanes) + tl.load(lane + (DITHER + i) * lanes)
            units += (target + error[i].to(tl.int64),)
        tl.store(lane + LENGTH * lanes, length_of(units, accept, n).to(tl.int64, bitcast=True))
    tl.store(lane + OUTCOME * lanes, outcome)


@triton.jit(noinline=True)
def put_zeros(stage, x, numbers, place, shape: tl.constexpr, lanes: tl.constexpr):
    """Writes the rows of lanes whose outcome is 1 on the public grid: what the zero vector was decoded to, which is its
    error."""
    n: tl.constexpr = shape.n
    _, client, block, size = lanes_of(place, n, own_lanes(lanes))
    lane, grid = stage + tl.arange(0, lanes), tl.load(numbers + GRID)
    told, at = tl.load(lane + OUTCOME * lanes) == 1, tl.load(lane + ROW * lanes) * n
    error = load_errors(lane + (ZERO + 8) * lanes, n, lanes)
    there = values_from(x, place.double, first_of(place, n, client, block) + at)
    for i in tl.static_range(n):
        value = grid_value(error[i].to(tl.int64), grid)
        store_value(there, place.double, i, value, told & (at + i < size))


@triton.jit(noinline=True)
def put_points(stage, x, numbers, flags, place, shape: tl.constexpr, lanes: tl.constexpr):
    """Writes the rows of lanes whose outcome is 1 on the public grid, from the points that were told, and their
    lengths; a flag where a point lies outside the format."""
    accept: tl.constexpr = shape.accept
    n: tl.constexpr = shape.n
    _, client, block, size = lanes_of(place, n, own_lanes(lanes))
    lane = stage + tl.arange(0, lanes)
    told, b = tl.load(lane + OUTCOME * lanes) == 1, tl.load(lane + SCALE_AT * lanes)
    at, grid = tl.load(lane + ROW * lanes) * n, tl.load(numbers + GRID)
    there = values_from(x, place.double, first_of(place, n, client, block) + at)
    j, units = (), ()
    for k in tl.static_range(n):
        for i in tl.static_range(n):
            if shape.order[i] == k:
                j += (tl.load(lane + (ZERO + k) * lanes) + tl.load(lane + (APART + i) * lanes),)
    for i in tl.static_range(n):
        unit, reach = tl.zeros_like(b), b.to(tl.float64) * 0.0
        for k in tl.static_range(n):
            unit += j[k] * shape.basis[i * n + k]
            reach += j[k].to(tl.float64) * shape.basis[i * n + k]
        unit = b * unit + tl.load(lane + (DITHER + i) * lanes)
        store_value(there, place.double, i, grid_value(unit, grid), told & (at + i < size))
        tl.store(flags + at * 0, 1, mask=told & ~(tl.abs(reach) * b.to(tl.float64) < FURTHEST))
        units += (unit,)
    tl.store(lane + LENGTH * lanes, length_of(units, accept, n).to(tl.int64, bitcast=True))
