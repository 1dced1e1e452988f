"""The interface of the downlink's arithmetic, and the choice between its two backends."""

from __future__ import annotations

from typing import Any, Protocol, get_args

import numpy as np
import numpy.typing as npt

from cepam.kernels.dispatch import BackendName
from cepam.kernels.format.plan import Ints

BACKENDS = get_args(BackendName)


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


def loop_named(name: BackendName, key: bytes) -> Loop:
    """The loop of this backend, imported when it is asked for: Numba takes a while."""
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    if name == "numpy":
        from cepam.downlink.numpy_backend import ReferenceLoop

        return ReferenceLoop(key)
    from cepam.downlink.numba_backend import CompiledLoop

    return CompiledLoop(key)
