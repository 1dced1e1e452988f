"""The adaptive model of quotients in one dimension: numbers and starting tables of the scalar coder (docs/models.md).

The three loops (`numpy.scalar_coder`, `numba.scalar_coder`, `triton.scalar_model`) share these numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FLOOR = 32
"""The least probability of either outcome of a decision, in units of 2**-16."""

NOTHING = 127
OCTAVE, TICKS = 256, 16
LEVELS, LEVEL_FLAT, ZONE = 30, 9, 10
SIDE_AT = 16 * 6 * LEVELS
SIZE_AT = SIDE_AT + 8 * LEVELS
CONTEXTS = SIZE_AT + 24 * 24
MEANS_TILT = SIDE_AT
MEANS_OVER = 2 * SIDE_AT
MEANS = MEANS_OVER + 24
LARGEST = (1 << 31) - 1
LARGEST_BITS = 51
ZERO_RATE, SIDE_RATE, SIZE_RATE = 6, 6, 5
BYTES_A_COORDINATE = 72


@cache
def load_tables() -> tuple[Any, Any]:
    """(prior, means) as shipped: starting probabilities, and posterior means in 1/256 of the scale."""
    with np.load(Path(__file__).parent / "tables" / "scalar.npz") as table:
        return table["prior"], table["means"].astype(np.int64)
