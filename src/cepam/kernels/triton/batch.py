"""Rows of updates on a GPU, cut into blocks, one lane for each: what the waves of one batch share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from cepam.kernels.format import scalar_contexts, vector_contexts
from cepam.kernels.triton.layers import Place
from cepam.kernels.triton.plan import DevicePlan, Draws, device_whole
from cepam.kernels.triton.range_coder import gather_blocks
from cepam.kernels.triton.row_period import find_periods
from cepam.kernels.triton.scalar_coder import measure_scales
from cepam.kernels.triton.scalar_model import flat_contexts

LANES, FEW_LANES = 32, 1
"""Blocks that a program codes, one a thread of its warp; one where blocks are few, so that none waits for others."""
FEW_BLOCKS = 4096
BYTES_A_COORDINATE = 1.15
_LEAST_MEMORY = 1 << 30
_CHUNK = 1024


@cache
def tables_of(n: int, accept: int, device: str) -> tuple[Any, Any, Any]:
    """(prior, means, the prior of contexts of the layout without memory) on a device."""
    prior, means = scalar_contexts.load_tables() if n == 1 else vector_contexts.load_tables(accept, n)
    few = flat_contexts(prior) if n == 1 else prior
    prior, means, few = (torch.from_numpy(each.astype(np.int32)).to(device) for each in (prior, means, few))
    return prior, means, few


@dataclass(frozen=True, eq=False)
class Batch:
    """Updates (clients, m), or the room for them, with the plan and a key for each client."""

    on: DevicePlan
    keys: Any
    x: Any
    per_block: int
    many: bool | None = None
    """Whether programs are for many blocks; by default, whether there are many."""

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or len(self.x) != len(self.keys) or not self.x.is_contiguous():
            raise ValueError(f"updates must be contiguous rows, one for each key, got shape {tuple(self.x.shape)}")
        if self.per_block % 8 or self.per_block <= 0:
            raise ValueError(f"a block must have a multiple of 8 sub-vectors, got {self.per_block}")

    @property
    def length(self) -> int:
        """Coordinates of a block."""
        return self.on.plan.n * self.per_block

    @cached_property
    def blocks(self) -> int:
        """Blocks of a client."""
        return -(-int(self.x.shape[1]) // self.length)

    @cached_property
    def lanes(self) -> int:
        """Blocks of all clients."""
        return len(self.x) * self.blocks

    @cached_property
    def width(self) -> int:
        """Lanes of a program of the coder."""
        many = self.lanes >= FEW_BLOCKS if self.many is None else self.many
        return LANES if many else FEW_LANES

    @cached_property
    def options(self) -> dict[str, Any]:
        """What the coder's kernels are compiled with."""
        return {"lanes": self.width, "num_warps": max(self.width // 32, 1), "enable_fp_fusion": False}

    @cached_property
    def words(self) -> Any:
        """The rows as kernels take them, whatever their type: float64 as pairs of float32."""
        return self.x.view(torch.float32)

    @property
    def double(self) -> int:
        """1 where the rows are float64."""
        return int(self.x.dtype == torch.float64)

    @cached_property
    def draws(self) -> Draws:
        """What the batch's noise is drawn with."""
        return self.on.draws(self.keys)

    @cached_property
    def tables(self) -> tuple[Any, Any, Any]:
        """(prior, means, the prior of contexts of the layout without memory) on the device."""
        return tables_of(self.on.plan.n, int(self.on.plan.accept), str(self.x.device))

    @property
    def memory(self) -> int:
        """Bytes that a wave may take beside the update and the message."""
        return int(max(BYTES_A_COORDINATE * self.x.numel(), _LEAST_MEMORY))

    def lanes_a_wave(self, bytes_a_lane: int) -> int:
        """Lanes whose working memory stays within the bound: whole programs, shared evenly by the fewest waves."""
        programs = -(-self.lanes // self.width)
        fit = max(self.memory // (bytes_a_lane * self.width), 1)
        return -(-programs // -(-programs // fit)) * self.width

    def place(self, begin: int, lanes: int) -> Any:
        """So many lanes from lane number `begin` on, as kernels take them."""
        place = Place(int(self.x.shape[1]), begin, begin + lanes, self.blocks, self.per_block, self.double)
        return device_whole(place, str(self.x.device))

    def measure_headers(self, most: Any) -> Any:
        """Every block's side information in one word, its scale and in one dimension its row period; `most`, three
        zeros, gets what `measure_scales` finds largest."""
        headers = periods = self.x.new_empty(self.lanes, dtype=torch.int32)
        if self.on.plan.n == 1:
            periods = find_periods(self.x, 1.0 / self.on.plan.unit, self.length)
        measure_scales[(self.lanes,)](
            self.words, self.on.numbers, periods, headers, most, self.place(0, self.lanes), self.on.plan.n,
            chunk=_CHUNK, enable_fp_fusion=False,
        )  # fmt: skip
        return headers

    def prior(self, flat: bool) -> Any:
        """The odds of all contexts at a block's start, or of those that the layout without memory has."""
        return self.tables[2 if flat else 0]

    def fresh_odds(self, programs: int, flat: bool = False) -> Any:
        """Contexts of so many programs, as every block starts."""
        prior = self.prior(flat)
        odds = self.x.new_empty((programs, len(prior), self.width), dtype=torch.int32)
        return odds.copy_(prior[None, :, None].expand_as(odds))

    def gather(
        self, slots: Any, lengths: Any, room: int, meanwhile: Callable[[], None] | None = None
    ) -> tuple[Any, Any] | None:
        """The bytes of a wave's streams one after the other, and on the host the length of each; nothing where one
        outgrew its slot. While the device still codes, `meanwhile` is done."""
        starts = lengths.cumsum(0, dtype=torch.int64) - lengths
        if meanwhile is not None:
            meanwhile()
        found = lengths.cpu().numpy().astype(np.int64)  # the one wait for the coder
        if found.min() < 0:
            raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
        if found.max() > 4 * room:
            return None
        out = self.x.new_empty(int(found.sum()), dtype=torch.uint8)
        gather_blocks[(len(lengths),)](slots, lengths, starts, out, room, chunk=_CHUNK)
        return out, found


@dataclass(frozen=True, eq=False)
class Wave:
    """So many lanes of a batch from lane number `begin` on."""

    batch: Batch
    begin: int
    lanes: int

    @cached_property
    def programs(self) -> int:
        """Programs of the coder."""
        return -(-self.lanes // self.batch.width)

    @cached_property
    def place(self) -> Any:
        """Which lanes these are, as every kernel takes it."""
        return self.batch.place(self.begin, self.lanes)

    def _streams(self, room: int) -> tuple[Any, Any]:
        """Slots of `room` words for the lanes' streams, and where the length of each is written."""
        new = self.batch.x.new_empty
        return new(self.lanes * room, dtype=torch.int32), new(self.lanes, dtype=torch.int32)
