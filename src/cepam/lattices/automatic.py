"""Which lattice makes the smaller message: the rule behind `lattice="auto"` (docs/rate.md explains it).

On the integers every coordinate has contexts of its own, which pays where sizes vary: E8 shares eight. E8 pays where
the noise drowns the update, and where entries are all alike. With mean and rms of |x| over (a sample of) the update,

    E8   if   2 rms^3 < mean^2 scale   or   mean > 0.62 rms,   else the integers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

RUN, RUNS, BITS = 4096, 16, 24
ALIKE = 0.62


def suits_eight(update: npt.NDArray[Any], scale: float) -> bool:
    """Whether E8 is expected to cost less than the integers, under noise of this scale.

    Looks at no more than 16 runs of 4,096 coordinates, spread evenly. Sums are of integers (|x| to 24 bits of the
    largest), so that every machine finds the same.
    """
    sample = np.abs(sample_of(update).astype(np.float64))
    largest = float(sample.max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return False
    per_unit = math.ldexp(1.0, BITS - math.frexp(largest)[1])
    whole = (sample * per_unit).astype(np.int64)
    mean = int(whole.sum()) / len(whole)
    squares = sum(int(run @ run) for run in np.split(whole, range(RUN, len(whole), RUN)))  # 60 bits each
    rms = math.sqrt(squares / len(whole))
    return 2.0 * rms * rms * rms < mean * mean * (scale * per_unit) or mean > ALIKE * rms


def sample_of(update: Any) -> Any:
    """The coordinates that `suits_eight` looks at, of an array or a tensor: all of a short update; and all of these."""
    if len(update) <= RUN * RUNS:
        return update
    step = len(update) // RUNS
    return update[: RUNS * step].reshape(RUNS, step)[:, :RUN].reshape(-1)
