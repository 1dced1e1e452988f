"""The grid's arithmetic behind one interface: compiled, or in NumPy. Both give the same numbers and the same bytes."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.kernels import difference as compiled
from cepam.kernels import difference_reference as reference
from cepam.kernels.chacha import key_words
from cepam.kernels.spans import BackendName
from cepam.plan import Ints
from cepam.wire import BLOCK_COORDINATES

BACKENDS = ("auto", "numba", "numpy")


class Loop(Protocol):
    """What a grid asks of a backend, for consecutive coordinates that start on a whole block."""

    def dithers(self, first: int, count: int) -> Ints:
        """The dithers of `count` coordinates from number `first` on."""

    def places_of_values(self, values: npt.NDArray[Any]) -> Ints:
        """The whole units nearest to values."""

    def places_of_points(self, points: npt.NDArray[Any], dithers: Ints, shift: int) -> Ints:
        """Where points of the grid of this shift lie."""

    def nearest_points(self, places: Ints, dithers: Ints, shift: int) -> Ints:
        """The points of the grid of this shift nearest to places."""

    def values_of_places(self, places: Ints) -> npt.NDArray[np.float32]:
        """The float32 values of places."""

    def encode(self, blocks: list[Ints]) -> list[bytes]:
        """The streams of blocks of differences."""

    def decode(self, streams: list[bytes], lengths: list[int]) -> list[Ints]:
        """The differences in streams, each of its length."""


@cache
def _prior() -> Any:
    return compiled.first_odds()


class CompiledLoop:
    """The kernels of `kernels.difference`; they release the interpreter's lock."""

    def __init__(self, key: bytes) -> None:
        self.key = key_words(key)

    def dithers(self, first: int, count: int) -> Ints:
        out = np.empty(count, dtype=np.int64)
        compiled.fill_dithers(self.key, first, compiled.memory_for(count), out)
        return out

    def places_of_values(self, values: npt.NDArray[Any]) -> Ints:
        out = np.empty(len(values), dtype=np.int64)
        compiled.places_of_values(np.ascontiguousarray(values), out)
        return out

    def places_of_points(self, points: npt.NDArray[Any], dithers: Ints, shift: int) -> Ints:
        out = np.empty(len(points), dtype=np.int64)
        compiled.places_of_points(np.ascontiguousarray(points), dithers, shift, out)
        return out

    def nearest_points(self, places: Ints, dithers: Ints, shift: int) -> Ints:
        out = np.empty(len(places), dtype=np.int64)
        compiled.nearest_points(places, dithers, shift, out)
        return out

    def values_of_places(self, places: Ints) -> npt.NDArray[np.float32]:
        out = np.empty(len(places), dtype=np.float32)
        compiled.values_of_places(places, out)
        return out

    def encode(self, blocks: list[Ints]) -> list[bytes]:
        work, streams = compiled.memory_for(BLOCK_COORDINATES), []
        for block in blocks:
            length = compiled.encode_block(block, _prior(), work)
            streams.append(work.out[:length].tobytes())
        return streams

    def decode(self, streams: list[bytes], lengths: list[int]) -> list[Ints]:
        work, blocks = compiled.memory_for(BLOCK_COORDINATES), []
        for stream, length in zip(streams, lengths):
            blocks.append(np.empty(length, dtype=np.int64))
            compiled.decode_block(np.frombuffer(bytearray(stream), dtype=np.uint8), _prior(), work, blocks[-1])
        return blocks


class ReferenceLoop:
    """The same in NumPy, slow and plain."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def dithers(self, first: int, count: int) -> Ints:
        return reference.dithers_of(self.key, first, count)

    places_of_values = staticmethod(reference.places_of_values)
    places_of_points = staticmethod(reference.places_of_points)
    nearest_points = staticmethod(reference.nearest_points)
    values_of_places = staticmethod(reference.values_of_places)
    encode = staticmethod(reference.encode_blocks)
    decode = staticmethod(reference.decode_blocks)


def loop_named(name: BackendName, key: bytes) -> Loop:
    """The loop of this backend."""
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    return ReferenceLoop(key) if name == "numpy" else CompiledLoop(key)
