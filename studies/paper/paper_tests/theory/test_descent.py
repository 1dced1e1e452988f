"""Algorithm 1 as run for the bounds: the same vectors as the quantizer alone, the same steps as a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam_paper.theory.convergence import Schedule
from cepam_paper.theory.descent import clip_rows, descend, seeded_key, separate, stacked
from cepam_paper.theory.problem import LeastSquares
from cepam_paper.theory.synthetic import synthetic


@pytest.mark.parametrize("lattice", [cepam.Integer(1), cepam.D4], ids=lambda lattice: lattice.name)
def test_channels_carry_what_the_layered_quantizer_gives(lattice: cepam.Lattice) -> None:
    law, updates = cepam.Gaussian(0.5), np.random.default_rng(0).standard_normal((3, 10))
    quantizer, codec = cepam.LRSUQ(law, lattice), cepam.Codec(law, lattice, coder="layered")
    alone = separate(codec, seed=4)(updates, 6)
    for client, update in enumerate(updates):
        at = cepam.Address(seeded_key(4, client), round=6, client=client)
        assert (quantizer.reconstruct(*quantizer.quantize(update, at), at, 10) == alone[client]).all()
    width = -(-10 // lattice.dimension) * lattice.dimension
    padded = np.zeros((3, width))
    padded[:, :10] = updates
    at = cepam.Address(seeded_key(4), round=6, client=0)
    together = quantizer.reconstruct(*quantizer.quantize(padded.reshape(-1), at), at).reshape(3, width)[:, :10]
    assert (stacked(codec, seed=4)(updates, 6) == together).all()


def test_descent_is_algorithm_1() -> None:
    """Clients with one record each leave nothing to chance but the noise, and that is seen at the channel."""
    draw = np.random.default_rng(2)
    x, y = draw.standard_normal((3, 1, 4)), draw.standard_normal((3, 1))
    problem = LeastSquares(x / 4, y, (0.2, 0.3, 0.5), 0.5)
    schedule = Schedule(4, problem.constants.smoothness, problem.constants.convexity)
    channel, start = separate(cepam.Codec(cepam.Gaussian(0.05), cepam.Integer(1), coder="layered"), seed=1), np.zeros(4)
    clip = 0.1
    found = descend(problem, schedule, channel, start, [0, 1, 5], clip, repetitions=1, seed=0)
    w, seen, clipped = start.copy(), [start], 0
    for r in range(5):
        sent = np.empty((3, 4))
        for k in range(3):
            model = w.copy()
            for s in range(3):
                gradient = x[k, 0] / 4 * (x[k, 0] @ model / 4 - y[k, 0]) + 0.5 * model
                model = model - float(schedule.rate(4 * r + s)) * gradient
            gradient = x[k, 0] / 4 * (x[k, 0] @ model / 4 - y[k, 0]) + 0.5 * model
            sent[k] = gradient / max(1.0, float(np.linalg.norm(gradient)) / clip)
            clipped += np.linalg.norm(gradient) > clip
        w = w - float(schedule.rate(4 * r + 3)) * np.array([0.2, 0.3, 0.5]) @ channel(sent, r)
        seen.append(w)
    best, value = problem.minimum
    gaps = [float(problem.objective(seen[r]) - value) for r in (0, 1, 5)]
    assert found.gaps[:, 0] == pytest.approx(gaps, rel=1e-9)
    assert found.squares[-1, 0] == pytest.approx(float(np.square(w - best).sum()), rel=1e-9)
    assert found.clipped == clipped > 0
    assert len(found.drifts) == len(found.energies) == 5


def test_the_same_seed_gives_the_same_training_and_another_another() -> None:
    problem = synthetic("logistic regression", 3, 4, 1.0, seed=0, records=20)
    c = problem.constants
    codec = cepam.Codec(cepam.Gaussian(0.2), cepam.Integer(1), coder="layered")

    def gaps(seed: int) -> list[float]:
        schedule = Schedule(2, c.smoothness, c.convexity)
        found = descend(problem, schedule, stacked(codec, seed), np.zeros(4), [5], c.gradient_norm, 3, seed)
        assert found.clipped == found.projected == 0
        return [float(gap) for gap in found.gaps[0]]

    assert gaps(1) == gaps(1)
    assert gaps(1) != gaps(2)
    assert len(set(gaps(1))) == 3


def test_huge_noise_is_projected_and_counted() -> None:
    problem = synthetic("least squares", 2, 4, 0.0, seed=0, records=20)
    c = problem.constants
    channel = stacked(cepam.Codec(cepam.Gaussian(500.0), cepam.Integer(1), coder="layered"), 0)
    schedule = Schedule(2, c.smoothness, c.convexity)
    found = descend(problem, schedule, channel, np.zeros(4), [3], c.gradient_norm, 2, 0)
    assert found.projected > 0
    assert found.farthest <= problem.radius * (1 + 1e-9)


def test_clipping_rows() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4]])
    clipped, hit = clip_rows(rows, 1.0)
    assert hit == 1
    assert clipped == pytest.approx(np.array([[0.6, 0.8], [0.3, 0.4]]))


def test_refusals() -> None:
    problem = synthetic("least squares", 2, 4, 0.0, seed=0, records=20)
    c, channel = problem.constants, stacked(cepam.Codec(cepam.Gaussian(1.0), cepam.Integer(1), coder="layered"), 0)
    schedule = Schedule(2, c.smoothness, c.convexity)
    with pytest.raises(ValueError, match="domain"):
        descend(problem, schedule, channel, np.full(4, 1e3), [1], 1.0, 1, 0)
    with pytest.raises(ValueError, match="rounds"):
        descend(problem, schedule, channel, np.zeros(4), [3, 1], 1.0, 1, 0)
    with pytest.raises(ValueError, match="learning rates"):
        descend(problem, Schedule(2, 0.01, 0.01), channel, np.zeros(4), [1], 1.0, 1, 0)
