"""A wave of blocks on a vector lattice: latent radii first, then trials and code in one kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton

from cepam.kernels.triton.batch import LANES, Batch, Wave
from cepam.kernels.triton.vector_coder import decode_vectors, encode_vectors
from cepam.kernels.triton.vector_quantizer import STAGED, fill_radii

KERNELS = (fill_radii, encode_vectors, decode_vectors)


def bytes_a_lane(batch: Batch, slot: int) -> int:
    """Working memory of a lane."""
    return slot + 8 * (STAGED + batch.per_block) + 4 * len(batch.prior(False))


class VectorWave(Wave):
    """Lanes of a batch whose radii come first, then trials and code."""

    def encode(self, headers: Any, columns: int, room: int, lengths: Any) -> Any:
        """The bytes of the wave's blocks, or nothing where a stream outgrew its slot."""
        batch, on = self.batch, self.batch.on
        slots = batch.x.new_empty(self.lanes * room, dtype=torch.int32)
        radii, odds, stage = self._scratch()
        encode_vectors[(self.programs,)](
            *batch.values, batch.keys, radii, on.numbers, on.plan.step, on.plan.trials, batch.tables[1], on.walk,
            headers, odds, stage, slots, lengths, *self.place, room, **on.shape, **batch.options,
        )  # fmt: skip
        return batch.gather(slots, lengths, room)

    def decode(self, data: Any, starts: Any, lengths: Any, flags: Any) -> None:
        """Fills the batch with the values of the wave's blocks."""
        batch, on = self.batch, self.batch.on
        radii, odds, stage = self._scratch()
        decode_vectors[(self.programs,)](
            *batch.values, batch.keys, radii, on.numbers, on.plan.step, on.plan.trials, batch.tables[1], on.walk, data,
            starts, lengths, odds, stage, flags, *self.place, **on.shape, **batch.options,
        )  # fmt: skip

    def _scratch(self) -> tuple[Any, Any, Any]:
        """Latent radii, contexts and a stage."""
        batch = self.batch
        stage = batch.x.new_zeros(self.programs * STAGED * batch.width, dtype=torch.int64)
        radii = batch.x.new_zeros((self.lanes, batch.per_block), dtype=torch.float64)
        if batch.on.layered:
            fill_radii[self.lanes, triton.cdiv(batch.per_block, 8 * LANES)](
                batch.keys, batch.on.table, batch.on.numbers, radii, self.begin, batch.blocks, batch.per_block,
                lanes=LANES, num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
        return radii, batch.fresh_odds(self.programs), stage
