"""A wave of blocks in one dimension: staged, walked and, decoding, put in place, a segment of coordinates at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton

from cepam.kernels.model.row_period import LARGEST_PERIOD
from cepam.kernels.triton.batch import Wave
from cepam.kernels.triton.scalar_coder import STATE, begin_decoding, begin_encoding, finish_encoding, walk_lanes
from cepam.kernels.triton.scalar_stage import CODED_FIELDS, DECODED_FIELDS, TILE, fill_stage, put_values

SHORTEST_SEGMENT = 128
_TILED = {"tile": TILE, "num_warps": TILE // 32, "enable_fp_fusion": False}


def bytes_a_lane(slot: int, decoding: bool) -> int:
    """Working memory of a lane with the shortest segments and the longest rows, contexts not counted."""
    fields = DECODED_FIELDS if decoding else CODED_FIELDS
    return slot + 2 * (LARGEST_PERIOD + 1) + 8 * (STATE + fields * SHORTEST_SEGMENT)


class ScalarWave(Wave):
    """Lanes of a batch, staged, walked and put in place by segments."""

    def encode(self, headers: Any, columns: int, room: int, lengths: Any) -> Any:
        """The bytes of the wave's blocks, or nothing where a stream outgrew its slot."""
        batch = self.batch
        slots, state = batch.x.new_empty(self.lanes * room, dtype=torch.int32), self._words(STATE)
        begin_encoding[(self.programs,)](headers, state, slots, *self.place, room, **batch.options)
        scratch = self._scratch(columns)
        for first, rows, stage in self._segments(CODED_FIELDS, 4 * room + 2 * columns):
            self._fill(stage, first, rows, decoding=False)
            walk_lanes[(self.programs,)](
                stage, state, *scratch, batch.tables[1], slots, slots, lengths, *self.place, columns, room, first, rows,
                decoding=False, **batch.options,
            )  # fmt: skip
        finish_encoding[(self.programs,)](state, slots, lengths, *self.place, room, **batch.options)
        return batch.gather(slots, lengths, room)

    def decode(self, data: Any, starts: Any, lengths: Any, flags: Any) -> None:
        """Fills the batch with the values of the wave's blocks."""
        batch, state = self.batch, self._words(STATE)
        headers = batch.x.new_zeros(self.programs * batch.width, dtype=torch.int32)
        begin_decoding[(self.programs,)](data, starts, lengths, headers, state, *self.place, **batch.options)
        columns = max(int((headers & 2047).amax()), 1)
        scratch = self._scratch(columns)
        for first, rows, stage in self._segments(DECODED_FIELDS, 2 * columns):
            self._fill(stage, first, rows, decoding=True)
            walk_lanes[(self.programs,)](
                stage, state, *scratch, batch.tables[1], data, starts, lengths, *self.place, columns, 0, first, rows,
                decoding=True, **batch.options,
            )  # fmt: skip
            put_values[self._tiles(rows)](
                *batch.values, batch.on.numbers, stage, flags, *self.place, first, rows, batch.width, **_TILED
            )

    def _fill(self, stage: Any, first: int, rows: int, decoding: bool) -> None:
        on = self.batch.on
        fill_stage[self._tiles(rows)](
            *self.batch.values, self.batch.keys, on.table, on.numbers, on.plan.step, stage, *self.place, first, rows,
            self.batch.width, layered=on.layered, decoding=decoding, **_TILED,
        )  # fmt: skip

    def _tiles(self, rows: int) -> tuple[int, int]:
        return self.programs, int(triton.cdiv(rows, 8 * TILE // self.batch.width))

    def _words(self, count: int) -> Any:
        return self.batch.x.new_empty(self.programs * count * self.batch.width, dtype=torch.int64)

    def _scratch(self, columns: int) -> tuple[Any, Any]:
        """Fresh contexts, and room for a row of each lane."""
        column = self.batch.x.new_empty(self.programs * columns * self.batch.width, dtype=torch.int16)
        return self.batch.fresh_odds(self.programs), column

    def _segments(self, fields: int, taken: int) -> Iterator[tuple[int, int, Any]]:
        """(first coordinate, coordinates, stage) of segments as long as the memory that is left allows."""
        each = taken + 2 * len(self.batch.tables[0]) + 8 * STATE
        spare = (self.batch.memory // (self.programs * self.batch.width) - each) // (8 * fields)
        longest = min(self.batch.length, int(self.batch.x.shape[1]))
        rows = min(max(spare // 64 * 64, SHORTEST_SEGMENT), -(-longest // 8) * 8)
        stage = self._words(fields * rows)
        for first in range(0, longest, rows):
            yield first, rows, stage
