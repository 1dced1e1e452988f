"""Privacy-loss distributions on a grid, composed by tilted Fourier transforms.

The grid is filled pessimistically ("connect the dots", Doroshenko et al. 2022): each interval's mass under
P and under Q is split over its two ends so that both are kept, which can only raise the hockey-stick curve.
The masses come from the tails of the law, not from second differences of delta (as in dp-accounting), which
lose all their digits when p·mu is small.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

import numpy as np

from cepam.privacy.composition.convolution import LossMasses, LossSum, summed, tilt_for_delta, tilt_for_epsilon
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, Masses
from cepam.privacy.mechanisms.subsampled import LARGEST_EXPONENT, SubsampledMechanism, amplified

Charges = tuple[tuple[SubsampledMechanism, int], ...]
Ranks = dict[tuple[Hashable, ...], list[tuple[float, int]]]

SMALLEST_DELTA = 1e-12
TAIL = 1e-20
BEYOND = 1e-9
FAITHFUL = 1e-5
TRIES = 16
FINE = 128
COARSE = 40
ROUGH = 8
LARGEST_GRID = 2048
WIDEST_BULK = 3.0


def gathered(charges: Iterable[tuple[SubsampledMechanism, int]]) -> Charges:
    """The charges with equal ones counted together and free ones left out, in a fixed order."""
    count: Counter[SubsampledMechanism] = Counter()
    for charge, times in charges:
        if times < 0:
            raise ValueError(f"a charge cannot be made {times} times")
        if charge.shift.size > 0 and times > 0:
            count[charge] += times
    return tuple(sorted(count.items(), key=lambda item: (-item[1], item[0].sampling_rate, item[0].shift.size)))


def merged_gaussians(charges: Charges) -> Charges:
    """The same charges with all unsampled Gaussian rounds folded into one: mu^2 adds up, exactly."""
    whole = [(c, r) for c, r in charges if c.sampling_rate == 1.0 and isinstance(c.shift, GaussianShift)]
    if not whole:
        return charges
    mu = math.sqrt(sum(r * c.shift.size**2 for c, r in whole))
    rest = [(c, r) for c, r in charges if c.sampling_rate < 1.0 or not isinstance(c.shift, GaussianShift)]
    return gathered([(SubsampledMechanism(GaussianShift(mu), 1.0, whole[0][0].adjacency), 1), *rest])


def uncovered(histories: Iterable[Charges]) -> list[Charges]:
    """Those of some histories that no other covers, in a fixed order: the worst of all is one of them.

    One covers another that has at most as many charges at or above each size, probability by probability; and of
    histories of one kind of charge, one covers another whose size, probability and count are all at most its own. A
    smaller shift, a smaller probability and a charge that is not made cost less
    (docs/proofs/mechanisms-and-sampling.md, "Who took part").
    """
    kept: list[tuple[Charges, Ranks]] = []
    left = sorted(_largest_of_one_kind(set(histories)), key=_size, reverse=True)
    if all(len(charges) == 1 for charges in left):
        return left
    for charges in left:  # none is covered by a later one
        ranks = _ranks(charges)
        if not any(_covers(theirs, ranks) for _, theirs in kept):
            kept.append((charges, ranks))
    return [charges for charges, _ in kept]


def _largest_of_one_kind(histories: set[Charges]) -> list[Charges]:
    """The histories without those of one kind of charge that another such covers in size, probability and count."""
    groups: dict[Hashable, list[Charges]] = {}
    for charges in histories:
        single = charges[0][0] if len(charges) == 1 else None
        kind = None if single is None else (type(single.shift), single.adjacency)
        groups.setdefault(kind, []).append(charges)
    kept = groups.pop(None, [])
    for group in groups.values():
        places = np.array([(charge.shift.size, charge.sampling_rate, times) for ((charge, times),) in group])
        order = np.lexsort(places.T)[::-1]  # by count, then probability, then size: none is covered by a later one
        front = np.empty((0, 3))
        for k in order:
            if not np.all(front >= places[k], axis=1).any():
                front = np.vstack((front, places[k]))
                kept.append(group[k])
    return kept


def worst_epsilon(histories: Sequence[Charges], delta: float, cells: int = FINE) -> float:
    """The largest `epsilon_of` some histories at delta, on a fine grid for those that may be the largest only.

    A grid never answers below the truth, so a history whose rough answer is at most another's fine one is not finished.
    """
    return _largest([partial(epsilon_of, charges, delta) for charges in histories], cells)


def worst_delta(histories: Sequence[Charges], epsilon: float, cells: int = FINE) -> float:
    """The largest `delta_of` some histories at epsilon, found as `worst_epsilon` is."""
    return _largest([partial(delta_of, charges, epsilon) for charges in histories], cells)


def _largest(bounds: Sequence[Callable[[int], float]], cells: int) -> float:
    """The largest of some numbers, each given as bounds by grid: the largest bound is refined until it is final."""
    if len(bounds) < 2 or cells <= ROUGH:
        return max((bound(cells) for bound in bounds), default=0.0)
    left = sorted(((bound(ROUGH), k) for k, bound in enumerate(bounds)), reverse=True)
    best = 0.0
    for rough, k in left:
        if rough <= best:
            break
        best = max(best, min(rough, bounds[k](cells)))
    return best


def _size(charges: Charges) -> tuple[int, float, str]:
    return sum(times for _, times in charges), sum(c.shift.size * times for c, times in charges), repr(charges)


def _ranks(charges: Charges) -> Ranks:
    """For each kind of charge, its sizes from the largest down, each with how many charges are at least so large."""
    made: Ranks = {}
    for charge, times in sorted(charges, key=lambda item: -item[0].shift.size):
        known = made.setdefault((type(charge.shift), charge.sampling_rate, charge.adjacency), [])
        known.append((charge.shift.size, times + (known[-1][1] if known else 0)))
    return made


def _covers(larger: Ranks, smaller: Ranks) -> bool:
    """Whether each charge of `smaller` has one of its own in `larger`, of its kind and at least as large."""
    for kind, wanted in smaller.items():
        have = larger.get(kind, [])
        for size, times in wanted:
            place = bisect_right(have, -size, key=lambda item: -item[0])
            if place == 0 or have[place - 1][1] < times:
                return False
    return True


def spacing_of(charge: SubsampledMechanism, cells: int = FINE) -> float:
    """A grid spacing that cuts the bulk of a round's loss, about p times the spread wide, in `cells` cells.

    A cell adds at most a sixth of its square to the variance of a round's loss, so discretizing raises
    epsilon by some 0.1/cells^2 relative: `FINE` for an answer (1e-5), `COARSE` for a running count (2e-4).
    No grid has more than `LARGEST_GRID` times `cells` cells.
    """
    bulk = charge.sampling_rate * min(charge.shift.spread, WIDEST_BULK) / cells
    return max(bulk, 2.0 * _reach(charge) / (LARGEST_GRID * cells))


def _reach(charge: SubsampledMechanism) -> float:
    """The largest loss that the grid must hold; what lies beyond it counts as a certain breach."""
    return amplified(min(charge.shift.loss_exceeded(TAIL), charge.shift.largest_loss), charge.sampling_rate)


@lru_cache(maxsize=64)
def discretize(charge: SubsampledMechanism, spacing: float) -> tuple[LossMasses, ...]:
    """Each direction of one round's loss on a grid, never below the truth."""
    half = math.ceil(_reach(charge) / spacing) + 1  # one more, so that an atom at the reach lies inside the grid
    grid = np.arange(-half, half + 1) * spacing
    edges = np.concatenate(([-np.inf], grid, [np.inf]))
    made = []
    for masses in charge.masses(edges):
        probs, beyond = _connect_dots(masses, grid, spacing)
        first, probs = _trimmed(probs)
        made.append(LossMasses(spacing, first - half, probs, beyond))
    return tuple(made)


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


def directions(charges: Charges, cells: int = FINE) -> tuple[tuple[tuple[LossMasses, int], ...], ...]:
    """For each direction to be charged, every round's loss on one grid, with how often it was made.

    A charge of a symmetric pair has one direction, which stands for both beside charges that have two.
    """
    spacing = min(spacing_of(charge, cells) for charge, _ in charges)
    made = [(discretize(charge, spacing), rounds) for charge, rounds in charges]
    ways = max(len(each) for each, _ in made)
    return tuple(tuple((each[min(way, len(each) - 1)], rounds) for each, rounds in made) for way in range(ways))


@lru_cache(maxsize=64)
def _composed(charges: Charges, cells: int, way: int, tilt: float, tail: float) -> LossSum:
    """One direction of a whole run's loss, remembered: asking for a near delta of the same run costs little."""
    return summed([(part.cut(tail), rounds) for part, rounds in directions(charges, cells)[way]], tilt)


def epsilon_of(charges: Charges, delta: float, cells: int = FINE) -> float:
    """The smallest epsilon of the composed charges at delta: in closed form if there is one, else by grid.

    Guarantee: never below the truth at any delta that is accepted (tests/privacy/test_losses.py, against an
    oracle by another method down to `SMALLEST_DELTA`).
    Rests on: adaptive composition of dominating pairs.
    """
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
    tail = 2.0 ** math.floor(math.log2(delta * BEYOND / sum(rounds for _, rounds in charges)))
    found = []
    for way, parts in enumerate(directions(charges, cells)):
        found.append(_smallest_epsilon(_sums(charges, cells, way, tilt_for_delta(parts, delta), tail), delta))
    return min(pure, max(found))


def delta_of(charges: Charges, epsilon: float, cells: int = FINE) -> float:
    """The smallest delta of the composed charges at epsilon."""
    charges = merged_gaussians(gathered(charges))
    if not charges or epsilon >= sum(charge.largest_loss * rounds for charge, rounds in charges):
        return 0.0
    if len(charges) == 1 and charges[0][1] == 1:
        return charges[0][0].profile(epsilon)
    found = []
    for way, parts in enumerate(directions(charges, cells)):
        found.append(_smallest_delta(_sums(charges, cells, way, tilt_for_epsilon(parts, epsilon), TAIL), epsilon))
    return max(found)


def _sums(charges: Charges, cells: int, way: int, tilt: float, tail: float) -> Iterator[LossSum]:
    """The run's loss under smaller and smaller tilts: each answers from above, and a tilt may have been too large."""
    for _ in range(TRIES):
        yield _composed(charges, cells, way, tilt, tail)
        tilt /= math.sqrt(2.0)


def _smallest_epsilon(sums: Iterator[LossSum], delta: float) -> float:
    best = math.inf
    for total in sums:
        found = total.epsilon(delta)
        if math.isfinite(best) and found >= best:
            break
        best = min(best, found)
        if math.isfinite(best) and total.rounded_off(best) <= FAITHFUL * delta:
            break
    return best


def _smallest_delta(sums: Iterator[LossSum], epsilon: float) -> float:
    best = 1.0
    for total in sums:
        found = total.delta(epsilon)
        if best < 1.0 and found >= best:
            break
        best = min(best, found)
        if total.rounded_off(epsilon) <= FAITHFUL * best:
            break
    return best
