"""Laplace noise under l2 clipping: the honest pure figure, and the zCDP one that is worth quoting.

Independent Laplace coordinates need an l1 bound. An l2 bound gamma only bounds the l1 norm by sqrt(m)
gamma, so the pure epsilon grows with the model. Coordinate by coordinate, however, the noise is
(v_i/b)^2/2-zCDP, and these add up to (|v|_2/b)^2/2 whatever the dimension: it protects like a Gaussian of
standard deviation b, at twice the variance.
"""

from __future__ import annotations

import math

from scipy import optimize

from cepam.privacy.release import Release
from cepam.privacy.sampled import amplified, unamplified


def pure_gap(release: Release, client: int) -> float:
    """epsilon of one unsampled round, pure DP: the l1 distance over b; sqrt(m) l2 distance/b if l2-clipped.

    Adjacency: as recorded. Sampling: none. Trust: trusted server; only this client's own noise is charged.
    Rests on: the Laplace mechanism. Departs: Theorem 2 has 2 tau' gamma/b under l2 clipping, which is too
    small as soon as m > tau'^2 (m = 6422, b = 0.01: claimed 3000, true 16,028).
    """
    if release.law_is_gaussian:
        raise ValueError("Gaussian noise gives no pure guarantee: ask for epsilon at a delta > 0")
    if client in release.absent:
        return 0.0
    stretch = 1.0
    if release.clip.norm == "l2":
        if release.coordinates is None:
            raise ValueError("coordinates (m, the length of an update) is needed for Laplace noise under l2 clipping")
        stretch = math.sqrt(release.coordinates)
    return stretch * release.distance(client) / release.clients[client].law.scale


def pure_epsilon(release: Release, client: int) -> float:
    """epsilon of the whole run at delta = 0: rounds times log(1 + p(e^gap - 1)).

    Adjacency: as recorded. Sampling: amplifies by p. Trust: trusted server; own noise only.
    Rests on: pure composition and Balle, Barthe and Gaboardi 2018, Theorem 2.
    """
    return release.rounds * amplified(pure_gap(release, client), release.chance(client))


def zcdp_rho(release: Release, client: int) -> float:
    """rho of the whole run under zero-concentrated DP: rounds times (l2 distance/b)^2/2, dimension-free.

    Adjacency: as recorded. Sampling: none is used. Trust: trusted server; own noise only.
    Rests on: Bun and Steinke 2016, Proposition 1.4 (each coordinate) and Lemma 1.7 (composition).
    """
    if release.law_is_gaussian:
        return release.rounds * release.mu(client) ** 2 / 2
    if client in release.absent:
        return 0.0
    return release.rounds * (release.distance(client) / release.clients[client].law.scale) ** 2 / 2


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-zCDP implies at delta.

    Rests on: Canonne, Kamath and Steinke 2020, Proposition 12, minimised over the Rényi order.
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


def epsilon_l2(release: Release, delta: float, client: int) -> float:
    """The smallest epsilon at delta for l2-clipped Laplace noise: the best of the pure and the zCDP one.

    Adjacency: as recorded. Sampling: amplifies the pure figure, and the zCDP one when there is a single
    round.
    Trust: trusted server; own noise only. Rests on: `pure_epsilon`, `zcdp_rho`, `epsilon_of_zcdp`.
    """
    best = math.inf if release.coordinates is None else pure_epsilon(release, client)
    if delta == 0.0:
        return pure_epsilon(release, client)
    rho, chance = zcdp_rho(release, client), release.chance(client)
    best = min(best, epsilon_of_zcdp(rho, delta))
    if release.rounds == 1:
        best = min(best, 0.0 if delta >= chance else amplified(epsilon_of_zcdp(rho, delta / chance), chance))
    return best


def delta_l2(release: Release, epsilon: float, client: int) -> float:
    """delta at epsilon for l2-clipped Laplace noise: the inverse of `epsilon_l2`, on its zCDP branch.

    Adjacency: as recorded. Sampling: amplifies a single round. Trust: trusted server; own noise only.
    Rests on: `epsilon_of_zcdp`.
    """
    if release.coordinates is not None and epsilon >= pure_epsilon(release, client):
        return 0.0
    rho, chance = zcdp_rho(release, client), release.chance(client)
    single = release.rounds == 1
    target = unamplified(epsilon, chance) if single else epsilon
    if rho == 0.0 or epsilon_of_zcdp(rho, 1e-300) <= target:
        return 0.0
    if epsilon_of_zcdp(rho, 1.0 - 1e-12) >= target:
        return chance if single else 1.0
    log_delta = optimize.brentq(lambda log: epsilon_of_zcdp(rho, math.exp(log)) - target, math.log(1e-300), -1e-12)
    return math.exp(float(log_delta)) * (chance if single else 1.0)
