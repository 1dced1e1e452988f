"""Trials on E8 that are refused beyond doubt, found in 32 bits: they cost little more than their keystream.

Modulo 4 B, where 2 E8 scaled by B repeats, a coordinate is a 32-bit fraction, and a dither is the high half of its
keystream word. The squared distance of these fractions from the lattice is within 2^-15 B^2 of the exact one: fractions
are off by less than 19 of their 2^-30 B (target and word are cut off, the dither is rounded down, and B >= 2^26), a
distance is no further off than its point, and float32 adds less than 2^-16. A trial is skipped only beyond `MARGIN`,
so none is that the exact arithmetic of `vector_symbols` accepts. Guarantee: tests/identity/test_triton_symbols.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.model import plan
from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, chacha_block, load_key
from cepam.kernels.triton.layers import INVERSE_BALL, PER_UNIT, invert_below, units_of

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
