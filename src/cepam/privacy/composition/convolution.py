"""Sums of independent privacy losses on a grid, with every rounding bounded and added.

The sum is tilted before it is Fourier-transformed: each loss l gets the weight e^(t l), with t such that the bulk of
the tilted sum lies where the question is. What the transform rounds off is then small beside the answer, for delta =
1e-12 as for delta = 0.1; without the tilt it is some 1e-10 whatever delta is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft

from cepam.distributions.laws import Floats

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
