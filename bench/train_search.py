"""Measures the chances in `kernels/format/tables/search.npz` on synthetic updates: a new table is a new wire version.

    python bench/train_search.py            # shows what the table would be worth
    python bench/train_search.py --write    # writes it

Updates are Gaussian and heavier-tailed, from -45 to -9 dB. Each decision of the trees is counted in its context.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cepam
from cepam.kernels.format import search as f
from cepam.kernels.format.plan import CodingTask, layered_plan
from cepam.kernels.numba import search_coder as coder

TABLE = Path(f.__file__).parent / "tables" / "search.npz"
SEARCHED, HALVES = 2, 1
SIZE, MESSAGES = 40_000, 3
Counts = npt.NDArray[np.float64]


def count_size(ones: Counts, value: int, bits: int) -> None:
    """Counts the decisions of a number: `ones` (contexts, 2) of zeros and ones."""
    places = value.bit_length() - 1
    for length in range(min(places + 1, bits - 1)):
        ones[length, int(length < places)] += 1
    if places:
        ones[bits - 1, value >> (places - 1) & 1] += 1


def count_part(counts: Counts, trees: Any, layout: tuple[int, int], i: int, part: int) -> None:
    """Counts the decisions of a part and of those below it; layout: the blocks' size and class."""
    own = trees.first[i] + part
    ones = counts[max(layout[1] - 2 * (layout[0] - i), 0)]
    kind = int(trees.kind[own])
    ones[f.CONTEXT_SPLIT, int(kind == SEARCHED)] += 1
    if kind == SEARCHED:
        count_size(ones[f.CONTEXT_VECTOR :], int(trees.j[own]), f.VECTOR_BITS)
        count_size(ones[f.CONTEXT_PROPOSAL :], int(trees.k[own]), f.PROPOSAL_BITS)
        return
    if i > f.SMALLEST:
        ones[f.CONTEXT_LAYERED, int(kind != HALVES)] += 1
    if kind == HALVES:
        for side in (0, 1):
            count_part(counts, trees, layout, i - 1, 2 * part + side)


def measure() -> Counts:
    """How often each decision is 0 and 1, of each class."""
    counts = np.zeros((f.CLASSES, f.CONTEXTS, 2))
    rng, plan = np.random.default_rng(11), layered_plan(cepam.Gaussian(1.0), cepam.Integer(1))
    write = coder.write_forest

    def watch(out: Any, log_size: int, blocks: int, energy_class: int, table: Any, trees: Any) -> int:
        for block in range(blocks):
            count_part(counts, trees, (log_size, energy_class), log_size, block)
        return int(write(out, log_size, blocks, energy_class, table, trees))

    coder.write_forest = watch
    try:
        for decibels in np.arange(-45.0, -8.9, 1.25):
            for message in range(MESSAGES):
                x = rng.normal(size=SIZE) * (rng.gamma(0.5, 2.0, size=SIZE) if message % 3 == 0 else 1.0)
                x *= np.sqrt(10.0 ** (decibels / 10.0) / np.mean(x * x))
                coder.encode_span(CodingTask(plan, "search", rng.bytes(32), f.SEGMENT), x, 0)
    finally:
        coder.write_forest = write
    return counts


def main() -> None:
    """Prints the bits per decision before and after; writes the table if asked."""
    counts = measure()
    # A class that was seldom met leans on its neighbours.
    smooth = counts + 0.05 * (np.roll(counts, 1, axis=0) + np.roll(counts, -1, axis=0)) + 0.4
    odds = np.clip(np.rint(65536 * smooth[..., 1] / smooth.sum(axis=-1)), 64, 65536 - 64).astype(np.int64)
    for name, table in (("as shipped", f.load_odds()), ("measured", odds)):
        bits = -(counts[..., 1] * np.log2(table / 65536) + counts[..., 0] * np.log2(1 - table / 65536))
        print(f"{name}: {bits.sum() / counts[:, f.CONTEXT_SPLIT].sum():.4f} bits per part")
    if "--write" in sys.argv:
        np.savez_compressed(TABLE, odds=odds.astype(np.uint16))


if __name__ == "__main__":
    main()
