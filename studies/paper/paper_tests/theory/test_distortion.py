"""Energy of the quantization error and weight distance, measured through messages."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cepam
from cepam_paper.theory.counterexamples import aligned_clients
from cepam_paper.theory.distortion import (
    clipping_bias,
    noise_energy,
    printed_noise_energy,
    printed_virtual_error,
    printed_weight_distance,
    virtual_error,
    weight_distance,
)
from cepam_paper.theory.measured import noise_moments, step_distance

LATTICES = [cepam.Integer(1), cepam.A2, cepam.Integer(3), cepam.E8]


@pytest.mark.parametrize("lattice", LATTICES, ids=lambda lattice: lattice.name)
def test_energy_is_coordinates_times_variance(lattice: cepam.Lattice) -> None:
    found = noise_moments(cepam.Gaussian(0.3), lattice, 25, 4000, seed=2)
    # Four standard errors on eight statistics: a false alarm in 2,000 choices of seeds, and the seed is fixed.
    assert abs(found.energy.z(found.printed)) < 4
    assert abs(found.kept.z(found.expected)) < 4
    assert abs(found.mean.z(0.0)) < 4
    # Control: a tenth more noise is seen.
    assert found.energy.z(1.1**2 * found.printed) < -8


def test_what_is_kept_without_the_padding_has_less_energy() -> None:
    found = noise_moments(cepam.Gaussian(0.3), cepam.E8, 25, 4000, seed=2)
    assert found.printed == pytest.approx(32 * 0.09)
    assert found.kept.z(found.printed) < -20


@pytest.mark.parametrize("clients", [2, 20])
def test_lemma_12_and_the_weight_distance_hold_as_printed_with_enough_sub_vectors(clients: int) -> None:
    """N >= K is enough, whatever the weights: then N M^2 sum p_k^2 >= M^2, the most that clipping can do."""
    weights = np.random.default_rng(clients).dirichlet(np.ones(clients)).tolist()
    ones = [1.0] * clients
    for clip in (1e-3, 0.1, 1.0):
        repaired = weight_distance(1.0, weights, clients * 0.02, ones, clip)
        assert repaired <= printed_weight_distance(1.0, weights, clients, 0.02, 1.0) * (1 + 1e-12)
        error = virtual_error(weights, clients * 0.02, ones, ones, clip)
        assert error <= printed_virtual_error(weights, clients, 0.02, 1.0, ones) * (1 + 1e-12)
    # Control: with one sub-vector, equal weights and little noise both are false.
    even = [1 / clients] * clients
    assert clients == 2 or virtual_error(even, 0.02, ones, ones, 0.1) > printed_virtual_error(even, 1, 0.02, 1.0, ones)


def test_the_virtual_error_of_random_samples_is_within_the_repaired_bound() -> None:
    """Two clients with two records each, all four pairs of draws listed: E||J - J-bar||^2 exactly, no noise."""
    records = np.array([[[3.0, 0.0], [0.0, 0.5]], [[-0.2, 0.1], [0.0, -4.0]]])
    weights, clip = [0.3, 0.7], 1.0
    cut = records / np.maximum(1.0, np.linalg.norm(records, axis=2, keepdims=True) / clip)
    bar = np.einsum("k,km->m", weights, records.mean(axis=1))
    drawn = [0.3 * cut[0, i] + 0.7 * cut[1, j] for i in (0, 1) for j in (0, 1)]
    exact = float(np.mean([np.square(one - bar).sum() for one in drawn]))
    norms = np.linalg.norm(records, axis=2)
    bound = virtual_error(weights, 0.0, norms.max(axis=1).tolist(), np.square(norms).mean(axis=1).tolist(), clip)
    assert exact <= bound


def test_trace_of_one_subvector() -> None:
    assert printed_noise_energy(cepam.Gaussian(2.0), cepam.E8, 8) == 8 * 4.0
    assert printed_noise_energy(cepam.Laplace(3.0), cepam.Integer(2), 4) == 4 * 18.0
    assert noise_energy(cepam.UniformBall(1.0), cepam.Integer(2), 3) == pytest.approx(3 / 4)


def test_equal_gradients_attain_the_repaired_distance_and_break_the_printed_one() -> None:
    clients, size, clip, law = 20, 8, 0.1, cepam.Gaussian(0.05)
    weights = [1 / clients] * clients
    codec = cepam.Codec(law, cepam.E8, coder="layered")
    found = step_distance(codec, aligned_clients(clients, size, 1.0), weights, clip, 0.5, 2000, seed=4)
    repaired = weight_distance(0.5, weights, noise_energy(law, cepam.E8, size), [1.0] * clients, clip)
    assert abs(found.z(repaired)) < 4
    printed = printed_weight_distance(0.5, weights, 1, size * law.variance(8), 1.0)
    assert found.value > 10 * printed


def test_idle_clipping_leaves_the_noise_alone() -> None:
    draw = np.random.default_rng(0)
    gradients = draw.standard_normal((6, 16))
    norms = np.linalg.norm(gradients, axis=1)
    weights = np.array([1.0, 1, 2, 3, 4, 5]) / 16
    law = cepam.Laplace(0.2)
    codec = cepam.Codec(law, cepam.Integer(1), coder="layered")
    found = step_distance(codec, gradients, weights.tolist(), 2 * norms.max(), 1.0, 3000, seed=1)
    exact = 16 * 2 * 0.04 * np.square(weights).sum()
    assert abs(found.z(float(exact))) < 4
    assert weight_distance(1.0, weights.tolist(), 16 * 0.08, norms.tolist(), 2 * norms.max()) == pytest.approx(exact)


def test_distance_never_exceeds_the_repaired_bound() -> None:
    """Without noise, exactly: random gradients, weights and clips."""
    draw = np.random.default_rng(7)
    for _ in range(200):
        clients, size = draw.integers(1, 8), draw.integers(1, 5)
        gradients = draw.standard_normal((clients, size)) * draw.exponential(2.0, (clients, 1))
        weights = draw.dirichlet(np.ones(clients))
        norms, clip = np.linalg.norm(gradients, axis=1), float(draw.exponential(1.0))
        clipped = gradients / np.maximum(1, norms / clip)[:, None]
        moved = float(np.square(weights @ (clipped - gradients)).sum())
        assert moved <= weight_distance(1.0, weights.tolist(), 0.0, norms.tolist(), clip) * (1 + 1e-9) + 1e-15


def test_refusals() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        weight_distance(1.0, [0.5, 0.4], 0.0, [1.0, 1.0], 1.0)
    with pytest.raises(ValueError, match="one a client"):
        clipping_bias([0.5, 0.5], [1.0], 1.0)
    with pytest.raises(ValueError, match="clip"):
        clipping_bias([1.0], [1.0], 0.0)
    with pytest.raises(ValueError, match="size"):
        noise_energy(cepam.Gaussian(1.0), cepam.E8, 0)
    assert clipping_bias([1.0], [5.0], math.inf) == 0.0
