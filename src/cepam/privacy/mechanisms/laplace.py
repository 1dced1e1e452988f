"""Laplace noise under l2 clipping: the pure figure, and the zCDP one that is worth quoting.

Independent Laplace coordinates need an l1 bound. An l2 bound gamma only bounds the l1 norm by sqrt(m)
gamma, so the pure epsilon grows with the model. Coordinate by coordinate, however, the noise is
(v_i/b)^2/2-zCDP, and these add up to (|v|_2/b)^2/2 whatever the dimension: it protects like a Gaussian of
standard deviation b, at twice the variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy import optimize

from cepam.privacy.mechanisms.mechanism import Mechanism, amplified, unamplified


def pure_gap(mechanism: Mechanism, client: int) -> float:
    """epsilon of one unsampled round, pure DP: the l1 distance over b; sqrt(m) l2 distance/b if l2-clipped.

    Adjacency: as recorded. Sampling: none. Trust: trusted server; only this client's own noise is charged.
    Rests on: the Laplace mechanism. Departs: Theorem 8 has 2 tau' gamma/b under l2 clipping, which is too
    small as soon as m > tau'^2 (m = 6422, b = 0.01: claimed 3000, true 16,028).
    """
    if mechanism.law_is_gaussian:
        raise ValueError("Gaussian noise gives no pure guarantee: ask for epsilon at a delta > 0")
    if client in mechanism.absent:
        return 0.0
    stretch = 1.0
    if mechanism.clip.norm == "l2":
        if mechanism.coordinates is None:
            raise ValueError("coordinates (m, the length of an update) is needed for Laplace noise under l2 clipping")
        stretch = math.sqrt(mechanism.coordinates)
    return stretch * mechanism.distance(client) / mechanism.clients[client].law.scale


def pure_epsilon(mechanism: Mechanism, client: int) -> float:
    """epsilon of the whole run at delta = 0: rounds times log(1 + p(e^gap - 1)).

    Adjacency: as recorded. Sampling: amplifies by p. Trust: trusted server; own noise only.
    Rests on: pure composition and Balle, Barthe and Gaboardi 2018, Theorem 2.

    Args:
        mechanism: What is published.
        client: Its number.

    Returns:
        epsilon.

    Raises:
        ValueError: The noise is Gaussian, or an l2 clip comes without `coordinates`.
    """
    return mechanism.rounds * amplified(pure_gap(mechanism, client), mechanism.sampling_rate(client))


def zcdp_rho(mechanism: Mechanism, client: int) -> float:
    """rho of the whole run under zero-concentrated DP: rounds times (l2 distance/b)^2/2, dimension-free.

    Adjacency: as recorded. Sampling: none is used. Trust: trusted server; own noise only.
    Rests on: Bun and Steinke 2016, Proposition 1.4 (each coordinate) and Lemma 1.7 (composition).

    Args:
        mechanism: What is published.
        client: Its number.

    Returns:
        rho.
    """
    if mechanism.law_is_gaussian:
        return mechanism.rounds * mechanism.mu(client) ** 2 / 2
    if client in mechanism.absent:
        return 0.0
    return mechanism.rounds * (mechanism.distance(client) / mechanism.clients[client].law.scale) ** 2 / 2


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-zCDP implies at delta.

    Rests on: Canonne, Kamath and Steinke 2020, Proposition 12, minimised over the Rényi order.

    Args:
        rho: The zCDP parameter.
        delta: Above 0.

    Returns:
        An upper bound on epsilon.
    """
    if rho == 0.0:
        return 0.0

    def at(log_excess: float) -> float:
        excess = math.exp(log_excess)  # the Rényi order less one
        log_order = math.log1p(excess)
        return (1.0 + excess) * rho + log_excess - log_order - (math.log(delta) + log_order) / excess

    start = 0.5 * math.log(max(1e-12, -math.log(delta)) / rho)
    found = optimize.minimize_scalar(at, bounds=(start - 8.0, start + 8.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))


def delta_of_zcdp(rho: float, epsilon: float) -> float:
    """The smallest delta that rho-zCDP implies at epsilon: the inverse of `epsilon_of_zcdp`."""
    if rho == 0.0 or epsilon_of_zcdp(rho, 1e-300) <= epsilon:
        return 0.0
    if epsilon_of_zcdp(rho, 1.0 - 1e-12) >= epsilon:
        return 1.0
    log_delta = optimize.brentq(lambda log: epsilon_of_zcdp(rho, math.exp(log)) - epsilon, math.log(1e-300), -1e-12)
    return math.exp(float(log_delta))


@dataclass(frozen=True)
class ZeroConcentrated:
    """What l2-clipped Laplace rounds cost a record: `rho` of zCDP and the `pure` epsilon, which may be infinite.

    `sampling_rate` is that of the record to be drawn where there is a single round, which sampling amplifies; else 1.
    """

    rho: float
    pure: float
    sampling_rate: float = 1.0

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at delta: the best of the pure and the zCDP one.

        Rests on: `pure_epsilon`, `zcdp_rho`, `epsilon_of_zcdp`.
        """
        if delta == 0.0:
            if math.isinf(self.pure):
                raise ValueError(
                    "coordinates (m, the length of an update) is needed for Laplace noise under l2 clipping"
                )
            return self.pure
        best = min(self.pure, epsilon_of_zcdp(self.rho, delta))
        if self.sampling_rate < 1.0:
            drawn = 0.0 if delta >= self.sampling_rate else epsilon_of_zcdp(self.rho, delta / self.sampling_rate)
            best = min(best, amplified(drawn, self.sampling_rate))
        return best

    def delta(self, epsilon: float) -> float:
        """The smallest delta at epsilon: the inverse of `epsilon`."""
        if epsilon >= self.pure:
            return 0.0
        return self.sampling_rate * delta_of_zcdp(self.rho, unamplified(epsilon, self.sampling_rate))


def zcdp_of(rounds: Iterable[tuple[Mechanism, Sequence[int]]]) -> ZeroConcentrated:
    """What these rounds cost a record that is in the vectors at the given places of each release.

    Adjacency: as recorded. Sampling: amplifies the pure figure, and the zCDP one when there is a single round.
    Trust: trusted server; own noise only.
    """
    sent = [(mechanism, j) for mechanism, places in rounds for j in places]
    rho = sum(zcdp_rho(mechanism, j) for mechanism, j in sent)
    known = all(mechanism.coordinates is not None or mechanism.clip.norm == "l1" for mechanism, _ in sent)
    pure = sum(pure_epsilon(mechanism, j) for mechanism, j in sent) if known else math.inf
    single = len(sent) == 1 and sent[0][0].rounds == 1
    return ZeroConcentrated(rho, pure, sent[0][0].sampling_rate(sent[0][1]) if single else 1.0)
