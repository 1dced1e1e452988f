"""Measured through real messages: the moments of the FL quantization error, and the distance of the server's steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.distributions.laws import Law
from cepam.lattices.lattice import Lattice
from cepam_paper.theory.descent import clip_rows, stacked
from cepam_paper.theory.distortion import checked_weights, noise_energy, printed_noise_energy
from cepam_paper.theory.problem import Problem

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """A sample mean with its standard error."""

    value: float
    error: float

    def z(self, expected: float) -> float:
        """How many standard errors the mean lies above the expected value."""
        return (self.value - expected) / self.error

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval (normal approximation)."""
        return self.value - 1.96 * self.error, self.value + 1.96 * self.error


@dataclass(frozen=True)
class Moments:
    """||Z||^2 over all N sub-vectors, their padding included, and the mean coordinate of Z, over many draws.

    Paper: Proposition 9 defines Z so, and says N Var(f). `kept` is the energy of the m coordinates that are no padding,
    `expected` m Var(f)/n.
    """

    energy: Mean
    mean: Mean
    kept: Mean
    expected: float
    printed: float


def mean_of(draws: Floats) -> Mean:
    """The mean of independent draws and its standard error."""
    return Mean(float(draws.mean()), float(draws.std(ddof=1) / math.sqrt(len(draws))))


def noise_moments(law: Law, lattice: Lattice, size: int, draws: int, seed: int) -> Moments:
    """The moments of decoded minus sent, for `draws` updates of `size` coordinates with entries of the noise's size."""
    codec, n = Codec(law, lattice, coder="layered"), lattice.dimension
    updates = np.zeros((draws, -(-size // n) * n))
    updates[:, :size] = np.random.default_rng(seed).standard_normal((draws, size)) * law.scale
    error = stacked(codec, seed)(updates, 0) - updates
    return Moments(
        energy=mean_of(np.square(error).sum(axis=1)),
        mean=mean_of(error.mean(axis=1)),
        kept=mean_of(np.square(error[:, :size]).sum(axis=1)),
        expected=noise_energy(law, lattice, size),
        printed=printed_noise_energy(law, lattice, size),
    )


def mean_update(
    codec: Codec, problem: Problem, local: Floats, clip: float, draws: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    """The mean over draws of J = sum p_k (clipped gradient of a sample + noise) at fixed local models (K, m), the
    standard errors of its coordinates, and J-bar, the weighted mean of the full gradients.

    Paper: appendix, E[J] = J-bar.
    """
    draw, p = np.random.default_rng(seed), np.asarray(problem.weights)
    each = np.arange(len(p))[None, :]
    chosen = draw.integers(problem.features.shape[1], size=(draws, len(p)))
    samples = problem.gradient(local[None], problem.features[each, chosen], problem.targets[each, chosen])
    clipped, _ = clip_rows(samples, clip)
    decoded = stacked(codec, seed)(clipped.reshape(-1, problem.size), 0).reshape(clipped.shape)
    sums = np.einsum("k,skm->sm", p, decoded)
    full = problem.gradient(local[:, None], problem.features, problem.targets).mean(axis=1)
    return sums.mean(axis=0), sums.std(axis=0, ddof=1) / math.sqrt(draws), np.einsum("k,km->m", p, full)


def step_distance(
    codec: Codec, gradients: Floats, weights: Sequence[float], clip: float, rate: float, draws: int, seed: int
) -> Mean:
    """E||W^ - W||^2 for one server step from given gradients (K, m): noisy and clipped against neither.

    Paper: the left side of Proposition "weight distance".
    """
    p = checked_weights(weights)
    clipped, _ = clip_rows(gradients, clip)
    rows = np.repeat(clipped[None, :, :], draws, axis=0)
    decoded = stacked(codec, seed)(rows.reshape(-1, gradients.shape[1]), 0).reshape(rows.shape)
    moved = rate * np.einsum("k,skm->sm", p, decoded - gradients)
    return mean_of(np.square(moved).sum(axis=1))
