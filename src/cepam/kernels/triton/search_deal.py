"""What the search coder's encoder in Triton knows of segments before it searches: their energy, that of their smallest
parts, and a draw of the layered quantizer at every place.

A wave's segments have `stride` places each, those of a block next to each other (`search_coder`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.format import search
from cepam.kernels.triton.hadamard import exact
from cepam.kernels.triton.keystream import eight_times, load_key, number_eight
from cepam.kernels.triton.layers import (
    PER_UNIT,
    SCALE,
    draw_cells,
    load_value,
    round_quotient,
    units_of,
    values_from,
)
from cepam.kernels.triton.range_coder import any_of
from cepam.kernels.triton.scalar_coder import UNSIGNED
from cepam.kernels.triton.search_coder import BLOCKS, CLIENT, COUNT, NUMBER, ROW, SEGMENT, SMALLEST, units_at

COARSE, LARGEST_COARSE = tl.constexpr(search.COARSE), tl.constexpr(search.LARGEST_COARSE)
SMALLEST_PART = tl.constexpr(1 << search.SMALLEST)
PAD_GROUP, SEGMENT_GROUPS = tl.constexpr(search.PAD >> 3), tl.constexpr(search.SEGMENT >> 3)


@triton.jit(do_not_specialize=["double", "count", "many"], do_not_specialize_on_alignment=["x", "sums", "most"])
def measure_segments(x, double, count, many, numbers, sums, most, chunk: tl.constexpr):
    """Adds to the `coarse_sum` of every segment; `most` gets the bits of the largest |x|, with which NaN counts as
    larger than all."""
    client, number = (tl.program_id(0) // many).to(tl.int64), tl.program_id(0) % many
    at = number.to(tl.int64) * SEGMENT + tl.program_id(1) * chunk + tl.arange(0, chunk)
    inside = (at < count) & (at < (number + 1).to(tl.int64) * SEGMENT)
    value = load_value(values_from(x, double, client * count), double, tl.where(inside, at, 0), inside)
    tl.atomic_max(most, tl.max(value.to(tl.int64, bitcast=True) & UNSIGNED, 0))
    units = units_of(value, tl.load(numbers + PER_UNIT))
    coarse = tl.minimum(tl.abs(units) >> COARSE, LARGEST_COARSE)
    tl.atomic_add(sums + tl.program_id(0), tl.sum(coarse * coarse, 0))


@triton.jit(do_not_specialize=["double", "count", "stride", "log_size"], do_not_specialize_on_alignment=["x"])
def measure_energies(x, double, count, energies, segments, numbers, stride, log_size, lanes: tl.constexpr):
    """|x|^2 of the smallest parts, in noise variances, added up from the first coordinate on. Lanes beside each other
    have parts of different blocks, whose coordinates are neighbours."""
    segment = tl.program_id(1).to(tl.int64)
    row = segments + segment * ROW
    blocks, own = tl.load(row + BLOCKS), tl.load(row + COUNT)
    mine = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    block, part = mine % blocks, mine // blocks
    live = part < (1 << (log_size - SMALLEST))
    inverse = exact(1.0) / tl.load(numbers + SCALE)
    total, i = tl.zeros((lanes,), tl.float64), 0
    while i < SMALLEST_PART:
        n = ((part << SMALLEST) + i) * blocks + block
        units = units_at(x, double, count, row, n, tl.load(numbers + PER_UNIT), live & (n < own))
        value = units.to(tl.float64) * inverse
        total += value * value
        i += 1
    at = segment * (stride >> SMALLEST) + (block << (log_size - SMALLEST)) + part
    tl.store(energies + tl.where(live, at, 0), total, mask=live)


@triton.jit(do_not_specialize=["double", "count", "stride", "log_size"], do_not_specialize_on_alignment=["x"])
def fill_draws(x, double, count, y, segments, draws, stride, log_size, lanes: tl.constexpr):
    """Fills the places of coordinates with draws of the layered quantizer, in units."""
    segment = tl.program_id(1).to(tl.int64)
    row = segments + segment * ROW
    group = tl.program_id(0) * lanes + tl.arange(0, lanes)
    n = eight_times(group, lanes) * 8 + number_eight(lanes)
    blocks, inside = tl.load(row + BLOCKS).to(tl.int32), n < tl.load(row + COUNT)
    first = tl.load(row + NUMBER) * SEGMENT_GROUPS
    b, d = draw_cells(draws, load_key(draws.keys, tl.load(row + CLIENT)), first + group, True)
    units = units_at(x, double, count, row, n, tl.load(draws.numbers + PER_UNIT), inside)
    place = ((n % blocks) << log_size) + n // blocks
    tl.store(y + segment * stride + place, round_quotient(units - d, b) * b + d, mask=inside)


@triton.jit(do_not_specialize=["stride", "log_size"])
def fill_pads(y, segments, draws, stride, log_size, lanes: tl.constexpr):
    """Fills the places that no coordinate has with draws at zero."""
    segment = tl.program_id(1).to(tl.int64)
    row = segments + segment * ROW
    group = tl.program_id(0) * lanes + tl.arange(0, lanes)
    place = eight_times(group, lanes) * 8 + number_eight(lanes)
    blocks, block = tl.load(row + BLOCKS), (place >> log_size).to(tl.int64)
    n = (place & ((1 << log_size) - 1)) * blocks + block
    empty = (block < blocks) & (n >= tl.load(row + COUNT))
    if any_of(empty):
        first = tl.load(row + NUMBER) * (2 * SEGMENT_GROUPS) + PAD_GROUP
        b, d = draw_cells(draws, load_key(draws.keys, tl.load(row + CLIENT)), first + group, True)
        tl.store(y + segment * stride + place, round_quotient(-d, b) * b + d, mask=empty)
