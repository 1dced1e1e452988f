"""Synthetic clients: records around a client's own centre, labelled by a client's own rule."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from cepam_paper.theory.problem import LeastSquares, Logistic, Problem

Kind = Literal["logistic regression", "least squares"]
RIDGES = {"logistic regression": 0.1, "least squares": 0.5}


def synthetic(kind: Kind, clients: int, size: int, heterogeneity: float, seed: int, records: int = 60) -> Problem:
    """A problem of K clients in `size` coordinates; at heterogeneity 0 all clients draw from one distribution.

    Client k's records lie around heterogeneity/2·u_k, its rule is w + heterogeneity·v_k, u_k and v_k standard normal.
    Records are scaled to norm at most 1, weights p_k grow evenly from the first client to the last, one to two.
    """
    if kind not in RIDGES:
        raise ValueError(f"kind must be one of {', '.join(RIDGES)}, got {kind!r}")
    if clients < 1 or size < 1 or records < 1 or heterogeneity < 0:
        raise ValueError("clients, size and records must be at least 1, heterogeneity at least 0")
    draw = np.random.default_rng(seed)
    rule = draw.standard_normal(size)
    shifts, turns = draw.standard_normal((2, clients, size)) * heterogeneity
    x = draw.standard_normal((clients, records, size)) + shifts[:, None, :] / 2
    x /= np.maximum(np.linalg.norm(x, axis=2, keepdims=True), 1.0)
    scores = np.einsum("kjm,km->kj", x, rule + turns)
    weights = _weights(clients)
    if kind == "logistic regression":
        y = np.where(draw.random(scores.shape) < 1 / (1 + np.exp(-3 * scores)), 1.0, -1.0)
        return Logistic(x, y, weights, RIDGES[kind])
    y = np.clip(scores + 0.3 * draw.standard_normal(scores.shape), -2.0, 2.0)
    return LeastSquares(x, y, weights, RIDGES[kind])


def _weights(clients: int) -> tuple[float, ...]:
    share: npt.NDArray[np.float64] = np.linspace(1.0, 2.0, clients)
    return tuple((share / share.sum()).tolist())
