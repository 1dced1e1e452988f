"""Blocks of bytes from updates on a GPU, and back: the margin coder in one dimension, many clients in a launch.

Blocks are coded in waves of lanes, as many as fit the working memory of `BYTES_A_COORDINATE` for each coordinate of the
batch. A wave whose streams outgrow their slots is coded again with larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton

from cepam.errors import MalformedMessage
from cepam.kernels.model import scalar_contexts as contexts
from cepam.kernels.model.plan import Plan
from cepam.kernels.model.row_period import LARGEST_PERIOD
from cepam.kernels.model.task import CodingTask, cpu_only
from cepam.kernels.triton.plan import DevicePlan, Tile, device_keys, device_plan
from cepam.kernels.triton.range_coder import gather_blocks
from cepam.kernels.triton.row_period import find_periods
from cepam.kernels.triton.scalar_coder import STAGED, decode_lanes, encode_lanes, measure_scales

CODER_TILE = Tile(lanes=32, warps=1)
BYTES_A_COORDINATE = 1.9
_LEAST_MEMORY = 1 << 26
_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Blocks:
    """Coded blocks one after the other on a device: their bytes, and the length of each (clients, blocks)."""

    data: Any
    lengths: Any

    def to_lists(self) -> list[list[bytes]]:
        """Each client's blocks as bytes on the host."""
        data, lengths = self.data.cpu().numpy().tobytes(), self.lengths.cpu().numpy()
        ends = lengths.reshape(-1).astype(np.int64).cumsum()
        blocks = [data[end - length : end] for end, length in zip(ends.tolist(), lengths.reshape(-1).tolist())]
        per_client = lengths.shape[1]
        return [blocks[i * per_client : (i + 1) * per_client] for i in range(len(lengths))]


def blocks_of(lists: Sequence[Sequence[bytes]], device: Any) -> Blocks:
    """Each client's blocks, moved to a device; all clients have the same number."""
    lengths = np.array([[len(block) for block in blocks] for blocks in lists], dtype=np.int32)
    data = bytearray(b"".join(block for blocks in lists for block in blocks)) or bytearray(1)
    return Blocks(torch.frombuffer(data, dtype=torch.uint8).to(device), torch.from_numpy(lengths).to(device))


def check_job(task: CodingTask) -> None:
    """Refuses what is coded on the CPU only."""
    what = cpu_only(task.coder, task.plan.n)
    if what is not None:
        raise NotImplementedError(
            f"{what} runs on the CPU only: encode update.cpu() and decode without device=…, or use cepam.Integer(1)"
        )


def check_update(update: Any, dimensions: int = 1) -> Any:
    """The update itself, or rows of updates (two dimensions), contiguous."""
    if update.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the update must be float32 or float64, got {update.dtype}")
    if update.ndim != dimensions:
        wanted = "the update must have one dimension" if dimensions == 1 else "updates must be rows (clients, m)"
        raise ValueError(f"{wanted}, got shape {tuple(update.shape)}")
    return update.detach().contiguous()


def ends_of(values: Any) -> tuple[float, float]:
    """The least and the largest value; NaN if there is one."""
    low, high = torch.aminmax(values)
    return float(low), float(high)


def ends_of_rows(rows: Any) -> list[tuple[float, float]]:
    """The least and the largest value of each row, NaN if there is one; zeros for rows without values."""
    if not rows.numel():
        return [(0.0, 0.0)] * len(rows)
    low, high = torch.aminmax(rows, dim=1)
    return [(least, most) for least, most in torch.stack([low, high], dim=1).tolist()]


@dataclass(frozen=True, eq=False)
class HostRuns:
    """An update on a GPU of which slices are read on the host: the choice of a lattice looks at a few."""

    values: Any

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Any:
        return self.values[part].cpu().numpy()


def encode_values(task: CodingTask, values: Any) -> list[bytes]:
    """The blocks of one update (m) on a GPU."""
    return encode_rows([task], values[None])[0]


def encode_rows(jobs: Sequence[CodingTask], rows: Any) -> list[list[bytes]]:
    """Each client's blocks, from updates (clients, m) on a GPU; the jobs differ in their keys only."""
    for task in jobs:
        check_job(task)
    return encode_blocks(jobs[0].plan, [task.key for task in jobs], rows, jobs[0].per_block).to_lists()


def decode_values(task: CodingTask, blocks: Sequence[bytes], count: int, double: bool, device: str) -> Any:
    """The decoded values (m) of one message's blocks, on a GPU."""
    return decode_rows([task], [blocks], count, double, device)[0]


def decode_rows(
    jobs: Sequence[CodingTask], blocks: Sequence[Sequence[bytes]], count: int, double: bool, device: str
) -> Any:
    """The decoded values (clients, m) of messages of one size, on a GPU; jobs differ in their keys only."""
    for task in jobs:
        check_job(task)
    if torch.device(device).type != "cuda" and not triton.knobs.runtime.interpret:
        raise ValueError(f"device must name a GPU such as 'cuda', got {device!r}: leave it out to decode on the CPU")
    keys, dtype = [task.key for task in jobs], torch.float64 if double else torch.float32
    return decode_blocks(jobs[0].plan, keys, blocks_of(blocks, device), count, dtype, jobs[0].per_block)


def encode_blocks(
    plan: Plan, keys: Sequence[bytes], x: Any, length: int, tile: Tile = CODER_TILE, room: int = 0
) -> Blocks:
    """The coded blocks of updates (clients, m), `length` coordinates each; all values must be within the plan's reach.

    Guarantee: the bytes of the other backends (tests/identity/test_triton.py). `room`: the first guess, in words.
    """
    _check(plan, x, keys, length, tile)
    on, (clients, count) = device_plan(plan, str(x.device)), x.shape
    blocks = -(-count // length)
    if not clients * blocks:
        return Blocks(x.new_empty(0, dtype=torch.uint8), x.new_zeros((clients, blocks), dtype=torch.int32))
    headers = measure_headers(on, x, length)
    columns, scale = torch.stack([(headers & 2047).amax(), (headers >> 11).amax()]).tolist()
    call = _Wave(on, device_keys(keys, str(x.device)), x, length, max(columns, 1), tile)
    lengths = x.new_zeros(clients * blocks, dtype=torch.int32)
    parts, begin, room = [], 0, room or _first_room(plan, scale, length)
    while begin < len(lengths):
        lanes = min(call.lanes_a_wave(4 * room), len(lengths) - begin)
        mine = lengths[begin : begin + lanes]
        part = call.encode(headers, begin, room, mine)
        if part is None:
            room *= 4
            continue
        parts.append(part)
        begin += lanes
    data = parts[0] if len(parts) == 1 else torch.cat(parts)
    return Blocks(data, lengths.reshape(clients, blocks))


def decode_blocks(
    plan: Plan,
    keys: Sequence[bytes],
    blocks: Blocks,
    count: int,
    dtype: Any,
    length: int,
    tile: Tile = CODER_TILE,
) -> Any:
    """The decoded values (clients, m) on the public grid; any bytes decode to something or raise `MalformedMessage`."""
    device = blocks.data.device
    out = torch.empty((len(blocks.lengths), count), dtype=dtype, device=device)
    _check(plan, out, keys, length, tile)
    if not out.numel():
        return out
    call = _Wave(device_plan(plan, str(device)), device_keys(keys, str(device)), out, length, LARGEST_PERIOD + 1, tile)
    lengths = blocks.lengths.reshape(-1)
    starts = lengths.cumsum(0, dtype=torch.int64) - lengths
    flags = torch.zeros(1, dtype=torch.int32, device=device)
    step = call.lanes_a_wave(0)
    for begin in range(0, len(lengths), step):
        call.decode(blocks.data, starts, lengths, flags, begin, min(step, len(lengths) - begin))
    if int(flags.item()):
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return out


def _first_room(plan: Plan, scale: int, length: int) -> int:
    """Words for a block that most updates need not exceed: three bits a coordinate, more above the noise's scale."""
    octaves = scale / 2 - math.log2(plan.scale)
    return max(int(length * (3 + max(octaves, 0.0))) // 32, 16)


def measure_headers(on: DevicePlan, x: Any, length: int) -> Any:
    """Every block's side information, scale and period in one word."""
    count = x.shape[1]
    periods = find_periods(x, 1.0 / on.plan.unit, length)
    scales = torch.empty_like(periods)
    measure_scales[(scales.numel(),)](
        x, on.numbers, scales, count, scales.shape[1], length, chunk=_CHUNK, enable_fp_fusion=False
    )
    return (scales << 11 | periods).reshape(-1)


@lru_cache(maxsize=8)
def _tables(device: str) -> tuple[Any, Any]:
    prior, means = contexts.load_tables()
    return torch.from_numpy(prior.view(np.int16)).to(device), torch.from_numpy(means.astype(np.int32)).to(device)


@dataclass(frozen=True, eq=False)
class _Wave:
    """What all waves of one batch share."""

    on: DevicePlan
    keys: Any
    x: Any
    length: int
    columns: int
    tile: Tile

    def lanes_a_wave(self, slot_bytes: int) -> int:
        """Lanes whose working memory stays within the bound: whole programs, shared evenly by the fewest waves."""
        each = 2 * contexts.CONTEXTS + 2 * self.columns + 8 * 8 * STAGED + slot_bytes
        fit = int(max(BYTES_A_COORDINATE * self.x.numel(), _LEAST_MEMORY)) // (each * self.tile.lanes)
        programs = triton.cdiv(len(self.x) * self._blocks, self.tile.lanes)
        return int(triton.cdiv(programs, triton.cdiv(programs, max(fit, 1)))) * self.tile.lanes

    def scratch(self, lanes: int) -> tuple[Any, Any, Any]:
        """Contexts, columns and the stage of so many lanes."""
        prior, _ = _tables(str(self.x.device))
        programs, wide = triton.cdiv(lanes, self.tile.lanes), self.tile.lanes
        odds = self.x.new_empty((programs, contexts.CONTEXTS, wide), dtype=torch.int16)
        odds.copy_(prior[None, :, None].expand_as(odds))
        column = self.x.new_empty(programs * self.columns * wide, dtype=torch.int16)
        return odds, column, self.x.new_empty(programs * 8 * STAGED * wide, dtype=torch.int64)

    def encode(self, headers: Any, begin: int, room: int, lengths: Any) -> Any:
        """The bytes of the wave's blocks, or nothing where a stream outgrew its slot."""
        lanes = len(lengths)
        slots = self.x.new_empty(lanes * room, dtype=torch.int32)
        encode_lanes[(triton.cdiv(lanes, self.tile.lanes),)](
            self.x, self.keys, self.on.table, self.on.numbers, self.on.plan.step, _tables(str(self.x.device))[1],
            headers, *self.scratch(lanes), slots, lengths, begin, begin + lanes, self.x.shape[1], self._blocks,
            self.length, self.columns, room, layered=self.on.layered, **self._options,
        )  # fmt: skip
        ends = lengths.cumsum(0, dtype=torch.int64)
        longest, total = torch.stack([lengths.amax().to(torch.int64), ends[-1]]).tolist()
        if longest > 4 * room:
            return None
        out = self.x.new_empty(total, dtype=torch.uint8)
        gather_blocks[(lanes,)](slots, lengths, ends - lengths, out, room, chunk=_CHUNK)
        return out

    def decode(self, data: Any, starts: Any, lengths: Any, flags: Any, begin: int, lanes: int) -> None:
        """Fills x with the values of a wave's blocks."""
        decode_lanes[(triton.cdiv(lanes, self.tile.lanes),)](
            self.x, self.keys, self.on.table, self.on.numbers, self.on.plan.step, _tables(str(self.x.device))[1], data,
            starts, lengths, *self.scratch(lanes), flags, begin, begin + lanes, self.x.shape[1], self._blocks,
            self.length, self.columns, layered=self.on.layered, **self._options,
        )  # fmt: skip

    @property
    def _blocks(self) -> int:
        return int(triton.cdiv(self.x.shape[1], self.length))

    @property
    def _options(self) -> dict[str, Any]:
        return {"lanes": self.tile.lanes, "num_warps": self.tile.warps, "enable_fp_fusion": False}


def _check(plan: Plan, rows: Any, keys: Sequence[bytes], length: int, tile: Tile) -> None:
    if plan.n != 1:
        raise NotImplementedError(f"a GPU codes bytes in one dimension only, got a plan in {plan.n}: use the CPU")
    if rows.ndim != 2 or len(rows) != len(keys) or not rows.is_contiguous():
        raise ValueError(f"updates must be contiguous rows, one for each of {len(keys)} keys, got shape {rows.shape}")
    if length % 8 or length <= 0:
        raise ValueError(f"a block must have a multiple of 8 coordinates, got {length}")
    if tile.lanes != 32 * tile.warps:
        raise ValueError(f"the coder's programs must have as many threads as lanes, got {tile}")
