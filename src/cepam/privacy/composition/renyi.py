"""Rényi bounds for rounds whose clients cannot be told apart: every order takes its own worst client.

Which client holds a record may change from round to round, and may depend on what was published before. Rényi
divergences add up all the same (Mironov 2017, Proposition 1): each round is charged the largest divergence of its
clients, order by order. That pairs no client's sampling rate with another's sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from cepam.distributions.laws import Floats
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift
from cepam.privacy.mechanisms.subsampled import SubsampledMechanism

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
    is no larger (their Theorem 5).
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
        return None
    made: Floats = np.maximum(found, 0.0) * UPWARD
    return made


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
