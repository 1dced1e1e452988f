"""Privacy losses composed: distributions on a grid by tilted Fourier transforms, and Rényi divergences."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from scipy import fft, special
from scipy.special import gammaln, logsumexp

from cepam.distributions.laws import Floats
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, Masses
from cepam.privacy.mechanisms.mechanism import LARGEST_EXPONENT, SubsampledMechanism, amplified

# Sums of independent privacy losses on a grid, with every rounding bounded and added.
#
# The sum is tilted before it is Fourier-transformed: each loss l gets the weight e^(t l), with t such that the bulk
# of the tilted sum lies where the question is. What the transform rounds off is then small beside the answer, for
# delta = 1e-12 as for delta = 0.1; without the tilt it is some 1e-10 whatever delta is.


OUTSIDE = 1e-11
_LOG_OUTSIDE = -math.log(OUTSIDE)
_ROUNDING = 8.0 * 2.0**-53
_LARGEST_EXPONENT = 700.0
_STEP = 2.0**0.125
MOST_STEPS = 200
LEAST_GAIN = 2e-3
UNDER = 2.0**-0.25  # less than the best tilt loses few digits, and leaves the tilted sum a lighter tail
_BIN = 16

Spectrum = np.ndarray


@dataclass(frozen=True, eq=False)
class LossMasses:
    """One direction of a round's loss: the mass at (lower + i) · spacing, and the mass beyond every loss."""

    spacing: float
    lower: int
    masses: Floats
    beyond: float

    @cached_property
    def losses(self) -> Floats:
        """The losses that the masses stand at."""
        made: Floats = (self.lower + np.arange(len(self.masses))) * np.float64(self.spacing)
        return made

    @cached_property
    def binned(self) -> LossMasses:
        """The same masses on a coarser grid, each moved up: where something need only be near."""
        lower = self.lower // _BIN
        places = -(-(self.lower + np.arange(len(self.masses))) // _BIN) - lower
        binned = np.asarray(np.bincount(places, weights=self.masses), dtype=np.float64)
        return LossMasses(self.spacing * _BIN, lower, binned, self.beyond)

    def cut(self, tail: float) -> LossMasses:
        """The same with the highest losses, up to a mass of `tail`, moved beyond every loss: never below the truth."""
        above = np.cumsum(self.masses[::-1])
        many = int(np.searchsorted(above, tail, side="right"))
        if many == 0:
            return self
        return LossMasses(self.spacing, self.lower, self.masses[:-many], self.beyond + float(above[many - 1]))

    def tilted(self, tilt: float) -> tuple[Floats, float]:
        """The masses times e^(tilt · loss), brought to a sum of one, and the logarithm of that sum."""
        exponents = tilt * self.losses
        top = float(exponents[self.masses > 0.0].max())
        weighted = self.masses * np.exp(np.minimum(exponents - top, 0.0))
        total = float(weighted.sum())
        return weighted / total, top + math.log(total)


@dataclass(frozen=True, eq=False)
class LossSum:
    """The tilted law of a sum of losses: mass (lower + i) · spacing, e^(log_mass - tilt · loss) of it untilted.

    Guarantee: `delta` is never below that of the masses that were summed, whatever the transform rounded off
    (tests/privacy/test_convolution.py, against sums in exact rational arithmetic).
    """

    spacing: float
    lower: int
    masses: Floats
    tilt: float
    log_mass: float
    beyond: float
    error: float

    @cached_property
    def _curve(self) -> tuple[Floats, Floats, Floats]:
        """From the largest loss down to the least above zero: losses, and the masses of P and of Q above each."""
        first = max(0, -self.lower)
        losses: Floats = (self.lower + np.arange(first, len(self.masses))[::-1]) * np.float64(self.spacing)
        exponents = np.minimum(self.log_mass - self.tilt * losses, _LARGEST_EXPONENT)
        masses = self.masses[first:][::-1] * np.exp(exponents)
        with np.errstate(over="ignore", under="ignore"):
            upper = np.cumsum(np.concatenate(([self.beyond], masses)))
            lower = np.cumsum(np.concatenate(([0.0], np.exp(-losses) * masses)))
        return losses, upper, lower

    def rounded_off(self, epsilon: float) -> float:
        """A bound on what rounding took from delta at epsilon: it is added to every answer."""
        return self.error * math.exp(min(self.log_mass - self.tilt * epsilon, _LARGEST_EXPONENT))

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at e^epsilon for epsilon >= 0, at most 1."""
        losses, upper, lower = self._curve
        last = int(np.searchsorted(-losses, -epsilon))  # so many losses are above epsilon
        share = math.exp(min(epsilon, _LARGEST_EXPONENT)) * float(lower[last])
        return min(1.0, max(0.0, float(upper[last]) - share) + self.rounded_off(epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 at delta, infinite where none is known."""
        first = self._crossing(delta)
        spare = delta - self.rounded_off(first) if math.isfinite(first) else 0.0
        return self._crossing(spare) if spare > 0.0 else math.inf

    def _crossing(self, delta: float) -> float:
        """Where the hockey-stick curve crosses delta: losses are added from the largest down."""
        losses, upper, lower = self._curve
        if self.beyond > delta:
            return math.inf
        start = int(np.searchsorted(upper, delta, side="right"))  # before, all the mass of P is within delta
        if start == len(upper):
            return 0.0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            epsilons = np.log((upper[start:] - delta) / lower[start:])
        if start > 0 and lower[start] == 0.0:
            return max(0.0, float(losses[start - 1]))  # exp(-loss) underflows: the loss itself is the bound
        found = np.flatnonzero(epsilons[:-1] >= losses[start:])
        last = int(found[0]) if len(found) else len(epsilons) - 1
        return max(0.0, float(epsilons[last]))


Parts = Sequence[tuple[LossMasses, int]]


def summed(parts: Parts, tilt: float) -> LossSum:
    """The sum of every part's loss, as many times as it is given, under a tilt."""
    made = [(part, many, *part.tilted(tilt)) for part, many in parts]
    spacing = parts[0][0].spacing
    low, high = _window(made)
    size = int(fft.next_fast_len(high - low + 1, real=True))
    transformed = [(many, fft.rfft(_wrapped(part, masses, size))) for part, many, masses, _ in made]
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for many, spectrum in transformed:
        product = product * _power(spectrum, many)
    masses = np.maximum(np.roll(fft.irfft(product, size), -(low % size)), 0.0)
    missing = sum(many * math.log1p(-part.beyond) if part.beyond < 1.0 else -math.inf for part, many in parts)
    error = 2.0 * OUTSIDE + _transform_error(transformed, product, size)
    log_mass = sum(many * log for _, many, _, log in made)
    return LossSum(spacing, low, masses, tilt, log_mass, -math.expm1(missing), error)


def _power(spectrum: Spectrum, many: int) -> Spectrum:
    """The spectrum to a whole power, by squaring: several times as fast as NumPy's power of complex numbers."""
    product = None
    while many:
        if many & 1:
            product = spectrum if product is None else product * spectrum
        many >>= 1
        if many:
            spectrum = np.square(spectrum)
    assert product is not None
    return product


def _wrapped(part: LossMasses, masses: Floats, size: int) -> Floats:
    """The masses on a circle of `size` places, each loss at its number."""
    places = (part.lower + np.arange(len(masses))) % size
    return np.asarray(np.bincount(places, weights=masses, minlength=size), dtype=np.float64)


def _window(made: Sequence[tuple[LossMasses, int, Floats, float]]) -> tuple[int, int]:
    """Grid numbers between which all but `OUTSIDE` of the tilted sum lies on either side (Chernoff)."""
    spacing = made[0][0].spacing
    tilted = [(LossMasses(spacing, part.lower, masses, 0.0), many) for part, many, masses, _ in made]
    least = sum(many * part.lower for part, many in tilted)
    most = sum(many * (part.lower + len(part.masses) - 1) for part, many in tilted)
    rate = _descended(tilted, lambda s, log: (log + _LOG_OUTSIDE) / s)
    high = (_log_mass(tilted, rate) + _LOG_OUTSIDE) / rate
    mirrored = [(LossMasses(spacing, 1 - p.lower - len(p.masses), p.masses[::-1], 0.0), many) for p, many in tilted]
    rate = _descended(mirrored, lambda s, log: (log + _LOG_OUTSIDE) / s)
    low = -(_log_mass(mirrored, rate) + _LOG_OUTSIDE) / rate
    return max(least, math.floor(low / spacing)), min(most, math.ceil(high / spacing))


def _log_mass(parts: Parts, tilt: float) -> float:
    return sum(many * part.tilted(tilt)[1] for part, many in parts)


def _transform_error(transformed: Sequence[tuple[int, Spectrum]], product: Spectrum, size: int) -> float:
    """A bound on the sum of absolute errors of all masses: of each transform, through the product, and of the last.

    A transform of masses that sum to one is off by at most 8 u log2(N) in each place; a power of R multiplies that by R
    and by the power of R - 1, and its own products, each off by a factor of at most 1 + sqrt(5) u, add as much as an
    error of 8 u in the spectrum; the sum over all places is at most the Euclidean norm of what the spectrum is off by.
    """
    each = _ROUNDING * (1.0 + math.log2(size + 1.0))
    total = each * _length(np.abs(product))
    for many, spectrum in transformed:
        size_of = np.abs(spectrum)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            without = np.where(size_of > 0.0, np.abs(product) / size_of, 0.0)
        total += many * each * _length(np.minimum(without, 1.0))
    return math.sqrt(2.0) * total


def _length(values: Floats) -> float:
    """The Euclidean norm, summed by NumPy: a linear-algebra library would wake its threads for every short vector."""
    return math.sqrt(float(np.sum(values * values)))


def tilt_for_delta(parts: Parts, delta: float) -> float:
    """A tilt whose bulk lies near epsilon(delta): it makes Chernoff's bound on epsilon nearly the smallest."""
    return UNDER * _descended(parts, lambda tilt, log: (log - math.log(delta)) / tilt)


def tilt_for_epsilon(parts: Parts, epsilon: float) -> float:
    """A tilt whose bulk lies near epsilon: it makes Chernoff's bound on delta nearly the smallest."""
    return UNDER * _descended(parts, lambda tilt, log: log - tilt * epsilon)


def _descended(parts: Parts, bound: Callable[[float, float], float]) -> float:
    """The power of 2^(1/8) near which a convex bound in the tilt is smallest; few, so that sums can be kept."""
    parts = [(part.binned, many) for part, many in parts]
    spread = sum(many * float(np.sum(part.masses * part.losses**2)) for part, many in parts)
    place = round(math.log(5.0 / math.sqrt(max(spread, 1e-300)), _STEP))

    def at(step: int) -> float:
        tilt = _STEP**step
        return bound(tilt, _log_mass(parts, tilt))

    here = at(place)
    for way, worth in ((1, 1.0 - LEAST_GAIN), (-1, 1.0)):  # a tilt too small costs digits, one too large costs all
        there = at(place + way)
        while there < (here * worth if here > 0 else here) and abs(place) < MOST_STEPS:
            place, here = place + way, there
            there = at(place + way)
    return float(_STEP**place)


# The grid is filled pessimistically ("connect the dots", Doroshenko et al. 2022): each interval's mass under P and
# under Q is split over its two ends so that both are kept, which can only raise the hockey-stick curve. The masses
# come from the tails of the law, not from second differences of delta (as in dp-accounting), which lose all their
# digits when p·mu is small.


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


# Rényi bounds for rounds whose clients cannot be told apart: every order takes its own worst client.
#
# Which client holds a record may change from round to round, and may depend on what was published before. Rényi
# divergences add up all the same (Mironov 2017, Proposition 1): each round is charged the largest divergence of its
# clients, order by order. That pairs no client's sampling rate with another's sensitivity.


ORDERS = np.array([*range(2, 33), 36, 40, 48, 56, 64, 80, 96, 128, 192, 256], dtype=np.float64)
UPWARD = 1.0 + 1e-9  # far above what rounding may take away
_DRAWN = np.arange(ORDERS[-1] + 1.0)
_WAYS = np.where(
    ORDERS[:, None] >= _DRAWN,
    gammaln(ORDERS[:, None] + 1.0) - gammaln(_DRAWN + 1.0) - gammaln(np.maximum(ORDERS[:, None] - _DRAWN, 0.0) + 1.0),
    -np.inf,
)
"""Logarithms of the binomial coefficients of each order."""


@lru_cache(maxsize=4096)
def divergences(charge: SubsampledMechanism) -> Floats | None:
    """The Rényi divergences of one charge at `ORDERS`; None where no formula is known.

    Poisson-sampled Gaussian noise under add-remove: Mironov, Talwar and Zhang 2019, Section 3.3. The other direction
    is no larger (their Theorem 5). Drawn records under replace: `_replaced`.
    """
    if not isinstance(charge.shift, GaussianShift):
        return None
    mu, p = charge.shift.size, charge.sampling_rate
    if p == 1.0:
        found = ORDERS * mu**2 / 2.0
    elif charge.adjacency == "add-remove":
        left = np.maximum(ORDERS[:, None] - _DRAWN, 0.0)
        terms = _WAYS + _DRAWN * math.log(p) + left * math.log1p(-p) + _DRAWN * (_DRAWN - 1.0) * (mu**2 / 2.0)
        found = logsumexp(terms, axis=1) / (ORDERS - 1.0)
    else:
        found = _replaced(mu, p)
    made: Floats = np.maximum(found, 0.0) * UPWARD
    return made


_ROUNDED = 1e-12
"""More than rounding takes from a sum of terms about one."""


def _replaced(mu: float, p: float) -> Floats:
    """A bound on the Rényi divergences of the symmetric pair of drawn records under replace.

    With s = p (e^(mu x - mu^2 / 2) - 1) the a-th moment of the pair's likelihood ratio is 1 plus the integral over
    x > mu/2 of (1+s)^a - 1 + (1+s)^(1-a) - (1+s) times the normal density. The first power is summed as a binomial; the
    second is at most 1 - (a-1) s + a (a-1) s^2 / 2, and at most 1.
    Proof: docs/proofs/mechanisms-and-sampling.md, "Nodes without stable names".
    """
    below, above, far = (special.ndtr(each * mu) for each in (-0.5, 0.5, 1.5))
    with np.errstate(over="ignore"):
        first, second = p * (above - below), p**2 * (np.exp(mu**2) * far - 2.0 * above + below)
    left = np.maximum(ORDERS[:, None] - _DRAWN, 0.0)
    terms = _WAYS + _DRAWN * math.log(p) + left * math.log1p(-p) + _DRAWN * (_DRAWN - 1.0) * (mu**2 / 2.0)
    power = logsumexp(terms + special.log_ndtr((_DRAWN - 0.5) * mu), axis=1)
    rest = np.minimum(0.5 * ORDERS * (ORDERS - 1.0) * second - ORDERS * first, -first) + 1.0 - below
    small = np.minimum(power, 30.0)
    near = np.log(np.maximum(np.exp(small) + rest + _ROUNDED * (1.0 + np.exp(small) + ORDERS * first), 1.0))
    far_off = np.logaddexp(power, np.log(np.maximum(rest, 1.0)))
    found: Floats = np.where(power < 30.0, near, far_off) / (ORDERS - 1.0)
    return found


def worst(clients: Iterable[tuple[SubsampledMechanism, ...]]) -> Floats | None:
    """The largest divergence at each order of clients with these charges in one round; None where one is not known."""
    found = np.zeros_like(ORDERS)
    for charges in clients:
        each = [divergences(charge) for charge in charges]
        known = [one for one in each if one is not None]
        if len(known) < len(each):
            return None
        found = np.maximum(found, np.sum(known, axis=0)) if known else found
    return found


def epsilon_by(total: Floats, delta: float) -> float:
    """epsilon at delta of what has these divergences (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    if delta <= 0.0:
        return math.inf
    found = total + np.log1p(-1.0 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1.0)
    return max(0.0, float(found.min())) * UPWARD


def delta_by(total: Floats, epsilon: float) -> float:
    """delta at epsilon of what has these divergences (as `epsilon_by`)."""
    found = (ORDERS - 1.0) * (total - epsilon + np.log1p(-1.0 / ORDERS)) - np.log(ORDERS)
    return min(1.0, math.exp(min(0.0, float(found.min()))) * UPWARD)
