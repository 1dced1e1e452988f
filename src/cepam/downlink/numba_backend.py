"""The downlink's arithmetic by the compiled kernels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.wire import BLOCK_COORDINATES
from cepam.kernels.format.broadcast_contexts import first_odds
from cepam.kernels.format.plan import Ints, key_words
from cepam.kernels.numba import broadcast_coder as kernels


@cache
def _prior() -> Any:
    return first_odds()


class CompiledLoop:
    """The compiled kernels; they release the interpreter's lock."""

    def __init__(self, key: bytes) -> None:
        self.key = key_words(key)

    def dithers(self, first: int, count: int) -> Ints:
        out = np.empty(count, dtype=np.int64)
        kernels.fill_dithers(self.key, first, kernels.memory_for(count), out)
        return out

    def places_of_values(self, values: npt.NDArray[Any]) -> Ints:
        out = np.empty(len(values), dtype=np.int64)
        kernels.places_of_values(np.ascontiguousarray(values), out)
        return out

    def places_of_points(self, points: npt.NDArray[Any], dithers: Ints, shift: int) -> Ints:
        out = np.empty(len(points), dtype=np.int64)
        kernels.places_of_points(np.ascontiguousarray(points), dithers, shift, out)
        return out

    def nearest_points(self, places: Ints, dithers: Ints, shift: int) -> Ints:
        out = np.empty(len(places), dtype=np.int64)
        kernels.nearest_points(places, dithers, shift, out)
        return out

    def values_of_places(self, places: Ints) -> npt.NDArray[np.float32]:
        out = np.empty(len(places), dtype=np.float32)
        kernels.values_of_places(places, out)
        return out

    def encode(self, blocks: list[Ints]) -> list[bytes]:
        work, streams = kernels.memory_for(BLOCK_COORDINATES), []
        for block in blocks:
            length = kernels.encode_block(block, _prior(), work)
            streams.append(work.out[:length].tobytes())
        return streams

    def decode(self, streams: list[bytes], lengths: list[int]) -> list[Ints]:
        work, blocks = kernels.memory_for(BLOCK_COORDINATES), []
        for stream, length in zip(streams, lengths):
            blocks.append(np.empty(length, dtype=np.int64))
            kernels.decode_block(np.frombuffer(bytearray(stream), dtype=np.uint8), _prior(), work, blocks[-1])
        return blocks
