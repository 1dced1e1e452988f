"""What the published models have cost so far: every round is charged for the noise that was really added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from cepam.flower.settings import Settings

if TYPE_CHECKING:
    from cepam.privacy import Charge, Sampling

Released = Literal["auto", "average", "vectors"]
Present = tuple[tuple[int, Settings], ...]
Cost: TypeAlias = "Charge | float"
MOST_BILLS = 8


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
        costs = [(self._costs(present), times) for present, times in rounds.items()]
        if self.account.stable_nodes:
            nodes = {node for cost, _ in costs for node in cost}
            bills = {tuple((cost[node], times) for cost, times in costs if node in cost) for node in nodes}
            if len(bills) <= MOST_BILLS:
                return max(self._total(bill) for bill in bills)
        return self._total(tuple((_worst(cost.values()), times) for cost, times in costs))

    def _costs(self, present: Present) -> dict[int, Cost]:
        """What one such round costs each node: as the accountant charges it, or as zCDP for l2-clipped Laplace."""
        from cepam.privacy import Release, Sampling, zcdp_rho
        from cepam.privacy.release import Client

        release = Release(
            clients=tuple(Client(s.law, s.records, s.weight) for _, s in present),
            clip=present[0][1].clip,
            sampling=self.account.sampling or Sampling("all"),
            colluders=min(self.account.colluders, len(present) - 1) if self.average else len(present) - 1,
            adjacency=self.account.adjacency,
            clipped=self.account.clipped,
            coordinates=self.coordinates,
        )
        known: dict[Settings, Cost] = {}
        for place, (_, settings) in enumerate(present):
            if settings not in known:
                own = replace(release, clip=settings.clip)
                known[settings] = zcdp_rho(own, place) if own.l2_clipped_laplace else own.charge(place)
        return {node: known[settings] for node, settings in present}

    def _total(self, bill: tuple[tuple[Cost, int], ...]) -> float:
        from cepam.privacy import epsilon_of_zcdp
        from cepam.privacy.composition import COARSE, epsilon_of, gathered

        rho = sum(cost * times for cost, times in bill if isinstance(cost, float))
        charges = gathered((cost, times) for cost, times in bill if not isinstance(cost, float))
        if rho and charges:
            raise ValueError("rounds of l2-clipped Laplace noise and others cannot be accounted for together")
        return epsilon_of_zcdp(rho, self.account.delta) if rho else epsilon_of(charges, self.account.delta, COARSE)


def _worst(costs: Iterable[Cost]) -> Cost:
    """A cost that is at least each of these."""
    each = list(costs)
    if any(isinstance(cost, float) for cost in each):
        if not all(isinstance(cost, float) for cost in each):
            raise ValueError("l2-clipped Laplace noise and other noise cannot be accounted for in one round")
        return max(each)  # type: ignore[type-var]
    largest = max(each, key=lambda cost: cost.shift.size)  # type: ignore[union-attr]
    chance = max(cost.chance for cost in each)  # type: ignore[union-attr]
    return replace(largest, chance=chance)  # type: ignore[type-var]
