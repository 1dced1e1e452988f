"""Secret draws and banded noise together: the account against draws of the whole run, and where it would be false.

The oracle knows no orthogonality: it draws the coins of a record and the noise of every message, and takes the
likelihood ratio of the whole mixture over all coins.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from cepam import L2, Gaussian
from cepam.privacy import (
    Client,
    CorrelatedNoise,
    MatrixMechanism,
    Mechanism,
    Sampling,
    calibrate,
    delta,
    epsilon,
    weight_noise,
)

MANY = 400_000


def whole_run(
    matrix: np.ndarray, taken: list[int], sampling_rate: float, mu: float, at: float, swap: bool
) -> tuple[float, float]:
    """delta at epsilon `at` of a record whose draws are at `taken`, by draws: the estimate and its standard error."""
    rng = np.random.default_rng(12)
    coins = np.array(list(product([0, 1], repeat=len(taken))))
    odds = np.prod(np.where(coins, sampling_rate, 1 - sampling_rate), axis=1)
    shifts = mu * coins @ matrix[:, taken].T
    drawn = rng.choice(len(coins), size=MANY, p=odds)
    v = rng.normal(size=(MANY, len(matrix))) + (0.0 if swap else shifts[drawn])
    ratios = np.exp(v @ shifts.T - (shifts**2).sum(axis=1) / 2) @ odds
    loss = -np.log(ratios) if swap else np.log(ratios)
    gain = np.maximum(0.0, -np.expm1(at - loss))
    return float(gain.mean()), float(gain.std() / math.sqrt(MANY))


def banded(column: list[float], slices: int, rounds: int, draws: float = 3.0, sigma: float = 1.5) -> MatrixMechanism:
    return MatrixMechanism(
        (Client(Gaussian(sigma), 12 * slices),),
        L2(0.5),
        Sampling("poisson", draws),
        rounds=rounds,
        link=CorrelatedNoise.from_matrix(column, slices),
        adjacency="add-remove",
    )


@pytest.mark.parametrize(("column", "slices", "rounds"), [([1.0, 0.8], 2, 4), ([1.0, 0.6, 0.5], 3, 8), ([1.0], 1, 3)])
@pytest.mark.parametrize("at", [0.1, 0.4])
def test_tiny_runs_by_draws_of_everything(column: list[float], slices: int, rounds: int, at: float) -> None:
    """Seven standard errors: a false-alarm rate under 1e-11, and the seed is fixed."""
    mechanism = banded(column, slices, rounds)
    assert mechanism.sampling_rate(0) == pytest.approx(0.25)
    assert mechanism.events == math.ceil(rounds / slices)
    taken = list(range(0, rounds, slices))
    found = [whole_run(mechanism.link.matrix(rounds), taken, 0.25, 1.0 / 1.5, at, swap) for swap in (False, True)]
    seen, error = max(found)
    claimed = delta(mechanism, at)
    assert seen <= claimed + 7 * error
    if rounds % slices == 0:  # every event has its whole column: the account is tight
        assert claimed == pytest.approx(seen, abs=7 * error + 1e-3 * seen)


def test_control_with_more_bands_than_slices_the_theorem_would_be_false() -> None:
    """A record's own noise then overlaps: the same charge is exceeded, so such a release is refused."""
    column, slices, rounds, at = [1.0, 0.9, 0.9, 0.9], 2, 4, 0.4
    column_norm = np.linalg.norm(CorrelatedNoise.from_matrix(column).matrix(rounds), axis=0).max()
    plain = Mechanism(
        (Client(Gaussian(1.5 / column_norm), 12),), L2(0.5), Sampling("poisson", 3), rounds // slices, 0, "add-remove"
    )
    seen, error = whole_run(CorrelatedNoise.from_matrix(column).matrix(rounds), [0, 2], 0.25, 1.0 / 1.5, at, False)
    assert seen - 7 * error > delta(plain, at)
    with pytest.raises(ValueError, match="bands"):
        banded(column, slices, rounds)
    assert banded(column, 4, rounds).events == 1


def test_one_band_is_todays_poisson_sampling() -> None:
    today = Mechanism((Client(Gaussian(1.5), 12),), L2(0.5), Sampling("poisson", 3), 5, 0, "add-remove")
    assert epsilon(banded([1.0], 1, 5), 1e-5) == pytest.approx(epsilon(today, 1e-5), rel=1e-9)


def test_bands_and_draws_leave_less_noise_than_draws_alone() -> None:
    """At one epsilon the weights of a long run are quieter with a few bands, as the documentation's table says."""
    rounds, rates = 248, [min(1.0, 2.0 * (1.0 - t / 248)) for t in range(248)]

    def noise(bands: int) -> float:
        link = CorrelatedNoise.from_matrix(0.9 ** np.arange(bands), bands)
        mechanism = MatrixMechanism(
            (Client(Gaussian(1.0), 3100, draws=100.0),), L2(1.0), Sampling("poisson"), rounds=rounds, link=link,
            clipped="example", adjacency="add-remove",
        )  # fmt: skip
        return calibrate(mechanism, 8.0, 1e-5).clients[0].law.scale * weight_noise(link, rounds, 0.9, rates)

    assert noise(8) < 0.9 * noise(1)


def test_a_slice_has_no_more_records_than_are_drawn() -> None:
    with pytest.raises(ValueError, match="draws"):
        banded([1.0, 0.5], 2, 4, draws=13.0)
