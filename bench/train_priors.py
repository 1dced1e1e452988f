"""Trains the margin coder's starting probabilities on `bench/data/train.npz`; writes `src/cepam/tables/margin.npz`.

The blocks of every training set and noise level are coded in random order with one table that is never reset; what it
has learnt is the prior. Counts are cut to `CONFIDENCE`, so a block that differs can still move away.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from quantize import quantize

from cepam.kernels import margin
from cepam.kernels.stride import find_stride

DATA = Path(__file__).parent / "data" / "train.npz"
TABLE = Path(__file__).parents[1] / "src" / "cepam" / "tables" / "margin.npz"
SIGMAS = (0.2, 0.05, 0.01, 0.003, 0.001, 0.0001)
CONFIDENCE = 30
STEPS = {"early_single": 10, "early_averaged": 10, "late_single": 10, "late_averaged": 10}
CONTROLS = {"gaussian": 16, "laplace": 16, "sparse": 16}


def posterior_means() -> np.ndarray:
    """E|X| and E[X towards the nearer side], in 1/256 of the scale, given k = 0; E of what exceeds a threshold.

    From a Laplace law whose weight on the nearer side follows the sign level; not trained, since a trained mean feeds
    back into the scale it is relative to and drifts when the noise is large.
    """
    means = np.zeros(margin.MEANS, np.int64)
    for at in range(margin.MEANS_TILT):
        near = 2 ** ((at // 54 + 0.5) / 2 - 5)
        far = max(2 ** (at // 9 % 6 + 0.5 - 1), 2 * near) - near
        share = 0.5 + 0.1 * (at % 9 - 4)
        mass = share * -np.expm1(-near) + (1 - share) * -np.expm1(-far)
        up = share * (1 - np.exp(-near) * (1 + near))
        down = (1 - share) * (1 - np.exp(-far) * (1 + far))
        means[at] = round(256 * (up + down) / mass)
        means[margin.MEANS_TILT + at] = round(256 * (up - down) / mass)
    for row in range(24):
        width = 2 ** ((row + 0.5) / 2 - 6)
        means[margin.MEANS_OVER + row] = round(256 * (1 - np.exp(-width) * (1 + width)) / -np.expm1(-width))
    return means


def rates() -> np.ndarray:
    """65536 / (count + 1.5): the step of an adaptive probability that has seen `count` decisions."""
    return (65536 / (np.arange(1024) + 1.5)).astype(np.int64)


def train(blocks: list, means: np.ndarray) -> np.ndarray:
    """Adaptive states after coding all blocks once."""
    odds = np.full(margin.CONTEXTS, 1 << 31, np.uint32)
    out = np.empty(margin.BYTES_A_COORDINATE * 8192 + 16, np.uint8)
    for X, M, B, D in blocks:
        k = M + (D > B >> 1)
        if k.any():
            margin.walk_block(
                out, k, B, D, margin.measure_scale(X), find_stride(X), odds, means, rates(), False
            )
    return (odds >> 10 << 10) | np.minimum(odds & 1023, CONFIDENCE).astype(np.uint32)


def main() -> None:
    rows = np.load(DATA)
    blocks = []
    for name, step in (STEPS | CONTROLS).items():
        for sigma in SIGMAS:
            blocks += [quantize(x, sigma, 1 + i) for i, x in enumerate(rows[name][::step])]
    order = np.random.default_rng(0).permutation(len(blocks))
    means = posterior_means()
    prior = train([blocks[i] for i in order], means)
    np.savez_compressed(TABLE, prior=prior, means=means.astype(np.int16), rates=rates().astype(np.int32))
    print(f"{TABLE.name}: {TABLE.stat().st_size} bytes from {len(blocks)} blocks")


if __name__ == "__main__":
    main()
