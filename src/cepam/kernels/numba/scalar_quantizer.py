"""The compiled quantizer in one dimension, where the ball is the cell and no trial is ever refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels.model.keystream import LATENT_STREAM
from cepam.kernels.numba.integers import compiled, floor_divide
from cepam.kernels.numba.keystream import fill_words, start_lanes
from cepam.kernels.numba.layers import fill_dithers, fill_widths


@compiled
def widths_and_dithers(plan: Any, key: Any, state: Any, first: Any, count: Any, words: Any, b: Any, d: Any) -> None:
    """Fills b and d with the widths B and dithers D of `count` coordinates from number `first` (a multiple of 8) on."""
    start_lanes(key, state)
    some = words[: -(-count // 128) * 256]
    if plan.accept == 2:
        for i in range(count):
            b[i] = plan.step
    else:
        fill_words(state, LATENT_STREAM, first >> 3, some)
        fill_widths(some.view(np.uint64), plan.table, plan.scale, b[:count])
    fill_words(state, LATENT_STREAM + 1, first >> 3, some)
    fill_dithers(some.view(np.uint64), b[:count], d)


@compiled
def quantize_scalar(x: Any, b: Any, d: Any, m: Any) -> None:
    """Fills m with the nearest multiples (Paper: M), x in units."""
    for i in range(len(x)):
        m[i] = floor_divide(x[i] - d[i] + (b[i] >> 1), b[i])


@compiled
def reconstruct_scalar(m: Any, b: Any, d: Any, half: Any, shift: Any, grid: Any, out: Any) -> Any:
    """Fills out with decoded values on the public grid; False if a point lies outside the range of the format."""
    outside = np.int64(0)
    for i in range(len(m)):
        outside += np.int64(abs(np.float64(m[i]) * np.float64(b[i])) >= 2.0**62)
        out[i] = np.float64((m[i] * b[i] + d[i] + half) >> shift) * grid
    return outside == 0


@compiled
def to_units(values: Any, per_unit: Any, units: Any) -> None:
    """Fills units with values cut toward zero to whole units, so that no norm grows."""
    for i in range(len(values)):
        units[i] = np.int64(np.float64(values[i]) * per_unit)
