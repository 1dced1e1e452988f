"""How a deployment counts epsilon, one round of it as a mechanism, and noise for a target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from cepam.clip import Clip, Unit
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.protocol.settings import UplinkSettings

if TYPE_CHECKING:
    from cepam.privacy import Cohort, CohortMechanism, Mechanism, Sampling

Released = Literal["auto", "average", "vectors"]
Reply = tuple[int, UplinkSettings]


@dataclass(frozen=True)
class Accounting:
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

    def mechanism(self, replies: Iterable[Reply], average: bool, coordinates: int) -> Mechanism:
        """One round in which these replies, of so many coordinates each, were used; ValueError if there is none.

        A node that was asked twice and answered twice stands there twice, and is charged for both.
        Guarantee: fewer replies have less noise and cost more (tests/protocol/test_account.py).
        """
        from cepam.privacy import Client, Mechanism, Sampling

        used = sorted(replies, key=lambda reply: reply[0])
        if not used:
            raise ValueError("a round without a reply releases nothing")
        others = len({node for node, _ in used}) - 1
        return Mechanism(
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

    def cohort_mechanism(self, cohort: Cohort, settings: UplinkSettings, coordinates: int) -> CohortMechanism:
        """One round of a cohort that was drawn in secret and is topped up, whoever replied."""
        from cepam.privacy import Client, CohortMechanism

        share = settings.law.scale
        return CohortMechanism(
            (Client(settings.law, settings.records, 1.0 / cohort.size, lattice=settings.own_lattice),),
            settings.clip,
            colluders=min(self.colluders, cohort.population - 1),
            adjacency=self.adjacency,
            coordinates=coordinates,
            cohort=cohort,
            stateful=self.stateful,
            bit=share * math.sqrt(cohort.cap) / settings.bit if settings.bit else None,
        )


@dataclass(frozen=True)
class Target:
    """What a run may spend: epsilon over `rounds` rounds with `nodes` replies each (None: told when it starts)."""

    epsilon: float
    rounds: int | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon!r}")
        for name, value in (("rounds", self.rounds), ("nodes", self.nodes)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")

    def meet(self, settings: UplinkSettings, one: Mechanism, delta: float) -> UplinkSettings:
        """The settings with the smallest noise that meets the target over rounds like `one`; whatever scale they had.

        Guarantee: the account of such a run ends at or under epsilon (tests/protocol/test_target.py).
        """
        from cepam.privacy import calibrate

        met = calibrate(self._whole(one), self.epsilon, delta)
        return replace(settings, law=met.clients[0].law)

    def describe(self, one: Mechanism) -> str:
        """What the noise of rounds like `one` means for the model, in a line."""
        from cepam.privacy import noise_to_clip

        run, nodes = self._whole(one), self.nodes or 1
        met = f"{one.clients[0].law} meets epsilon {self.epsilon:g} over {run.rounds} rounds of {nodes} replies"
        return f"{met}; {noise_to_clip(run).advice}"

    def _whole(self, one: Mechanism) -> Mechanism:
        if self.rounds is None:
            raise ValueError("rounds must be given where a strategy is not run by `start`")
        return one.over(self.rounds)


def target_of(epsilon: float | None, rounds: int | None, nodes: int | None, delta: float | None) -> Target | None:
    """The target, or None where no epsilon is given, and then nothing that goes with it."""
    if epsilon is not None:
        return Target(epsilon, rounds, nodes)
    if (rounds, nodes, delta) != (None, None, None):
        raise ValueError("rounds, nodes and delta go with epsilon; Account(delta=…) sets delta otherwise")
    return None


def law_of(law: Law | type[Law], clip: Clip, target: Target | None) -> Law:
    """The law itself; where a target will give the scale, one of its family. ValueError where the other was given."""
    if target is None and isinstance(law, type):
        raise ValueError(f"law must have a scale, or epsilon be given, got {law!r}")
    if target is None:
        return law  # type: ignore[return-value]  # an instance
    if law is Gaussian:
        return Gaussian(clip.bound)
    if law is Laplace:
        return Laplace(clip.bound)
    raise ValueError(f"law must be cepam.Gaussian or cepam.Laplace itself (epsilon gives the scale), got {law!r}")
