"""Sensitivity: the formulas against an enumeration of every allowed pattern, and of the vectors themselves."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest

from cepam.privacy import CorrelatedNoise, Cyclic, Separated, sensitivity
from cepam.privacy.matrix import participation
from cepam.privacy.matrix.participation import worst_slice

ROUNDS = 10
RANDOM = np.tril(np.random.default_rng(5).random((ROUNDS, ROUNDS))) + 0.1 * np.eye(ROUNDS)
LINKS = {
    "independent": CorrelatedNoise(),
    "decay": CorrelatedNoise(0.9),
    "root": CorrelatedNoise.from_matrix([1.0, 0.5, 0.375, 0.3125, 0.2734375]),
    "rising": CorrelatedNoise.from_matrix([0.5, 0.1, 2.0, 0.3]),
    "full": CorrelatedNoise.from_matrix(RANDOM),
    "banded": CorrelatedNoise.from_matrix(np.tril(np.triu(RANDOM, -2))),
}
links = pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)


def carried_sensitivity(decay: float, slices: int, times: int) -> float:
    """The sensitivity of a decay over `times` whole passes, in closed form.

    sens^2 = (1 - c^2b)/(1 - c^2) sum over e < k of ((1 - c^(b(e+1)))/(1 - c^b))^2 with c the decay, b slices.
    """
    whole = decay**slices
    passes = ((1.0 - whole ** np.arange(1, times + 1)) / (1.0 - whole)) ** 2
    return math.sqrt((1.0 - decay ** (2 * slices)) / (1.0 - decay**2) * float(passes.sum()))


def moved(link: CorrelatedNoise, taken) -> float:
    """The largest |CG| over rows of norm 1 at `taken`: equal rows, as C is not negative."""
    return float(np.linalg.norm(link.matrix(ROUNDS)[:, list(taken)].sum(axis=1)))


@links
@pytest.mark.parametrize("slices", [1, 2, 3, 7, 10, 12])
def test_fixed_slices_by_enumeration(link: CorrelatedNoise, slices: int) -> None:
    each = [moved(link, range(r, ROUNDS, slices)) for r in range(min(slices, ROUNDS))]
    assert sensitivity(link, ROUNDS, Cyclic(slices)) == pytest.approx(max(each), rel=1e-12)
    assert each[worst_slice(link, ROUNDS, slices)] == pytest.approx(max(each), rel=1e-12)


@links
@pytest.mark.parametrize(("apart", "times"), [(1, 1), (1, 3), (1, 10), (2, 2), (2, 5), (3, 2), (3, 9), (5, 2), (11, 4)])
def test_separated_participations_by_enumeration(link: CorrelatedNoise, apart: int, times: int) -> None:
    worst = max(
        moved(link, taken)
        for many in range(1, times + 1)
        for taken in combinations(range(ROUNDS), many)
        if all(b - a >= apart for a, b in pairwise(taken))
    )
    assert sensitivity(link, ROUNDS, Separated(apart, times)) == pytest.approx(worst, rel=1e-12)


@links
def test_no_gradients_move_the_stream_further(link: CorrelatedNoise) -> None:
    """A search over the rows themselves, in three dimensions: never above the formula, and it gets there."""
    rng, matrix, taken = np.random.default_rng(1), link.matrix(ROUNDS), list(range(0, ROUNDS, 3))
    best = 0.0
    for _ in range(300):
        rows = rng.normal(size=(len(taken), 3))
        for _ in range(30):  # each row in turn goes where it helps most: block ascent
            for i in range(len(taken)):
                rows[i] = 0.0
                pull = matrix[:, taken[i]] @ (matrix[:, taken] @ rows)
                rows[i] = pull / (np.linalg.norm(pull) or 1.0) if pull.any() else [1.0, 0.0, 0.0]
        best = max(best, float(np.linalg.norm(matrix[:, taken] @ rows)))
        if best > moved(link, taken) * (1 - 1e-9):
            break
    assert best == pytest.approx(moved(link, taken), rel=1e-9)


def test_the_carry_has_a_closed_form() -> None:
    for decay, slices, times in [(0.9617, 31, 16), (0.5, 1, 9), (0.0, 4, 3), (0.99, 7, 2)]:
        want = carried_sensitivity(decay, slices, times)
        assert sensitivity(CorrelatedNoise(decay, slices), slices * times) == pytest.approx(want, rel=1e-12)
    assert carried_sensitivity(0.9617, 31, 16) == pytest.approx(19.3718, abs=5e-5)


def test_bands_within_the_separation_add_up_by_squares() -> None:
    link = CorrelatedNoise.from_matrix([0.6, 0.8], slices=4)
    assert sensitivity(link, 16) == pytest.approx(2.0)
    assert sensitivity(link, 16, Separated(2, 3)) == pytest.approx(3.0**0.5)


def test_control_slices_that_are_mixed_up_cost_more() -> None:
    """A record that comes back sooner than its slice, as with a fresh shuffle a pass, is not covered by the cycle."""
    link = CorrelatedNoise(0.9, slices=5)
    assert moved(link, (4, 5)) > sensitivity(link, ROUNDS, Cyclic(5))


def test_a_prefix_costs_no_more() -> None:
    for link in LINKS.values():
        spent = [sensitivity(link, t, Cyclic(3)) for t in range(1, ROUNDS + 1)]
        assert spent == sorted(spent)


def test_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rounds"):
        sensitivity(CorrelatedNoise(), 0)
    with pytest.raises(ValueError, match="apart"):
        Separated(0, 1)
    with pytest.raises(ValueError, match="times"):
        Separated(1, 0)
    with pytest.raises(ValueError, match="slices"):
        Cyclic(0)
    monkeypatch.setattr(participation, "MOST_STATES", 50)
    with pytest.raises(ValueError, match="too many patterns"):
        sensitivity(LINKS["full"], ROUNDS, Separated(1, 10))
