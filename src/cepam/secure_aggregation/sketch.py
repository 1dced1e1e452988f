"""A public sketch: m coordinates as m' of them, so that secure aggregation pays for m' only.

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

from cepam.kernels.format.plan import Floats, Ints
from cepam.kernels.numba.masks import transform_rows
from cepam.kernels.numpy.keystream import stream_words
from cepam.secure_aggregation.fields import ByteWriter
from cepam.secure_aggregation.settings import SecAggSettings

_SIGNS, _ROWS = 0, 1
MOST_COORDINATES = 1 << 28


@dataclass(frozen=True)
class Sketch:
    """A public random map of an update to fewer numbers.

    Args:
        coordinates: Length of an update.
        size: Numbers that it is mapped to.
        seed: 32 public bytes that fix the map.
        rows: Into how many rows of equal length the coordinates are split; each is mapped alike. Of residuals times
            features, row by row, the map is residuals times mapped features, whose norm is a product (`squares`).

    Raises:
        ValueError: A value is out of range.

    Guarantee: both ends draw the same signs and rows (integers only), and the mean of restore(apply(x)) over seeds
    is x (tests/secure_aggregation/test_sketch.py).
    """

    coordinates: int
    size: int
    seed: bytes
    rows: int = 1

    def __post_init__(self) -> None:
        if type(self.coordinates) is not int or not 1 <= self.coordinates <= MOST_COORDINATES:
            raise ValueError(f"coordinates must be an integer from 1 to {MOST_COORDINATES}, got {self.coordinates!r}")
        if type(self.rows) is not int or self.rows < 1 or self.coordinates % self.rows:
            raise ValueError(f"rows must divide the {self.coordinates} coordinates, got {self.rows!r}")
        if type(self.size) is not int or not 1 <= self.size <= self.rows * self.padded or self.size % self.rows:
            most, each = self.rows * self.padded, f", a multiple of {self.rows}" if self.rows > 1 else ""
            raise ValueError(f"size must be an integer from 1 to {most}{each}, got {self.size!r}")
        if len(self.seed) != 32:
            raise ValueError(f"seed must be 32 bytes, got {len(self.seed)}")

    @classmethod
    def of(cls, settings: SecAggSettings, coordinates: int, rows: int = 1) -> Sketch:
        """The sketch of a round to `settings.coordinates` numbers, for a model of `coordinates`.

        Args:
            settings: Those of the round, which fix the seed.
            coordinates: Length of an update.
            rows: Into how many rows it is split.

        Returns:
            The sketch.
        """
        writer = ByteWriter(b"cepam sum sketch v1").number(coordinates, 8)
        settings.write(writer)
        return cls(coordinates, settings.coordinates, hashlib.sha256(writer.bytes()).digest(), rows)

    @property
    def columns(self) -> int:
        """The length of a row."""
        return self.coordinates // self.rows

    @property
    def padded(self) -> int:
        """The power of two that the transform works on."""
        return 1 << (self.columns - 1).bit_length()

    @cached_property
    def _flips(self) -> npt.NDArray[np.bool_]:
        words = stream_words(self.seed, _SIGNS, np.arange(-(-self.columns // 64), dtype=np.int64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        return bits[: self.columns].astype(np.bool_)

    @cached_property
    def _rows(self) -> Ints:
        """`size` different rows, each set equally likely: those with the smallest random words."""
        words = stream_words(self.seed, _ROWS, np.arange(self.padded, dtype=np.int64))
        return np.sort(np.argsort(words, kind="stable")[: self.size // self.rows])

    def apply(self, update: npt.NDArray[Any]) -> Floats:
        """The sketch of an update, not yet clipped; the mean of its squared norm is the update's.

        Args:
            update: A vector.

        Returns:
            `size` numbers.

        Raises:
            ValueError: The update has another length.
        """
        values = np.asarray(update)
        if values.shape != (self.coordinates,):
            raise ValueError(f"the update must have {self.coordinates} coordinates, got shape {values.shape}")
        return self._mapped(values.astype(np.float64).reshape(self.rows, -1)).reshape(-1)

    def squares(self, features: npt.NDArray[np.float32]) -> Floats:
        """The squared norm of what the map of one row makes of each row of features.

        Float32 within, so up to a part in 2^14 above what it is: a clip by it keeps its bound.

        Args:
            features: One vector per row.

        Returns:
            A number per row, slightly rounded up.
        """
        mapped = self._mapped(features)
        found: Floats = np.einsum("ij,ij->i", mapped, mapped, dtype=np.float64) * (1.0 + 2.0**-14)
        return found

    def _mapped(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Each row mapped, in the precision that it has."""
        padded = np.zeros((len(rows), self.padded), dtype=rows.dtype)
        np.multiply(rows, self._signs.astype(rows.dtype), out=padded[:, : self.columns])
        transform_rows(padded)
        kept: npt.NDArray[Any] = padded[:, self._rows] * rows.dtype.type(1.0 / math.sqrt(self.size // self.rows))
        return kept

    @cached_property
    def _signs(self) -> Floats:
        return np.where(self._flips, -1.0, 1.0)

    def restore(self, sketch: npt.NDArray[Any]) -> Floats:
        """The estimate of what was sketched: the map's transpose.

        Args:
            sketch: `size` numbers.

        Returns:
            A vector of the update's length.

        Raises:
            ValueError: The sketch has another length.
        """
        values = np.asarray(sketch)
        if values.shape != (self.size,):
            raise ValueError(f"the sketch must have {self.size} numbers, got shape {values.shape}")
        padded = np.zeros((self.rows, self.padded))
        padded[:, self._rows] = values.reshape(self.rows, -1)
        transform_rows(padded)
        spread: Floats = padded[:, : self.columns] * self._signs / math.sqrt(self.size // self.rows)
        return spread.reshape(-1)
