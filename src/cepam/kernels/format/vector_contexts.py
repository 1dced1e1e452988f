"""The adaptive model of trials on vector lattices: which context a decision is coded in (docs/models.md).

With x = 0 a trial would end at the point M0 with error e0, which both ends know. Where the update is small against the
noise, acceptance and M = M0 follow from the margin r - |e0| almost surely, so the decisions

    accepted?   M = M0?   then, one by one, how far M lies from where a zero update would be

are coded in contexts of the margin and of r, over a local scale of |x| that follows what was decoded. Both
`vector_coder` loops share these numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MARKS, WIDES = 18, 8
SAME = 2 * MARKS * WIDES
STAY = 2 * SAME
FRACTIONS, STAGES = 4, 3
SIDE = STAY + FRACTIONS * STAGES * WIDES
SIZE = SIDE + FRACTIONS * WIDES
ROWS, ROW = 24, 24
CONTEXTS = SIZE + ROWS * ROW
MEAN_MARKS = 30
MEANS = 2 * MEAN_MARKS * WIDES
RATE, SIZE_RATE = 6, 5
LARGEST_BITS = 52
FARTHEST, LONGEST = 2.0**61, 2.0**62
CLASSES = (2, 3, 4, 5, 8)
"""Dimensions that have a table; others take that of the next lower one."""


def table_number(accept: int, n: int) -> int:
    """The row of the shipped tables for a kind of acceptance and a dimension."""
    return accept * len(CLASSES) + max(i for i, lowest in enumerate(CLASSES) if n >= lowest)


@cache
def load_tables(accept: int, n: int) -> tuple[Any, Any]:
    """(prior, means): starting probabilities, and posterior means of |x| in 1/256 of the local scale."""
    with np.load(Path(__file__).parent / "tables" / "vector.npz") as table:
        number = table_number(accept, n)
        means: npt.NDArray[np.int64] = table["means"][number].astype(np.int64)
        return table["prior"][number], means
