"""The compiled quantizer on vector lattices: trials, nearest points, acceptance; one sub-vector at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels.chacha import LATENT_STREAM
from cepam.kernels.lanes import chacha_lanes, fill_words, start_lanes
from cepam.kernels.numbers import compiled, floor_divide, multiply_high, radius_of_word
from cepam.plan import MOST_TRIALS

TRIALS_AHEAD = 16


@compiled
def nearest_cubic(target: Any, b: Any, n: Any, z: Any, error: Any) -> None:
    """Fills z and error with the nearest point of b Z^n and its difference from the target."""
    half = b >> 1
    for i in range(n):
        z[i] = floor_divide(target[i] + half, b)
        error[i] = z[i] * b - target[i]


@compiled
def nearest_checkerboard(target: Any, b: Any, n: Any, z: Any, error: Any) -> None:
    """The same for b D_n: round, then move the worst coordinate if the sum is odd."""
    nearest_cubic(target, b, n, z, error)
    total = np.int64(0)
    worst = 0
    for i in range(n):
        total += z[i]
        if abs(error[i]) > abs(error[worst]):
            worst = i
    if total & 1:
        step = np.int64(1) if error[worst] <= 0 else np.int64(-1)
        z[worst] += step
        error[worst] += step * b


@compiled
def square_length(error: Any, n: Any) -> Any:
    """The squared length in float64, added up from the first coordinate on."""
    total = 0.0
    for i in range(n):
        e = np.float64(error[i])
        total += e * e
    return total


@compiled
def nearest_gosset(target: Any, b: Any, j: Any, error: Any, spare: Any) -> None:
    """Fills j (lattice coordinates) and error for b times 2 E8."""
    z, other_z, other_error = spare[0], spare[1], spare[2]
    nearest_checkerboard(target, 2 * b, 8, z, error)
    for i in range(8):
        spare[3, i] = target[i] - b
    nearest_checkerboard(spare[3], 2 * b, 8, other_z, other_error)
    if square_length(error, 8) <= square_length(other_error, 8):
        for i in range(8):
            z[i] = 2 * z[i]
    else:
        for i in range(8):
            z[i] = 2 * other_z[i] + 1
            error[i] = other_error[i]
    j[0] = z[0]
    total = np.int64(0)
    for i in range(1, 7):
        j[i] = (z[i] - z[0]) >> 1
        total += j[i]
    j[7] = (z[7] - z[0] - 2 * total) >> 2


@compiled
def nearest_hexagonal(basis: Any, target: Any, b: Any, j: Any, error: Any, spare: Any) -> None:
    """The better of two rectangular lattices, one of them shifted by half a cell."""
    for i in range(2):
        half = basis[i, 1] * b
        j[i] = 2 * floor_divide(target[i] + half, 2 * half)
        error[i] = j[i] * half - target[i]
        spare[0, i] = 2 * floor_divide(target[i], 2 * half) + 1
        spare[1, i] = spare[0, i] * half - target[i]
    if square_length(spare[1], 2) < square_length(error, 2):
        for i in range(2):
            j[i] = spare[0, i]
            error[i] = spare[1, i]
    j[0] = (j[0] - j[1]) >> 1


@compiled
def nearest_general(p: Any, target: Any, b: Any, j: Any, error: Any) -> None:
    """Rounding in the reduced basis, then slicing by the Voronoi-relevant vectors."""
    n, scale = p.n, np.float64(b)
    for i in range(n):
        total = 0.0
        for k in range(n):
            total += p.inverse[i, k] * np.float64(target[k])
        j[i] = np.int64(np.floor(total / scale + 0.5))
    for i in range(n):
        error[i] = -target[i]
        for k in range(n):
            error[i] += b * p.basis[i, k] * j[k]
    for _ in range(64):
        moved = False
        for v in range(len(p.relevant)):
            dot = 0.0
            for k in range(n):
                dot += np.float64(-error[k]) * p.relevant[v, k]
            count = np.int64(np.floor(dot / (scale * p.squares[v]) + 0.5))
            if count != 0:
                moved = True
                for k in range(n):
                    error[k] += b * count * np.int64(p.relevant[v, k])
                    j[k] += count * p.steps[v, k]
        if not moved:
            return


@compiled
def nearest(p: Any, target: Any, b: Any, j: Any, error: Any, spare: Any) -> None:
    """Fills j and error for the lattice of the plan."""
    if p.search == 0:
        nearest_cubic(target, b, p.n, j, error)
    elif p.search == 1:
        nearest_checkerboard(target, b, p.n, j, error)
        total = np.int64(0)
        for i in range(p.n - 1):
            total += j[i]
        j[p.n - 1] = (j[p.n - 1] - total) >> 1
    elif p.search == 2:
        nearest_gosset(target, b, j, error, spare)
    elif p.search == 3:
        nearest_hexagonal(p.basis, target, b, j, error, spare)
    else:
        nearest_general(p, target, b, j, error)


@compiled
def is_accepted(p: Any, error: Any, radius: Any) -> Any:
    """Whether the error lies in the superlevel ball."""
    if p.accept == 2 or (p.n == 1 and p.search == 0):
        return True
    if p.accept == 0:
        total = np.int64(0)
        for i in range(p.n):
            total += abs(error[i])
        return np.float64(total) <= radius
    return square_length(error, p.n) <= radius * radius


@compiled
def layer_of(p: Any, word: Any) -> Any:
    """The latent radius and the lattice's scale B of a sub-vector."""
    if p.accept == 2:
        return 0.0, np.int64(p.step)
    radius = radius_of_word(word, p.table, p.scale)
    if p.n == 1 and p.search == 0:
        return radius, 2 * np.int64(np.floor(radius)) + 1
    return radius, np.int64(np.floor(radius * p.inverse_ball)) + 2


@compiled
def coset(p: Any, high: Any, low: Any, point: Any, back: Any) -> None:
    """Fills point with a short representative of a coset of the unscaled lattice."""
    size = np.uint64(p.determinant)
    product = high * size
    carried = np.uint64(product + multiply_high(low, size) < product)
    index = np.int64(multiply_high(high, size) + carried)
    for i in range(p.n):
        point[i] = index % p.box[i]
        index //= p.box[i]
    for i in range(p.n):
        total = 0.0
        for k in range(p.n):
            total += p.inverse[i, k] * np.float64(point[k])
        back[i] = np.int64(np.floor(total + 0.5))
    for i in range(p.n):
        for k in range(p.n):
            point[i] -= p.basis[i, k] * back[k]


@compiled
def dither_of(p: Any, words: Any, b: Any, d: Any, spare: Any) -> None:
    """Fills d with the dither that these keystream words stand for."""
    if p.search != 4:
        for i in range(p.n):
            d[i] = np.int64(multiply_high(words[i], np.uint64(b * p.box[i])))
        return
    coset(p, words[0], words[1], d, spare[0])
    for i in range(p.n):
        d[i] = b * d[i] + np.int64(multiply_high(words[i + 2], np.uint64(b)))


@compiled
def words_ahead(p: Any, state: Any, row: Any, trial: Any, buffer: Any, words: Any) -> None:
    """Fills words (16, …) with the dither words of sixteen trials of one sub-vector, from `trial` on."""
    begin = row * p.words
    first = begin >> 3
    for lane in range(16):
        stream = np.uint64(LATENT_STREAM + 1 + trial + lane)
        state[14 * 16 + lane] = np.uint32(stream & np.uint64(0xFFFFFFFF))
        state[15 * 16 + lane] = np.uint32(stream >> np.uint64(32))
    for block in range(first, ((begin + p.words - 1) >> 3) + 1):
        for lane in range(16):
            state[12 * 16 + lane] = np.uint32(np.uint64(block) & np.uint64(0xFFFFFFFF))
            state[13 * 16 + lane] = np.uint32(np.uint64(block) >> np.uint64(32))
        chacha_lanes(state, buffer)
        whole = buffer.view(np.uint64)
        for k in range(8):
            at = block * 8 + k - begin
            if 0 <= at < p.words:
                for lane in range(16):
                    words[lane, at] = whole[lane * 8 + k]


@compiled
def quantize_rows(p: Any, key: Any, x: Any, first: Any, h: Any, m: Any) -> Any:
    """Fills (H, M) of sub-vectors first, first + 1, …; False if some trial never ended."""
    state = np.empty(256, dtype=np.uint32)
    start_lanes(key, state)
    buffer = np.empty(256, dtype=np.uint32)
    words = np.empty((16, 16), dtype=np.uint64)
    spare = np.empty((4, 16), dtype=np.int64)
    d = np.empty(16, dtype=np.int64)
    error = np.empty(16, dtype=np.int64)
    latent = np.empty(256, dtype=np.uint32)
    for r in range(len(x)):
        row = first + r
        if r == 0 or row & 127 == 0:
            fill_words(state, LATENT_STREAM, (row & ~127) >> 3, latent)
        radius, b = layer_of(p, latent.view(np.uint64)[row & 127])
        h[r] = 0
        for trial in range(MOST_TRIALS):
            if trial & 15 == 0:
                words_ahead(p, state, row, trial, buffer, words)
            dither_of(p, words[trial & 15], b, d, spare)
            for i in range(p.n):
                d[i] = x[r, i] - d[i]
            nearest(p, d, b, m[r], error, spare)
            if is_accepted(p, error, radius):
                h[r] = trial + 1
                break
        if h[r] == 0:
            return False
    return True


@compiled
def reconstruct_rows(p: Any, key: Any, h: Any, m: Any, first: Any, units: Any) -> Any:
    """Fills units with B (M + V_H); False if a point lies outside the range of the format."""
    state = np.empty(256, dtype=np.uint32)
    start_lanes(key, state)
    buffer = np.empty(256, dtype=np.uint32)
    words = np.empty((16, 16), dtype=np.uint64)
    spare = np.empty((4, 16), dtype=np.int64)
    d = np.empty(16, dtype=np.int64)
    latent = np.empty(256, dtype=np.uint32)
    for r in range(len(h)):
        row = first + r
        if r == 0 or row & 127 == 0:
            fill_words(state, LATENT_STREAM, (row & ~127) >> 3, latent)
        _, b = layer_of(p, latent.view(np.uint64)[row & 127])
        words_ahead(p, state, row, h[r] - 1, buffer, words)
        dither_of(p, words[0], b, d, spare)
        if not place(p, b, d, m[r], units[r]):
            return False
    return True


@compiled
def place(p: Any, b: Any, d: Any, j: Any, units: Any) -> Any:
    """Fills units with b times the lattice point j, plus the dither; False outside the range of the format."""
    for i in range(p.n):
        size = 0.0
        point = np.int64(0)
        for k in range(p.n):
            size += np.float64(p.basis[i, k]) * np.float64(j[k])
            point += p.basis[i, k] * j[k]
        if not abs(size) * np.float64(b) < 2.0**62:
            return False
        units[i] = b * point + d[i]
    return True
