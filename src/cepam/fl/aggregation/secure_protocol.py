"""The clients and the server of the masking protocol in one process: real keys, shares and bytes.

Every secret of a node comes from the row's randomness at (round, client), so that a resumed run, which begins with new
nodes, sends the same bytes: a node that is asked for a later position moves its chains there by itself.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cepam.fl.clients import sampling
from cepam.fl.clients.randomness import Randomness
from cepam.policy import ClientPolicy, MemoryAccount
from cepam.secure_aggregation import (
    HelloReply,
    HelloRequest,
    QuantizationRange,
    Roster,
    SecAggClient,
    SecAggRefused,
    SecAggRound,
    SecAggSettings,
    fit,
)

IDENTITY, HELLO, ANSWER = 32, 33, 34
"""Purposes of the row's randomness, apart from those of `cepam.fl.clients.sampling`."""


class AddressedDraw:
    """Random bytes of one client, in order from the address that it was last sent to."""

    def __init__(self, row: Randomness, client: int) -> None:
        self.row, self.client = row, client
        self.left = memoryview(b"")

    def go_to(self, round: int, purpose: int, count: int) -> None:
        """Make the next `count` bytes those of this address."""
        self.left = memoryview(self.row.random_bytes(round, purpose, self.client, count))

    def __call__(self, count: int) -> bytes:
        if count > len(self.left):
            raise ValueError(f"{count} bytes were drawn, the address has {len(self.left)}: bytes would repeat")
        drawn, self.left = self.left[:count], self.left[count:]
        return bytes(drawn)


@cache
def _signed(identity: bytes, transcript: bytes, signature: bytes) -> bool:
    """Whether the holder of this Ed25519 key signed; every node asks, one answer serves them all."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, transcript)
    except (InvalidSignature, ValueError):
        return False
    return True


class SimulatedClients:
    """One seed's clients as nodes of an epoch, who have said hello.

    Guarantee: what they answer depends on the row, the round and the request alone, not on what they were asked before
    (tests/fl/aggregation/test_secure.py).
    """

    def __init__(
        self, row: Randomness, run: bytes, epoch: int, clients: int, terms: ClientPolicy, threshold: int
    ) -> None:
        self.threshold = threshold
        self.draws = [AddressedDraw(row, client) for client in range(clients)]
        self.nodes = [self._node(row, client, terms) for client in range(clients)]
        ask, replies = HelloRequest(run, epoch).encode(), []
        for node, draw in zip(self.nodes, self.draws):
            draw.go_to(epoch, HELLO, 32)
            replies.append(node.hello(ask))
        self.hello = ([ask] * clients, replies)
        self.roster = Roster.of(run, epoch, [HelloReply.decode(reply).peer for reply in replies])
        self.informed: set[int] = set()

    def _node(self, row: Randomness, client: int, terms: ClientPolicy) -> SecAggClient:
        key = Ed25519PrivateKey.from_private_bytes(row.random_bytes(0, IDENTITY, client, 32))
        public = key.public_key().public_bytes_raw()
        return SecAggClient(client, public, key.sign, _signed, terms, MemoryAccount(), draw=self.draws[client])

    def train(self, client: int, round: int, requests: Mapping[bool, bytes], model: bytes, update: Any) -> bytes:
        """A client's masked update; of the two requests it takes the one with the roster where it has not seen it."""
        self.draws[client].go_to(round, ANSWER, 2 * 32 + 48 * (self.threshold - 1))
        reply = self.nodes[client].train(requests[client not in self.informed], model, lambda _: update, len(update))
        self.informed.add(client)
        return reply

    def repair(self, client: int, request: bytes) -> bytes:
        """A client's mask keys with the missing."""
        return self.nodes[client].repair(request)

    def unmask(self, client: int, request: bytes) -> bytes:
        """A client's shares of the survivors' seeds."""
        return self.nodes[client].unmask(request)


EPOCH_ROUNDS = 1024
"""Rounds after which nodes agree on new keys."""
Floats = npt.NDArray[np.float32]


@dataclass
class ProtocolTraffic:
    """What one round of a sum sent, in bytes, and what came of it.

    `survivors` are in the sum once shares were asked for: from then on the round counts as released, opened or not.
    """

    up: int = 0
    down: int = 0
    vectors: int = 0
    round_trips: int = 0
    total: npt.NDArray[np.float64] | None = None
    survivors: tuple[int, ...] = ()
    lost: str | None = None

    def exchange(self, requests: Collection[bytes], replies: Collection[bytes]) -> None:
        """Count one exchange with these bytes each way."""
        self.round_trips += 1
        self.down += sum(map(len, requests))
        self.up += sum(map(len, replies))


@dataclass(eq=False)
class SimulatedProtocol:
    """One seed's clients and their server: a masked sum every round.

    `shape` is what all rounds have alike; its bits, gain, epoch and position are filled in. `bits` and
    `quantization_range` replace the public rules where they are given. `dropout`: a client is lost with that
    probability, half of them before they answer, the others after they sent their vector and before anything else.
    `records`: the most examples that are in one update, where examples are clipped.

    Guarantee: every update is noised, masked, shared and opened as `cepam.secure_aggregation` does it between machines,
    and a resumed run sends the same bytes (tests/fl/aggregation/test_secure.py).
    """

    row: Randomness
    shape: SecAggSettings
    clients: int
    rounds: int
    range_rule: QuantizationRange
    bits: int | None = None
    quantization_range: float | None = None
    dropout: float = 0.0
    records: int = 0
    greeted: set[int] = field(default_factory=set)
    nodes: SimulatedClients | None = None

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def offer(self, round: int) -> SecAggSettings:
        """What every node is sent about this round: from public data."""
        quantization_range = self.range_rule.value if self.quantization_range is None else self.quantization_range
        law, asked = self.range_rule.law, self.range_rule.clients
        codec = fit(law, asked, self.shape.coordinates, quantization_range, self.rounds, self.bits)
        epoch, position = divmod(round, EPOCH_ROUNDS)
        return replace(self.shape, epoch=1 + epoch, position=position, bits=codec.bits, gain=codec.gain)

    def run_round(self, offer: SecAggSettings, round: int, updates: dict[int, Any], model: bytes) -> ProtocolTraffic:
        """One round of these clients' updates; `model` is the check value of the weights that they hold."""
        traffic = ProtocolTraffic()
        nodes = self._enter_epoch(offer, traffic)
        luck = self.row.uniform(round, sampling.DROPOUT, 0, self.clients)
        sending = [k for k in sorted(updates) if luck[k] >= self.dropout / 2]
        going = {k for k in updates if luck[k] < self.dropout}
        round_ = SecAggRound(offer, nodes.roster, updates, model)
        try:
            self._train(round, round_, nodes, {k: updates[k] for k in sending}, model, traffic)
            self._repair(round_, nodes, going, traffic)
            self._unmask(round_, nodes, going, traffic)
        except SecAggRefused as refused:
            traffic.lost = str(refused)
        traffic.survivors = round_.survivors if round_.charged else ()
        if traffic.total is not None:
            self.range_rule.observe(traffic.total)
        return traffic

    def _enter_epoch(self, offer: SecAggSettings, traffic: ProtocolTraffic) -> SimulatedClients:
        """The nodes of this epoch. Those of a resumed run are new; what hello costs is counted when it was said."""
        if self.nodes is None or self.nodes.roster.epoch != offer.epoch:
            terms = ClientPolicy(
                offer.noise, offer.clip, self.rounds, quorum=offer.quorum,
                honest=offer.honest(self.range_rule.clients), colluders=offer.colluders, divisor=offer.batch,
                records=self.records, record_sampling_rate=offer.record_sampling_rate,
                sparse=bool(offer.degree), degree=offer.degree,
            )  # fmt: skip
            self.nodes = SimulatedClients(self.row, offer.run, offer.epoch, self.clients, terms, offer.threshold)
        if offer.position == 0:
            self.greeted = set()
            traffic.exchange(*self.nodes.hello)
        return self.nodes

    def _train(
        self,
        round: int,
        round_: SecAggRound,
        nodes: SimulatedClients,
        sending: dict[int, Any],
        model: bytes,
        traffic: ProtocolTraffic,
    ) -> None:
        requests = {told: round_.request(with_roster=told) for told in (False, True)}

        def answer(client: int) -> bytes:
            return nodes.train(client, round, requests, model, sending[client])

        replies = list(self.pool.map(answer, sending))
        traffic.exchange([requests[k not in self.greeted] for k in round_.cohort], replies)
        for client, reply in zip(sending, replies):
            round_.take(client, reply)
        self.greeted |= set(sending)
        traffic.vectors = len(sending)

    def _repair(self, round_: SecAggRound, nodes: SimulatedClients, going: set[int], traffic: ProtocolTraffic) -> None:
        while asks := round_.repairs():
            replies = {k: nodes.repair(k, ask) for k, ask in asks.items() if k not in going}
            traffic.exchange(asks.values(), replies.values())
            for client, reply in replies.items():
                round_.take_repair(client, reply)

    def _unmask(self, round_: SecAggRound, nodes: SimulatedClients, going: set[int], traffic: ProtocolTraffic) -> None:
        asks = round_.unmasks()
        replies = {k: nodes.unmask(k, ask) for k, ask in asks.items() if k not in going}
        traffic.exchange(asks.values(), replies.values())
        for client, reply in replies.items():
            round_.take_unmask(client, reply)
        traffic.total = round_.open()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beyond its secret: what the rule of the quantization range remembers, and who has
        the roster."""
        return {"quantization_range": list(self.range_rule.saved()), "greeted": sorted(self.greeted)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self.range_rule.restore(float(value) for value in state["quantization_range"])
        self.greeted = {int(client) for client in state["greeted"]}
