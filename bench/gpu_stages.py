"""Kernels that stop half way: differences of their times say where the time of the quantizer goes."""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, side_by_side, stream_words
from cepam.kernels.triton.layers import COEFFICIENTS, OCTAVES, SCALE, SEGMENTS, leading_zeros, width_of_word


@triton.jit
def radius_by_rows(word, table, scale):
    """`radius_of_word` on a table whose eight coefficients lie side by side: the layout that was not chosen."""
    odd = (word << 1) | 1
    zeros = leading_zeros(odd)
    mantissa = odd << zeros.to(tl.uint64)
    octave = tl.minimum(zeros, OCTAVES - 1).to(tl.int32)
    segment = (mantissa >> 58).to(tl.int32) & (SEGMENTS - 1)
    row = (((word >> 63).to(tl.int32) * OCTAVES + octave) * SEGMENTS + segment) * COEFFICIENTS
    t = ((mantissa << 6) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    value = tl.load(table + row + COEFFICIENTS - 1)
    for i in tl.static_range(COEFFICIENTS - 1):
        value = value * t + tl.load(table + row + COEFFICIENTS - 2 - i)
    return value * scale


@triton.jit
def run_stage(keys, table, numbers, out, count, stage: tl.constexpr, lanes: tl.constexpr):
    """Writes 32 bits a coordinate that depend on everything drawn up to a stage.

    Stages: 0 nothing drawn, 1 one keystream, 2 both, 3 widths, 4 widths and dithers, 5 widths from a table by rows.
    """
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    at = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    key, scale = load_key(keys, 0), tl.load(numbers + SCALE)
    stream = tl.full((), LATENT_STREAM, tl.int64)
    value = at.to(tl.uint64)
    if stage >= 1:
        value = side_by_side(stream_words(key, stream, block, ROUNDS), lanes)
    if stage == 2:
        value = value ^ side_by_side(stream_words(key, stream + 1, block, ROUNDS), lanes)
    if stage == 3:
        value = width_of_word(value, table, scale).to(tl.uint64)
    if stage == 4:
        words = side_by_side(stream_words(key, stream + 1, block, ROUNDS), lanes)
        value = tl.umulhi(words, width_of_word(value, table, scale).to(tl.uint64))
    if stage == 5:
        value = radius_by_rows(value, table, scale).to(tl.int64).to(tl.uint64)
    tl.store(out + at, (value ^ (value >> 32)).to(tl.int32), mask=at < count)
