"""The noise that reaches the weights, against a simulation; the best decay, against a fine grid."""

from __future__ import annotations

import numpy as np
import pytest

from cepam.privacy import CorrelatedNoise, best_decay, sensitivity, weight_noise


def linear(rounds: int) -> list[float]:
    return [min(1.0, 2.0 * (1.0 - t / rounds)) for t in range(rounds)]


def trained(noise: np.ndarray, momentum: float, rates: list[float]) -> np.ndarray:
    """The weights after each round of momentum descent on the noise alone."""
    velocity, weights, made = np.zeros(noise.shape[1]), np.zeros(noise.shape[1]), []
    for rate, row in zip(rates, noise):
        velocity = momentum * velocity + row
        weights = weights - rate * velocity
        made.append(weights)
    return np.array(made)


@pytest.mark.parametrize(
    "link", [CorrelatedNoise(), CorrelatedNoise(0.9), CorrelatedNoise.from_matrix([1.0, 0.5, 0.375])]
)
def test_the_noise_of_the_weights_is_that_of_a_training_run(link: CorrelatedNoise) -> None:
    rounds, momentum, many = 20, 0.8, 200_000
    noise = np.linalg.solve(link.matrix(rounds), np.random.default_rng(7).normal(size=(rounds, many)))
    seen = np.sqrt((trained(noise, momentum, linear(rounds)) ** 2).mean())
    assert seen == pytest.approx(weight_noise(link, rounds, momentum, linear(rounds)), rel=0.01)


@pytest.mark.parametrize(("rounds", "slices", "momentum"), [(124, 31, 0.9), (60, 10, 0.0), (60, 60, 0.95)])
def test_no_carry_of_a_fine_grid_is_better(rounds: int, slices: int, momentum: float) -> None:
    def cost(decay: float) -> float:
        link = CorrelatedNoise(decay, slices)
        return weight_noise(link, rounds, momentum, linear(rounds)) * sensitivity(link, rounds)

    found = best_decay(rounds, slices, momentum, linear(rounds))
    assert cost(found) <= min(cost(decay) for decay in np.linspace(0.0, 0.9999, 2000)) * (1 + 1e-4)


@pytest.mark.parametrize(("rounds", "slices", "bands"), [(60, 4, 4), (62, 10, 7), (40, 3, 5)])
def test_no_cut_carry_of_a_grid_is_better(rounds: int, slices: int, bands: int) -> None:
    """By `weight_noise`, which solves for A C^-1; with secret draws, by the length of a column."""

    def cut(decay: float) -> CorrelatedNoise:
        return CorrelatedNoise.from_matrix(decay ** np.arange(bands), slices)

    def cost(decay: float) -> float:
        return weight_noise(cut(decay), rounds, 0.9, linear(rounds)) * sensitivity(cut(decay), rounds)

    def drawn_cost(decay: float) -> float:
        return weight_noise(cut(decay), rounds, 0.9, linear(rounds)) * float(np.linalg.norm(cut(decay).column(bands)))

    found = best_decay(rounds, slices, 0.9, linear(rounds), bands)
    grid = np.linspace(0.0, 0.9999, 300)
    assert cost(found) <= min(cost(decay) for decay in grid) * (1 + 1e-4)
    if bands <= slices:
        assert drawn_cost(found) <= min(drawn_cost(decay) for decay in grid) * (1 + 2e-3)


@pytest.mark.parametrize(("rounds", "slices", "decay", "share"), [
    (124, 31, 0.9462, 0.2435), (496, 31, 0.9617, 0.206), (496, 124, 0.9807, 0.138),
])  # fmt: skip
def test_the_figures_of_the_documentation(rounds: int, slices: int, decay: float, share: float) -> None:
    found = best_decay(rounds, slices, 0.9, linear(rounds))
    assert found == pytest.approx(decay, abs=5e-5)
    made = [
        weight_noise(link, rounds, 0.9, linear(rounds)) * sensitivity(link, rounds)
        for link in (CorrelatedNoise(found, slices), CorrelatedNoise(0.0, slices))
    ]
    assert made[0] / made[1] == pytest.approx(share, abs=5e-4)


def test_where_every_record_is_in_every_round_nothing_is_carried() -> None:
    assert best_decay(100, 1, 0.9) == 0.0


def test_only_ratios_of_rates_matter() -> None:
    assert best_decay(50, 10, 0.9, [7.0] * 50) == pytest.approx(best_decay(50, 10, 0.9), abs=1e-6)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rounds": 0}, "rounds"),
        ({"slices": 0}, "slices"),
        ({"momentum": 1.0}, "momentum"),
        ({"rates": [1.0]}, "rates"),
        ({"rates": [0.0] * 10}, "rates"),
        ({"rates": [-1.0] + [1.0] * 9}, "rates"),
    ],
)
def test_doors(more, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        best_decay(**{"rounds": 10, "slices": 5, **more})
