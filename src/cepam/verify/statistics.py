"""Statistics of errors against a law: each returns its value and the probability of one as bad if the law holds.

Errors come as rows, one sub-vector a row. All p-values are for large samples (thousands of rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from cepam.distributions.laws import Law

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_QUANTILE_NODES = 1 << 16
_BINS = 64
_COARSE_BINS = 8


@dataclass(frozen=True)
class Statistic:
    """A number computed from errors, and the probability that it is at least this far out when the law holds."""

    name: str
    value: float
    p_value: float


def kolmogorov_smirnov(u: Floats) -> Statistic:
    """The largest gap between the empirical distribution of u and the uniform one on [0, 1]."""
    ranked = np.sort(u)
    count = len(ranked)
    steps = np.arange(count + 1) / count
    gap = float(max((steps[1:] - ranked).max(), (ranked - steps[:-1]).max()))
    root = np.sqrt(count)
    # Stephens' finite-sample correction of Kolmogorov's limit law.
    return Statistic("KS", gap, float(special.kolmogorov((root + 0.12 + 0.11 / root) * gap)))


def chi_square(counts: npt.ArrayLike, expected: npt.ArrayLike) -> Statistic:
    """Pearson's chi-square of counts whose expectations are known."""
    observed, wanted = np.asarray(counts, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    value = float(((observed - wanted) ** 2 / wanted).sum())
    return Statistic("chi-square", value, float(special.chdtrc(observed.size - 1, value)))


def uniformity(u: Floats, bins: int = _BINS) -> Statistic:
    """Chi-square of u against the uniform distribution on [0, 1], in equal bins."""
    counts = np.bincount(_equal_bins(u, bins), minlength=bins)
    return chi_square(counts, np.full(bins, len(u) / bins))


def orthants(errors: Floats) -> Statistic:
    """Chi-square of the sign patterns of the rows, all 2^n equally likely."""
    n = errors.shape[1]
    pattern = (errors > 0).astype(np.int64) @ (1 << np.arange(n, dtype=np.int64))
    return chi_square(np.bincount(pattern, minlength=1 << n), np.full(1 << n, len(errors) / (1 << n)))


def direction_shares(law: Law, errors: Floats) -> list[Statistic]:
    """Chi-square of each coordinate's share of the norm: uniform directions give it a beta distribution."""
    n = errors.shape[1]
    if n == 1:
        return []
    sizes = errors**2 if law.norm == "l2" else np.abs(errors)
    total = sizes.sum(axis=1, keepdims=True)
    shares = sizes / np.where(total > 0, total, 1.0)  # an error of zero has no direction and counts in the first bin
    uniform = special.betainc(0.5, (n - 1) / 2, shares) if law.norm == "l2" else special.betainc(1.0, n - 1.0, shares)
    return [uniformity(uniform[:, i], 32) for i in range(n)]


def mean(errors: Floats, variance: float) -> Statistic:
    """Chi-square of the mean error, which must be zero: coordinates are uncorrelated with known variance."""
    value = float(len(errors) * (errors.mean(axis=0) ** 2).sum() / variance)
    return Statistic("mean", value, float(special.chdtrc(errors.shape[1], value)))


def variances(errors: Floats, variance: float) -> Statistic:
    """Wald's statistic of the coordinates' variances against the law's; needs finite fourth moments.

    Errors that do not vary enough to have a covariance of full rank follow no law with a density: p-value 0.
    """
    squares = errors**2 / variance - 1.0
    centre = squares.mean(axis=0)
    spread = np.atleast_2d(np.cov(squares, rowvar=False)) / len(errors)
    if np.linalg.matrix_rank(spread) < len(centre):
        return Statistic("variance", np.inf, 0.0)
    value = float(centre @ np.linalg.solve(spread, centre))
    return Statistic("variance", value, float(special.chdtrc(len(centre), value)))


def covariances(errors: Floats) -> Statistic:
    """Chi-square of the off-diagonal covariances: sign symmetry makes them zero and mutually uncorrelated."""
    n = errors.shape[1]
    value = 0.0
    for i in range(n):
        for j in range(i + 1, n):
            product = errors[:, i] * errors[:, j]
            if product.any():
                value += len(product) * product.mean() ** 2 / (product**2).mean()
    return Statistic("covariance", float(value), float(special.chdtrc(n * (n - 1) // 2, value)))


def independence(a: Ints, b: Ints) -> Statistic:
    """Chi-square of independence of two labels; rows and columns that never occur do not count."""
    table = np.zeros((int(a.max()) + 1, int(b.max()) + 1))
    np.add.at(table, (a, b), 1.0)
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    wanted = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    value = float(((table - wanted) ** 2 / wanted).sum())
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return Statistic("independence", value, float(special.chdtrc(freedom, value)))


def probability_labels(u: Floats) -> Ints:
    """Numbers in [0, 1] as one of eight labels, for `independence`."""
    return _equal_bins(u, _COARSE_BINS)


def value_labels(x: Floats) -> Ints:
    """Values as labels for `independence`: one for zero, eight by rank for the rest."""
    kept = x[x != 0]
    if not len(kept):
        return np.zeros(len(x), dtype=np.int64)
    edges = np.unique(np.quantile(kept, np.arange(1, _COARSE_BINS) / _COARSE_BINS))
    return np.where(x == 0, 0, 1 + np.searchsorted(edges, x)).astype(np.int64)


def _equal_bins(u: Floats, bins: int) -> Ints:
    return np.minimum((u * bins).astype(np.int64), bins - 1)


def norms(law: Law, rows: Floats) -> Floats:
    """The norm of each row, in the law's own norm."""
    sizes = np.abs(rows).sum(axis=1) if law.norm == "l1" else np.sqrt((rows**2).sum(axis=1))
    return np.asarray(sizes, dtype=np.float64)


@lru_cache(maxsize=16)
def _latent_nodes(law: Law, n: int) -> tuple[Floats, Floats]:
    """Radii at equally likely quantiles, rising, and for each the sum of radius^-n from there on."""
    half = (np.arange(_QUANTILE_NODES // 2) + 0.5) / _QUANTILE_NODES
    radii = np.concatenate([law.radius_below(half, n), law.radius_above(half, n)[::-1]])
    radii = np.sort(np.asarray(radii, dtype=np.float64))
    above = np.cumsum((radii**-n)[::-1])[::-1]
    return radii, np.append(above, 0.0)


def norm_cdf(law: Law, t: Floats, n: int) -> Floats:
    """The distribution function of the norm of an n-dimensional draw, from the law's latent radius alone.

    A draw is uniform in a ball of random radius R, so P(norm <= t) = E[min(1, (t / R)^n)]: an average over
    the quantiles of R. Guarantee: within 1e-5 of the built-in laws' closed forms (tests/verify/test_statistics.py).
    """
    radii, above = _latent_nodes(law, n)
    reach = np.asarray(t, dtype=np.float64) / law.scale
    below = np.searchsorted(radii, reach, side="right")
    return (below + reach**n * above[below]) / len(radii)
