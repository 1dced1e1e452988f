"""Floors and rivals of the codec on the same vectors, in bits per coordinate, without header or seal.

Entropies of the rivals and floors are ideal: the coder would have to know the law of the entries. The law is the
histogram of the vectors themselves, entries taken as independent (so a coder that sees structure may go below).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

import cepam
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy.quantizer import accepted, dither, layers, nearest

KEY = bytes(32)


def sample(rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Entries drawn from all rows, independently."""
    return np.random.default_rng(seed).choice(rows.reshape(-1).astype(np.float64), count)


def scheme_floor(rows: np.ndarray, sigma: float, draws: int = 1000, entries: int = 8000) -> float:
    """H(M | B, D) of the scalar layered quantizer: the scheme's own floor H(H, M | U, V) for n = 1 (H is always 1)."""
    draw = np.random.default_rng(1)
    x = sample(rows, entries, 2) / sigma
    total = 0.0
    for half, shift in zip(np.sqrt(draw.chisquare(3, draws)), spread(draw, draws)):
        total += entropy(np.floor(x / (2 * half) + shift))
    return total / draws


def spread(draw: np.random.Generator, count: int) -> np.ndarray:
    """Dithers in [0, 1), one in each of `count` equal parts, in random order: less noisy than independent ones."""
    return (draw.permutation(count) + draw.random(count)) / count


def entropy(symbols: np.ndarray) -> float:
    """The entropy of a histogram in bits, with Miller's correction for its finite size."""
    _, seen = np.unique(symbols, return_counts=True)
    share = seen / seen.sum()
    return float(-(share * np.log2(share)).sum() + (len(seen) - 1) / (2 * seen.sum() * np.log(2)))


def eight_floor(rows: np.ndarray, sigma: float, draws: int = 250, entries: int = 1500) -> float:
    """H(H, M | U, V) / 8 on E8 by Monte Carlo, where plug-in entropies of `entries` sub-vectors are not yet biased.

    For each of `draws` layers and dither sequences the same many sub-vectors x are quantized; the entropy of their
    (H, M) is that layer's. NaN where most outcomes are seen once, so that the estimate means nothing.
    """
    plan = layered_plan(cepam.Gaussian(sigma), cepam.E8)
    x = np.trunc(sample(rows, 8 * entries, 3) / plan.unit).astype(np.int64).reshape(-1, 8)
    total, single = 0.0, 0.0
    for number in range(draws):
        ids = np.full(1, number, dtype=np.int64)
        radius, b = layers(plan, KEY, ids)
        h, m = np.zeros(entries, dtype=np.int64), np.zeros_like(x)
        active, trial = np.arange(entries), 0
        while len(active):
            d = dither(plan, KEY, trial, ids, b)
            point, error = nearest(plan, x[active] - d, np.full(len(active), b[0]))
            ends = accepted(plan, error, np.full(len(active), radius[0]))
            trial += 1
            h[active[ends]], m[active[ends]] = trial, point[ends]
            active = active[~ends]
        outcome = np.unique(np.column_stack([h, m]), axis=0, return_counts=True)[1]
        share = outcome / entries
        total += float(-(share * np.log2(share)).sum()) + (len(outcome) - 1) / (2 * entries * np.log(2))
        single += np.mean(outcome == 1) * len(outcome) / entries
    return total / draws / 8 if single / draws < 0.05 else float("nan")


def information(rows: np.ndarray, sigma: float, entries: int = 3000) -> float:
    """I(X; X + Z) in bits for independent entries and Gaussian noise: no scheme of any kind goes below."""
    x = np.sort(sample(rows, entries, 4)) / sigma
    grid = np.arange(x[0] - 8, x[-1] + 8, 0.1)
    density = np.zeros(len(grid))
    for v in x:
        near = slice(*np.searchsorted(grid, (v - 8, v + 8)))
        density[near] += np.exp(-0.5 * (grid[near] - v) ** 2)
    density /= density.sum() * 0.1
    inside = density[density > 0]
    spread = float(-(inside * np.log2(inside)).sum() * 0.1)
    return max(spread - 0.5 * np.log2(2 * np.pi * np.e), 0.0)


def noise_then_dither(rows: np.ndarray, sigma: float, step: float = 1.0, draws: int = 30) -> float:
    """Gaussian + SDQ: add the noise, quantize with cells of `step` sigma, code M ideally given the dither.

    The decoded error is the noise plus a uniform one: already more than the law asks for, and still more bits.
    """
    draw = np.random.default_rng(6)
    x = sample(rows, 20000, 7) / sigma
    total = 0.0
    for shift in draw.random(draws):
        total += entropy(np.floor((x + draw.normal(size=len(x))) / step + shift))
    return total / draws


def shifted_layered(rows: np.ndarray, sigma: float, draws: int = 1000) -> float:
    """A scalar shifted layered quantizer with an ideal coder: H(M | U, V).

    Layers are intervals of equal *length law* shifted so that their smallest length is bounded away from zero
    (Wilson 2000; Hegazy and Li 2022): [-s(1-u), s(u)], s the density's inverse. For the Gaussian the least width is
    2 sigma sqrt(2 log 2), so a fixed-length code would work too.
    """
    draw = np.random.default_rng(8)
    x = sample(rows, 8000, 9) / sigma
    total = 0.0
    for u, shift in zip(draw_shifted(draw, draws), spread(draw, draws)):
        left, right = -np.sqrt(-2 * np.log1p(-u)), np.sqrt(-2 * np.log(u))
        total += entropy(np.floor((x - (left + right) / 2) / (right - left) + shift))
    return total / draws


def draw_shifted(draw: np.random.Generator, count: int) -> np.ndarray:
    """Heights u in (0, 1) with density proportional to the width of the shifted layer."""
    grid = (np.arange(200_000) + 0.5) / 200_000
    width = np.sqrt(-2 * np.log(grid)) + np.sqrt(-2 * np.log1p(-grid))
    return grid[np.searchsorted(np.cumsum(width) / width.sum(), draw.random(count))]


def check_shifted(count: int = 200_000) -> float:
    """The largest gap between the error's distribution under `draw_shifted` and the normal law: it must be tiny."""
    draw = np.random.default_rng(10)
    u = draw_shifted(draw, count)
    left, right = -np.sqrt(-2 * np.log1p(-u)), np.sqrt(-2 * np.log(u))
    error = np.sort(left + (right - left) * draw.random(count))
    return float(np.abs(ndtr(error) - (np.arange(count) + 0.5) / count).max())
