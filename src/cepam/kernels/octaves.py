"""Logarithms that are exact integers on every backend: the upper bits of an exactly converted float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

OCTAVE = 256
"""Steps of a logarithm to a factor of two."""


@njit(cache=True, forceinline=True)
def log(value: Any) -> Any:
    """256 times a piecewise linear log2 of a non-negative value below 2**53 (0 counts as 1)."""
    return (np.float64(value | 1).view(np.int64) >> 44) - 1023 * OCTAVE


@njit(cache=True, forceinline=True)
def power(exponent: Any) -> Any:
    """The inverse of `log`, for 0 <= exponent < 31 octaves."""
    return ((OCTAVE + (exponent & 255)) << (exponent >> 8)) >> 8


@njit(cache=True, forceinline=True)
def within(value: Any, top: Any) -> Any:
    """`value` held in 0..top."""
    return min(max(value, 0), top)
