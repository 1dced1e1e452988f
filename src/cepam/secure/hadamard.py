"""The Hadamard transform of rows: sums and differences only, in a fixed order, so that every machine has the same."""

from __future__ import annotations

from typing import Any

from cepam.kernels.numba.integers import compiled


@compiled
def transform_rows(rows: Any) -> None:
    """Transforms every row in place; its length is a power of two.

    Every level is one sum and one difference of a pair, so the order of pairs does not change a bit.
    """
    for r in range(rows.shape[0]):
        row = rows[r]
        half = 1
        while half < len(row):
            for start in range(0, len(row), 2 * half):
                for low in range(start, start + half):
                    one, other = row[low], row[low + half]
                    row[low] = one + other
                    row[low + half] = one - other
            half *= 2
