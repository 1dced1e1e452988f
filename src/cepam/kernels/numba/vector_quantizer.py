"""The compiled quantizer on vector lattices: dithers, trials, acceptance; one sub-vector at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels.model.keystream import LATENT_STREAM
from cepam.kernels.numba.integers import compiled, inlined, multiply_high, pasted
from cepam.kernels.numba.keystream import chacha_half, fill_words, start_lanes
from cepam.kernels.numba.layers import eight_radii
from cepam.kernels.numba.nearest import nearest


@inlined
def is_accepted(p: Any, error: Any, square: Any, radius: Any) -> Any:
    """Whether an error of this squared length lies in the superlevel ball."""
    if p.accept == 2 or (p.n == 1 and p.search == 0):
        return True
    if p.accept == 0:
        total = np.int64(0)
        for i in range(p.n):
            total += abs(error[i])
        return np.float64(total) <= radius
    return square <= radius * radius


@inlined
def layer_of(p: Any, w: Any, row: Any) -> Any:
    """The latent radius and the lattice's scale B of a sub-vector, from the words around it."""
    if p.accept == 2:
        return 0.0, np.int64(p.step)
    radius = w.radii[row & 127]
    if p.n == 1 and p.search == 0:
        return radius, 2 * np.int64(np.floor(radius)) + 1
    return radius, np.int64(np.floor(radius * p.inverse_ball)) + 2


@inlined
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


@inlined
def dither_of(p: Any, words: Any, b: Any, d: Any, spare: Any) -> None:
    """Fills d with the dither that these keystream words stand for."""
    if p.search != 4:
        for i in range(p.n):
            d[i] = np.int64(multiply_high(words[i], np.uint64(b * p.box[i])))
        return
    coset(p, words[0], words[1], d, spare[0])
    for i in range(p.n):
        d[i] = b * d[i] + np.int64(multiply_high(words[i + 2], np.uint64(b)))


@pasted
def draw_radii(p: Any, w: Any, row: Any) -> None:
    """Fills the latent radii of the 128 sub-vectors around `row`, so that no trial waits for its own."""
    if p.accept != 2:
        fill_words(w.state, LATENT_STREAM, (row & ~127) >> 3, w.latent)
        for i in range(0, 128, 8):
            eight_radii(w.latent.view(np.uint64), np.int64(i), p.table, p.scale, w.radii)


@pasted
def first_words(p: Any, w: Any, row: Any) -> None:
    """Fills the latent radii and the first trials' dither words of the 128 sub-vectors around `row`."""
    draw_radii(p, w, row)
    for trial in range(len(w.dithers)):
        fill_words(w.state, LATENT_STREAM + 1 + trial, ((row & ~127) >> 3) * p.words, w.dithers[trial])


@inlined
def words_ahead(p: Any, state: Any, row: Any, trial: Any, ahead: Any) -> None:
    """Fills ahead (up to three keystream blocks for each of eight trials) for one sub-vector, from `trial` on."""
    begin = row * p.words
    for lane in range(8):
        stream = np.uint64(LATENT_STREAM + 1 + trial + lane)
        state[14 * 16 + lane] = np.uint32(stream & np.uint64(0xFFFFFFFF))
        state[15 * 16 + lane] = np.uint32(stream >> np.uint64(32))
    for k in range(((begin & 7) + p.words + 7) >> 3):
        block = np.uint64((begin >> 3) + k)
        for lane in range(8):
            state[12 * 16 + lane] = np.uint32(block & np.uint64(0xFFFFFFFF))
            state[13 * 16 + lane] = np.uint32(block >> np.uint64(32))
        chacha_half(state, ahead[k * 128 : k * 128 + 128])


@inlined
def pick_words(p: Any, row: Any, lane: Any, ahead: Any, words: Any) -> None:
    """Fills words with the dither words of one of the eight trials."""
    whole = ahead.view(np.uint64)
    offset = (row * p.words) & 7
    for i in range(p.words):
        words[i] = whole[((offset + i) >> 3) * 64 + lane * 8 + ((offset + i) & 7)]


@inlined
def draw_dither(p: Any, w: Any, row: Any, trial: Any, b: Any, d: Any) -> None:
    """Fills d with the dither of a trial; trials are asked for in order, from 0 on."""
    if trial < len(w.dithers):
        dither_of(p, w.dithers[trial].view(np.uint64)[(row & 127) * p.words :], b, d, w.spare)
        return
    lane = (trial - len(w.dithers)) & 7
    if lane == 0:
        words_ahead(p, w.state, row, trial, w.ahead)
    pick_words(p, row, lane, w.ahead, w.words)
    dither_of(p, w.words, b, d, w.spare)


@compiled
def quantize_rows(p: Any, w: Any, key: Any, x: Any, first: Any, h: Any, m: Any) -> Any:
    """Fills (H, M) of sub-vectors first, first + 1, …; False if some trial never ended."""
    start_lanes(key, w.state)
    d, error = w.work[0], w.work[1]
    for r in range(len(x)):
        row = first + r
        if r == 0 or row & 127 == 0:
            first_words(p, w, row)
        radius, b = layer_of(p, w, row)
        h[r] = 0
        for trial in range(p.trials):
            draw_dither(p, w, row, trial, b, d)
            for i in range(p.n):
                d[i] = x[r, i] - d[i]
            square = nearest(p, d, b, m[r], error, w.spare)
            if is_accepted(p, error, square, radius):
                h[r] = trial + 1
                break
        if h[r] == 0:
            return False
    return True


@compiled
def reconstruct_rows(p: Any, w: Any, key: Any, h: Any, m: Any, first: Any, units: Any) -> Any:
    """Fills units with B (M + V_H); False if a point lies outside the range of the format."""
    start_lanes(key, w.state)
    d = w.work[0]
    for r in range(len(h)):
        row = first + r
        if r == 0 or row & 127 == 0:
            draw_radii(p, w, row)
        _, b = layer_of(p, w, row)
        words_ahead(p, w.state, row, h[r] - 1, w.ahead)
        pick_words(p, row, 0, w.ahead, w.words)
        dither_of(p, w.words, b, d, w.spare)
        if not place(p, b, d, m[r], units[r]):
            return False
    return True


@inlined
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
