"""Quantile tables of the radius of Gaussian, Laplace or any other noise: one 64-bit word becomes a radius, no libm.

The radius is the latent one, of a superlevel ball of the law. Backends draw it with `radius_of_word`, in
`kernels/numpy/quantizer.py`, `kernels/numba/quantizer.py` and `kernels/triton/layers.py`.

A word is split into a tail (below or above the median), an octave of the tail's probability, one of 32 segments of the
octave, and a position in the segment; the quantile is a polynomial of degree 7 there. The tables of the built-in laws
are computed with arbitrary precision, so every machine holds the same numbers; the common ones are shipped. A law of
one's own is tabulated from its float64 quantiles, and the table's hash in the codec's fingerprint makes two machines
that disagree in a last bit refuse each other's messages instead of decoding them differently.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam._internal.files import cache_folder, write_atomically
from cepam.distributions.laws import Gaussian, Laplace, Law

Floats = npt.NDArray[np.float64]

TAILS = 2
OCTAVES = 64
SEGMENTS = 32
COEFFICIENTS = 8
SMALLEST = 2.0**-30
"""Radii below this many scales are raised to it, so that quotients fit their words; Laplace's fall below with
probability 2^-61, all others never."""
SHAPE = (TAILS, OCTAVES, SEGMENTS, COEFFICIENTS)


def radius_table(law: Law, n: int) -> Floats:
    """The table of the law's radius in dimension n, in units of the law's scale."""
    if type(law) is Gaussian:
        return _built_in("gaussian", n)
    if type(law) is Laplace:
        return _built_in("laplace", n)
    return _tabulate_float64(law, n)


@cache
def _built_in(name: str, n: int) -> Floats:
    for place in (resources.files("cepam.distributions") / "tables", cache_folder() / "tables"):
        table = _load(place / f"{name}-{n}.npz")
        if table is not None:
            break
    else:
        table = tabulate_exactly(name, n)
        _store(cache_folder() / "tables" / f"{name}-{n}.npz", table)
    table.setflags(write=False)
    return table


def _load(entry: Any) -> Floats | None:
    """The table in a file, or None if there is none or the file is damaged or of another shape."""
    try:
        with entry.open("rb") as file, np.load(file) as archive:
            table = np.asarray(archive["table"], dtype=np.float64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return table if table.shape == SHAPE else None


def _store(path: Path, table: Floats) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, table=table)
    with suppress(OSError):  # a read-only home costs some seconds next time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())


def segment_edges() -> tuple[Floats, Floats]:
    """The lower edge and the width, in probability of the tail, of every (octave, segment)."""
    octave = np.ldexp(1.0, -(np.arange(OCTAVES) + 2))[:, None]
    lower = octave * (1.0 + np.arange(SEGMENTS) / SEGMENTS)[None, :]
    return lower, np.broadcast_to(octave / SEGMENTS, lower.shape)


def _nodes() -> Floats:
    """Where a segment's polynomial meets the quantile: Chebyshev's points, as dyadic numbers that no libm can move."""
    return np.array([10, 86, 228, 412, 612, 796, 938, 1014]) / 1024.0


def _tabulate_float64(law: Law, n: int) -> Floats:
    lower, width = segment_edges()
    p = lower[..., None] + width[..., None] * _nodes()
    values = np.stack([law.radius_below(p, n), law.radius_above(p, n)]).astype(np.float64)
    if not np.isfinite(values).all() or (values <= 0).any():
        raise ValueError(f"{law!r} gives a latent radius that is not finite and positive in dimension {n}")
    rows = [tuple(row) for row in values.reshape(-1, COEFFICIENTS).tolist()]
    fits = {row: _fit(row) for row in set(rows)}  # a uniform ball has one radius, and a second of equal rows
    table = np.array([fits[row] for row in rows]).reshape(SHAPE)
    table.setflags(write=False)
    return table


def _fit(values: Sequence[Any]) -> list[float]:
    """The polynomial through a segment's values at the nodes, lowest coefficient first.

    With exact weights: an inverse in float64 would lose fourteen bits to its condition number.
    """
    import mpmath

    if max(values) <= SMALLEST:
        return [SMALLEST] + [0.0] * (COEFFICIENTS - 1)
    with mpmath.workdps(40):
        return [float(mpmath.fdot(weights, values)) for weights in _inverse_vandermonde()]


def tabulate_exactly(name: str, n: int) -> Floats:
    """The table of a built-in law from quantiles at 40 digits: the same bits on every machine."""
    import mpmath

    lower, width = segment_edges()
    table = np.empty(SHAPE)
    with mpmath.workdps(40):
        for tail in range(TAILS):
            quantile = _quantile(mpmath, name, n, upper=bool(tail))
            for octave in range(OCTAVES):
                for segment in range(SEGMENTS):
                    low, wide = mpmath.mpf(lower[octave, segment]), mpmath.mpf(width[octave, segment])
                    table[tail, octave, segment] = _fit([quantile(low + wide * mpmath.mpf(t)) for t in _nodes()])
    return table


@cache
def _inverse_vandermonde() -> list[list[Any]]:
    import mpmath

    matrix = mpmath.matrix([[mpmath.mpf(t) ** i for i in range(COEFFICIENTS)] for t in _nodes()])
    inverse = mpmath.inverse(matrix)
    return [[inverse[i, j] for j in range(COEFFICIENTS)] for i in range(COEFFICIENTS)]


def _quantile(mpmath: Any, name: str, n: int, upper: bool) -> Callable[[Any], Any]:
    """The quantile of the radius: a float64 guess, then Newton's method on the gamma distribution at 40 digits."""
    from scipy import special

    shape = mpmath.mpf(n) / 2 + 1 if name == "gaussian" else mpmath.mpf(n) + 1
    normaliser = mpmath.gamma(shape)
    guess = special.gammainccinv if upper else special.gammaincinv

    def quantile(p: Any) -> Any:
        x = mpmath.mpf(float(guess(float(shape), float(p))))
        for _ in range(2):
            reached = mpmath.gammainc(shape, x, mpmath.inf) if upper else mpmath.gammainc(shape, 0, x)
            miss = (reached - p * normaliser) / (x ** (shape - 1) * mpmath.exp(-x))
            x = x + miss if upper else x - miss
        return mpmath.sqrt(2 * x) if name == "gaussian" else x

    return quantile
