"""Coded blocks from rows of updates on a GPU, and back: what launches the coders' kernels, many clients at a time.

Blocks are coded in waves of lanes, as many as fit the working memory of `BYTES_A_COORDINATE` for each coordinate of the
batch. A wave whose streams outgrow their slots is coded again with larger ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton

from cepam.errors import MalformedMessage
from cepam.kernels.format.plan import Plan
from cepam.kernels.format.row_period import FLAT, LARGEST_PERIOD, SHORTEST
from cepam.kernels.triton import scalar_launch, vector_launch
from cepam.kernels.triton.batch import FEW_BLOCKS, LANES, Batch
from cepam.kernels.triton.compiling import compile_beside, wait_for
from cepam.kernels.triton.plan import DevicePlan, device_keys, device_plan, launching_on
from cepam.kernels.triton.scalar_launch import ScalarLaunch
from cepam.kernels.triton.vector_launch import VectorLaunch


def look_at(kernels: Sequence[Any]) -> None:
    """Let Triton look at the kernels in one order, and skip its comparison of constants before each launch.

    Its key of a compiled kernel depends on which kernels it looked at before. Always in one order, so that a process
    that begins with another lattice, or with decoding, finds what earlier ones compiled. And before every launch it
    compares what it found of constants, which here never change, one by one.
    """
    for kernel in kernels:
        getattr(kernel, "cache_key", None)
        getattr(kernel, "used_global_vals", {}).clear()


look_at((*scalar_launch.KERNELS, *vector_launch.KERNELS))


@dataclass(frozen=True, eq=False)
class CodedBlocks:
    """Coded blocks one after the other: their bytes on a device; on the host the length of each (clients, blocks), and
    whether none seems to have rows, as is most likely where the host has not seen them."""

    data: Any
    lengths: npt.NDArray[np.int64]
    flat: bool = True


@dataclass(frozen=True, eq=False)
class Measured:
    """Updates before they are coded: headers of their blocks on the device; on the host the largest of both parts of a
    header and the largest magnitude of a value (NaN if there is one)."""

    batch: Batch
    headers: Any
    most: tuple[int, int]
    largest: float


def measure(plan: Plan, keys: Sequence[bytes], x: Any, per_block: int) -> Measured:
    """What must be known before updates (clients, m) are coded, whatever their values: the host waits for it once."""
    device = str(x.device)
    batch = Batch(device_plan(plan, device), device_keys(keys, device), x, per_block)
    if not batch.lanes:
        return Measured(batch, None, (0, 0), 0.0)
    announce("encode", plan.n, int(plan.search), int(plan.accept))
    kernels = Kernels.of(batch)
    kernels.wait_for(MEASURING)
    kernels.compile_beside(ENCODING[True])  # the next that is needed, mostly
    found = x.new_zeros(3, dtype=torch.int64)
    headers = batch.measure_headers(found)
    largest, scale, columns = found.cpu().numpy()
    return Measured(batch, headers, (int(scale), int(columns)), float(largest.view(np.float64)))


def encode_measured(found: Measured, room: int = 0, meanwhile: Callable[[], None] | None = None) -> CodedBlocks:
    """The coded blocks of updates, all values within the plan's reach.

    `room` is the first guess of a block's words. While the device codes, `meanwhile` is done.
    Guarantee: the bytes of the other backends (tests/identity/test_triton_coder.py, test_triton_vectors.py).
    """
    batch, (scale, columns) = found.batch, found.most
    parts, lengths, begin = [batch.x.new_empty(0, dtype=torch.uint8)], [np.zeros(0, dtype=np.int64)], 0
    room = room or _first_room(batch.on.plan, scale, batch.per_block)
    if batch.lanes:
        Kernels.of(batch).wait_for(ENCODING[columns == FLAT])
    while begin < batch.lanes:
        lanes = min(batch.lanes_a_wave(_bytes_a_lane(batch, 4 * room, columns, False)), batch.lanes - begin)
        wave = _wave(batch, begin, lanes)
        # Slots have no name here: the next wave's need their memory.
        made, meanwhile = batch.gather(*wave.encode(found.headers, columns, room), room, meanwhile), None
        if made is None:
            room *= 4
            continue
        parts.append(made[0])
        lengths.append(made[1])
        begin += lanes
    data = parts[-1] if len(parts) <= 2 else torch.cat(parts)
    return CodedBlocks(data, np.concatenate(lengths).reshape(len(batch.x), batch.blocks))


def decode_blocks(
    plan: Plan, keys: Sequence[bytes], blocks: CodedBlocks, count: int, dtype: Any, per_block: int
) -> Any:
    """The decoded values (clients, m) on the public grid; any bytes decode to something or raise `MalformedMessage`."""
    device = blocks.data.device
    out = torch.empty((len(blocks.lengths), count), dtype=dtype, device=device)
    batch = Batch(device_plan(plan, str(device)), device_keys(keys, str(device)), out, per_block)
    if not out.numel():
        return out
    announce("decode", plan.n, int(plan.search), int(plan.accept))
    flags, starts, lengths = _put_table(blocks.lengths.reshape(-1), device)
    step = batch.lanes_a_wave(_bytes_a_lane(batch, 0, LARGEST_PERIOD + 1, True))

    def decode(flat: bool) -> list[int]:
        Kernels.of(batch).wait_for(DECODING[flat])
        for begin in range(0, len(lengths), step):
            wave = _wave(batch, begin, min(step, len(lengths) - begin))
            wave.decode(blocks.data, starts, lengths, flags, FLAT if flat else None)
        return list(flags[:2].tolist())

    # Blocks say themselves whether they have rows. One that seemed to have none and has some is decoded again.
    flat = blocks.flat or plan.n > 1
    outside, period = decode(flat)
    if flat and period != FLAT:
        flags.zero_()
        outside, period = decode(False)
    if outside:
        raise MalformedMessage("a block decodes to nothing that this codec sends")
    return out


def compile_ahead(plan: Plan, per_block: int, blocks: int, device: str) -> None:
    """Start compiling what codes and decodes so many blocks on the lattice of this plan, whatever the updates,
    unless it is there."""
    kind = Kernels(device_plan(plan, device), per_block, blocks >= FEW_BLOCKS)
    for way in (MEASURING, *ENCODING.values(), *DECODING.values()):
        if way.columns == FLAT or plan.n == 1:
            kind.compile_beside(way)


@dataclass(frozen=True, eq=False)
class Kernels:
    """What the coder's kernels are compiled for: a plan on a device, sub-vectors of a block, many blocks or few."""

    on: DevicePlan
    per_block: int
    many: bool

    @classmethod
    def of(cls, batch: Batch) -> Kernels:
        """Those of a batch."""
        return cls(batch.on, batch.per_block, batch.width == LANES)

    def compile_beside(self, way: Way) -> None:
        """Start compiling in a thread what this way launches, unless it is there."""
        compile_beside(self._name(way), partial(self._launch, way))

    def wait_for(self, way: Way) -> None:
        """Wait until what this way launches is compiled, if that was started."""
        wait_for(self._name(way))

    def _name(self, way: Way) -> tuple[Any, ...]:
        shape = self.on.shape if self.on.plan.n > 1 else None
        return way, str(self.on.numbers.device), self.many, self.on.layered, shape

    def _launch(self, way: Way) -> None:
        device = self.on.numbers.device
        with launching_on(device):
            x = torch.zeros((1, 64 * self.on.plan.n), device=device)  # so many that rows are looked for
            batch = Batch(self.on, device_keys([bytes(32)], device), x, self.per_block, self.many)
            way.launch(_wave(batch, 0, 1), way.columns)


class Way(NamedTuple):
    """What is done with zeros, as if some block had rows of so many columns."""

    launch: Callable[[Any, int], None]
    columns: int


def _measure(wave: ScalarLaunch | VectorLaunch, columns: int) -> None:
    wave.batch.measure_headers(wave.batch.x.new_zeros(3, dtype=torch.int64))


def _encode(wave: ScalarLaunch | VectorLaunch, columns: int) -> None:
    headers = wave.batch.x.new_full((1,), 1 << 11 if wave.batch.on.plan.n == 1 else 1, dtype=torch.int32)
    wave.batch.gather(*wave.encode(headers, columns, 64), 64)


def _decode(wave: ScalarLaunch | VectorLaunch, columns: int) -> None:
    flags, starts, lengths = _put_table(np.full(1, 8), wave.batch.x.device)
    wave.decode(wave.batch.x.new_zeros(8, dtype=torch.uint8), starts, lengths, flags, columns)


MEASURING = Way(_measure, FLAT)
ENCODING = {flat: Way(_encode, FLAT if flat else SHORTEST) for flat in (True, False)}
DECODING = {flat: Way(_decode, FLAT if flat else SHORTEST) for flat in (True, False)}


def _put_table(lengths: npt.NDArray[np.int64], device: Any) -> tuple[Any, Any, Any]:
    """Flags that are not set, where each block begins and how long it is, on the device, in one copy."""
    count = len(lengths)
    table = np.zeros(4 + 3 * count, dtype=np.int32)  # four flags: what follows is aligned
    np.cumsum(lengths[:-1], out=table[6 : 4 + 2 * count].view(np.int64))
    table[4 + 2 * count :] = lengths
    put = torch.from_numpy(table).to(device, non_blocking=True)
    return put[:4], put[4 : 4 + 2 * count].view(torch.int64), put[4 + 2 * count :]


def _wave(batch: Batch, begin: int, lanes: int) -> ScalarLaunch | VectorLaunch:
    return (ScalarLaunch if batch.on.plan.n == 1 else VectorLaunch)(batch, begin, lanes)


def _bytes_a_lane(batch: Batch, slot: int, columns: int, decoding: bool) -> int:
    if batch.on.plan.n == 1:
        return scalar_launch.bytes_a_lane(batch, slot, columns, decoding)
    return vector_launch.bytes_a_lane(batch, slot)


def _first_room(plan: Plan, scale: int, per_block: int) -> int:
    """Words for a block that most updates need not exceed: three bits per coordinate, more above the noise's scale."""
    octaves = scale / 2 - math.log2(plan.scale)
    return max(int(plan.n * per_block * (3 + max(octaves, 0.0))) // 32, 16)


@cache
def announce(way: str, n: int, search: int, accept: int) -> None:
    """Log one line, which shows on stderr: the first call on a machine compiles for some seconds."""
    if not triton.knobs.runtime.interpret:
        what = "the integers" if n == 1 else f"a lattice in {n} dimensions"
        logging.getLogger("cepam").warning(
            "cepam: GPU kernels that %s on %s are compiled once per machine, which takes some seconds", way, what
        )
