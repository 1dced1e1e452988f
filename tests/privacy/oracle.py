"""An oracle by another method: the hockey-stick curve of composed rounds as a contour integral, no grid, no FFT.

delta(eps) = (1/2 pi i) * integral over z = c + it of exp(sum_r K_r(z) - z eps) / (z (z + 1)) dz, c > 0, where
K_r(z) = log E_P[e^(z L_r)] is the cumulant function of the round's loss under the upper law. The path runs through
the saddle point on the real axis. Nothing here imports the package or dp-accounting.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

KINDS = {"replace": ("replace",), "add-remove": ("remove", "add")}


class Round:
    """One sampled Gaussian round: nodes of the loss and their weights under the upper law."""

    def __init__(self, mu: float, p: float, kind: str) -> None:
        x, dx = _nodes(mu)
        q = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * dx
        a = (1 - p) * q + p * np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi) * dx
        loss = np.log1p(p * np.expm1(mu * x - mu**2 / 2)) if p < 1 else mu * x - mu**2 / 2
        if kind == "remove":
            self.loss, self.weight = loss, a
        elif kind == "add":
            self.loss, self.weight = -loss, q
        else:  # the symmetric pair: losses above zero as in "remove", mirrored below, the rest an atom at zero
            up = x > mu / 2
            self.loss = np.concatenate((loss[up], -loss[up], [0.0]))
            atom = max(0.0, 1.0 - a[up].sum() - q[up].sum())
            self.weight = np.concatenate((a[up], q[up], [atom]))
        self.reach = float(np.max(self.loss))

    def cumulant(self, z: np.ndarray) -> np.ndarray:
        exponents = np.multiply.outer(z, self.loss)
        top = np.asarray(np.real(exponents).max(axis=-1))
        return np.log(np.exp(exponents - top[..., None]) @ self.weight) + top


def _nodes(mu: float, panels: int = 60, order: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes on panels, one panel boundary at mu/2 where the symmetric pair is folded."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    edges = np.concatenate((np.linspace(-11, mu / 2, panels), np.linspace(mu / 2, mu + 11, panels)[1:]))
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    return (middle[:, None] + half[:, None] * nodes).ravel(), (half[:, None] * weights).ravel()


def delta(rounds: list[tuple[float, float, int]], kind: str, epsilon: float) -> float:
    """The hockey-stick divergence at e^epsilon of composed rounds, each given as (mu, p, how often)."""
    parts = [(Round(mu, p, kind), many) for mu, p, many in rounds]

    def exponent(z: np.ndarray) -> np.ndarray:
        z = np.asarray(z)
        return sum(many * part.cumulant(z) for part, many in parts) - z * epsilon - np.log(z) - np.log(z + 1)

    found = optimize.minimize_scalar(
        lambda log_c: float(np.real(exponent(math.exp(log_c)))), bounds=(-6, 6), method="bounded"
    )
    c = math.exp(found.x)
    top = float(np.real(exponent(c)))
    step = 1e-3 * c
    curvature = (np.real(exponent(c + step)) + np.real(exponent(c - step)) - 2 * top) / step**2
    width = 1.0 / math.sqrt(curvature)

    nodes, weights = np.polynomial.legendre.leggauss(24)
    total = 0.0
    for start in range(400):
        t = start + (nodes + 1) / 2
        piece = float(np.real(np.exp(exponent(c + 1j * t * width) - top)) @ weights) / 2
        total += piece
        if abs(piece) < 1e-7 * abs(total):
            break
    return total * width * math.exp(top) / math.pi


def worst_delta(rounds: list[tuple[float, float, int]], adjacency: str, epsilon: float) -> float:
    """delta at epsilon for "replace", or the larger of "remove" and "add"."""
    return max(delta(rounds, kind, epsilon) for kind in KINDS[adjacency])
