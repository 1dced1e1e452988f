"""Secure aggregation's loops in Triton and what launches them: grid noise, ChaCha20 masks, packed words.

Launch `add_noise` with `enable_fp_fusion=False`, as every kernel over `layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from cepam.kernels.format.plan import Plan
from cepam.kernels.triton.backend import check_device
from cepam.kernels.triton.keystream import chacha_block, in_rows, load_key
from cepam.kernels.triton.layers import (
    GRID_BITS,
    HALF_GRID,
    PER_UNIT,
    draw_cells,
    load_value,
    round_quotient,
    units_of,
)
from cepam.kernels.triton.plan import device_keys, device_plan, launching_on

MASK_ROUNDS = tl.constexpr(20)


@triton.jit(do_not_specialize=["double", "count"], do_not_specialize_on_alignment=["x"])
def add_noise(x, double, draws, out, count, lanes: tl.constexpr):
    """Writes values plus noise as multiples of the public grid; a lane has eight coordinates."""
    eight = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    b, d = draw_cells(draws, load_key(draws.keys, 0), eight, True)
    b, d, at = in_rows(b, lanes), in_rows(d, lanes), eight[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = at < count
    value = load_value(x, double, at, inside)
    units = units_of(value, tl.load(draws.numbers + PER_UNIT))
    m = round_quotient(units - d, b)
    tl.store(out + at, (m * b + d + HALF_GRID) >> GRID_BITS, mask=inside)


@triton.jit(do_not_specialize=["many", "count"])
def add_masks(keys, signs, many, words, count, lanes: tl.constexpr):
    """Adds to words, modulo 2^32, each key's ChaCha20 keystream times its sign; a lane has sixteen coordinates."""
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    stream = tl.full((), 0, tl.int64)
    # Sixteen tensors of lanes, never joined: a lane adds up what it computes, and shares nothing.
    total = ()
    for i in tl.static_range(16):
        at = block * 16 + i
        total += (tl.load(words + at, mask=at < count, other=0),)
    k = 0
    while k < many:
        mask, sign = chacha_block(load_key(keys, k), stream, block, MASK_ROUNDS), tl.load(signs + k)
        more = ()
        for i in tl.static_range(16):
            more += (total[i] + mask[i].to(tl.int32, bitcast=True) * sign,)
        total, k = more, k + 1
    for i in tl.static_range(16):
        at = block * 16 + i
        tl.store(words + at, total[i], mask=at < count)


@triton.jit(do_not_specialize=["count", "bits", "size"])
def pack_top_bits(words, count, bits, out, size, lanes: tl.constexpr):
    """Writes the top bits of `count` words, one after the other from the lowest bit on, as `size` 32-bit words."""
    place = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    first, held = place * 32 // bits, place * 0
    i = 0
    while i < 32 // bits + 2:
        at = first + i
        shift = at * bits - place * 32
        inside = (at < count) & (shift < 32)
        word = tl.load(words + at, mask=inside, other=0).to(tl.uint32, bitcast=True).to(tl.int64) >> (32 - bits)
        held |= tl.where(inside, (word << tl.minimum(tl.maximum(shift, 0), 31)) >> tl.maximum(-shift, 0), 0)
        i += 1
    tl.store(out + place, (held & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True), mask=place < size)


@triton.jit(do_not_specialize=["row", "many", "bits", "count"])
def add_packed(packed, row, many, bits, words, count, lanes: tl.constexpr):
    """Writes the sums, modulo 2^32, of the b-bit numbers in `many` rows of packed, each at the top of its word.

    A row has one word more than it needs.
    """
    coordinate = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    inside = coordinate < count
    at, shift = packed + (coordinate * bits >> 5), coordinate * bits & 31
    total = coordinate * 0
    k = 0
    while k < many:
        low = tl.load(at, mask=inside, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
        high = tl.load(at + 1, mask=inside, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
        # What lies above the number is shifted out of the word at the end.
        total += ((low | (high << 32)) >> shift.to(tl.uint64)).to(tl.int64) & 0xFFFFFFFF
        at, k = at + row, k + 1
    moved = (total << (32 - bits)) & 0xFFFFFFFF
    tl.store(words + coordinate, moved.to(tl.uint32).to(tl.int32, bitcast=True), mask=inside)


_LANES = 128
_WORDS = 1024
"""Coordinates, or words, of a program that packs."""


def noised(plan: Plan, update: Any, key: bytes) -> Any:
    """The update plus noise as multiples of the public grid, int64, on the update's device.

    Guarantee: the integers of the CPU (tests/identity/test_triton_masks.py).
    """
    held = update.detach().contiguous()
    out, on = torch.empty(len(held), dtype=torch.int64, device=held.device), device_plan(plan, str(held.device))
    with launching_on(held.device):
        add_noise[(_programs(len(held), 8 * _LANES),)](
            held.view(torch.float32), int(held.dtype == torch.float64), on.draws(device_keys([key], str(held.device))),
            out, len(held), lanes=_LANES, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def packed(multiples: Any, gain: int, bits: int, keys: npt.NDArray[np.uint32], signs: npt.NDArray[np.uint32]) -> bytes:
    """The top bits of gain times the multiples plus the masks, packed into 32-bit words."""
    # The lower half of each 64-bit product.
    words = (multiples * gain).view(torch.int32)[::2].contiguous()
    out = words.new_empty(-(-len(words) * bits // 32))
    with launching_on(words.device):
        _mask(words, keys, signs)
        pack_top_bits[(_programs(len(out), _WORDS),)](words, len(words), bits, out, len(out), lanes=_WORDS)
    sent: bytes = out.cpu().numpy().astype("<i4", copy=False).tobytes()
    return sent


def unmasked(
    messages: Sequence[bytes], count: int, bits: int, keys: npt.NDArray[np.uint32], signs: npt.NDArray[np.uint32],
    device: str,
) -> Any:  # fmt: skip
    """The sum of the messages' numbers at the top of each word, plus the masks, as int32 on the device."""
    check_device(device)
    row = -(-count * bits // 32) + 1
    rows = np.zeros((len(messages), 4 * row), dtype=np.uint8)
    for mine, message in zip(rows, messages):
        mine[: len(message)] = np.frombuffer(message, dtype=np.uint8)
    held = torch.from_numpy(rows.view("<i4")).to(device)
    words = torch.zeros(count, dtype=torch.int32, device=device)
    with launching_on(device):
        add_packed[(_programs(count, _WORDS),)](held, row, len(messages), bits, words, count, lanes=_WORDS)
        _mask(words, keys, signs)
    return words


def _mask(words: Any, keys: npt.NDArray[np.uint32], signs: npt.NDArray[np.uint32]) -> None:
    if len(keys):
        on = [torch.from_numpy(part.view(np.int32)).to(words.device) for part in (keys, signs)]
        add_masks[(_programs(len(words), 16 * _LANES),)](*on, len(keys), words, len(words), lanes=_LANES)


def _programs(count: int, each: int) -> int:
    return int(triton.cdiv(count, each))
