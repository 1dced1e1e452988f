"""Rounds of masked sums between the clients of one seed and their server, in one process, every byte counted."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.fl.engine import sampling
from cepam.fl.engine.randomness import Randomness
from cepam.fl.engine.sum_nodes import SumNodes
from cepam.secure import Reach, SumRefused, SumRound, SumSettings, Terms, fit

EPOCH_ROUNDS = 1024
"""Rounds after which nodes agree on new keys."""
Floats = npt.NDArray[np.float32]


@dataclass
class SumTraffic:
    """What one round of a sum sent, in bytes, and what came of it.

    `survivors` are in the sum once shares were asked for: from then on the round counts as released, opened or not.
    """

    up: int = 0
    down: int = 0
    vectors: int = 0
    trips: int = 0
    total: npt.NDArray[np.float64] | None = None
    survivors: tuple[int, ...] = ()
    lost: str | None = None

    def trip(self, requests: Collection[bytes], replies: Collection[bytes]) -> None:
        """Nothing; one trip with these bytes each way."""
        self.trips += 1
        self.down += sum(map(len, requests))
        self.up += sum(map(len, replies))


@dataclass(eq=False)
class SumExchange:
    """One seed's clients and their server: a masked sum every round.

    `shape` is what all rounds have alike; its bits, gain, epoch and position are filled in. `bits` and `reach` replace
    the public rules where they are given. `dropout`: a client is lost with that chance, half of them before they
    answer, the others after they sent their vector and before anything else. `records`: the most examples that are in
    one update, where examples are clipped.

    Guarantee: every update is noised, masked, shared and opened as `cepam.secure` does it between machines, and a
    resumed run sends the same bytes (tests/fl/engine/test_sum_uplink.py).
    """

    row: Randomness
    shape: SumSettings
    clients: int
    rounds: int
    reach_rule: Reach
    bits: int | None = None
    reach: float | None = None
    dropout: float = 0.0
    records: int = 0
    greeted: set[int] = field(default_factory=set)
    nodes: SumNodes | None = None

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def offer(self, round: int) -> SumSettings:
        """What every node is told about this round: from public data."""
        reach = self.reach_rule.value if self.reach is None else self.reach
        law, asked = self.reach_rule.law, self.reach_rule.clients
        codec = fit(law, asked, self.shape.coordinates, reach, self.rounds, self.bits)
        epoch, position = divmod(round, EPOCH_ROUNDS)
        return replace(self.shape, epoch=1 + epoch, position=position, bits=codec.bits, gain=codec.gain)

    def run_round(self, offer: SumSettings, round: int, updates: dict[int, Any], model: bytes) -> SumTraffic:
        """One round of these clients' updates; `model` is the check value of the weights that they hold."""
        traffic = SumTraffic()
        nodes = self._enter_epoch(offer, traffic)
        luck = self.row.uniform(round, sampling.DROPOUT, 0, self.clients)
        sending = [k for k in sorted(updates) if luck[k] >= self.dropout / 2]
        going = {k for k in updates if luck[k] < self.dropout}
        round_ = SumRound(offer, nodes.roster, updates, model)
        try:
            self._train(round, round_, nodes, {k: updates[k] for k in sending}, model, traffic)
            self._repair(round_, nodes, going, traffic)
            self._unmask(round_, nodes, going, traffic)
        except SumRefused as refused:
            traffic.lost = str(refused)
        traffic.survivors = round_.survivors if round_.charged else ()
        if traffic.total is not None:
            self.reach_rule.observe(traffic.total)
        return traffic

    def _enter_epoch(self, offer: SumSettings, traffic: SumTraffic) -> SumNodes:
        """The nodes of this epoch. Those of a resumed run are new; what hello costs is counted when it was said."""
        if self.nodes is None or self.nodes.roster.epoch != offer.epoch:
            terms = Terms(
                offer.noise, offer.clip, self.rounds, offer.quorum, offer.honest(self.reach_rule.clients),
                offer.colluders, offer.batch, offer.chance, bool(offer.degree), records=self.records,
            )  # fmt: skip
            self.nodes = SumNodes(self.row, offer.run, offer.epoch, self.clients, terms, offer.threshold)
        if offer.position == 0:
            self.greeted = set()
            traffic.trip(*self.nodes.hello)
        return self.nodes

    def _train(
        self, round: int, round_: SumRound, nodes: SumNodes, sending: dict[int, Any], model: bytes, traffic: SumTraffic
    ) -> None:
        requests = {told: round_.request(with_roster=told) for told in (False, True)}

        def answer(client: int) -> bytes:
            return nodes.train(client, round, requests, model, sending[client])

        replies = list(self.pool.map(answer, sending))
        traffic.trip([requests[k not in self.greeted] for k in round_.cohort], replies)
        for client, reply in zip(sending, replies):
            round_.take(client, reply)
        self.greeted |= set(sending)
        traffic.vectors = len(sending)

    def _repair(self, round_: SumRound, nodes: SumNodes, going: set[int], traffic: SumTraffic) -> None:
        while asks := round_.repairs():
            replies = {k: nodes.repair(k, ask) for k, ask in asks.items() if k not in going}
            traffic.trip(asks.values(), replies.values())
            for client, reply in replies.items():
                round_.take_repair(client, reply)

    def _unmask(self, round_: SumRound, nodes: SumNodes, going: set[int], traffic: SumTraffic) -> None:
        asks = round_.unmasks()
        replies = {k: nodes.unmask(k, ask) for k, ask in asks.items() if k not in going}
        traffic.trip(asks.values(), replies.values())
        for client, reply in replies.items():
            round_.take_unmask(client, reply)
        traffic.total = round_.open()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beyond its secret: what the reach rule remembers, and who has the roster."""
        return {"reach": list(self.reach_rule.saved()), "greeted": sorted(self.greeted)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing; stands where the state was made."""
        self.reach_rule.restore(float(value) for value in state["reach"])
        self.greeted = {int(client) for client in state["greeted"]}
