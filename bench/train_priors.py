"""Trains the margin coder's prior on `bench/data/train.npz`; writes `src/cepam/kernels/format/tables/scalar.npz`.

The blocks of every training set and noise level are coded in random order with one table that is never reset;
what it has learnt, averaged over its course, is the prior.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cepam.kernels.format import scalar_contexts as contexts
from cepam.kernels.format.row_period import find_period
from cepam.kernels.numba import scalar_coder
from symbols import BLOCK, scalar_symbols

DATA = Path(__file__).parent / "data" / "train.npz"
TABLE = Path(__file__).parents[1] / "src" / "cepam" / "kernels" / "model" / "tables" / "scalar.npz"
SIGMAS = (0.2, 0.05, 0.01, 0.003, 0.001, 0.0001)
STEPS = {"early_single": 10, "early_averaged": 10, "late_single": 10, "late_averaged": 10}
CONTROLS = {"gaussian": 16, "laplace": 16, "sparse": 16}


def posterior_means() -> np.ndarray:
    """E|X| and E[X towards the nearer side], in 1/256 of the scale, given k = 0; E of an excess.

    From a Laplace law whose weight on the nearer side follows the sign level; not trained, since a trained
    mean feeds back into the scale it is relative to and drifts when the noise is large.
    """
    means = np.zeros(contexts.MEANS, np.int64)
    for at in range(contexts.MEANS_TILT):
        near = 2 ** ((at // 180 + 0.5) / 2 - 5)
        far = max(2 ** (at // 30 % 6 + 0.5 - 1), 2 * near) - near
        level = at % contexts.ZONE
        share = 0.5 + 0.1 * (level - 4) * (level < contexts.LEVEL_FLAT)
        mass = share * -np.expm1(-near) + (1 - share) * -np.expm1(-far)
        up = share * (1 - np.exp(-near) * (1 + near))
        down = (1 - share) * (1 - np.exp(-far) * (1 + far))
        means[at] = round(256 * (up + down) / mass)
        means[contexts.MEANS_TILT + at] = round(256 * (up - down) / mass)
    for row in range(24):
        width = 2 ** ((row + 0.5) / 2 - 6)
        means[contexts.MEANS_OVER + row] = round(256 * (1 - np.exp(-width) * (1 + width)) / -np.expm1(-width))
    return means


def train(blocks: list, means: np.ndarray) -> np.ndarray:
    """The adaptive probabilities, averaged over their course through all blocks without a reset."""
    odds, work = np.full(contexts.CONTEXTS, 1 << 15, np.uint16), scalar_coder.margins_for(BLOCK)
    out = np.empty(contexts.BYTES_A_COORDINATE * BLOCK + 16, np.uint8)
    total = np.zeros(contexts.CONTEXTS)
    for lap in range(2):
        for (_, M, B, D), scale, period in blocks:
            if scalar_coder.encode_block(M.copy(), B, D, scale, period, odds, means, work, out):
                odds = work.odds.copy()
            total += lap * odds
    return np.rint(total / len(blocks)).astype(np.uint16)


def main() -> None:
    rows = np.load(DATA)
    blocks = []
    for name, step in (STEPS | CONTROLS).items():
        for sigma in SIGMAS:
            blocks += [scalar_symbols(x, sigma, 1 + i) for i, x in enumerate(rows[name][::step])]
    blocks = [(block, scalar_coder.measure_scale(block[0]), find_period(block[0])) for block in blocks]
    order = np.random.default_rng(0).permutation(len(blocks))
    means = posterior_means()
    prior = train([blocks[i] for i in order], means)
    np.savez_compressed(TABLE, prior=prior, means=means.astype(np.int16))
    print(f"{TABLE.name}: {TABLE.stat().st_size} bytes from {len(blocks)} blocks")


if __name__ == "__main__":
    main()
