"""Epsilon and delta of a mechanism: pure functions over the accountant.

Every figure is for one record of one client, against whoever sees all published models and plays
`colluders` of the other clients. The server and any key holder are outside: against them there is no
guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cepam.privacy.composition.accountant import Accountant
from cepam.privacy.composition.losses import COARSE
from cepam.privacy.mechanisms.mechanism import Mechanism, check_count
from cepam.privacy.numerics.slack import Slack


def epsilon(mechanism: Mechanism, delta: float, client: int | None = None) -> float:
    """epsilon of the whole release at delta, for one client or for the worst.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders.
        delta: of the guarantee; 0 asks for pure differential privacy.
        client: the place of one client; None: the worst.

    Returns:
        epsilon; infinite where no finite bound is available.

    Raises:
        ValueError: delta does not lie in [0, 1).

    Adjacency, sampling, colluders: as recorded. Trust: trusted server; outsiders and other clients are not.
    Rests on: Gaussian and l1-clipped Laplace, one round: closed form (Balle, Barthe and Gaboardi 2018,
    Theorem 2); many rounds: the dominating pair of `SubsampledMechanism`, composed (Zhu, Dong and Wang 2022, Theorem
    10); l2-clipped Laplace: zCDP. Not the paper's theorems: those are in `cepam_paper.theorems`.
    Guarantee: never below the truth, above it by at most 1e-4 relative; tests/privacy/test_account.py.
    """
    return Accountant((mechanism,)).epsilon(delta, client)


def delta(mechanism: Mechanism, epsilon: float, client: int | None = None) -> float:
    """delta of the whole release at epsilon, for one client or for the worst.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders.
        epsilon: of the guarantee, finite and not negative.
        client: the place of one client; None: the worst.

    Returns:
        delta, at most 1.

    Raises:
        ValueError: epsilon is negative or not finite.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as `epsilon`.
    """
    return Accountant((mechanism,)).delta(epsilon, client)


def epsilon_by_round(mechanism: Mechanism, delta: float, rounds: Sequence[int]) -> tuple[float, ...]:
    """epsilon after each of the given numbers of rounds, at one delta: a schedule to print while training.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders.
        delta: of the guarantee.
        rounds: the numbers of rounds.

    Returns:
        epsilon after each of them.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as `epsilon`.
    """
    return tuple(spent(mechanism, delta, many) for many in rounds)


def slack(run: Mechanism | Accountant) -> Slack:
    """What finite arithmetic may add to epsilon and to delta over the whole run: every figure has it in already.

    Adjacency, sampling, trust: as recorded. Rests on: `cepam.privacy.numerics.slack`.

    Args:
        run: A mechanism, or what was released.

    Returns:
        What is added to epsilon and to delta.
    """
    found = _accountant(run).slack()
    if found is None:
        raise ValueError("coordinates (m, the length of an update) is needed to bound the mechanism's own slack")
    return found


def _accountant(run: Mechanism | Accountant) -> Accountant:
    return run if isinstance(run, Accountant) else Accountant((run,))


def affordable(run: Mechanism, delta: float) -> Mechanism:
    """The run; or that of clients without the search coder, where its arithmetic alone leaves no finite epsilon.

    Whoever configures codecs asks first, and takes `coder="layered"` where the answer's clients do not search.
    """
    if delta == 0.0 or run.coordinates is None or not run.searched() or slack(run).fits(delta):
        return run
    plain = run.layered()
    return plain if math.isinf(epsilon(run, delta)) and math.isfinite(epsilon(plain, delta)) else run


def delta_without_noise(mechanism: Mechanism, client: int | None = None) -> float:
    """The delta that publishing the raw updates would give at every epsilon: 1 - (1 - p)^R.

    A claim at or above it says nothing about the noise. Adjacency: both. Sampling: as recorded. Trust: any.
    Rests on: a record that is never drawn is never seen. Paper: its (1.45, 9.69e-3) lies above this for one
    round.

    Args:
        mechanism: What is published.
        client: One client; the worst one by default.

    Returns:
        A probability.
    """
    sampling_rates = [
        (mechanism.sampling_rate(j), mechanism.events_of(j))
        for j in ([client] if client is not None else _distinct(mechanism))
    ]
    return max(1.0 if p == 1.0 else -math.expm1(times * math.log1p(-p)) for p, times in sampling_rates)


def _distinct(mechanism: Mechanism) -> list[int]:
    """One client of each kind: equal clients have equal guarantees."""
    first = {mechanism.history(j): j for j in reversed(range(len(mechanism.clients)))}
    return sorted(first.values())


def spent(accountant: Accountant | Mechanism, delta: float, rounds: int | None = None) -> float:
    """epsilon spent so far at delta, a bound for every client: what a trainer prints after a round.

    Args:
        accountant: what was released; or a mechanism, with `rounds`.
        delta: of the guarantee.
        rounds: how many rounds of a mechanism were released; None: all.

    Returns:
        epsilon.

    Raises:
        ValueError: `rounds` is negative, or given with an `Accountant`.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as
    `cepam.privacy.epsilon`.
    Guarantee: never below the truth, on a coarser grid than `epsilon`: at most 2e-4 relative above it, and
    several times faster (docs/benchmarks/accounting.md has the figures).
    """
    if rounds is not None:
        check_count("rounds", rounds, 0)
        if not isinstance(accountant, Mechanism):
            raise ValueError("rounds can be given with a Mechanism only: an Accountant knows its own")
        accountant = Accountant((accountant.over(rounds),)) if rounds > 0 else Accountant()
    return _accountant(accountant).epsilon(delta, cells=COARSE)
