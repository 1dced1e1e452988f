"""The accountant: a pure function from a record of what was released to (epsilon, delta).

Every figure is for one record of one client, against whoever sees all published models and plays
`colluders` of the other clients. The server and any key holder are outside: against them there is no
guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cepam.privacy.composition import COARSE, FINE, Charges, delta_of, epsilon_of, gathered
from cepam.privacy.laplace import delta_l2, epsilon_l2, epsilon_of_zcdp, pure_epsilon, zcdp_rho
from cepam.privacy.release import Release, check_count
from cepam.privacy.sampled import Charge

MOST_HISTORIES = 4


def check_delta(delta: float) -> None:
    """Nothing, or a ValueError when delta does not lie in [0, 1)."""
    if not (0.0 <= delta < 1.0):
        raise ValueError(f"delta must lie in [0, 1), got {delta!r}")


def _check_epsilon(epsilon: float) -> None:
    if not (0.0 <= epsilon < math.inf):
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")


def epsilon(release: Release, delta: float, client: int | None = None) -> float:
    """epsilon of the whole release at delta, for one client or for the worst.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server; outsiders and other clients are not.
    Rests on: Gaussian and l1-clipped Laplace, one round: closed form (Balle, Barthe and Gaboardi 2018,
    Theorem 2); many rounds: the dominating pair of `Charge`, composed (Zhu, Dong and Wang 2022, Theorem
    10); l2-clipped Laplace: zCDP. Not the paper's theorems: those are in `cepam_paper.theorems`.
    Guarantee: never below the truth, above it by at most 1e-4 relative; tests/privacy/test_account.py.
    """
    return Ledger((release,)).epsilon(delta, client)


def delta(release: Release, epsilon: float, client: int | None = None) -> float:
    """delta of the whole release at epsilon, for one client or for the worst.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as `epsilon`.
    """
    return Ledger((release,)).delta(epsilon, client)


def epsilon_by_round(release: Release, delta: float, rounds: Sequence[int]) -> tuple[float, ...]:
    """epsilon after each of the given numbers of rounds, at one delta: a schedule to print while training.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as `epsilon`.
    """
    return tuple(spent(release, delta, many) for many in rounds)


def delta_without_noise(release: Release, client: int | None = None) -> float:
    """The delta that publishing the raw updates would give at every epsilon: 1 - (1 - p)^R.

    A claim at or above it says nothing about the noise. Adjacency: both. Sampling: as recorded. Trust: any.
    Rests on: a record that is never drawn is never seen. Paper: its (1.45, 9.69e-3) lies above this for one
    round.
    """
    chances = [release.chance(j) for j in ([client] if client is not None else _distinct(release))]
    worst = max(chances)
    return 1.0 if worst == 1.0 else -math.expm1(release.events * math.log1p(-worst))


def _distinct(release: Release) -> list[int]:
    """One client of each kind: equal clients have equal guarantees."""
    first = {release.history(j): j for j in reversed(range(len(release.clients)))}
    return sorted(first.values())


@dataclass(frozen=True)
class Ledger:
    """What has been released so far: rounds of one kind or of several, in any order, over the same clients.

    For a trainer: `ledger = ledger.add(release.without(silent))` after each round, then
    `ledger.epsilon(delta)`.
    Adjacency and trust model are those of the releases, which must agree on them. Rests on: adaptive
    composition.
    """

    releases: tuple[Release, ...] = ()

    def __post_init__(self) -> None:
        kinds = {(len(r.clients), r.adjacency, r.l2_clipped_laplace) for r in self.releases}
        if len(kinds) > 1:
            raise ValueError("the releases of one run must agree on the clients, the adjacency and the kind of law")

    @property
    def rounds(self) -> int:
        """How many rounds have been released."""
        return sum(release.rounds for release in self.releases)

    def add(self, release: Release) -> Ledger:
        """The ledger with one more release; equal ones are counted, not listed."""
        for place, known in enumerate(self.releases):
            if known.over(1) == release.over(1):
                longer = known.over(known.rounds + release.rounds)
                return Ledger((*self.releases[:place], longer, *self.releases[place + 1 :]))
        return Ledger((*self.releases, release))

    def charges(self, client: int) -> Charges:
        """Everything that has been charged to one client's records."""
        return gathered((release.charge(client), release.events) for release in self.releases)

    def envelope(self) -> Charges:
        """Charges that are at least those of every client: each round as its worst client paid it."""
        worst = []
        for release in self.releases:
            made = [release.charge(j) for j in _distinct(release)]
            largest = max((charge.shift for charge in made), key=lambda shift: shift.size)
            worst.append((Charge(largest, max(charge.chance for charge in made), made[0].adjacency), release.events))
        return gathered(worst)

    def epsilon(self, delta: float, client: int | None = None, cells: int = FINE) -> float:
        """epsilon of everything released so far at delta, for one client or a bound for all.

        Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as
        `cepam.privacy.epsilon`.
        Guarantee: exact for one client and for up to `MOST_HISTORIES` different ones, else the envelope's
        upper bound.
        """
        check_delta(delta)
        if not self.releases:
            return 0.0
        if self.releases[0].l2_clipped_laplace:
            return max(self._epsilon_l2(delta, j) for j in self._clients(client))
        if client is not None:
            return epsilon_of(self.charges(client), delta, cells)
        return max((epsilon_of(charges, delta, cells) for charges in self._histories()), default=0.0)

    def delta(self, epsilon: float, client: int | None = None) -> float:
        """delta of everything released so far at epsilon, for one client or a bound for all.

        Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as
        `cepam.privacy.epsilon`.
        """
        _check_epsilon(epsilon)
        if not self.releases:
            return 0.0
        if self.releases[0].l2_clipped_laplace:
            return max(self._delta_l2(epsilon, j) for j in self._clients(client))
        if client is not None:
            return delta_of(self.charges(client), epsilon)
        return max((delta_of(charges, epsilon) for charges in self._histories()), default=0.0)

    def _clients(self, client: int | None) -> list[int]:
        if client is not None:
            return [client]
        return sorted({j for release in self.releases for j in _distinct(release)})

    def _histories(self) -> list[Charges]:
        """The different bills that clients have run up, or one that covers them all when they are many."""
        if len(self.releases) == 1:
            bills = {self.charges(j) for j in _distinct(self.releases[0])}
        else:
            bills = {self.charges(j) for j in range(len(self.releases[0].clients))}
        return sorted(bills, key=repr) if len(bills) <= MOST_HISTORIES else [self.envelope()]

    def _epsilon_l2(self, delta: float, client: int) -> float:
        if len(self.releases) == 1:
            return epsilon_l2(self.releases[0], delta, client)
        if delta == 0.0:
            return sum(pure_epsilon(release, client) for release in self.releases)
        return epsilon_of_zcdp(sum(zcdp_rho(release, client) for release in self.releases), delta)

    def _delta_l2(self, epsilon: float, client: int) -> float:
        if len(self.releases) > 1:
            raise ValueError("delta of unequal l2-clipped Laplace rounds is not accounted for: ask for epsilon")
        return delta_l2(self.releases[0], epsilon, client)


def spent(ledger: Ledger | Release, delta: float, rounds: int | None = None) -> float:
    """epsilon spent so far at delta, a bound for every client: what a trainer prints after a round.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as
    `cepam.privacy.epsilon`.
    Guarantee: never below the truth, on a coarser grid than `epsilon`: at most 2e-4 relative above it, and
    several times faster (docs/privacy.md has the figures).
    """
    if rounds is not None:
        check_count("rounds", rounds, 0)
        if not isinstance(ledger, Release):
            raise ValueError("rounds can be given with a Release only: a Ledger knows its own")
        ledger = Ledger((ledger.over(rounds),)) if rounds > 0 else Ledger()
    elif isinstance(ledger, Release):
        ledger = Ledger((ledger,))
    return ledger.epsilon(delta, cells=COARSE)
