"""The scalar quantizer's integers from NumPy's generator: a stand-in for the keystream, to measure rates."""

from __future__ import annotations

import numpy as np


def quantize(x: np.ndarray, sigma: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(X, M, B, D) of an update under Gaussian noise of scale sigma; see docs/rate.md for the symbols."""
    unit = 2.0 ** (np.floor(np.log2(sigma)) - 40)
    draw = np.random.default_rng(seed)
    R = np.floor(sigma / unit * np.sqrt(draw.chisquare(3, x.size))).astype(np.int64)
    B = 2 * R + 1
    D = np.minimum((draw.random(x.size) * B).astype(np.int64), B - 1)
    X = np.trunc(x.astype(np.float64) / unit).astype(np.int64)
    return X, (X - D + R) // B, B, D
