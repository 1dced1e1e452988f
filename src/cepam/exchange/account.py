"""What the published models have cost so far: every round is charged for the noise that was really added."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from cepam.exchange.uplink_settings import UplinkSettings

if TYPE_CHECKING:
    from cepam.privacy import Charge, Client, Release, Sampling

Released = Literal["auto", "average", "vectors"]
Reply = tuple[int, UplinkSettings]
Cost: TypeAlias = "Charge | float"
MOST_BILLS = 8
# What a round's charge depends on, beside the sampling; delta and the choice between nodes are asked for afterwards.
_COUNTED = ("adjacency", "colluders", "clipped")


@dataclass(frozen=True)
class Account:
    """How epsilon is counted: for one record of one client, in all models published so far.

    `sampling` says how a client draws its records (default: all of them every round, which claims no amplification);
    `colluders` how many other clients pool what they know; `released` what the server publishes: the weighted
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


@dataclass(frozen=True)
class UsedReplies:
    """One round as it was published: every reply that was used, and how the account then counted."""

    replies: tuple[Reply, ...]
    average: bool
    coordinates: int
    account: Account

    @classmethod
    def of(cls, replies: Iterable[Reply], average: bool, coordinates: int, account: Account) -> UsedReplies:
        """The round of these replies; a node that was asked twice and answered twice stands there twice."""
        counted = Account(sampling=account.sampling, **{name: getattr(account, name) for name in _COUNTED})
        return cls(tuple(sorted(replies, key=lambda reply: reply[0])), average, coordinates, counted)

    def release(self) -> tuple[Release, tuple[int, ...], tuple[UplinkSettings, ...]]:
        """The round as the accountant sees it: one client a node, and the nodes and their settings in its order."""
        from cepam.privacy import Release, Sampling

        replies = Counter(node for node, _ in self.replies)
        settings = dict(self.replies)
        nodes = tuple(settings)
        sampling = self.account.sampling or Sampling("all")
        clients = tuple(_client(settings[node], replies[node], sampling, self.account) for node in nodes)
        release = Release(
            clients=clients,
            clip=settings[nodes[0]].clip,
            sampling=sampling,
            colluders=min(self.account.colluders, len(nodes) - 1) if self.average else len(nodes) - 1,
            adjacency=self.account.adjacency,
            clipped=self.account.clipped,
            coordinates=self.coordinates,
        )
        return release, nodes, tuple(settings.values())


def _client(settings: UplinkSettings, replies: int, sampling: Sampling, account: Account) -> Client:
    """One node as the accountant sees it. Several replies in one round move the sum together, their noise adds up.

    k replies shift the weighted sum k times as far, against sqrt(k) times the noise (k times, in the l1 account of
    Laplace noise), and a record is drawn in one of them with at most k times the chance.
    """
    from cepam.noise.laws import Gaussian
    from cepam.privacy import Client

    if replies == 1:
        return Client(settings.law, settings.records, settings.weight)
    scale = settings.law.scale / (math.sqrt(replies) if isinstance(settings.law, Gaussian) else replies)
    weight, draws = settings.weight * replies, None
    if sampling.kind != "all":
        draws = sampling.draws * replies
        if sampling.kind != "replacement":
            draws = min(draws, settings.records)
        if account.clipped == "example":
            # The accountant divides an example's bound by the draws: k times the draws need k times the shift.
            ratio = draws / sampling.draws
            scale, weight = scale / ratio, weight * ratio
    return Client(type(settings.law)(scale), settings.records, weight, draws)  # type: ignore[call-arg]


@dataclass
class Spending:
    """The rounds published so far, and what they cost.

    Guarantee: a round with fewer replies has less noise and costs more; every used reply is charged
    (tests/exchange/test_account.py).
    """

    account: Account
    rounds: Counter[UsedReplies] = field(default_factory=Counter)

    def add(self, used: UsedReplies) -> None:
        """Nothing; one more round is on the account."""
        if used.replies:
            self.rounds[used] += 1

    def epsilon(self, also: UsedReplies | None = None) -> float:
        """epsilon at the account's delta, of the rounds so far and, if given, of one more."""
        rounds = self.rounds.copy()
        if also is not None and also.replies:
            rounds[also] += 1
        if not rounds:
            return 0.0
        if len({used.account.adjacency for used in rounds}) > 1:
            raise ValueError("rounds of two adjacencies cannot be accounted for together")
        costs = [(_costs(used), times) for used, times in rounds.items()]
        if self.account.stable_nodes:
            nodes = {node for cost, _ in costs for node in cost}
            bills = {tuple((cost[node], times) for cost, times in costs if node in cost) for node in nodes}
            if len(bills) <= MOST_BILLS:
                return max(self._total(bill) for bill in bills)
        return self._total(tuple((_worst(cost.values()), times) for cost, times in costs))

    def _total(self, bill: tuple[tuple[Cost, int], ...]) -> float:
        from cepam.privacy import epsilon_of_zcdp
        from cepam.privacy.composition import COARSE, epsilon_of, gathered

        rho = sum(cost * times for cost, times in bill if isinstance(cost, float))
        charges = gathered((cost, times) for cost, times in bill if not isinstance(cost, float))
        if rho and charges:
            raise ValueError("rounds of l2-clipped Laplace noise and others cannot be accounted for together")
        return epsilon_of_zcdp(rho, self.account.delta) if rho else epsilon_of(charges, self.account.delta, COARSE)

    def to_json(self) -> list[dict[str, Any]]:
        """The rounds as plain values."""
        return [{"times": times, **_round_to_json(used)} for used, times in self.rounds.items()]

    def add_json(self, rounds: list[dict[str, Any]]) -> None:
        """Nothing; the rounds that `to_json` gave are on the account too."""
        for read in rounds:
            self.rounds[_round_from_json(read)] += int(read["times"])


def _costs(used: UsedReplies) -> dict[int, Cost]:
    """What one such round costs each node: as the accountant charges it, or as zCDP for l2-clipped Laplace."""
    from cepam.privacy import zcdp_rho

    release, nodes, settings = used.release()
    known: dict[tuple[Client, UplinkSettings], Cost] = {}
    costs: dict[int, Cost] = {}
    for place, (node, own) in enumerate(zip(nodes, settings)):
        kind = (release.clients[place], own)
        if kind not in known:
            seen = replace(release, clip=own.clip)
            known[kind] = zcdp_rho(seen, place) if seen.l2_clipped_laplace else seen.charge(place)
        costs[node] = known[kind]
    return costs


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


def _round_to_json(used: UsedReplies) -> dict[str, Any]:
    kinds = list(dict.fromkeys(settings for _, settings in used.replies))
    account = {name: getattr(used.account, name) for name in _COUNTED}
    sampling = used.account.sampling
    return {
        "settings": [{"uplink": s.to_json(), "weight": float(s.weight), "records": s.records} for s in kinds],
        "replies": [[node, kinds.index(settings)] for node, settings in used.replies],
        "average": used.average,
        "coordinates": used.coordinates,
        "account": {**account, "sampling": sampling and [sampling.kind, sampling.draws]},
    }


def _round_from_json(read: dict[str, Any]) -> UsedReplies:
    from cepam.privacy import Sampling

    kinds = [
        replace(UplinkSettings.from_json(s["uplink"]), weight=s["weight"], records=s["records"])
        for s in read["settings"]
    ]
    sampling = read["account"]["sampling"]
    account = Account(sampling=sampling and Sampling(*sampling), **{name: read["account"][name] for name in _COUNTED})
    replies = tuple((int(node), kinds[place]) for node, place in read["replies"])
    return UsedReplies(replies, bool(read["average"]), int(read["coordinates"]), account)
