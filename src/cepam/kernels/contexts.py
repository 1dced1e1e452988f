"""The adaptive model of trials on vector lattices: which context a decision is coded in, and how contexts learn.

With x = 0 a trial would end at the point M0 with error e0, which both ends know. Where the update is small against the
noise, acceptance and M = M0 follow from the margin r - |e0| almost surely, so the decisions

    accepted?   M = M0?   then the coordinates of M - M0

are coded in contexts of the margin (in units of r, on a log scale) and of the recent *activity*: how far the last
sub-vectors were from what x = 0 would have given. `shells` (compiled) and `shells_reference` (NumPy) share these.
"""

from __future__ import annotations

import numpy as np

FINE = 2.0**20
LEVELS = 44
ACTIVITIES = 8
MAGNITUDES = 48
SIGNS = 2

ACCEPT = 0
SAME = ACCEPT + 2 * LEVELS * ACTIVITIES
ZERO = SAME + 2 * LEVELS * ACTIVITIES
LENGTH = ZERO + 16 * ACTIVITIES
SIGN = LENGTH + MAGNITUDES * ACTIVITIES
TOP = SIGN + 16
CONTEXTS = TOP + MAGNITUDES

ONE = 65536
LEAST = 32
SLOWEST = 60
ACTIVITY_STEP = 64
THRESHOLDS = np.array([8, 32, 64, 112, 160, 256, 448], dtype=np.int64)
RATES = np.array([65536 // (2 * c + 3) * 2 for c in range(SLOWEST + 1)], dtype=np.int64)


def first_probabilities() -> np.ndarray:
    """What a block's contexts hold before the first decision: the chance of a 1, in 2^-16."""
    p = np.full(CONTEXTS, ONE // 2, dtype=np.int64)
    quiet = np.array([0.002, 0.01, 0.03, 0.08, 0.15, 0.25, 0.3, 0.35])
    level = np.arange(LEVELS) / 2.0
    for activity in range(ACTIVITIES):
        doubt = np.clip(0.5 * 2.0 ** -np.maximum(level - (6 + 2 * activity), 0.0), quiet[activity] / 4, 0.5)
        for inside in (0, 1):
            at = (inside * LEVELS + np.arange(LEVELS)) * ACTIVITIES + activity
            p[ACCEPT + at] = np.rint(ONE * (1 - doubt if inside else doubt * 0.6))
            p[SAME + at] = np.rint(ONE * (1 - np.clip(doubt, 0.001, 0.6)))
    p[ZERO:LENGTH] = ONE // 2
    return np.clip(p, LEAST, ONE - LEAST)


FIRST = first_probabilities()
