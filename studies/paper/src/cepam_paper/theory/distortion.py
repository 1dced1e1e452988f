"""Distortion: the energy of the FL quantization error, and how far it and clipping move the server's step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cepam.distributions.laws import Law, check_scale
from cepam.lattices.lattice import Lattice


def printed_noise_energy(law: Law, lattice: Lattice, size: int) -> float:
    """N Var(f), the energy of the noise of all N sub-vectors, Var(f) the trace of one sub-vector's covariance.

    Paper: Proposition "FL quantization error". Departs: Var(f) is read as the trace (n sigma^2 for the Gaussian,
    2 n b^2 for Laplace); the paper does not say.
    """
    _check_size(size)
    n = lattice.dimension
    return -(-size // n) * n * law.variance(n)


def noise_energy(law: Law, lattice: Lattice, size: int) -> float:
    """E||Z||^2 of the decoded vector: `size` times the variance of a coordinate.

    Departs: where n does not divide m the noise of the padding is dropped with the padding, so this is less than
    N Var(f); else they are equal. Guarantee: studies/paper/paper_tests/theory/test_distortion.py measures it.
    """
    _check_size(size)
    return size * law.variance(lattice.dimension)


def printed_weight_distance(
    rate: float, weights: Sequence[float], subvectors: int, variance: float, gradient_norm: float
) -> float:
    """eta^2 N (Var(f) + M^2) sum p_k^2.

    Paper: Proposition "weight distance". FALSE in general: it adds clipping errors as if they were independent and
    zero-mean, but those of different clients may all point one way (`counterexamples.aligned_clients`).
    """
    squares = float(np.square(checked_weights(weights)).sum())
    return rate**2 * subvectors * (variance + gradient_norm**2) * squares


def weight_distance(
    rate: float, weights: Sequence[float], noise: float, gradient_norms: Sequence[float], clip: float
) -> float:
    """eta^2 [(sum p_k c_k)^2 + E||Z||^2 sum p_k^2], with c_k = max(0, M_k - gamma) the most that clipping removes.

    Paper: Proposition "weight distance". Departs: clipping errors are added by the triangle inequality, the noise by
    its independence over clients and of everything else; equality when all gradients are equal with norm M.
    Guarantee: studies/paper/paper_tests/theory/test_distortion.py.
    """
    p = checked_weights(weights)
    return rate**2 * (clipping_bias(weights, gradient_norms, clip) ** 2 + noise * float(np.square(p).sum()))


def printed_virtual_error(
    weights: Sequence[float], subvectors: int, variance: float, gradient_norm: float, theta_squares: Sequence[float]
) -> float:
    """sum p_k^2 (theta_k^2 + N (Var(f) + M^2)).

    Paper: Lemma 12. FALSE in general, as the weight distance is: it takes clipping errors for zero-mean. True where
    N >= K, since then N M^2 sum p_k^2 >= M^2.
    """
    squares = np.square(checked_weights(weights))
    return float(squares @ (np.asarray(theta_squares) + subvectors * (variance + gradient_norm**2)))


def virtual_error(
    weights: Sequence[float], noise: float, gradient_norms: Sequence[float], theta_squares: Sequence[float], clip: float
) -> float:
    """(sum p_k c_k)^2 + sum p_k^2 (min(theta_k^2, gamma^2) + E||Z||^2): a bound on E||J - J-bar||^2 "
    "(docs/paper/theory.md)."""
    squares = np.square(checked_weights(weights))
    sent = np.minimum(theta_squares, clip**2) + noise
    return clipping_bias(weights, gradient_norms, clip) ** 2 + float(squares @ sent)


def clipping_bias(weights: Sequence[float], gradient_norms: Sequence[float], clip: float) -> float:
    """sum p_k max(0, M_k - gamma): the most that clipping can move the weighted mean of the clients' gradients."""
    p, norms = checked_weights(weights), np.asarray(gradient_norms, dtype=np.float64)
    if norms.shape != p.shape or not (norms >= 0).all():
        raise ValueError(f"gradient_norms must be {len(p)} non-negative numbers, one a client, got {norms!r}")
    if not math.isinf(clip):
        check_scale("clip", clip)
    return float(p @ np.maximum(norms - clip, 0.0))


def checked_weights(weights: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The clients' weights p_k as an array; they must be non-negative and sum to one."""
    p = np.asarray(weights, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not (p >= 0).all() or abs(p.sum() - 1.0) > 1e-9:
        raise ValueError(f"weights must be non-negative and sum to 1, got {weights!r}")
    return p


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
