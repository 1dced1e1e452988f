"""Batched launches in one dimension: staged, coded and, decoding, put in place, a segment at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from cepam.kernels.format.row_period import FLAT
from cepam.kernels.triton.batch import Batch, Wave
from cepam.kernels.triton.range_coder import gather_blocks
from cepam.kernels.triton.row_period import correlate_heads, flatten_heads, score_heads
from cepam.kernels.triton.scalar_coder import (
    ModelMemory,
    begin_decoding,
    begin_encoding,
    finish_encoding,
    measure_scales,
    walk_flat,
    walk_lanes,
)
from cepam.kernels.triton.scalar_stage import STATE, TILE, Staged, fields_of, fill_stage, put_values

SHORTEST_SEGMENT, LONGEST_SEGMENT = 128, 4096
KERNELS = (
    *(flatten_heads, correlate_heads, score_heads, measure_scales, gather_blocks, begin_encoding, begin_decoding),
    *(finish_encoding, fill_stage, put_values, walk_flat, walk_lanes),
)
_TILED = {"num_warps": TILE // 32, "enable_fp_fusion": False}


def bytes_a_lane(batch: Batch, slot: int, columns: int, decoding: bool) -> int:
    """Working memory of a lane with the shortest segments and rows of so many columns."""
    return _taken(batch, slot, columns) + 8 * fields_of(decoding, False) * SHORTEST_SEGMENT


def _taken(batch: Batch, slot: int, columns: int) -> int:
    """Bytes of a lane beside its stage."""
    return slot + 2 * columns + 8 * STATE + 4 * len(batch.prior(columns == FLAT))


class ScalarLaunch(Wave):
    """Lanes of a batch, staged, walked and put in place by segments."""

    def encode(self, headers: Any, columns: int, room: int) -> tuple[Any, Any]:
        """Slots that will hold the wave's streams, and the length of each."""
        batch = self.batch
        slots, lengths, state = *self._streams(room), self._words(STATE)
        begin_encoding[(self.programs,)](headers, state, slots, self.place, room, **batch.options)
        walk, flat = None, columns == FLAT
        for first, rows, stage in self._segments(fields_of(False, flat), _taken(batch, 4 * room, columns)):
            self._fill(stage, state, first, rows, Staged(batch.on.layered, False, flat))
            walk = walk or self._walk(slots, state, columns, decoding=False)  # while the device stages
            walk(stage, first, rows)
        finish_encoding[(self.programs,)](state, slots, lengths, **batch.options)
        return slots, lengths

    def decode(self, data: Any, starts: Any, lengths: Any, flags: Any, columns: int | None) -> None:
        """Fills the batch with the values of the wave's blocks; flags[1] tells their largest row period. It is waited
        for, unless `columns` is what is expected: if it is larger then, the values are anything."""
        batch, state = self.batch, self._words(STATE)
        begin_decoding[(self.programs,)](data, starts, lengths, state, self.place, flags, **batch.options)
        columns = int(flags[1]) if columns is None else columns
        walk, flat = None, columns == FLAT
        for first, rows, stage in self._segments(fields_of(True, flat), _taken(batch, 0, columns)):
            self._fill(stage, state, first, rows, Staged(batch.on.layered, True, flat))
            walk = walk or self._walk(data, state, columns, decoding=True)
            walk(stage, first, rows)
            put_values[self._tiles(rows)](
                batch.words, batch.double, stage, state, batch.on.numbers, flags, first, rows,
                lanes=batch.width, **_TILED,
            )  # fmt: skip

    def _walk(self, data: Any, state: Any, columns: int, decoding: bool) -> Callable[[Any, int, int], Any]:
        """What codes a staged segment; without memory in any layout there is less to do."""
        batch, grid, odds = self.batch, (self.programs,), self.batch.fresh_odds(self.programs, columns == FLAT)
        options = {"decoding": decoding} | batch.options
        if columns == FLAT:
            return lambda stage, first, rows: walk_flat[grid](data, stage, state, odds, first, rows, **options)
        column = batch.x.new_empty(self.programs * columns * batch.width, dtype=torch.int16)
        memory = ModelMemory(odds, column, batch.tables[1])
        return lambda stage, first, rows: walk_lanes[grid](data, stage, state, memory, columns, first, rows, **options)

    def _fill(self, stage: Any, state: Any, first: int, rows: int, kind: Staged) -> None:
        batch = self.batch
        fill_stage[self._tiles(rows)](
            batch.words, stage, state, batch.draws, self.place, first, rows, lanes=batch.width, kind=kind, **_TILED
        )

    def _tiles(self, rows: int) -> tuple[int, int]:
        return self.programs, -(-rows // (8 * TILE // self.batch.width))

    def _words(self, count: int) -> Any:
        return self.batch.x.new_empty(self.programs * count * self.batch.width, dtype=torch.int64)

    def _segments(self, fields: int, taken: int) -> Iterator[tuple[int, int, Any]]:
        """(first coordinate, coordinates, stage) of segments as long as the memory that is left allows."""
        spare = (self.batch.memory // (self.programs * self.batch.width) - taken) // (8 * fields)
        longest = min(self.batch.length, int(self.batch.x.shape[1]))
        rows = min(max(spare // 64 * 64, SHORTEST_SEGMENT), LONGEST_SEGMENT, -(-longest // 8) * 8)
        # The coder reads two coordinates ahead.
        stage = self._words(fields * rows + 2)
        for first in range(0, longest, rows):
            yield first, rows, stage
