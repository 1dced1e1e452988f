"""Privacy filters: epsilon of mechanisms whose parameters were chosen by what earlier ones released.

Adaptive composition takes the parameters of all mechanisms as given. Where an adversary chooses noise, clip and law of
the next round by earlier answers, a total may be compared with a limit only if the total is a filter's. Two are known
to cost nothing (docs/proofs/node-policy.md):

- Gaussian differential privacy: the squares of mu add up (Smith and Thakurta 2022).
- Rényi differential privacy of one order that is fixed beforehand (Feldman and Zrnic 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from cepam.distributions.laws import Floats
from cepam.privacy.composition.losses import Charges
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift
from cepam.privacy.mechanisms.mechanism import SubsampledMechanism

CELLS = 2048
ROUGH_CELLS = 256
BEYOND = 15.0
SMALLEST = -690.0
"""The logarithm of a number that floats hold: profiles below it are taken for it."""
_FILTER_ORDERS = 1.0 + np.geomspace(0.05, 4000.0, 60)


@dataclass(frozen=True)
class PrivacyFilter:
    """A bound on epsilon under fully adaptive composition.

    Args:
        order: the Rényi order, fixed before the first release; None adds up Gaussian differential privacy, which is
            tighter for Gaussian noise and does not count sampling.
    """

    order: float | None = None

    def epsilon(self, charges: Charges, delta: float) -> float:
        """Return a bound on epsilon at delta that a stopping rule may compare with a limit.

        The sum of the rounds' largest losses, finite for Laplace noise, is such a bound by itself. A run that ends
        below it never exceeds it, so the smaller of both holds at the same delta.

        Args:
            charges: what was charged to one client, each with how often.
            delta: of the guarantee, in (0, 1).

        Returns:
            The bound; infinite where it is beyond all floats.
        """
        pure = sum(times * charge.largest_loss for charge, times in charges)
        return min(pure, self._gaussian(charges, delta) if self.order is None else self._renyi(charges, delta))

    def _gaussian(self, charges: Charges, delta: float) -> float:
        mu = math.sqrt(sum(times * gaussian_mu(charge) ** 2 for charge, times in charges))
        return SubsampledMechanism(GaussianShift(mu)).epsilon(delta) if mu < math.inf else math.inf

    def _renyi(self, charges: Charges, delta: float) -> float:
        assert self.order is not None
        total = sum(times * renyi_divergence(charge, self.order) for charge, times in charges)
        return max(0.0, total + conversion(self.order, delta))


def gaussian_mu(charge: SubsampledMechanism) -> float:
    """Return a mu such that the round is mu-Gaussian differentially private, sampled or not.

    Laplace noise with largest loss l: the trade-off curve of every l-DP mechanism lies above two lines that meet where
    both errors are 1/(1 + e^l). The Gaussian curve through that point is convex and ends in the same corners, so it
    lies below both lines.
    """
    if isinstance(charge.shift, GaussianShift):
        return charge.shift.mu
    return -2.0 * float(special.ndtri(special.expit(-charge.largest_loss)))


def conversion(order: float, delta: float) -> float:
    """Return what to add to a Rényi divergence for epsilon at delta (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    return math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)


@lru_cache(maxsize=1024)
def renyi_divergence(charge: SubsampledMechanism, order: float, cells: int = CELLS) -> float:
    """Return an upper bound on the Rényi divergence of a round's dominating pair, the larger of both directions.

    With h the privacy profile at e^t, the integral of the order-th power of the likelihood ratio is
    1 + a(a-1) times the integral over t > 0 of (e^((a-1)t) + e^(-at)) h(e^t), for the symmetric pair. h is convex in
    e^t, so that lines between grid points lie above it. Beyond the grid h is at most that of the unsampled Gaussian,
    whose integral is known. The pair of add-or-remove is dominated by the symmetric one.
    """
    size, a = charge.shift.size, order
    if size == 0.0:
        return 0.0
    far, tail = size, -math.inf
    if isinstance(charge.shift, GaussianShift):
        deviations = BEYOND + a * size
        far = size**2 * (a - 0.5) + deviations * size
        tail = a * (a - 1.0) * size**2 / 2.0 + float(special.log_ndtr(-deviations)) + math.log(2.6 * size)
    step = far / cells
    if a * step > 1.0:  # too coarse for any bound
        return math.inf
    at = np.arange(cells + 1, dtype=np.float64) * step
    with np.errstate(divide="ignore"):
        profile: Floats = np.maximum(np.log([charge.profile(t) for t in at]), SMALLEST)
    parts = [_cells(profile, at, step, power) for power in (a - 1.0, -a)]
    total = float(special.logsumexp([*parts, tail]))
    return float(np.logaddexp(0.0, math.log(a * (a - 1.0)) + total)) / (a - 1.0)


def _cells(profile: Floats, at: Floats, step: float, power: float) -> float:
    """Return the logarithm of the integral of e^(power t) times a profile, lines in e^t between points a step apart."""
    whole = math.expm1(power * step) / power
    linear = math.expm1((power + 1.0) * step) / (power + 1.0) if power != -1.0 else step
    part = (linear - whole) / math.expm1(step)
    left = power * at[:-1] + profile[:-1] + math.log(whole - part)
    right = power * at[:-1] + profile[1:] + math.log(part)
    return float(special.logsumexp(np.concatenate((left, right))))


def best_order(charges: Charges, delta: float, rounds: int, limit: float | None) -> float:
    """Return the Rényi order that allows most rounds below a limit, or that has the least epsilon after all of them.

    Args:
        charges: what one round costs.
        delta: of the guarantee.
        rounds: how many rounds there may be.
        limit: the largest epsilon; None for no limit.
    """
    best, found = float(_FILTER_ORDERS[0]), math.inf
    for order in _FILTER_ORDERS.tolist():
        each = sum(times * renyi_divergence(charge, order, ROUGH_CELLS) for charge, times in charges)
        beside = conversion(order, delta)
        left = math.inf if limit is None else limit - beside
        value = rounds * each + beside if limit is None else each / left if left > 0.0 else math.inf
        if value < found:
            best, found = order, value
    return best
