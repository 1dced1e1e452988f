"""Segments of the search coder decoded on a GPU, many clients at a time: what launches its kernels.

Segments whose blocks have one size go together, in waves as large as the working memory allows. What is left to the
layered quantizer is one block of the scalar coder for each segment, a lane each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from cepam.errors import MalformedMessage
from cepam.kernels.format import search as f
from cepam.kernels.format.plan import Plan, joined
from cepam.kernels.format.row_period import FLAT
from cepam.kernels.triton.batch import BYTES_A_COORDINATE, tables_of
from cepam.kernels.triton.launch import announce, look_at
from cepam.kernels.triton.plan import DevicePlan, device_keys, device_plan
from cepam.kernels.triton.scalar_coder import ModelMemory, walk_flat, walk_lanes
from cepam.kernels.triton.scalar_stage import STATE
from cepam.kernels.triton.search_coder import (
    TILE,
    begin_left,
    fill_signs,
    fill_values,
    find_shifts,
    mark_left,
    put_left,
    read_trees,
    stage_left,
)

look_at((read_trees, find_shifts, fill_signs, fill_values, mark_left, begin_left, stage_left, put_left))
_BYTES_A_PLACE = 10
"""Working memory of a wave for each place of its segments: parts, marks, and the list of what is left."""
LEAST_MEMORY = 1 << 30
LONGEST = 4096
_FIELDS = 3
UNFUSED = {"enable_fp_fusion": False}
ONE = {"num_warps": 1} | UNFUSED


@dataclass(frozen=True)
class Segment:
    """A segment of a client: its number, coordinates and layout (None: all are the layered quantizer's), and of one
    that is decoded (begin, bytes) of both streams in the data of all segments."""

    client: int
    number: int
    count: int
    layout: f.Layout | None
    layered: bool = False
    trees: tuple[int, int] = (0, 0)
    rest: tuple[int, int] = (0, 0)

    def row(self, stream: tuple[int, int], begin: int) -> list[int]:
        """What kernels read of it (`search_coder.ROW`)."""
        blocks, energy = (self.layout.blocks, self.layout.energy_class) if self.layout else (1, 0)
        return [self.client, self.number, self.count, blocks, energy, *stream, begin]


def decode_segments(
    plan: Plan, keys: Sequence[bytes], found: Sequence[Sequence[bytes]], count: int, dtype: Any, device: str
) -> Any:
    """The decoded values (clients, m) on the public grid; any bytes decode to something or raise `MalformedMessage`."""
    out = torch.empty((len(found), count), dtype=dtype, device=device)
    if not out.numel():
        return out
    announce("decode", plan.n, int(plan.search), int(plan.accept))
    each = [joined(blocks) for blocks in found]
    data = np.concatenate([np.frombuffer(blocks.data, dtype=np.uint8) for blocks in each])
    lengths = np.concatenate([blocks.lengths for blocks in each])
    segments = _read(data, lengths, count)
    shared = [f.search_keys(key)[0] for key in keys]
    decoder = _Decoder(
        device_plan(plan, device), device_keys(keys, device), device_keys(shared, device), out, put_on(data, device)
    )
    memory = max(BYTES_A_COORDINATE * out.numel(), LEAST_MEMORY)
    for log_size in sorted({each.layout.log_size for each in segments if each.layout}):
        some = [each for each in segments if each.layout and each.layout.log_size == log_size]
        stride = max(each.layout.places for each in some if each.layout)
        step = max(int(memory / (_BYTES_A_PLACE * stride)), 1)
        for begin in range(0, len(some), step):
            decoder.decode(some[begin : begin + step], log_size, stride)
    whole, step = [each for each in segments if each.layout is None], max(int(memory) >> 18, 1)
    for begin in range(0, len(whole), step):
        part = whole[begin : begin + step]
        decoder.decode_left(part, [each.count for each in part], [-1] * len(part), decoder.nothing, f.SEGMENT)
    if int(decoder.flags[0]):
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return out


def _read(data: Any, lengths: Any, count: int) -> list[Segment]:
    found, ends, many = [], np.cumsum(lengths), -(-count // f.SEGMENT)
    for place, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist())):
        client, number = divmod(place, many)
        size, begin = min(count - number * f.SEGMENT, f.SEGMENT), end - length
        if not length:
            raise MalformedMessage("a segment has no class")
        read = f.read_class(int(data[begin]), size)
        if read is None:
            found.append(Segment(client, number, size, None, True, (0, 0), (begin + 1, length - 1)))
            continue
        stream, rest = f.split_segment(data[begin:end].tobytes(), read[1])
        last = end - len(rest)
        trees = (last - len(stream), len(stream))
        found.append(Segment(client, number, size, read[0], read[1], trees, (last, len(rest))))
    return found


def put_on(values: Any, device: str) -> Any:
    """An array on a device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


@cache
def odds_on(device: str) -> Any:
    """The chances of all energy classes and contexts on a device."""
    return put_on(f.load_odds().astype(np.int32).reshape(-1), device)


def grid_of(count: int, each: int) -> tuple[int]:
    """As many programs as so many lanes of `each` need."""
    return (-(-count // each),)


class _Decoder:
    """Rows of values, and what fills them in."""

    def __init__(self, on: DevicePlan, keys: Any, shared: Any, out: Any, data: Any) -> None:
        self.on, self.keys, self.shared, self.out, self.data = on, keys, shared, out, data
        self.device, self.words = str(out.device), out.view(torch.float32)
        self.double, self.count = int(out.dtype == torch.float64), int(out.shape[1])
        self.flags = torch.zeros(4, dtype=torch.int32, device=self.device)
        self.nothing = torch.zeros(1, dtype=torch.int64, device=self.device)

    def _table(self, rows: list[list[int]]) -> Any:
        return put_on(np.array(rows, dtype=np.int64), self.device)

    def decode(self, segments: list[Segment], log_size: int, stride: int) -> None:
        """Fills in the values of segments with blocks of 2^log_size coordinates."""
        many = len(segments)
        table = self._table([each.row(each.trees, 0) for each in segments])
        entries = many * ((stride >> 4) - (stride >> log_size))
        found = torch.zeros(2 * entries, dtype=torch.int32, device=self.device)
        read_trees[(many,)](
            self.data, table, found, odds_on(self.device), many, stride, log_size, lanes=1, **ONE
        )  # fmt: skip
        for size in range(f.SMALLEST, log_size + 1):
            total = many * (stride >> size)
            find_shifts[grid_of(total, TILE)](
                table, found, self.shared, total, many, stride, log_size, size, lanes=TILE, **UNFUSED
            )  # fmt: skip
        groups = many * (stride >> 3)
        signs = torch.empty(groups, dtype=torch.uint8, device=self.device)
        fill_signs[grid_of(groups, TILE)](
            signs, table, found, self.shared, groups, many, stride, log_size, lanes=TILE, **UNFUSED
        )
        fill_values[grid_of(groups, TILE)](
            self.words, self.double, self.count, signs, table, found, self.on.draws(self.shared), groups, many, stride,
            log_size, lanes=TILE, **UNFUSED,
        )  # fmt: skip
        left = torch.zeros((many, stride), dtype=torch.uint8, device=self.device)
        tile = 8 * TILE
        mark_left[(-(-stride // tile), many)](left, table, found, stride, many, stride, log_size, lanes=tile)
        sizes = left.sum(1, dtype=torch.int64).tolist()
        if any((size > 0) != each.layered for each, size in zip(segments, sizes)):
            raise MalformedMessage("a segment's class does not match its parts")
        if any(sizes):
            del found
            coordinates = torch.nonzero(left.view(-1)).view(-1)
            starts = (np.cumsum(sizes) - sizes).tolist()
            some = [i for i, size in enumerate(sizes) if size]
            self.decode_left(
                [segments[i] for i in some], [sizes[i] for i in some], [starts[i] for i in some], coordinates, stride
            )

    def decode_left(
        self, segments: list[Segment], sizes: list[int], starts: list[int], coordinates: Any, width: int
    ) -> None:
        """Fills in the layered coordinates of segments: `coordinates` lists them, each with `width` times its segment's
        place added, from `starts` on; -1 stands for all."""
        many, device, longest = len(segments), self.device, max(sizes)
        table = self._table([each.row(each.rest, begin) for each, begin in zip(segments, starts)])
        prior, means, few = tables_of(1, int(self.on.plan.accept), device)
        state = torch.empty(many * STATE, dtype=torch.int64, device=device)
        self.flags[1] = 0
        begin_left[(many,)](
            self.data, table, put_on(np.array(sizes, dtype=np.int32), device), state, self.flags, lanes=1, **ONE
        )
        columns = int(self.flags[1])
        flat, draws = columns == FLAT, self.on.draws(self.keys)
        chosen = few if flat else prior
        odds = chosen.repeat(many, 1)
        column = torch.empty(many * max(columns, 1), dtype=torch.int16, device=device)
        spare = LEAST_MEMORY // (8 * _FIELDS * many) // 64 * 64
        rows = min(max(spare, TILE), LONGEST, -(-longest // 8) * 8)
        stage = torch.empty(many * rows * _FIELDS + 2, dtype=torch.int64, device=device)
        for first in range(0, longest, rows):
            tiles = (many, -(-rows // TILE))
            stage_left[tiles](
                self.words, self.double, self.count, stage, state, table, coordinates, width, draws, first, rows,
                flat=flat, decoding=True, tile=TILE, **UNFUSED,
            )  # fmt: skip
            options = {"lanes": 1, "decoding": True} | ONE
            if flat:
                walk_flat[(many,)](self.data, stage, state, odds, first, rows, **options)
            else:
                memory = ModelMemory(odds, column, means)
                walk_lanes[(many,)](self.data, stage, state, memory, columns, first, rows, **options)
            put_left[tiles](
                self.words, self.double, self.count, stage, state, table, coordinates, width, self.on.numbers,
                self.flags, first, rows, tile=TILE, **UNFUSED,
            )  # fmt: skip
