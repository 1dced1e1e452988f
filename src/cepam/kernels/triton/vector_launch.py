"""Batched launches on vector lattices: latent radii first, then trials and code in one kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton

from cepam.kernels.triton.batch import LANES, Batch, Wave
from cepam.kernels.triton.vector_coder import decode_vectors, encode_vectors
from cepam.kernels.triton.vector_quantizer import STAGED, Given, fill_radii

KERNELS = (fill_radii, encode_vectors, decode_vectors)


def bytes_a_lane(batch: Batch, slot: int) -> int:
    """Working memory of a lane."""
    return slot + 8 * (STAGED + batch.per_block) + 4 * len(batch.prior(False))


class VectorLaunch(Wave):
    """Lanes of a batch whose radii come first, then trials and code."""

    def encode(self, headers: Any, columns: int, room: int) -> tuple[Any, Any]:
        """Slots that will hold the wave's streams, and the length of each."""
        batch, (slots, lengths) = self.batch, self._streams(room)
        given, options = self._given(None), batch.options | {"shape": batch.on.shape}
        encode_vectors[(self.programs,)](batch.words, headers, slots, lengths, given, self.place, room, **options)
        return slots, lengths

    def decode(self, data: Any, starts: Any, lengths: Any, flags: Any, columns: int | None) -> None:
        """Fills the batch with the values of the wave's blocks, of which none has rows."""
        batch, given = self.batch, self._given(flags)
        options = batch.options | {"shape": batch.on.shape}
        decode_vectors[(self.programs,)](batch.words, data, starts, lengths, given, self.place, **options)

    def _given(self, flags: Any) -> Given:
        """What the wave works with, its latent radii filled in."""
        batch = self.batch
        stage = batch.x.new_zeros(self.programs * STAGED * batch.width, dtype=torch.int64)
        radii = batch.x.new_zeros((self.lanes, batch.per_block), dtype=torch.float64)
        if batch.on.layered:
            fill_radii[self.lanes, triton.cdiv(batch.per_block, 8 * LANES)](
                batch.draws, radii, self.begin, batch.blocks, batch.per_block, lanes=LANES, num_warps=1,
                enable_fp_fusion=False,
            )  # fmt: skip
        odds = batch.fresh_odds(self.programs)
        return Given(batch.draws, radii, batch.tables[1], batch.on.walk, odds, stage, flags)
