"""A public sketch: an update of m coordinates as m' of them, so that a sum costs bits for m' only.

Random signs, the Hadamard transform, and m' of its rows, drawn anew in every round from public data. The clip comes
AFTER the sketch: whatever the map does to a norm, what is sent is bounded, so sensitivity is the clip's. The server's
estimate of the sum x is unbiased; to the noise variance σ² of a coordinate it adds |x|² / m' on average.

Paper: Chen, Choquette-Choo, Kairouz, Suresh 2022.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.kernels.model.plan import Floats, Ints
from cepam.kernels.numpy.keystream import stream_words
from cepam.secure.fields import ByteWriter
from cepam.secure.settings import SumSettings

_SIGNS, _ROWS = 0, 1
MOST_COORDINATES = 1 << 28


@dataclass(frozen=True)
class Sketch:
    """A map from `coordinates` to `size` numbers that the 32 public bytes of `seed` fix.

    Guarantee: both ends draw the same signs and rows (integers only), and the mean of restore(apply(x)) over seeds is x
    (tests/secure/test_sketch.py).
    """

    coordinates: int
    size: int
    seed: bytes

    def __post_init__(self) -> None:
        if type(self.coordinates) is not int or not 1 <= self.coordinates <= MOST_COORDINATES:
            raise ValueError(f"coordinates must be an integer from 1 to {MOST_COORDINATES}, got {self.coordinates!r}")
        if type(self.size) is not int or not 1 <= self.size <= self.padded:
            raise ValueError(f"size must be an integer from 1 to {self.padded}, got {self.size!r}")
        if len(self.seed) != 32:
            raise ValueError(f"seed must be 32 bytes, got {len(self.seed)}")

    @classmethod
    def of(cls, settings: SumSettings, coordinates: int) -> Sketch:
        """The sketch of a round to `settings.coordinates` numbers, for a model of `coordinates`."""
        writer = ByteWriter(b"cepam sum sketch v1").number(coordinates, 8)
        settings.write(writer)
        return cls(coordinates, settings.coordinates, hashlib.sha256(writer.bytes()).digest())

    @property
    def padded(self) -> int:
        """The power of two that the transform works on."""
        return 1 << (self.coordinates - 1).bit_length()

    @cached_property
    def _flips(self) -> npt.NDArray[np.bool_]:
        words = stream_words(self.seed, _SIGNS, np.arange(-(-self.coordinates // 64), dtype=np.int64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        return bits[: self.coordinates].astype(np.bool_)

    @cached_property
    def _rows(self) -> Ints:
        """`size` different rows, each set equally likely: those with the smallest random words."""
        words = stream_words(self.seed, _ROWS, np.arange(self.padded, dtype=np.int64))
        return np.sort(np.argsort(words, kind="stable")[: self.size])

    def apply(self, update: npt.NDArray[Any]) -> Floats:
        """The sketch of an update, not yet clipped; the mean of its squared norm is the update's."""
        values = np.asarray(update)
        if values.shape != (self.coordinates,):
            raise ValueError(f"the update must have {self.coordinates} coordinates, got shape {values.shape}")
        padded = np.zeros(self.padded)
        padded[: self.coordinates] = np.where(self._flips, -values.astype(np.float64), values)
        return _hadamard(padded)[self._rows] / math.sqrt(self.size)

    def restore(self, sketch: npt.NDArray[Any]) -> Floats:
        """The estimate of what was sketched: the map's transpose."""
        values = np.asarray(sketch)
        if values.shape != (self.size,):
            raise ValueError(f"the sketch must have {self.size} numbers, got shape {values.shape}")
        padded = np.zeros(self.padded)
        padded[self._rows] = values
        spread = _hadamard(padded)[: self.coordinates] / math.sqrt(self.size)
        return np.where(self._flips, -spread, spread)


def _hadamard(values: Floats) -> Floats:
    """The transform of a power of two of numbers, in place: sums and differences only, in a fixed order."""
    half = 1
    while half < len(values):
        pairs = values.reshape(-1, 2, half)
        low = pairs[:, 0] + pairs[:, 1]
        pairs[:, 1] = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] = low
        half *= 2
    return values
