"""Ideal code length of the margin contexts for D4 and E8: a prototype that recommends contexts for n > 1.

A sub-vector has a radius r; at every trial both ends know the error e0 that x = 0 would leave, hence the
signed margin r - |e0|. Decisions: accepted? by the margin's sign and size and by r, all over the local
scale; the zero point? by the same; else the difference of lattice points, doubled, coordinate by
coordinate.
"""

from __future__ import annotations

import sys
from math import log2, sqrt
from pathlib import Path

import numpy as np
from numba import njit

SAME_AT, STEP_AT, SIGN_AT, CONTEXTS = 288, 576, 768, 776
SIGMAS = (1.0, 0.2, 0.05, 0.01, 0.001)


@njit
def nearest_d(y, point):
    """The nearest point with integer coordinates of even sum."""
    total, worst, at = 0, -1.0, 0
    for i in range(y.size):
        point[i] = np.rint(y[i])
        total += int(point[i])
        if abs(y[i] - point[i]) > worst:
            worst, at = abs(y[i] - point[i]), i
    if total & 1:
        point[at] += 1.0 if y[at] > point[at] else -1.0


@njit
def nearest(y, point, other):
    """The nearest point of D4 (4 coordinates) or E8 (8 coordinates, D8 and its shift by one half)."""
    nearest_d(y, point)
    if y.size == 8:
        nearest_d(y - 0.5, other)
        other += 0.5
        if ((y - other) ** 2).sum() < ((y - point) ** 2).sum():
            point[:] = other


@njit
def place(margin, radius, scale):
    """Context 0..287: sign of the margin, its size in half octaves, the radius in octaves, over the scale."""
    size = min(max(int((log2(abs(margin) / scale + 1e-9) + 6) * 2), 0), 17)
    wide = min(max(int(log2(radius / scale) + 2), 0), 7)
    return ((18 if margin > 0 else 0) + size) * 8 + wide


@njit
def pay(odds, at, bit, rate):
    """Bits of one decision; the probability learns."""
    p = min(max(odds[at], 0.0005), 0.9995)
    odds[at] += ((1.0 if bit else 0.0) - odds[at]) * rate
    return -log2(p if bit else 1.0 - p)


@njit
def pay_difference(odds, doubled, wide, rate, last):
    """Bits of a non-zero difference of lattice points, given doubled so that E8's halves are odd numbers."""
    bits, odd = 0.0, 0
    for i in range(doubled.size):
        size = abs(int(doubled[i]))
        steps, kind = (size, 0) if i == 0 else ((size - odd) // 2, 1 + odd)
        odd = size & 1 if i == 0 else odd
        for step in range(64):
            bits += pay(odds, STEP_AT + (min(step, 7) * 3 + kind) * 8 + wide, steps > step, rate)
            if steps <= step:
                break
        if size:
            bits += pay(odds, SIGN_AT + 1 + last, doubled[i] > 0, rate)
            last = 1 if doubled[i] > 0 else -1
    return bits, last


@njit
def code(x, sigma, n, odds, rate, first, seed):
    """Bits of an update: accepting, the zero point, differences. `first` is the block's coarse scale."""
    np.random.seed(seed)
    bits = np.zeros(3)
    zero, point, spare = np.zeros(n), np.zeros(n), np.zeros(n)
    scale, last = first, 0
    for at in range(0, x.size - n + 1, n):
        here = x[at : at + n]
        r = sqrt((np.random.normal(0.0, 1.0, n + 2) ** 2).sum()) * sigma
        beta = r * sqrt(2.0)
        near = scale ** (15 / 16) * first ** (1 / 16)
        while True:
            v = np.random.random(n) * 2
            nearest(-v, zero, spare)
            nearest(here / beta - v, point, spare)
            context = place(r - beta * sqrt(((zero + v) ** 2).sum()), r, near)
            accepted = ((point + v - here / beta) ** 2).sum() <= 0.5
            bits[0] += pay(odds, context, accepted, rate)
            if accepted:
                break
        same = (point == zero).all()
        bits[1] += pay(odds, SAME_AT + context, same, rate)
        if same:
            size = 0.95 * near
        else:
            cost, last = pay_difference(odds, 2 * (point - zero), context % 8, rate, last)
            bits[2] += cost
            size = max(np.abs(beta * (point + v)).mean() - 0.24 * r / sqrt(n), 0.25 * near)
        scale = max(scale + 0.3 * (size - scale), first / 64)
    return bits


def measure(name: str, sigma: float, n: int, count: int = 16) -> np.ndarray:
    """Bits a coordinate on test rows, with a prior from training rows."""
    prior = np.full(CONTEXTS, 0.5)
    for part, rate in (("train", 1 / 32), ("train", 1 / 1024), ("test", 1 / 64)):
        rows = np.load(Path(__file__).parent / "data" / f"{part}.npz")[name]
        total, size = np.zeros(3), 0
        for i, x in enumerate(rows[:: max(len(rows) // (4 * count), 1)].astype(np.float64)):
            odds = prior if part == "train" else prior.copy()
            first = 2.0 ** (np.round(2 * np.log2(np.abs(x).mean() + 1e-12)) / 2)
            total += code(x, sigma, n, odds, rate, first, i + 1000 * (part == "test"))
            size += x.size
    return total / size


def main() -> None:
    for name in sys.argv[1:] or ("early_single", "gaussian"):
        for n in (4, 8):
            for sigma in SIGMAS:
                bits = measure(name, sigma, n)
                print(
                    f"{name} {'E8' if n == 8 else 'D4'} sigma {sigma:g}: accept {bits[0]:.4f} "
                    f"same {bits[1]:.4f} difference {bits[2]:.4f} total {bits.sum():.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
