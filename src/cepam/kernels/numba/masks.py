"""Compiled loops of secure aggregation: grid noise, ChaCha20 masks, packed words, the Hadamard transform."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels.numba.compiling import compiled
from cepam.kernels.numba.keystream import LANE_WORDS, chacha20_lanes, start_lanes


@compiled
def round_to_grid(m: Any, b: Any, d: Any, half: Any, shift: Any, out: Any) -> None:
    """Fills out with the multiples of the public grid nearest to the points b m + d, as integers."""
    for i in range(len(m)):
        out[i] = (m[i] * b[i] + d[i] + half) >> shift


@compiled
def scale_to_words(multiples: Any, gain: Any, words: Any) -> None:
    """Fills words with gain times the multiples, modulo 2^32."""
    for i in range(len(multiples)):
        words[i] = np.uint32((multiples[i] * gain) & np.int64(0xFFFFFFFF))


@compiled
def add_masks(keys: Any, signs: Any, first: Any, state: Any, spare: Any, words: Any) -> None:
    """Adds to words, modulo 2^32, each key's keystream from word number `first` on, times its sign (1 or 2^32 - 1).

    `first` and the length are multiples of 256.
    """
    for k in range(len(keys)):
        start_lanes(keys[k], state)
        for lane in range(16):
            state[14 * 16 + lane] = np.uint32(0)
            state[15 * 16 + lane] = np.uint32(0)
        sign = signs[k]
        for group in range(len(words) // LANE_WORDS):
            for lane in range(16):
                counter = np.uint64((first >> 4) + group * 16 + lane)
                state[12 * 16 + lane] = np.uint32(counter & np.uint64(0xFFFFFFFF))
                state[13 * 16 + lane] = np.uint32(counter >> np.uint64(32))
            chacha20_lanes(state, spare)
            start = group * LANE_WORDS
            for i in range(LANE_WORDS):
                words[start + i] = np.uint32(words[start + i] + sign * spare[i])


@compiled
def pack_top_bits(words: Any, count: Any, bits: Any, out: Any) -> None:
    """Fills out (32-bit words) with the top bits of `count` words, one after the other from the lowest bit on."""
    held, filled, place = np.uint64(0), np.uint64(0), 0
    step, drop = np.uint64(bits), np.uint64(32 - bits)
    for i in range(count):
        held |= (np.uint64(words[i]) >> drop) << filled
        filled += step
        if filled >= np.uint64(32):
            out[place] = np.uint32(held & np.uint64(0xFFFFFFFF))
            held >>= np.uint64(32)
            filled -= np.uint64(32)
            place += 1
    if filled > np.uint64(0):
        out[place] = np.uint32(held)


@compiled
def add_packed(packed: Any, bits: Any, total: Any) -> None:
    """Adds to total, modulo 2^32, the b-bit numbers that packed holds; packed has one word more than it needs."""
    step, low = np.uint64(bits), (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for i in range(len(total)):
        at = np.uint64(i) * step
        place, shift = np.int64(at >> np.uint64(5)), at & np.uint64(31)
        pair = np.uint64(packed[place]) | (np.uint64(packed[place + 1]) << np.uint64(32))
        total[i] = np.uint32(total[i] + np.uint32((pair >> shift) & low))


@compiled
def transform_rows(rows: Any) -> None:
    """Transforms every row in place; its length is a power of two.

    Every level is one sum and one difference of a pair, so the order of pairs does not change a bit.
    """
    for r in range(rows.shape[0]):
        row = rows[r]
        half = 1
        while half < len(row):
            for start in range(0, len(row), 2 * half):
                for low in range(start, start + half):
                    one, other = row[low], row[low + half]
                    row[low] = one + other
                    row[low + half] = one - other
            half *= 2
