"""The quantizers as the paper writes them, in NumPy, with nearest lattice points: the reference.

Each routine returns lattice coordinates and the error (point minus target). Inside the largest ball of the cell, less
the margin that B leaves, the answer is exact; on the cell's boundary ties are broken alike for all translates.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.distributions.radius import COEFFICIENTS, OCTAVES, SEGMENTS
from cepam.errors import MalformedMessage
from cepam.kernels.format.plan import GRID_BITS, LATENT_STREAM, RANGE_BITS, Accept, Floats, Ints, Plan, dither_stream
from cepam.kernels.numpy.keystream import Words, stream_words, words_of_streams
from cepam.lattices.lattice import Search

MOST_PASSES = 64


def nearest(plan: Plan, target: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Coordinates (N, n) and errors (N, n) of the points nearest to the rows of target, lattices scaled by b (N)."""
    side = b[:, None]
    if plan.search is Search.CUBIC:
        return _cubic(target, side)
    if plan.search is Search.CHECKERBOARD:
        z = _checkerboard(target, side)
        return _checkerboard_coordinates(z), z * side - target
    if plan.search is Search.GOSSET:
        z = _gosset(target, side)
        return _gosset_coordinates(z), z * side - target
    if plan.search is Search.HEXAGONAL:
        return _hexagonal(plan, target, side)
    return _general(plan, target, side)


def _cubic(target: Ints, side: Ints) -> tuple[Ints, Ints]:
    z = (target + (side >> 1)) // side
    return z, z * side - target


def _checkerboard(target: Ints, side: Ints) -> Ints:
    """Points of D_n (integers with an even sum): round, then move the worst coordinate if the sum is odd."""
    z, error = _cubic(target, side)
    worst = np.argmax(np.abs(error), axis=1)
    rows = np.arange(len(z))
    toward = np.where(error[rows, worst] <= 0, 1, -1)
    z[rows, worst] += np.where(z.sum(axis=1) & 1, toward, 0)
    return z


def _checkerboard_coordinates(z: Ints) -> Ints:
    j = z.copy()
    j[:, -1] = (z[:, -1] - z[:, :-1].sum(axis=1)) >> 1
    return j


def _gosset(target: Ints, side: Ints) -> Ints:
    """Points of 2 E8: the better of the even points (2 D8) and the odd ones (2 D8 + 1)."""
    even = 2 * _checkerboard(target, 2 * side)
    odd = 2 * _checkerboard(target - side, 2 * side) + 1
    closer = _square(even * side - target) <= _square(odd * side - target)
    return np.where(closer[:, None], even, odd)


def _gosset_coordinates(z: Ints) -> Ints:
    j = np.empty_like(z)
    j[:, 0] = z[:, 0]
    j[:, 1:7] = (z[:, 1:7] - z[:, :1]) >> 1
    j[:, 7] = (z[:, 7] - z[:, 0] - 2 * j[:, 1:7].sum(axis=1)) >> 2
    return j


def _hexagonal(plan: Plan, target: Ints, side: Ints) -> tuple[Ints, Ints]:
    """The better of two rectangular lattices, one of them shifted by half a cell."""
    half = plan.basis[:, 1] * side
    best_z, best_error = None, None
    for shift in (0, 1):
        z, error = _cubic(target - shift * half, 2 * half)
        doubled = 2 * z + shift
        if best_z is None or best_error is None:
            best_z, best_error = doubled, error
        else:
            closer = _square(best_error) <= _square(error)
            best_z = np.where(closer[:, None], best_z, doubled)
            best_error = np.where(closer[:, None], best_error, error)
    assert best_z is not None
    assert best_error is not None
    j = best_z.copy()
    j[:, 0] = (best_z[:, 0] - best_z[:, 1]) >> 1
    return j, best_error


def _general(plan: Plan, target: Ints, side: Ints) -> tuple[Ints, Ints]:
    """Rounding in the reduced basis, then slicing by the Voronoi-relevant vectors until none comes closer."""
    n, scale = plan.n, side[:, 0].astype(np.float64)
    j = np.empty_like(target)
    for i in range(n):
        total = np.zeros(len(target))
        for k in range(n):
            total = total + plan.inverse[i, k] * target[:, k].astype(np.float64)
        j[:, i] = np.floor(total / scale + 0.5).astype(np.int64)
    rest = target - side * (j @ plan.basis.T)
    squares = _square(plan.relevant)
    for _ in range(MOST_PASSES):
        moved = False
        for vector, step, square in zip(plan.relevant, plan.steps, squares):
            dot = np.zeros(len(target))
            for k in range(n):
                dot = dot + rest[:, k].astype(np.float64) * float(vector[k])
            count = np.floor(dot / (scale * square) + 0.5).astype(np.int64)
            if count.any():
                moved = True
                rest = rest - side * (count[:, None] * vector)
                j = j + count[:, None] * step
        if not moved:
            break
    return j, -rest


def _square(rows: Ints) -> Floats:
    total = np.zeros(len(rows))
    for i in range(rows.shape[1]):
        value = rows[:, i].astype(np.float64)
        total = total + value * value
    return total


Flags = npt.NDArray[np.bool_]
_LOW = np.uint64(0xFFFFFFFF)


def multiply_high(a: Words, b: Words) -> Words:
    """The upper 64 bits of the 128-bit products."""
    half = np.uint64(32)
    a0, a1, b0, b1 = a & _LOW, a >> half, b & _LOW, b >> half
    middle = ((a0 * b0) >> half) + ((a1 * b0) & _LOW) + ((a0 * b1) & _LOW)
    return a1 * b1 + ((a1 * b0) >> half) + ((a0 * b1) >> half) + (middle >> half)


def bit_length(v: Words) -> Ints:
    """The number of significant bits of each word."""
    length = np.zeros(v.shape, dtype=np.int64)
    rest = v.copy()
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >= (np.uint64(1) << np.uint64(step))
        length += np.where(big, step, 0)
        rest = np.where(big, rest >> np.uint64(step), rest)
    return length + (rest > 0)


def radius_of_word(plan: Plan, word: Words) -> Floats:
    """The latent radius, in units, that a keystream word stands for (see `cepam.distributions.radius` for the
    table)."""
    odd = (word << np.uint64(1)) | np.uint64(1)
    zeros = 64 - bit_length(odd)
    mantissa = odd << zeros.astype(np.uint64)
    segment = (mantissa >> np.uint64(58)) & np.uint64(SEGMENTS - 1)
    row = ((word >> np.uint64(63)) * np.uint64(OCTAVES) + zeros.astype(np.uint64)) * np.uint64(SEGMENTS) + segment
    t = ((mantissa << np.uint64(6)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    at = row.astype(np.int64) * COEFFICIENTS
    value = plan.table[at + COEFFICIENTS - 1]
    for i in range(COEFFICIENTS - 2, -1, -1):
        value = value * t + plan.table[at + i]
    return value * plan.scale


def layers(plan: Plan, key: bytes, ids: Ints) -> tuple[Floats, Ints]:
    """The latent radius and the lattice's integer scale B of these sub-vectors (Paper: U and beta(U))."""
    if plan.accept is Accept.CELL:
        return np.zeros(len(ids)), np.full(len(ids), plan.step, dtype=np.int64)
    radius = radius_of_word(plan, stream_words(key, LATENT_STREAM, ids))
    return radius, scale_of_radius(plan, radius)


def scale_of_radius(plan: Plan, radius: Floats) -> Ints:
    """The lattice's integer scale B for latent radii in units (Paper: beta(U))."""
    if plan.n == 1 and plan.search is Search.CUBIC:
        # The ball [-R, R] IS the cell, so every trial is accepted; R = floor keeps the mean width 2r.
        return 2 * np.floor(radius).astype(np.int64) + 1
    return np.floor(radius * plan.inverse_ball).astype(np.int64) + 2


def dither(plan: Plan, key: bytes, trial: int, ids: Ints, b: Ints) -> Ints:
    """Dithers (N, n), uniform over the cosets of the scaled lattice in Z^n (Paper: V_i)."""
    return _dither_of(plan, stream_words(key, dither_stream(trial), _words_of(plan, ids)), b)


def dithers(plan: Plan, key: bytes, trials: range, ids: Ints, b: Ints) -> Ints:
    """The dithers of several trials of the same sub-vectors, one trial after the other: (trials * N, n)."""
    words = words_of_streams(key, [dither_stream(trial) for trial in trials], _words_of(plan, ids))
    return _dither_of(plan, words.reshape(-1, plan.words), np.tile(b, len(trials)))


def _words_of(plan: Plan, ids: Ints) -> Ints:
    """Where the words of these sub-vectors' dithers are in a stream."""
    return ids[:, None] * plan.words + np.arange(plan.words)


def _dither_of(plan: Plan, words: Words, b: Ints) -> Ints:
    if plan.search is not Search.GENERAL:
        sides = b[:, None] * plan.box
        return multiply_high(words, sides.astype(np.uint64)).astype(np.int64)
    fine = multiply_high(words[:, 2:], np.broadcast_to(b[:, None], (len(b), plan.n)).astype(np.uint64))
    return b[:, None] * _coset(plan, words[:, 0], words[:, 1]) + fine.astype(np.int64)


def _coset(plan: Plan, high: Words, low: Words) -> Ints:
    """Short representatives of cosets of the unscaled lattice, uniform to 2^-128 times its determinant."""
    size = np.full(high.shape, plan.determinant, dtype=np.uint64)
    product = high * size
    carried = (product + multiply_high(low, size)) < product
    index = (multiply_high(high, size) + carried).astype(np.int64)
    point = np.empty((len(index), plan.n), dtype=np.int64)
    for i in range(plan.n):
        point[:, i] = index % plan.box[i]
        index = index // plan.box[i]
    back = np.zeros((len(index), plan.n), dtype=np.int64)
    for i in range(plan.n):
        total = np.zeros(len(index))
        for k in range(plan.n):
            total = total + plan.inverse[i, k] * point[:, k].astype(np.float64)
        back[:, i] = np.floor(total + 0.5).astype(np.int64)
    return point - back @ plan.basis.T


def accepted(plan: Plan, error: Ints, radius: Floats) -> Flags:
    """Whether errors lie in the superlevel ball (Paper: the test of ENCODE)."""
    if plan.accept is Accept.CELL or (plan.n == 1 and plan.search is Search.CUBIC):
        return np.ones(len(error), dtype=np.bool_)
    if plan.accept is Accept.L1_BALL:
        return np.abs(error).sum(axis=1).astype(np.float64) <= radius
    return square_length(error) <= radius * radius


def square_length(error: Ints) -> Floats:
    """Squared lengths in float64, added up from the first coordinate on."""
    total = np.zeros(len(error))
    for i in range(error.shape[1]):
        e = error[:, i].astype(np.float64)
        total = total + e * e
    return total


def quantize(plan: Plan, key: bytes, x: Ints, first: int = 0) -> tuple[Ints, Ints]:
    """(H, M) of sub-vectors first, first + 1, … (rows of x): trials counted from 1, lattice coordinates."""
    ids = first + np.arange(len(x), dtype=np.int64)
    radius, b = layers(plan, key, ids)
    h = np.zeros(len(x), dtype=np.int64)
    m = np.zeros((len(x), plan.n), dtype=np.int64)
    active = np.arange(len(x))
    for trial in range(plan.trials):
        if not len(active):
            break
        v = dither(plan, key, trial, ids[active], b[active])
        coordinates, error = nearest(plan, x[active] - v, b[active])
        ends = accepted(plan, error, radius[active])
        h[active[ends]] = trial + 1
        m[active[ends]] = coordinates[ends]
        active = active[~ends]
    if len(active):
        raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
    return h, m


def reconstruct(plan: Plan, key: bytes, h: Ints, m: Ints, first: int = 0) -> Ints:
    """The decoded sub-vectors B (M + V_H), in units. The cost does not depend on H: only trial H is drawn."""
    ids = first + np.arange(len(h), dtype=np.int64)
    _, b = layers(plan, key, ids)
    v = np.empty((len(h), plan.n), dtype=np.int64)
    for trial in np.unique(h):
        rows = h == trial
        v[rows] = dither(plan, key, int(trial) - 1, ids[rows], b[rows])
    bound = 2.0 ** (RANGE_BITS + 1)
    size = np.zeros(m.shape)
    for i in range(plan.n):
        for k in range(plan.n):
            size[:, i] += float(plan.basis[i, k]) * m[:, k].astype(np.float64)
    if (np.abs(size) * b[:, None].astype(np.float64) >= bound).any():
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return b[:, None] * (m @ plan.basis.T) + v


def to_grid(units: Ints) -> Ints:
    """Multiples of the public grid nearest to positions in units."""
    return (units + (1 << (GRID_BITS - 1))) >> GRID_BITS
