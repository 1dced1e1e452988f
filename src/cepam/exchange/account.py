"""How epsilon is counted in an exchange, and a round of it as the accountant sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from cepam.clip import Unit
from cepam.exchange.uplink_settings import UplinkSettings

if TYPE_CHECKING:
    from cepam.privacy import Cohort, CohortRelease, Release, Sampling

Released = Literal["auto", "average", "vectors"]
Reply = tuple[int, UplinkSettings]


@dataclass(frozen=True)
class Account:
    """How epsilon is counted: for one record of one client, or one whole client, in all models published so far.

    `unit` says which; a whole client needs a whole clipped update of all its records (the defaults).
    `sampling` says how a client draws its records, afresh for every reply (default: all of them, which claims no
    amplification);
    `colluders` how many other clients pool what they know; `released` what the server publishes: the weighted
    `average`, whose noise is that of all replies, or anything else, for which only a client's own noise counts
    (`vectors`). `auto` takes the average for the strategies of Flower that are known to publish nothing else.

    Node ids may change when a SuperNode restarts, so by default every round is charged as its worst client paid it.
    With `stable_nodes=True` (node authentication on, one key a client) a node pays only for the rounds it took part in.
    `stateful`: clients in cohorts remember the rounds they took part in, as with layers that stay on them.
    """

    delta: float = 1e-5
    sampling: Sampling | None = None
    adjacency: Literal["replace", "add-remove"] = "replace"
    colluders: int = 0
    released: Released = "auto"
    stable_nodes: bool = False
    clipped: Literal["update", "example"] = "update"
    unit: Unit = "record"
    stateful: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta!r}")
        if isinstance(self.colluders, bool) or not isinstance(self.colluders, int) or self.colluders < 0:
            raise ValueError(f"colluders must be a count, got {self.colluders!r}")
        if self.released not in get_args(Released):
            raise ValueError(f"released must be one of {', '.join(get_args(Released))}, got {self.released!r}")
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {self.unit!r}")
        drawn = self.sampling is not None and self.sampling.kind != "all"
        if self.unit == "client" and (self.clipped != "update" or drawn):
            raise ValueError("unit 'client' needs clipped='update' and no draws of records: those do not hide a client")

    def release(self, replies: Iterable[Reply], average: bool, coordinates: int) -> Release:
        """One round in which these replies, of so many coordinates each, were used; ValueError if there is none.

        A node that was asked twice and answered twice stands there twice, and is charged for both.
        Guarantee: fewer replies have less noise and cost more (tests/exchange/test_account.py).
        """
        from cepam.privacy import Client, Release, Sampling

        used = sorted(replies, key=lambda reply: reply[0])
        if not used:
            raise ValueError("a round without a reply releases nothing")
        others = len({node for node, _ in used}) - 1
        return Release(
            clients=tuple(Client(s.law, s.records, s.weight, None, s.clip, s.own_lattice) for _, s in used),
            clip=used[0][1].clip,
            sampling=self.sampling or Sampling("all"),
            colluders=min(self.colluders, others) if average else others,
            adjacency=self.adjacency,
            clipped=self.clipped,
            coordinates=coordinates,
            nodes=tuple(node for node, _ in used),
            unit=self.unit,
        )

    def cohort_release(self, cohort: Cohort, settings: UplinkSettings, coordinates: int) -> CohortRelease:
        """One round of a cohort that was drawn in secret and is topped up, whoever replied."""
        from cepam.privacy import Client, CohortRelease

        share = settings.law.scale
        return CohortRelease(
            (Client(settings.law, settings.records, 1.0 / cohort.size, lattice=settings.own_lattice),),
            settings.clip,
            colluders=min(self.colluders, cohort.population - 1),
            adjacency=self.adjacency,
            coordinates=coordinates,
            cohort=cohort,
            stateful=self.stateful,
            bit=share * math.sqrt(cohort.cap) / settings.bit if settings.bit else None,
        )
