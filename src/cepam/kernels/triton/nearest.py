"""Nearest lattice points in Triton: the answers of `numba.nearest`, by roads that a GPU likes.

A sub-vector is a tuple of n tensors, one tensor of lanes for each coordinate. Errors are whole numbers under 2^53, so
float64 holds them exactly and one comparison takes one instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.noise import lattices

CUBIC = tl.constexpr(int(lattices.Search.CUBIC))
CHECKERBOARD = tl.constexpr(int(lattices.Search.CHECKERBOARD))
GOSSET = tl.constexpr(int(lattices.Search.GOSSET))
HEXAGONAL = tl.constexpr(int(lattices.Search.HEXAGONAL))


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
def nearest_gosset(target, b):
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
        return nearest_gosset(target, b)
    elif search == HEXAGONAL:
        return nearest_hexagonal(target, b, first_half, second_half)
    else:
        return nearest_cubic(target, b, n, search == CHECKERBOARD)
