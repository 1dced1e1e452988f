"""Many rounds: the privacy-loss distribution of each charge on a grid, composed by dp-accounting.

The grid is filled pessimistically ("connect the dots", Doroshenko et al. 2022): each interval's mass under
P and under Q is split over its two ends so that both are kept, which can only raise the hockey-stick curve.
Unlike dp-accounting's own constructor the masses come from the tails of the law, not from second
differences of delta, which lose all their digits when p·mu is small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cepam.privacy.dominating import GaussianShift, Masses
from cepam.privacy.sampled import LARGEST_EXPONENT, Charge, amplified

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
else:
    PrivacyLossDistribution = Any

Charges = tuple[tuple[Charge, int], ...]

SMALLEST_DELTA = 1e-12
TAIL = 1e-20
TRUNCATION = 1e-15
FINE = 128
COARSE = 40
LARGEST_GRID = 2048
WIDEST_BULK = 3.0


def gathered(charges: Iterable[tuple[Charge, int]]) -> Charges:
    """The charges with equal ones counted together and free ones left out, in a fixed order."""
    count: Counter[Charge] = Counter()
    for charge, times in charges:
        if times < 0:
            raise ValueError(f"a charge cannot be made {times} times")
        if charge.shift.size > 0 and times > 0:
            count[charge] += times
    return tuple(sorted(count.items(), key=lambda item: (-item[1], item[0].chance, item[0].shift.size)))


def merged_gaussians(charges: Charges) -> Charges:
    """The same charges with all unsampled Gaussian rounds folded into one: mu^2 adds up, exactly."""
    whole = [(c, r) for c, r in charges if c.chance == 1.0 and isinstance(c.shift, GaussianShift)]
    if not whole:
        return charges
    mu = math.sqrt(sum(r * c.shift.size**2 for c, r in whole))
    rest = [(c, r) for c, r in charges if c.chance < 1.0 or not isinstance(c.shift, GaussianShift)]
    return gathered([(Charge(GaussianShift(mu), 1.0, whole[0][0].adjacency), 1), *rest])


def spacing_of(charge: Charge, cells: int = FINE) -> float:
    """A grid spacing that cuts the bulk of a round's loss, about p times the spread wide, in `cells` cells.

    A cell adds at most a sixth of its square to the variance of a round's loss, so discretizing raises
    epsilon by some 0.1/cells^2 relative: `FINE` for an answer (1e-5), `COARSE` for a running count (2e-4).
    No grid has more than `LARGEST_GRID` times `cells` cells.
    """
    bulk = charge.chance * min(charge.shift.spread, WIDEST_BULK) / cells
    return max(bulk, 2.0 * _reach(charge) / (LARGEST_GRID * cells))


def _reach(charge: Charge) -> float:
    """The largest loss that the grid must hold; what lies beyond it counts as a certain breach."""
    return amplified(min(charge.shift.loss_exceeded(TAIL), charge.shift.largest_loss), charge.chance)


def discretize(charge: Charge, spacing: float) -> PrivacyLossDistribution:
    """dp-accounting's distribution of one round's loss on a grid, never below the truth."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    half = math.ceil(_reach(charge) / spacing) + 1  # one more, so that an atom at the reach lies inside the grid
    grid = np.arange(-half, half + 1) * spacing
    edges = np.concatenate(([-np.inf], grid, [np.inf]))
    made = []
    for masses in charge.masses(edges):
        probs, beyond = _connect_dots(masses, grid, spacing)
        first, probs = _trimmed(probs)
        made.append(pld_pmf.DensePLDPmf(spacing, first - half, probs, beyond, True))
    return privacy_loss_distribution.PrivacyLossDistribution(*made)


def _connect_dots(masses: Masses, grid: np.ndarray, spacing: float) -> tuple[np.ndarray, float]:
    """The mass at each grid point, and beyond the grid; what is missing from one is the atom at zero loss."""
    upper, lower = masses
    inner, below = upper[1:-1], lower[1:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        tilted = np.where(below > 0, below * np.exp(np.minimum(grid[:-1], LARGEST_EXPONENT)), 0.0)
    to_right = np.clip((inner - tilted) / -math.expm1(-spacing), 0.0, inner)
    probs = np.zeros(len(grid))
    probs[1:] += to_right
    probs[:-1] += inner - to_right
    probs[0] += upper[0]
    probs[(len(grid) - 1) // 2] += max(0.0, 1.0 - float(upper.sum()))
    return probs, float(upper[-1])


def _trimmed(probs: np.ndarray) -> tuple[int, np.ndarray]:
    """The part of a grid that holds mass, and where it starts; a negligible lower tail is moved up to its start."""
    below = np.cumsum(probs)
    first, last = int(np.argmax(below > TAIL)), int(np.flatnonzero(probs)[-1])
    kept = probs[first : last + 1].copy()
    kept[0] = below[first]
    return first, kept


def compose(charges: Charges, cells: int = FINE) -> PrivacyLossDistribution:
    """The distribution of the whole run's loss: every charge as many times as it was made.

    Guarantee: an upper bound at every epsilon for delta >= `SMALLEST_DELTA` (below that the FFT's rounding
    shows).
    Rests on: adaptive composition of dominating pairs; tests/privacy/test_account.py checks against an
    oracle by another method.
    """
    spacing = min(spacing_of(charge, cells) for charge, _ in charges)
    total = None
    for charge, rounds in charges:
        with np.errstate(over="ignore"):  # dp-accounting's Chernoff bound may overflow, and then falls back
            part = _discretized(charge, spacing).self_compose(rounds, TRUNCATION)
            total = part if total is None else total.compose(part, TRUNCATION)
    return total


@lru_cache(maxsize=16)
def _discretized(charge: Charge, spacing: float) -> PrivacyLossDistribution:
    return discretize(charge, spacing)


@lru_cache(maxsize=16)
def composed(charges: Charges, cells: int) -> PrivacyLossDistribution:
    """`compose`, remembered: asking for another delta of the same run costs nothing."""
    return compose(charges, cells)


def epsilon_of(charges: Charges, delta: float, cells: int = FINE) -> float:
    """The smallest epsilon of the composed charges at delta: in closed form if there is one, else by grid."""
    charges = merged_gaussians(gathered(charges))
    if not charges:
        return 0.0
    pure = sum(charge.largest_loss * rounds for charge, rounds in charges)
    if delta == 0.0:
        return pure
    if len(charges) == 1 and charges[0][1] == 1:
        return charges[0][0].epsilon(delta)
    if delta < SMALLEST_DELTA:
        raise ValueError(f"delta must be 0 or at least {SMALLEST_DELTA:g} over many rounds, got {delta!r}")
    return min(pure, smallest_epsilon(composed(charges, cells), delta))


def smallest_epsilon(distribution: PrivacyLossDistribution, delta: float) -> float:
    """dp-accounting's `get_epsilon_for_delta`, by array instead of a loop over a million losses in Python.

    Guarantee: the same number, up to the rounding of exp (tests/privacy/test_composition.py).
    """
    pmfs = [distribution._pmf_remove] if distribution._symmetric else [distribution._pmf_remove, distribution._pmf_add]
    return max(_crossing(pmf.to_dense_pmf(), delta) for pmf in pmfs)


def _crossing(pmf: Any, delta: float) -> float:
    """Where the hockey-stick curve of one direction crosses delta: losses are added from the largest down."""
    if pmf._infinity_mass > delta:
        return math.inf
    probs = pmf._probs[::-1]
    losses = (pmf._lower_loss + np.arange(len(probs) - 1, -1, -1)) * pmf._discretization
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        upper = np.cumsum(np.concatenate(([pmf._infinity_mass], probs)))
        lower = np.cumsum(np.concatenate(([0.0], np.exp(-losses) * probs)))
        epsilons = np.log((upper - delta) / lower)
    lost = np.flatnonzero((upper[1:] >= delta) & (lower[1:] == 0.0))
    found = np.flatnonzero((upper[:-1] > delta) & (lower[:-1] > 0.0) & (epsilons[:-1] >= losses))
    if len(lost) and (not len(found) or lost[0] < found[0]):
        return max(0.0, float(losses[lost[0]]))  # exp(-loss) underflows: the loss itself is the bound
    last = int(found[0]) if len(found) else len(probs)
    return float(epsilons[last]) if upper[last] > lower[last] + delta else 0.0


def delta_of(charges: Charges, epsilon: float, cells: int = FINE) -> float:
    """The smallest delta of the composed charges at epsilon."""
    charges = merged_gaussians(gathered(charges))
    if not charges or epsilon >= sum(charge.largest_loss * rounds for charge, rounds in charges):
        return 0.0
    if len(charges) == 1 and charges[0][1] == 1:
        return charges[0][0].profile(epsilon)
    return float(composed(charges, cells).get_delta_for_epsilon(epsilon))
