"""Calibration: the noise that a target epsilon needs over the whole run.

The account depends on the noise only through the shift, which is inversely proportional to a common factor
on all scales, so one search for the largest allowed shift serves every kind of noise, sampling and
adjacency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from scipy import optimize

from cepam.privacy.composition.accountant import check_delta, delta_without_noise, least_slack, slack
from cepam.privacy.composition.accountant import epsilon as spend
from cepam.privacy.composition.losses import FINE, ROUGH, epsilon_of
from cepam.privacy.mechanisms.laplace import pure_gap
from cepam.privacy.mechanisms.mechanism import Mechanism, SubsampledMechanism, unamplified

TOLERANCE = 1e-6
NARROWEST = 1e-9
WIDEST = 1e9
TRIES = 6
NEAR = 1.0 + 3e-6


def check_target(epsilon: float, delta: float) -> None:
    """Raise ValueError when (epsilon, delta) is not a target that noise could meet."""
    if not (0.0 < epsilon < math.inf):
        raise ValueError(f"epsilon must be positive and finite, got {epsilon!r}")
    check_delta(delta)


def calibrate(mechanism: Mechanism, epsilon: float, delta: float, client: int | None = None) -> Mechanism:
    """Find the least noise that meets (epsilon, delta): all noise scales are multiplied by one factor.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders. Its noise scales fix the
            ratios between clients.
        epsilon: the target, positive.
        delta: of the guarantee.
        client: the client that the target is for; None: the worst.

    Returns:
        The mechanism with calibrated noise; of clients that never take the search coder (`Client.searched`) where its
        arithmetic alone leaves no finite figure.

    Raises:
        ValueError: no noise scale meets the target.

    For the worst client, or for the one named. Adjacency, sampling, rounds, colluders: as recorded.
    Trust: trusted server. Rests on: as `cepam.privacy.epsilon`, which is monotone in the noise.
    Guarantee: `epsilon(calibrate(mechanism, e, d), d) <= e`, checked before it is returned; the scale within 1e-4
    relative of the smallest; tests/privacy/test_calibration.py.
    """
    check_target(epsilon, delta)
    _check_roundings(mechanism, epsilon, delta)
    who = range(len(mechanism.clients)) if client is None else [client]
    first = list({mechanism.history(j): j for j in who}.values())
    return _settled(mechanism, epsilon, delta, client, lambda aim: _largest_factor(mechanism, aim, delta, first))


def _check_roundings(mechanism: Mechanism, epsilon: float, delta: float) -> None:
    """Raise ValueError where delta cannot cover the roundings at any noise. It comes first: a search takes longer."""
    if delta == 0.0 or mechanism.coordinates is None or not least_slack((mechanism,)).too_many(delta):
        return
    least = least_slack((mechanism.layered(),))
    if least.too_many(delta) and (excess := least.excess(epsilon, delta)):
        raise ValueError(f"epsilon {epsilon:g} cannot be met at delta {delta:g}: {'. '.join(excess)}")


def _largest_factor(mechanism: Mechanism, aim: float, delta: float, clients: Sequence[int]) -> float:
    """By how much all scales must grow for each of these clients to meet the aim.

    A search is made for a client only where the factor that was found for others leaves it above the aim: one question
    each, and few searches, from the client that seems worst.
    """
    if mechanism.l2_clipped_laplace or delta == 0.0 or len(clients) < 2:
        return max(_factor(mechanism, aim, delta, j) for j in clients)
    for j in clients:
        _check_free(mechanism, delta, j)
    charges = {j: mechanism.charge(j) for j in clients if j not in mechanism.absent}
    wide = {j: mechanism.events_of(j) * (c.sampling_rate * c.shift.spread) ** 2 for j, c in charges.items()}
    largest = NARROWEST
    for j in sorted(charges, key=lambda j: -wide[j]):
        if charges[j].shift.size > 0.0 and not _meets(_ways(mechanism, j), largest, aim, delta):
            largest = max(largest, _factor(mechanism, aim, delta, j))
    return largest


def _meets(ways: Sequence[tuple[SubsampledMechanism, int]], factor: float, aim: float, delta: float) -> bool:
    """Whether a client is at the aim or under, or above it by less than the search rounds off, with scales grown so."""
    if factor == NARROWEST:
        return False
    made = [((_scaled(one, one.shift.size / factor), times),) for one, times in ways]
    return any(epsilon_of(run, delta, cells) <= aim * (1.0 + TOLERANCE) for cells in (ROUGH, FINE) for run in made)


def _settled(
    mechanism: Mechanism, target: float, delta: float, client: int | None, factor: Callable[[float], float]
) -> Mechanism:
    """The release scaled by what `factor` gives for an aim at or under the target, once it is seen to meet the target.

    The aim is lowered by what the answer is over, which is what the search rounds off and the mechanism's own slack;
    where that is next to nothing, the noise is raised in proportion instead.
    """
    aim, by = target, factor(target)
    for _ in range(TRIES):
        made = mechanism.with_noise([c.law.scale * by for c in mechanism.clients])
        found = spend(made, delta, client)
        if found <= target:
            return made
        if math.isinf(found) and mechanism.searched():
            return _settled(mechanism.layered(), target, delta, client, factor)
        if math.isinf(found):
            excess = slack(made, delta).excess(found, delta)
            said = ". ".join(excess) if excess else "no figure can be given"
            raise ValueError(f"epsilon {target:g} cannot be met at delta {delta:g}: {said}")
        if found <= NEAR * target:  # epsilon falls at least as fast as noise grows
            by *= found / target * (1.0 + 0.25 * TOLERANCE)
            continue
        aim -= (found - target) + 0.25 * TOLERANCE * target
        if aim <= 0.0:
            break
        by = factor(aim)
    raise ValueError(f"no noise scale meets epsilon {target:g} at delta {delta:g}")


def calibrate_each(mechanism: Mechanism, epsilons: Sequence[float], deltas: Sequence[float]) -> Mechanism:
    """Find for every client the noise that its own (epsilon, delta) needs by itself.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders.
        epsilons: a target for each client.
        deltas: a delta for each client.

    Returns:
        The mechanism with calibrated noise.

    Raises:
        ValueError: the targets are not one for each client, or no noise meets one.

    Paper: privacy adaptability. Each client's own noise alone meets its target, that is against all other
    clients colluding; against an outsider it has more. Adjacency, sampling, rounds: as recorded. Trust:
    trusted server.
    Rests on: as `cepam.privacy.epsilon`. Tests: tests/privacy/test_calibration.py.
    """
    if not (len(epsilons) == len(deltas) == len(mechanism.clients)):
        raise ValueError(f"give one epsilon and one delta for each of the {len(mechanism.clients)} clients")
    scales = []
    for j in range(len(mechanism.clients)):
        check_target(epsilons[j], deltas[j])
        alone = mechanism.alone(j)
        aimed = partial(_factor, alone, delta=deltas[j], client=0)
        scales.append(_settled(alone, epsilons[j], deltas[j], 0, aimed).clients[0].law.scale)
    return mechanism.with_noise(scales)


def _factor(mechanism: Mechanism, target: float, delta: float, client: int) -> float:
    """By how much all scales must grow for this client to meet the target."""
    if client in mechanism.absent:
        return NARROWEST
    _check_free(mechanism, delta, client)
    if delta == 0.0:
        allowed = unamplified(target / mechanism.events_of(client), mechanism.sampling_rate(client))
        return pure_gap(mechanism, client) / allowed
    if mechanism.l2_clipped_laplace:
        return _l2_factor(mechanism, target, delta, client)
    ways = _ways(mechanism, client)
    return min(one.shift.size / _largest_shift(one, times, target, delta) for one, times in ways)


def _check_free(mechanism: Mechanism, delta: float, client: int) -> None:
    """Raise a ValueError when delta is so large that no noise is needed."""
    if client not in mechanism.absent and delta >= (free := delta_without_noise(mechanism, client)):
        raise ValueError(
            f"delta {delta:g} is at or above {free:.4g}, which publishing without any noise gives: choose a smaller "
            "delta"
        )


def _ways(mechanism: Mechanism, client: int) -> list[tuple[SubsampledMechanism, int]]:
    """Charges of a client and how often they are made: each of these alone covers the run."""
    limited = mechanism.limited(client)
    return [(mechanism.charge(client), mechanism.events_of(client)), *([] if limited is None else [limited])]


def _scaled(charge: SubsampledMechanism, size: float) -> SubsampledMechanism:
    """The charge with a shift of another size."""
    return SubsampledMechanism(charge.shift.scaled(size / charge.shift.size), charge.sampling_rate, charge.adjacency)


def _l2_factor(mechanism: Mechanism, target: float, delta: float, client: int) -> float:
    scales = [c.law.scale for c in mechanism.clients]

    def excess(log_factor: float) -> float:
        noisier = mechanism.with_noise([s * math.exp(log_factor) for s in scales])
        return spend(noisier, delta, client) - target

    low, high = _bracket(lambda x: -excess(x), 0.0)
    root = float(optimize.brentq(excess, low, high, xtol=1e-10))
    return math.exp(root) * (1.0 + 1e-9)


def _largest_shift(charge: SubsampledMechanism, rounds: int, target: float, delta: float) -> float:
    """The largest shift whose run stays under the target: found on a rough grid, settled on a fine one."""

    def excess(log_size: float, cells: int = ROUGH) -> float:
        return epsilon_of(((_scaled(charge, math.exp(log_size)), rounds),), delta, cells) - target

    low, high = _bracket(excess, _guess(charge.sampling_rate, rounds, target, delta))
    place = float(optimize.brentq(excess, low, high, xtol=1e-4))
    slope = max((excess(place + 1e-3) - excess(place - 1e-3)) / 2e-3, 1e-3 * target)
    for _ in range(8):
        over = excess(place, FINE)
        if -TOLERANCE * target <= over <= 0.0:
            break
        place -= (over + 0.5 * TOLERANCE * target) / slope
    return math.exp(place)


def _guess(sampling_rate: float, rounds: int, target: float, delta: float) -> float:
    """The logarithm of a shift near the answer, from the central limit p sqrt(R (e^(mu^2) - 1))."""
    whole = target / math.sqrt(2.0 * math.log(1.0 / delta) + 2.0 * target)
    return 0.5 * math.log(math.log1p(whole**2 / (sampling_rate**2 * rounds)))


def _bracket(excess: Callable[[float], float], start: float) -> tuple[float, float]:
    """Two arguments around the zero of an increasing function."""
    low = high = start
    step = 0.25
    while excess(low) > 0.0:
        low, step = low - step, 2.0 * step
    step = 0.25
    while excess(high) <= 0.0:
        high, step = high + step, 2.0 * step
        if high > math.log(WIDEST):
            raise ValueError("no noise scale meets this target")
    return low, high
