"""What the codec's scalar quantizer makes of a block: the integers X, M, B, D that the margin coder sees."""

from __future__ import annotations

import numpy as np

import cepam
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy.quantizer import dither, layers, quantize

BLOCK = 8192
KEY = cepam.Key(bytes(range(32)))


def address(number: int) -> cepam.Address:
    """An address of its own for every vector of a bench."""
    return cepam.Address(KEY, round=number, client=0)


def scalar_symbols(x: np.ndarray, sigma: float, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(X, M, B, D) of one block under Gaussian noise of scale sigma; docs/models.md has the symbols."""
    plan, key = layered_plan(cepam.Gaussian(sigma), cepam.Integer(1)), address(number).derive().noise
    X = np.trunc(x.astype(np.float64) / plan.unit).astype(np.int64)
    ids = np.arange(len(x), dtype=np.int64)
    _, B = layers(plan, key, ids)
    D = dither(plan, key, 0, ids, B)[:, 0]
    return X, quantize(plan, key, X[:, None])[1][:, 0], B, D
