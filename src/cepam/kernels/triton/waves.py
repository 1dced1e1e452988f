"""Coded blocks from rows of updates on a GPU, and back: what launches the coders' kernels, many clients at a time.

Blocks are coded in waves of lanes, as many as fit the working memory of `BYTES_A_COORDINATE` for each coordinate of the
batch. A wave whose streams outgrow their slots is coded again with larger ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import triton

from cepam.errors import MalformedMessage
from cepam.kernels.model import scalar_contexts, vector_contexts
from cepam.kernels.model.plan import Plan
from cepam.kernels.model.row_period import LARGEST_PERIOD
from cepam.kernels.triton import scalar_coder, vector_coder, vector_quantizer
from cepam.kernels.triton.plan import DevicePlan, device_keys, device_plan
from cepam.kernels.triton.range_coder import gather_blocks
from cepam.kernels.triton.row_period import find_periods
from cepam.kernels.triton.scalar_coder import measure_scales

LANES = 32
"""Blocks that a program codes, one a thread of its one warp."""
BYTES_A_COORDINATE = 1.9
_LEAST_MEMORY = 1 << 26
_CHUNK = 1024
_OPTIONS = {"lanes": LANES, "num_warps": LANES // 32, "enable_fp_fusion": False}


@dataclass(frozen=True, eq=False)
class CodedBlocks:
    """Coded blocks one after the other on a device: their bytes, and the length of each (clients, blocks)."""

    data: Any
    lengths: Any


def encode_blocks(plan: Plan, keys: Sequence[bytes], x: Any, per_block: int, room: int = 0) -> CodedBlocks:
    """The coded blocks of updates (clients, m), `per_block` sub-vectors each; all values within the plan's reach.

    `room` is the first guess of a block's words. Guarantee: the bytes of the other backends
    (tests/identity/test_triton_coder.py, tests/identity/test_triton_vectors.py).
    """
    wave = _Wave(device_plan(plan, str(x.device)), device_keys(keys, str(x.device)), x, per_block)
    lengths = x.new_zeros(len(x) * wave.blocks, dtype=torch.int32)
    if not len(lengths):
        return CodedBlocks(x.new_empty(0, dtype=torch.uint8), lengths.reshape(len(x), wave.blocks))
    _announce("encode", plan.n, int(plan.search), int(plan.accept))
    headers = wave.measure_headers()
    columns, scale = torch.stack([(headers & 2047).amax(), (headers >> wave.shift).amax()]).tolist()
    columns = max(columns, 1) if plan.n == 1 else 0
    parts, begin, room = [], 0, room or _first_room(plan, scale, per_block)
    while begin < len(lengths):
        lanes = min(wave.lanes_a_wave(4 * room, columns), len(lengths) - begin)
        part = wave.encode(headers, begin, room, columns, lengths[begin : begin + lanes])
        if part is None:
            room *= 4
            continue
        parts.append(part)
        begin += lanes
    data = parts[0] if len(parts) == 1 else torch.cat(parts)
    return CodedBlocks(data, lengths.reshape(len(x), wave.blocks))


def decode_blocks(
    plan: Plan, keys: Sequence[bytes], blocks: CodedBlocks, count: int, dtype: Any, per_block: int
) -> Any:
    """The decoded values (clients, m) on the public grid; any bytes decode to something or raise `MalformedMessage`."""
    device = blocks.data.device
    out = torch.empty((len(blocks.lengths), count), dtype=dtype, device=device)
    wave = _Wave(device_plan(plan, str(device)), device_keys(keys, str(device)), out, per_block)
    if not out.numel():
        return out
    _announce("decode", plan.n, int(plan.search), int(plan.accept))
    lengths = blocks.lengths.reshape(-1)
    starts = lengths.cumsum(0, dtype=torch.int64) - lengths
    flags = torch.zeros(1, dtype=torch.int32, device=device)
    columns = LARGEST_PERIOD + 1 if plan.n == 1 else 0
    step = wave.lanes_a_wave(0, columns)
    for begin in range(0, len(lengths), step):
        wave.decode(blocks.data, starts, lengths, flags, begin, columns, min(step, len(lengths) - begin))
    if int(flags.item()):
        raise MalformedMessage("a block decodes to nothing that this codec sends")
    return out


def _first_room(plan: Plan, scale: int, per_block: int) -> int:
    """Words for a block that most updates need not exceed: three bits a coordinate, more above the noise's scale."""
    octaves = scale / 2 - math.log2(plan.scale)
    return max(int(plan.n * per_block * (3 + max(octaves, 0.0))) // 32, 16)


@cache
def _announce(way: str, n: int, search: int, accept: int) -> None:
    """Nothing; one line on the log, which shows on stderr: the first call on a machine compiles for some seconds."""
    if not triton.knobs.runtime.interpret:
        what = "the integers" if n == 1 else f"a lattice in {n} dimensions"
        logging.getLogger("cepam").warning(
            "cepam: GPU kernels that %s on %s are compiled once a machine, which takes some seconds", way, what
        )


@cache
def _tables(n: int, accept: int, device: str) -> tuple[Any, Any]:
    prior, means = scalar_contexts.load_tables() if n == 1 else vector_contexts.load_tables(accept, n)
    return torch.from_numpy(prior.view(np.int16)).to(device), torch.from_numpy(means.astype(np.int32)).to(device)


@dataclass(frozen=True, eq=False)
class _Wave:
    """What all waves of one batch share."""

    on: DevicePlan
    keys: Any
    x: Any
    per_block: int

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or len(self.x) != len(self.keys) or not self.x.is_contiguous():
            raise ValueError(f"updates must be contiguous rows, one for each key, got shape {tuple(self.x.shape)}")
        if self.per_block % 8 or self.per_block <= 0:
            raise ValueError(f"a block must have a multiple of 8 sub-vectors, got {self.per_block}")

    @property
    def length(self) -> int:
        """Coordinates of a block."""
        return self.on.plan.n * self.per_block

    @property
    def blocks(self) -> int:
        """Blocks of a client."""
        return -(-int(self.x.shape[1]) // self.length)

    @property
    def shift(self) -> int:
        """Where the scale stands in a header: above the row period in one dimension, alone on vector lattices."""
        return 11 if self.on.plan.n == 1 else 0

    @cached_property
    def values(self) -> tuple[Any, Any, int]:
        """The rows as float32 and as float64, one of them a stand-in, and which: one kernel serves both types."""
        double = self.x.dtype == torch.float64
        other = self.x.new_zeros(1, dtype=torch.float32 if double else torch.float64)
        return (other, self.x, 1) if double else (self.x, other, 0)

    @cached_property
    def tables(self) -> tuple[Any, Any]:
        """(prior, means) on the device."""
        return _tables(self.on.plan.n, int(self.on.plan.accept), str(self.x.device))

    def measure_headers(self) -> Any:
        """Every block's side information in one word: its scale and, in one dimension, its row period."""
        scales = torch.empty((len(self.x), self.blocks), dtype=torch.int32, device=self.x.device)
        measure_scales[(scales.numel(),)](
            *self.values, self.on.numbers, scales, self.x.shape[1], self.blocks, self.length, self.on.plan.n,
            chunk=_CHUNK, enable_fp_fusion=False,
        )  # fmt: skip
        if self.on.plan.n > 1:
            return scales.reshape(-1)
        return (scales << 11 | find_periods(self.x, 1.0 / self.on.plan.unit, self.length)).reshape(-1)

    def lanes_a_wave(self, slot_bytes: int, columns: int) -> int:
        """Lanes whose working memory stays within the bound: whole programs, shared evenly by the fewest waves."""
        vector = self.on.plan.n > 1
        staged = vector_quantizer.STAGED + self.per_block if vector else scalar_coder.STAGED
        each = 2 * len(self.tables[0]) + 2 * columns + 8 * staged + slot_bytes
        fit = int(max(BYTES_A_COORDINATE * self.x.numel(), _LEAST_MEMORY)) // (each * LANES)
        programs = triton.cdiv(len(self.x) * self.blocks, LANES)
        return int(triton.cdiv(programs, triton.cdiv(programs, max(fit, 1)))) * LANES

    def encode(self, headers: Any, begin: int, room: int, columns: int, lengths: Any) -> Any:
        """The bytes of the wave's blocks, or nothing where a stream outgrew its slot."""
        lanes = len(lengths)
        slots = self.x.new_empty(lanes * room, dtype=torch.int32)
        scratch = self._scratch(begin, lanes, columns)
        if self.on.plan.n == 1:
            scalar_coder.encode_lanes[(triton.cdiv(lanes, LANES),)](
                *self.values, self.keys, self.on.table, self.on.numbers, self.on.plan.step, self.tables[1], headers,
                *scratch, slots, lengths, begin, begin + lanes, self.x.shape[1], self.blocks, self.length, columns,
                room, layered=self.on.layered, **_OPTIONS,
            )  # fmt: skip
        else:
            radii, odds, stage = scratch
            vector_coder.encode_vectors[(triton.cdiv(lanes, LANES),)](
                *self.values, self.keys, radii, self.on.numbers, self.on.plan.step, self.on.plan.trials,
                self.tables[1], self.on.walk, headers, odds, stage, slots, lengths, begin, begin + lanes,
                self.x.shape[1], self.blocks, self.per_block, room, **self.on.shape, **_OPTIONS,
            )  # fmt: skip
        ends = lengths.cumsum(0, dtype=torch.int64)
        least, longest, total = torch.stack([*(e.to(torch.int64) for e in lengths.aminmax()), ends[-1]]).tolist()
        if least < 0:
            raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
        if longest > 4 * room:
            return None
        out = self.x.new_empty(total, dtype=torch.uint8)
        gather_blocks[(lanes,)](slots, lengths, ends - lengths, out, room, chunk=_CHUNK)
        return out

    def decode(self, data: Any, starts: Any, lengths: Any, flags: Any, begin: int, columns: int, lanes: int) -> None:
        """Fills x with the values of a wave's blocks."""
        scratch = self._scratch(begin, lanes, columns)
        if self.on.plan.n == 1:
            scalar_coder.decode_lanes[(triton.cdiv(lanes, LANES),)](
                *self.values, self.keys, self.on.table, self.on.numbers, self.on.plan.step, self.tables[1], data,
                starts, lengths, *scratch, flags, begin, begin + lanes, self.x.shape[1], self.blocks, self.length,
                columns, layered=self.on.layered, **_OPTIONS,
            )  # fmt: skip
            return
        radii, odds, stage = scratch
        vector_coder.decode_vectors[(triton.cdiv(lanes, LANES),)](
            *self.values, self.keys, radii, self.on.numbers, self.on.plan.step, self.on.plan.trials, self.tables[1],
            self.on.walk, data, starts, lengths, odds, stage, flags, begin, begin + lanes, self.x.shape[1],
            self.blocks, self.per_block, **self.on.shape, **_OPTIONS,
        )  # fmt: skip

    def _scratch(self, begin: int, lanes: int, columns: int) -> tuple[Any, ...]:
        """Working memory of so many lanes: contexts and a stage, and columns (one dimension) or radii (several)."""
        prior, programs = self.tables[0], triton.cdiv(lanes, LANES)
        odds = self.x.new_empty((programs, len(prior), LANES), dtype=torch.int16)
        odds.copy_(prior[None, :, None].expand_as(odds))
        if self.on.plan.n == 1:
            column = self.x.new_empty(programs * columns * LANES, dtype=torch.int16)
            return odds, column, self.x.new_zeros(programs * scalar_coder.STAGED * LANES, dtype=torch.int64)
        stage = self.x.new_zeros(programs * vector_quantizer.STAGED * LANES, dtype=torch.int64)
        radii = torch.zeros((lanes, self.per_block), dtype=torch.float64, device=self.x.device)
        if self.on.layered:
            vector_quantizer.fill_radii[lanes, triton.cdiv(self.per_block, 8 * LANES)](
                self.keys, self.on.table, self.on.numbers, radii, begin, self.blocks, self.per_block, **_OPTIONS
            )
        return radii, odds, stage
