"""What training makes of correlated noise, and the decay that leaves least of it.

Momentum m and rates eta make the weights of a run -A x with A_ts = sum over u = s..t of eta_u m^(u-s). The noise C^-1 Z
of the updates becomes A C^-1 Z in the weights, and at a given epsilon Z grows with the sensitivity of C. So the best C
has the least |A C^-1| sens(C). For a decay, |A C^-1|^2 = a - 2 decay p + decay^2 q with three sums that do not depend
on it: a search in one dimension. So it is for a decay c cut after b messages, where with S the shift by one message
C = (1 - c^b S^b)/(1 - c S), and A C^-1 needs two passes over A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import optimize

from cepam.distributions.laws import Floats
from cepam.privacy.matrix.correlated_noise import CorrelatedNoise
from cepam.privacy.matrix.participation import sensitivity
from cepam.privacy.mechanisms.mechanism import check_count

LARGEST_CARRY = 1.0 - 1e-6
GRID = 64


def best_decay(
    rounds: int, slices: int, momentum: float = 0.0, rates: Sequence[float] | None = None, bands: int | None = None
) -> float:
    """The decay that leaves least noise in the weights of a run at a given epsilon; 0 where none helps.

    `rates` are the server's learning rates, one a round (a constant one unless given): only their ratios matter.
    `bands`: the decay is cut after so many messages. With secret draws in the slices, of which there are then at least
    as many, epsilon follows the length of a column, as it does without: the same decay is best.
    Guarantee: within 1e-4 of the least noise over all carries; tests/privacy/test_workload.py searches a fine grid.

    Args:
        rounds: Messages of the run.
        slices: Slices of a pass.
        momentum: Momentum of the server's optimizer.
        rates: Learning rates by round; only their ratios matter.
        bands: Messages after which the decay is cut.

    Returns:
        A decay from 0 to below 1.
    """
    made = _rates(rounds, momentum, rates)
    check_count("slices", slices)
    noise_of = _noise_of(made, momentum, bands)

    def noise(place: float) -> float:
        decay = -math.expm1(place)
        cut = None if bands is None else CorrelatedNoise.from_matrix(decay ** np.arange(bands), slices)
        return noise_of(decay) * sensitivity(cut or CorrelatedNoise(decay, slices), rounds)

    grid = np.linspace(0.0, math.log1p(-LARGEST_CARRY), GRID)
    least = int(np.argmin([noise(place) for place in grid]))
    high, low = grid[max(0, least - 1)], grid[min(GRID - 1, least + 1)]
    found = optimize.minimize_scalar(noise, bounds=(low, high), method="bounded", options={"xatol": 1e-7})
    return -math.expm1(float(found.x)) if noise(float(found.x)) < noise(0.0) else 0.0


def _noise_of(rates: Floats, momentum: float, bands: int | None) -> Callable[[float], float]:
    """|A C^-1| as a function of the decay."""
    if bands is None:
        sums = _three_sums(rates, momentum)
        return lambda decay: _carried_noise(sums, decay)
    check_count("bands", bands)
    workload = _workload(rates, momentum)
    return lambda decay: _cut_noise(workload, decay, bands)


def weight_noise(
    link: CorrelatedNoise, rounds: int, momentum: float = 0.0, rates: Sequence[float] | None = None
) -> float:
    """The noise in the weights, as a root mean square over rounds, for messages of unit noise.

    Times the sensitivity it is what C costs at a given epsilon. Guarantee: tests/privacy/test_workload.py simulates it.

    Args:
        link: The correlated noise.
        rounds: Messages of the run.
        momentum: Momentum of the server's optimizer.
        rates: Learning rates by round; a constant one by default.

    Returns:
        A standard deviation per coordinate.
    """
    made = _rates(rounds, momentum, rates)
    if link.bands is None:
        return _carried_noise(_three_sums(made, momentum), link.decay) / math.sqrt(rounds)
    left = np.linalg.solve(link.matrix(rounds).T, _workload(made, momentum).T)
    return float(np.linalg.norm(left)) / math.sqrt(rounds)


def _rates(rounds: int, momentum: float, rates: Sequence[float] | None) -> Floats:
    check_count("rounds", rounds)
    if not (0.0 <= momentum < 1.0):
        raise ValueError(f"momentum must lie in [0, 1), got {momentum!r}")
    made = np.ones(rounds) if rates is None else np.array(rates, dtype=np.float64)
    if made.shape != (rounds,):
        raise ValueError(f"rates must give one value for each of {rounds} rounds, got shape {made.shape}")
    if not np.isfinite(made).all() or (made < 0).any() or not made.any():
        raise ValueError("rates must be finite, not negative and not all zero")
    return made


def _workload(rates: Floats, momentum: float) -> Floats:
    """A: how each round's update enters the weights after each round."""
    made = np.zeros((len(rates), len(rates)))
    for s, column in _columns(rates, momentum):
        made[:, s] = column
    return made


def _columns(rates: Floats, momentum: float) -> Iterator[tuple[int, Floats]]:
    """The columns of A from the last to the first: A_ts = eta_s + m A_t,s+1 for t >= s."""
    column = np.zeros(len(rates))
    for s in range(len(rates) - 1, -1, -1):
        column = momentum * column
        column[s:] += rates[s]
        yield s, column


def _three_sums(rates: Floats, momentum: float) -> tuple[float, float, float]:
    """The sums of A_ts^2, A_ts A_t,s+1 and A_t,s+1^2."""
    after, whole, crossed, shifted = np.zeros(len(rates)), 0.0, 0.0, 0.0
    for _, column in _columns(rates, momentum):
        whole += float(column @ column)
        crossed += float(column @ after)
        shifted += float(after @ after)
        after = column
    return whole, crossed, shifted


def _carried_noise(sums: tuple[float, float, float], decay: float) -> float:
    whole, crossed, shifted = sums
    return math.sqrt(max(0.0, whole - 2.0 * decay * crossed + decay**2 * shifted))


def _cut_noise(workload: Floats, decay: float, bands: int) -> float:
    """|A C^-1| for a decay cut after `bands` messages: A (1 - decay S), then 1/(1 - (decay S)^bands) as a recursion."""
    left = workload.copy()
    left[:, :-1] -= decay * workload[:, 1:]
    for end in range(left.shape[1] - bands, 0, -bands):
        start = max(0, end - bands)
        left[:, start:end] += decay**bands * left[:, start + bands : end + bands]
    return float(np.linalg.norm(left))
