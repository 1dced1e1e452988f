"""A message's coded blocks in one buffer: a gigabyte of them is no list of a hundred thousand objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class JoinedBlocks(Sequence[bytes]):
    """Blocks one after the other: their bytes in any buffer, and the length of each."""

    data: Any
    lengths: npt.NDArray[np.int64]

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """Where each block ends in the buffer."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        end, length = int(self.ends[place]), int(self.lengths[place])
        return bytes(memoryview(self.data)[end - length : end])


def joined(blocks: Sequence[bytes]) -> JoinedBlocks:
    """The blocks in one buffer, as they are where they already lie in one."""
    if isinstance(blocks, JoinedBlocks):
        return blocks
    return JoinedBlocks(b"".join(blocks), np.array([len(block) for block in blocks], dtype=np.int64))
