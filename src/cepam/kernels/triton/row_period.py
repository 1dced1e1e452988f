"""The search of `format.row_period` on a device: the same whole numbers for many blocks at once, so the same layouts.

A head is the first block of a group. Its pattern holds whole numbers of at most 7 bits, so that its autocorrelation is
a product of two matrices of shifted patterns in 32-bit integers: exact, where the CPU's transform is after rounding,
and one launch, where transforms of PyTorch and what goes with them took longer to ask for than to compute.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from cepam.kernels.format import row_period as s
from cepam.kernels.triton.layers import floor_divide, load_value, load_whole, units_of, values_from
from cepam.kernels.triton.plan import device_whole

FLAT, LOCAL, SHORTEST, MULTIPLES = (tl.constexpr(i) for i in (s.FLAT, s.LOCAL, s.SHORTEST, s.MULTIPLES))
WINDOW, UNIT, RATIO, LARGEST_RATIO = (tl.constexpr(i) for i in (s.WINDOW, s.UNIT, s.RATIO, s.LARGEST_RATIO))
QUIET = tl.constexpr(s.QUIET)
PER_HEAD_UNIT, FIRST_OF_EQUALS, EVIDENCE, NEIGHBOURLY = (tl.constexpr(i) for i in range(4))
ROWS, ACROSS, DEEP = (tl.constexpr(i) for i in (16, 32, 256))
"""Lags that a program finds, and the terms that it adds up at a time."""
_BATCH = 1024


class Heads(NamedTuple):
    """Which heads a launch looks at: numbers that its kernels read from memory."""

    count: Any  # coordinates of a client's update
    begin: Any  # the first head, counted through all clients
    groups: Any  # groups of each client that have such a head, and the first of them
    first: Any
    width: Any  # groups of each client in all
    size: Any  # coordinates of a head, and from one head to the next
    step: Any
    longest: Any  # the longest row that may be found
    double: Any  # 1 where updates are float64 (`load_value`)


def find_periods(x: Any, per_unit: float, length: int) -> Any:
    """The layout that each group of blocks of updates (clients, m) announces, (clients, groups) as int32."""
    clients, count = (int(size) for size in x.shape)
    step = s.SHARED_BLOCKS * length
    groups = -(-count // step)
    found = torch.empty((clients, groups), dtype=torch.int32, device=x.device)
    last = count - (groups - 1) * step
    whole = groups - (last < length)
    for each, first, size in ((whole, 0, length), (groups - whole, whole, last)):
        longest = min(s.LARGEST_PERIOD, size // 3)
        for begin in range(0, clients * each, _BATCH):
            heads = Heads(count, begin, each, first, groups, size, step, longest, int(x.dtype == torch.float64))
            _search(x, _numbers(per_unit, str(x.device)), found, heads, length)
    return found


def _search(x: Any, numbers: Any, found: Any, heads: Heads, length: int) -> None:
    """Fills in the layouts of at most `_BATCH` heads of blocks of `length` coordinates."""
    many, size = min(_BATCH, len(x) * heads.groups - heads.begin), heads.size
    scratch, means = numbers.new_empty((many, size), dtype=torch.int32), numbers.new_empty(many, dtype=torch.int64)
    pattern, place = numbers.new_empty((many, size), dtype=torch.int8), device_whole(heads, str(x.device))
    flatten_heads[(many,)](
        x.view(torch.float32), numbers, scratch, pattern, means, found, place,
        tile=triton.next_power_of_2(length), num_warps=32, enable_fp_fusion=False,
    )  # fmt: skip
    if size < 4 * s.SHORTEST:
        return
    tile, lags = triton.next_power_of_2(min(s.LARGEST_PERIOD, length // 3) + 1), ROWS.value * ACROSS.value
    sums = scratch.new_empty((many, -(-tile // lags) * lags))
    correlate_heads[many, sums.shape[1] // lags](pattern, sums, place, num_warps=8)
    score_heads[(many,)](sums, numbers, means, found, place, tile=tile, num_warps=16, enable_fp_fusion=False)


@cache
def _numbers(per_unit: float, device: str) -> Any:
    """What would be cut to float32 as an argument."""
    return torch.from_numpy(np.array([per_unit, s.FIRST_OF_EQUALS, s.EVIDENCE, s.NEIGHBOURLY])).to(device)


@triton.jit
def head_of(heads):
    """(heads of this launch, this program's, client, group, place among the layouts)."""
    heads, head = Heads(*load_whole(heads, 9)), tl.program_id(0).to(tl.int64)
    client, group = (heads.begin + head) // heads.groups, heads.first + (heads.begin + head) % heads.groups
    return heads, head, client, group, client * heads.width + group


@triton.jit(do_not_specialize_on_alignment=["x"])
def flatten_heads(x, numbers, scratch, pattern, means, found, heads, tile: tl.constexpr):
    """Fills each head's pattern and its mean; `found` gets what it is where no row is found."""
    heads, head, client, group, place = head_of(heads)
    at, size = tl.arange(0, tile), heads.size
    inside = at < size
    there = values_from(x, heads.double, client * heads.count + group * heads.step)
    value = load_value(there, heads.double, at, inside)
    entry = tl.minimum(tl.abs(units_of(value, tl.load(numbers + PER_HEAD_UNIT))), 1 << 48)
    mean = tl.sum(entry, 0) // size
    entry = floor_divide(tl.minimum(entry, 4 * mean) * UNIT, tl.zeros_like(entry) + tl.maximum(mean, 1))
    scratch = scratch + head * size
    tl.store(scratch + at, entry.to(tl.int32), mask=inside)
    tl.debug_barrier()
    total = tl.sum(entry, 0)
    even = 10 * total * total >= 3 * size * tl.sum(entry * entry, 0)
    apart = tl.where(inside, entry - total // size, 0)
    before = tl.load(scratch + at - 1, mask=inside & (at > 0), other=0).to(tl.int64) - total // size
    ahead = tl.sum(tl.where(at > 0, apart * before, 0), 0)
    square = tl.maximum(tl.sum(apart * apart, 0), 1)
    neighbourly = ahead.to(tl.float64) / square.to(tl.float64) > tl.load(numbers + NEIGHBOURLY)
    plain = tl.where(neighbourly & ((mean >= QUIET) | (even == 0)), LOCAL, FLAT)
    tl.store(found + place, tl.where((mean == 0) | (size < 4 * SHORTEST), FLAT, plain))
    tl.store(means + head, mean)
    near = tl.zeros_like(entry)
    for i in tl.static_range(2 * WINDOW):
        there = at + (i + 1 - WINDOW)
        near += tl.load(scratch + there, mask=inside & (there >= 0) & (there < size), other=0).to(tl.int64)
    near = near // (2 * WINDOW)
    ratio = floor_divide((entry - near) * RATIO, near + UNIT // 4)
    ratio = tl.where(entry > 0, tl.minimum(tl.maximum(ratio, -LARGEST_RATIO), LARGEST_RATIO), 0)
    middle = tl.sum(ratio, 0)
    # Down, as everywhere: here `//` rounds toward zero.
    middle = tl.where(middle < 0, -((size - 1 - middle) // size), middle // size)
    tl.store(pattern + head * size + at, (ratio - middle).to(tl.int8), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["pattern"])
def correlate_heads(pattern, sums, heads):
    """Writes the sums of products of each head's pattern with itself, `ROWS` times `ACROSS` lags a program.

    At lag ACROSS * row + column a term is pattern[i + ACROSS * row] * pattern[i - column].
    """
    heads, head, _, _, _ = head_of(heads)
    size, first = heads.size, tl.program_id(1) * ROWS
    row, column, i = first + tl.arange(0, ROWS)[:, None], tl.arange(0, ACROSS)[None, :], tl.arange(0, DEEP)
    pattern, total, begin = pattern + head * size, tl.zeros((ROWS, ACROSS), tl.int32), 0
    while begin < size - first * ACROSS:
        later, earlier = begin + i[None, :] + row * ACROSS, begin + i[:, None] - column
        a = tl.load(pattern + later, mask=later < size, other=0)
        b = tl.load(pattern + earlier, mask=(earlier >= 0) & (earlier < size), other=0)
        total, begin = tl.dot(a, b, total, out_dtype=tl.int32), begin + DEEP
    tl.store(sums + head * tl.num_programs(1) * (ROWS * ACROSS) + row * ACROSS + column, total)


@triton.jit
def correlation_at(sums, lag, most, inside, size):
    """The autocorrelation at lags, each divided by what lag 0 would give with as many terms."""
    product = tl.load(sums + lag, mask=inside, other=0).to(tl.float64)
    return product / most * size.to(tl.float64) / tl.maximum(size - lag, 1).to(tl.float64)


@triton.jit
def score_heads(sums, numbers, means, found, heads, tile: tl.constexpr):
    """Puts the row length of each head that has one in the place of what `flatten_heads` found."""
    heads, head, _, _, place = head_of(heads)
    size, longest = heads.size, heads.longest
    lag, lags = tl.arange(0, tile), (tile + ROWS * ACROSS - 1) // (ROWS * ACROSS) * (ROWS * ACROSS)
    sums += head * lags
    most = tl.maximum(tl.load(sums).to(tl.float64), 1.0)
    total, terms = tl.zeros((tile,), tl.float64), tl.zeros((tile,), tl.int32)
    for multiple in tl.static_range(1, MULTIPLES + 1):
        inside = lag * multiple <= longest
        total += tl.where(inside, correlation_at(sums, lag * multiple, most, inside, size), 0.0)
        terms += inside.to(tl.int32)
    lowest = float("-inf")
    score = total / tl.sqrt((tl.maximum(terms, 1) * MULTIPLES).to(tl.float64))
    score = tl.where((lag >= SHORTEST) & (lag <= longest), score, lowest)
    at = tl.min(tl.where(score >= tl.load(numbers + FIRST_OF_EQUALS) * tl.max(score, 0), lag, tile - 1), 0)
    best, second = tl.max(tl.where(lag == at, score, lowest), 0), tl.max(tl.where(lag == at + 1, score, lowest), 0)
    third = tl.max(tl.where(lag == at + 2, score, lowest), 0)
    later = tl.where(third > tl.maximum(best, second), 2, tl.where(second > best, 1, 0))
    best = tl.maximum(tl.maximum(best, second), third)
    good = (best > tl.load(numbers + EVIDENCE)) & (tl.load(means + head) >= QUIET)
    tl.store(found + place, at + later, mask=good)
