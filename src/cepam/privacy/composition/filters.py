"""Privacy filters: epsilon of mechanisms whose parameters were chosen by what earlier ones released.

Adaptive composition takes the parameters of all mechanisms as given. Where an adversary chooses noise, clip and law of
the next round by earlier answers, a total may be compared with a limit only if the total is a filter's. Two are known
to cost nothing (docs/proofs/node-policy.md):

- Gaussian differential privacy: the squares of mu add up (Smith and Thakurta 2022).
- Rényi differential privacy of one order that is fixed beforehand (Feldman and Zrnic 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special
from scipy.special import gammaln, logsumexp

from cepam.distributions.laws import Floats
from cepam.privacy.composition.losses import Charges
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift
from cepam.privacy.mechanisms.mechanism import SubsampledMechanism

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
