"""What the published models have cost so far: every round is charged for the noise that was really added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from cepam.flower.settings import Settings

if TYPE_CHECKING:
    from cepam.privacy import Release, Sampling

Released = Literal["auto", "average", "vectors"]
Present = tuple[tuple[int, Settings], ...]


@dataclass(frozen=True)
class Account:
    """How epsilon is counted: for one record of one client, in all models published so far.

    `sampling` says how a client draws its records (default: all of them every round, which claims no amplification);
    `colluders` how many other clients pool what they know; `released` what the strategy publishes: the weighted
    `average`, whose noise is that of all replies, or anything else, for which only a client's own noise counts
    (`vectors`). `auto` takes the average for the strategies of Flower that are known to publish nothing else.

    Node ids may change when a SuperNode restarts, so by default every round is charged as its worst client paid it.
    With `stable_nodes=True` (node authentication on, one key a client) a node pays only for the rounds it took part in.
    """

    delta: float = 1e-5
    sampling: Sampling | None = None
    adjacency: Literal["replace", "add-remove"] = "replace"
    colluders: int = 0
    released: Released = "auto"
    stable_nodes: bool = False
    clipped: Literal["update", "example"] = "update"

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta!r}")
        if isinstance(self.colluders, bool) or not isinstance(self.colluders, int) or self.colluders < 0:
            raise ValueError(f"colluders must be a count, got {self.colluders!r}")
        if self.released not in get_args(Released):
            raise ValueError(f"released must be one of {', '.join(get_args(Released))}, got {self.released!r}")


@dataclass
class Bill:
    """The rounds published so far, and what they cost.

    Guarantee: a round with fewer replies has less noise and costs more (tests/flower/test_bill.py).
    """

    account: Account
    average: bool
    coordinates: int | None = None
    rounds: Counter[Present] = field(default_factory=Counter)

    def add(self, present: Mapping[int, Settings]) -> None:
        """Nothing; a round in which these nodes' replies were averaged and published is on the bill."""
        if present:
            self.rounds[tuple(sorted(present.items()))] += 1

    def epsilon(self, also: Mapping[int, Settings] | None = None) -> float:
        """epsilon at the account's delta, of the rounds so far and, if given, of one more over `also`."""
        rounds = self.rounds.copy()
        if also:
            rounds[tuple(sorted(also.items()))] += 1
        if not rounds:
            return 0.0
        return self._by_node(rounds) if self.account.stable_nodes else self._by_worst(rounds)

    def _by_worst(self, rounds: Counter[Present]) -> float:
        from cepam.privacy import Ledger, epsilon_of_zcdp, pure_epsilon, zcdp_rho
        from cepam.privacy.composition import COARSE, epsilon_of, gathered

        releases = [self._release(present, [node for node, _ in present], times) for present, times in rounds.items()]
        if not releases[0].l2_clipped_laplace:
            charges = [charge for release in releases for charge in Ledger((release,)).envelope()]
            return epsilon_of(gathered(charges), self.account.delta, COARSE)
        rho = sum(max(zcdp_rho(r, j) for j in range(len(r.clients))) for r in releases)
        pure = sum(max(pure_epsilon(r, j) for j in range(len(r.clients))) for r in releases)
        return min(pure, epsilon_of_zcdp(rho, self.account.delta))

    def _by_node(self, rounds: Counter[Present]) -> float:
        from cepam.privacy import Ledger, spent

        roster = sorted({node for present in rounds for node, _ in present})
        releases = tuple(self._release(present, roster, times) for present, times in rounds.items())
        return spent(Ledger(releases), self.account.delta)

    def _release(self, present: Present, roster: list[int], times: int) -> Release:
        """The round as the accountant reads it; nodes of the roster that sent nothing add no noise."""
        from cepam.privacy import Client, Release, Sampling

        here = dict(present)
        anyone = present[0][1]
        clients = tuple(Client(s.law, s.records, s.weight) for s in (here.get(node, anyone) for node in roster))
        clips = {s.clip for s in here.values()}
        if len(clips) > 1:
            raise ValueError("all clients of a round must have the same clip to be accounted for")
        others = len(roster) - 1
        return Release(
            clients=clients,
            clip=anyone.clip,
            sampling=self.account.sampling or Sampling("all"),
            rounds=times,
            colluders=min(self.account.colluders, others) if self.average else others,
            adjacency=self.account.adjacency,
            clipped=self.account.clipped,
            coordinates=self.coordinates,
            absent=frozenset(i for i, node in enumerate(roster) if node not in here),
        )
