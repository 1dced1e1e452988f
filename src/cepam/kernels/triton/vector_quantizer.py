"""Trials on vector lattices in Triton: nearest points, early rejection, acceptance.

A sub-vector is a tuple of n tensors, one tensor of lanes for each coordinate. Errors are whole numbers under 2^53, so
float64 holds them exactly and one comparison takes one instruction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.format import plan
from cepam.kernels.triton.keystream import (
    LATENT_STREAM,
    ROUNDS,
    ask_words,
    below_each_other,
    chacha_block,
    in_rows,
    load_key,
    stage_words,
    stream_words,
)
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    INVERSE_BALL,
    PER_UNIT,
    SCALE,
    STEP,
    first_of,
    grid_value,
    invert_below,
    lanes_of,
    load_value,
    own_lanes,
    radius_of_word,
    store_value,
    units_of,
    values_from,
)
from cepam.lattices import lattice

CUBIC = tl.constexpr(int(lattice.Search.CUBIC))
CHECKERBOARD = tl.constexpr(int(lattice.Search.CHECKERBOARD))
GOSSET = tl.constexpr(int(lattice.Search.GOSSET))
HEXAGONAL = tl.constexpr(int(lattice.Search.HEXAGONAL))


@triton.jit
def round_to(target, side, half, inverse):
    """(z, error): z = floor((target + half) / side) and error = z * side - target, exact in float64."""
    t = target + half
    q = (t.to(tl.float64) * inverse).to(tl.int64)
    rest, wide = (t - q * side).to(tl.float64), side.to(tl.float64)
    low, high = rest < 0, rest >= wide
    rest = tl.where(low, rest + wide, tl.where(high, rest - wide, rest))
    return q - low.to(tl.int64) + high.to(tl.int64), half.to(tl.float64) - rest


@triton.jit
def square_length(error, n: tl.constexpr):
    """The squared length in float64, added up from the first coordinate on."""
    total = error[0] * error[0]
    for i in tl.static_range(1, n):
        total = total + error[i] * error[i]
    return total


@triton.jit
def find_odd_one(z, error, n: tl.constexpr):
    """The place of the largest error where the sum of z is odd, else -1: which coordinate must move into D_n."""
    total = z[0].to(tl.int32)
    worst, most = total * 0, tl.abs(error[0])
    for i in tl.static_range(1, n):
        total = total + z[i].to(tl.int32)
        size = tl.abs(error[i])
        worst = tl.where(size > most, i, worst)
        most = tl.maximum(size, most)
    return tl.where((total & 1) != 0, worst, -1)


@triton.jit
def move_error(error, place, side, n: tl.constexpr):
    """Errors after the coordinate at `place` moved to its second nearest point."""
    moved = ()
    for i in tl.static_range(n):
        moved += (tl.where(place == i, tl.where(error[i] <= 0, error[i] + side, error[i] - side), error[i]),)
    return moved


@triton.jit
def find_shifted_one(z, error, n: tl.constexpr):
    """`find_odd_one` of the points shifted by half a side: theirs is the largest error where this one is the least."""
    total, worst, least = (z[0] - (error[0] > 0).to(tl.int64)).to(tl.int32), z[0].to(tl.int32) * 0, tl.abs(error[0])
    for i in tl.static_range(1, n):
        total = total + (z[i] - (error[i] > 0).to(tl.int64)).to(tl.int32)
        size = tl.abs(error[i])
        worst = tl.where(size < least, i, worst)
        least = tl.minimum(size, least)
    return tl.where((total & 1) != 0, worst, -1)


@triton.jit
def moved_square(error, place, side, n: tl.constexpr):
    """The squared length after the coordinate at `place` moved to its second nearest point."""
    total = error[0] * 0.0
    for i in tl.static_range(n):
        size = tl.where(place == i, side - tl.abs(error[i]), error[i])
        total = total + size * size
    return total


@triton.jit
def nearest_e8(target, b):
    """Coordinates, errors and the squared length for b times 2 E8: the better of the even and the odd points."""
    side, wide = 2 * b, b.to(tl.float64)
    inverse = 1.0 / side.to(tl.float64)
    z, error, odd_error = (), (), ()
    for i in tl.static_range(8):
        q, e = round_to(target[i], side, b, inverse)
        z += (q,)
        error += (e,)
        # Rounding to odd multiples needs no second quotient: the even one's error says on which side they lie.
        odd_error += (tl.where(e > 0, e - wide, e + wide),)
    place, odd_place = find_odd_one(z, error, 8), find_shifted_one(z, error, 8)
    square = moved_square(error, place, 2 * wide, 8)
    odd_square = moved_square(odd_error, odd_place, 2 * wide, 8)
    odd = odd_square < square
    place = tl.where(odd, odd_place, place)
    best, errors = (), ()
    for i in tl.static_range(8):
        above, before = error[i] > 0, tl.where(odd, odd_error[i], error[i])
        back = tl.where(odd & above, -1, 0) + tl.where(place == i, tl.where(odd == above, 1, -1), 0)
        best += (z[i] + back.to(tl.int64),)
        errors += (tl.where(place == i, before + tl.where(odd == above, 2 * wide, -2 * wide), before),)
    j = (2 * best[0] + odd.to(tl.int64),)
    total = best[0] * 0
    for i in tl.static_range(1, 7):
        j += (best[i] - best[0],)
        total += best[i] - best[0]
    j += ((best[7] - best[0] - total) >> 1,)
    return j, errors, tl.where(odd, odd_square, square)


@triton.jit
def nearest_hexagonal(target, b, first_half: tl.constexpr, second_half: tl.constexpr):
    """The same in two dimensions: the better of two rectangular lattices, one shifted by half a cell."""
    z, error, odd_z, odd_error = (), (), (), ()
    for i in tl.static_range(2):
        half = b * (first_half if i == 0 else second_half)
        q, e = round_to(target[i], 2 * half, half, 1.0 / (2 * half).to(tl.float64))
        above, wide = e > 0, half.to(tl.float64)
        z += (2 * q,)
        error += (e,)
        odd_z += (tl.where(above, 2 * q - 1, 2 * q + 1),)
        odd_error += (tl.where(above, e - wide, e + wide),)
    square, odd_square = square_length(error, 2), square_length(odd_error, 2)
    odd = odd_square < square
    j, errors = (), ()
    for i in tl.static_range(2):
        j += (tl.where(odd, odd_z[i], z[i]),)
        errors += (tl.where(odd, odd_error[i], error[i]),)
    return ((j[0] - j[1]) >> 1, j[1]), errors, tl.where(odd, odd_square, square)


@triton.jit
def nearest_cubic(target, b, n: tl.constexpr, even: tl.constexpr):
    """The same for b Z^n, or for b D_n where the points' sums are even."""
    inverse = 1.0 / b.to(tl.float64)
    z, error = (), ()
    for i in tl.static_range(n):
        q, e = round_to(target[i], b, b >> 1, inverse)
        z += (q,)
        error += (e,)
    if even:
        place = find_odd_one(z, error, n)
        j, total = (), z[0] * 0
        for i in tl.static_range(n):
            moved = tl.where(place == i, tl.where(error[i] <= 0, z[i] + 1, z[i] - 1), z[i])
            if i == n - 1:
                j += ((moved - total) >> 1,)
            else:
                j += (moved,)
                total += moved
        z, error = j, move_error(error, place, b.to(tl.float64), n)
    return z, error, square_length(error, n)


@triton.jit
def nearest(target, b, search: tl.constexpr, n: tl.constexpr, first_half: tl.constexpr, second_half: tl.constexpr):
    """(coordinates, errors, squared length of the error) of the nearest points, lattices scaled by b."""
    if search == GOSSET:
        return nearest_e8(target, b)
    elif search == HEXAGONAL:
        return nearest_hexagonal(target, b, first_half, second_half)
    else:
        return nearest_cubic(target, b, n, search == CHECKERBOARD)


MARGIN = tl.constexpr(2.0**-13)
LEAST_SCALE = tl.constexpr(1 << 26)
MOST_TRIALS = tl.constexpr(plan.MOST_TRIALS)
QUARTER = tl.constexpr(1 << 30)


@triton.jit(do_not_specialize=["first", "count"])
def fill_fractions(x, radii, numbers, fractions, bounds, first, count, lanes: tl.constexpr):
    """Fills the fractions (rows of eight) of sub-vectors first, first + 1, … and the squared distance, in squares of B,
    above which a trial of theirs is surely refused; both count from `first`."""
    row = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    at, there = row[:, None] * 8 + tl.arange(0, 8)[None, :], (row + first)[:, None] * 8 + tl.arange(0, 8)[None, :]
    radius = tl.load(radii + row)
    b = (radius * tl.load(numbers + INVERSE_BALL)).to(tl.int64) + 2
    inverse = invert_below(4 * b)
    share = 4.0 * radius * inverse
    tl.store(bounds + row, tl.where(b < LEAST_SCALE, float("inf"), share * share + MARGIN).to(tl.float32))
    units = units_of(tl.load(x + there, mask=there < count, other=0.0), tl.load(numbers + PER_UNIT))
    rest = units + (units.to(tl.float64) * inverse[:, None]).to(tl.int64) * (4 * b)[:, None]
    fraction = (rest.to(tl.float64) * (inverse * -4294967296.0)[:, None]).to(tl.int64)
    tl.store(fractions + at, fraction.to(tl.int32))


@triton.jit
def square_distance(fractions, words):
    """The squared distance, in squares of B, of targets less dithers from the nearest even or odd point."""
    total, squares = (words[1] * 0).to(tl.float32), (words[1] * 0).to(tl.float32)
    most, least = total, total + 1.0
    flips, turns = words[1] * 0, words[1] * 0
    for i in tl.static_range(8):
        # Sides of the box of dithers: B, then 2 B, at last 4 B.
        dither = words[2 * i + 1] >> (2 if i == 0 else (0 if i == 7 else 1))
        place = fractions[i].to(tl.uint32, bitcast=True) - dither
        # Distance from the nearest even multiple of B, in B; which one it is, modulo 2, and on which side.
        offset = (place << 1).to(tl.int32, bitcast=True)
        size = tl.abs(offset.to(tl.float32)) * 4.656612873077393e-10  # 2^-31
        flips = flips ^ (place + QUARTER)
        turns = turns ^ (place << 1)
        total, squares = total + size, squares + size * size
        most, least = tl.maximum(most, size), tl.minimum(least, size)
    # A sum that is odd moves the worst coordinate to its second nearest multiple.
    even = squares + tl.where((flips >> 31) != 0, 4.0 - 4.0 * most, 0.0)
    odd = 8.0 - 2.0 * total + squares + tl.where(((flips ^ turns) >> 31) != 0, 4.0 * least, 0.0)
    return tl.minimum(even, odd)


@triton.jit(do_not_specialize=["first", "count", "share"])
def skip_refused(fractions, bounds, keys, h, first, count, share, lanes: tl.constexpr):
    """Fills h, from `first` on, with the first trial that is not surely refused, counted from 1.

    A lane that is done takes the next sub-vector of its program's, so that none waits for the slowest.
    """
    begin = tl.program_id(0) * (lanes * share)
    end = tl.minimum(begin + lanes * share, ((count - 1) // 8 + 1 - first).to(tl.int32))
    row, taken, left = begin + tl.arange(0, lanes), begin + lanes, end - begin
    key, trial = load_key(keys, 0), tl.zeros((lanes,), tl.int32)
    while left > 0:
        held = tl.minimum(row, end - 1)
        mine = ()
        for i in tl.static_range(8):
            mine += (tl.load(fractions + held * 8 + i),)
        words = chacha_block(key, trial.to(tl.int64) + (LATENT_STREAM + 1), held.to(tl.int64) + first, ROUNDS)
        stays = (square_distance(mine, words) <= tl.load(bounds + held)) | (trial >= MOST_TRIALS - 1)
        done = ((row < end) & stays).to(tl.int32)
        tl.store(h + first + row, trial + 1, mask=done != 0)
        order = tl.cumsum(done, 0)
        row = tl.where(done != 0, taken + order - 1, row)
        trial = tl.where(done != 0, 0, trial + 1)
        finished = tl.sum(done, 0)
        taken, left = taken + finished, left - finished


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
