"""What both ends share about the broadcast's grid and the code of its differences: units, contexts, first odds.

`BroadcastLoop` is what a grid asks of a backend.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.plan import Ints

RESOLUTION = 40
DITHER_BITS = 48
DITHER_STREAM = 0
FRACTION = 16
CODES, CODE_BITS, NOTHING = 96, 7, 127
SIZE_CODES, SIZE_CONTEXTS = 16, 24
SIGN_AT = CODES
SIGNS = 3
SIZE_AT = SIGN_AT + SIGNS
CONTEXTS = SIZE_AT + SIZE_CODES * SIZE_CONTEXTS
ZERO_RATE, SIGN_RATE, WINDOW = 7, 7, 5
LARGEST_BITS = 32
BYTES_A_COORDINATE = 64


def first_odds() -> Any:
    """The odds that every block starts from: those of a two-sided geometric law with the context's mean size.

    Only float64 + - * / sqrt in a fixed order, so that all machines agree on the table.
    """
    odds = np.full(CONTEXTS, 32768, dtype=np.uint16)
    thetas = []
    mean = 2.0**-FRACTION
    for code in range(CODES):
        theta = mean / (np.sqrt(1.0 + mean * mean) + 1.0)
        odds[code] = _odds_of(2.0 * theta / (1.0 + theta))
        thetas.append(theta)
        mean = mean * np.sqrt(2.0)
    for row in range(SIZE_CODES):
        going = thetas[2 * FRACTION - SIZE_CODES + 8 + row]
        for length in range(20):
            odds[SIZE_AT + row * SIZE_CONTEXTS + length] = _odds_of(going)
            going = going * going
    return odds


def _odds_of(chance_of_one: float) -> int:
    return int(min(max(np.floor(chance_of_one * 65536.0), 1.0), 65535.0))


class BroadcastLoop(Protocol):
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
