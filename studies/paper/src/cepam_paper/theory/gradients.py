"""Bounds on mini-batch gradients: their variance, their second moment, and what clipping removes.

Proofs: docs/paper/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam_paper.theory.distortion import checked_weights

Floats = npt.NDArray[np.float64]


def clipping_loss(norms: npt.ArrayLike, clip: float) -> Floats:
    """How far clipping to norm `clip` moves vectors of these norms: max(0, norm - clip)."""
    return np.maximum(np.asarray(norms, dtype=np.float64) - clip, 0.0)


def clipping_loss_bound(square: npt.ArrayLike, clip: float) -> Floats:
    """A bound on E max(0, ||X|| - clip) by E||X||^2 alone: E||X||^2 / (4 clip), since (x - 2 clip)^2 >= 0."""
    return np.asarray(square, dtype=np.float64) / (4.0 * clip)


@dataclass(frozen=True)
class GradientBounds:
    """What is known of the clients' gradients on the domain, client by client.

    Args:
        smoothness: L; every F_k has L-Lipschitz gradients.
        weights: p_k.
        full_norms: G_k, bounds on ||grad F_k||.
        variances: s_k^2, bounds on E||g - grad F_k||^2 for the gradient g of one record drawn uniformly.
        sample_norms: M_k, bounds on ||g|| for every record; infinite where there is none.
    """

    smoothness: float
    weights: tuple[float, ...]
    full_norms: tuple[float, ...]
    variances: tuple[float, ...]
    sample_norms: tuple[float, ...]

    def __post_init__(self) -> None:
        clients = len(checked_weights(self.weights))
        lists: tuple[Sequence[float], ...] = (self.full_norms, self.variances, self.sample_norms)
        if any(len(one) != clients or min(one) < 0 for one in lists):
            raise ValueError(f"full_norms, variances and sample_norms must be {clients} numbers of at least 0 each")
        if not 0 < self.smoothness < math.inf:
            raise ValueError(f"smoothness must be positive and finite, got {self.smoothness}")

    def variance(self, batch: int, clip: float = math.inf) -> Floats:
        """Bounds on the variance of a client's clipped mini-batch gradient: min(s_k^2 / b, gamma^2).

        Clipping is a projection, hence does not increase a variance. Draws without replacement vary less.
        """
        return np.minimum(np.asarray(self.variances) / _checked(batch), clip**2)

    def second_moment(self, batch: int) -> Floats:
        """theta_k(b)^2 = min(G_k^2 + s_k^2 / b, M_k^2): bounds on E||X||^2 of a mini-batch gradient X."""
        spread = np.square(self.full_norms) + np.asarray(self.variances) / _checked(batch)
        return np.minimum(spread, np.square(self.sample_norms))

    def clipping_error(self, batch: int, clip: float) -> Floats:
        """c_k: bounds on E||X - clip(X)|| of a mini-batch gradient X, the least of three.

        (M_k - gamma)_+; theta_k(b)^2 / (4 gamma); and, where gamma > G_k, s_k^2 / (4 b (gamma - G_k)), which falls with
        the batch. Guarantee: paper_tests/theory/test_gradients.py, by enumeration of all batches.
        """
        if math.isinf(clip):
            return np.zeros(len(self.weights))
        if not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}")
        room = clip - np.asarray(self.full_norms)
        beyond = np.full(len(room), math.inf)
        np.divide(np.asarray(self.variances) / _checked(batch), 4.0 * room, out=beyond, where=room > 0)
        sharper = np.minimum(clipping_loss_bound(self.second_moment(batch), clip), beyond)
        return np.asarray(np.minimum(clipping_loss(self.sample_norms, clip), sharper))

    def bias(self, batch: int, clip: float) -> float:
        """sum p_k c_k: how far clipping can move the expectation of what the server gets."""
        return float(np.dot(self.weights, self.clipping_error(batch, clip)))

    def update_variance(self, batch: int, clip: float, noise: float) -> float:
        """V = sum p_k^2 (min(s_k^2 / b, gamma^2) + E||Z||^2): bounds the variance of what the server gets."""
        return float(np.square(self.weights) @ (self.variance(batch, clip) + noise))


class ExampleSums(GradientBounds):
    """The same for `update examples`: tau = 1, and X is the sum of clipped gradients of a Poisson sample over b.

    Every record is drawn on its own, b of them on average.
    """

    def variance(self, batch: int, clip: float = math.inf) -> Floats:
        """min(gamma^2, theta_k(1)^2) / b: a record drawn with chance q adds q (1 - q) ||clip(g)||^2 / b^2."""
        return np.minimum(clip**2, self.second_moment(1)) / _checked(batch)

    def clipping_error(self, batch: int, clip: float) -> Floats:
        """c_k as for one record: E X is the mean of all clipped gradients, whatever b is."""
        return super().clipping_error(1, clip)


def _checked(batch: int) -> int:
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch must be a whole number of at least 1, got {batch!r}")
    return batch
