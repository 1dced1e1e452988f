"""Secure aggregation in a simulation: the server learns one noisy sum per round, optionally of sketches."""

from __future__ import annotations

import math
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

from cepam.clip import L2
from cepam.distributions.laws import Gaussian
from cepam.fl.aggregation.accounting import after_round, empty_accountant
from cepam.fl.aggregation.trusted_server import AggregatorContext, Line, RoundResult, TrustedServerAggregator
from cepam.fl.clients import sampling
from cepam.fl.clients.local_training import Measure
from cepam.fl.clients.sampling import Randomness
from cepam.fl.clients.sending import draws_of
from cepam.fl.config.settings import SecAggGraph
from cepam.fl.models.interface import LinearHead
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
    Sketch,
    fit,
    run_epsilons,
    views,
)
from cepam.secure_aggregation.mechanism import LIES

# The clients and the server of the masking protocol in one process: real keys, shares and bytes.
#
# Every secret of a node comes from the row's randomness at (round, client), so that a resumed run, which begins with
# new nodes, sends the same bytes: a node that is asked for a later position moves its chains there by itself.


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
        self, row: Randomness, run: bytes, epoch: int, clients: int, policy: ClientPolicy, threshold: int
    ) -> None:
        self.threshold = threshold
        self.draws = [AddressedDraw(row, client) for client in range(clients)]
        self.nodes = [self._node(row, client, policy) for client in range(clients)]
        ask, replies = HelloRequest(run, epoch).encode(), []
        for node, draw in zip(self.nodes, self.draws):
            draw.go_to(epoch, HELLO, 32)
            replies.append(node.hello(ask))
        self.hello = ([ask] * clients, replies)
        self.roster = Roster.of(run, epoch, [HelloReply.decode(reply).peer for reply in replies])
        self.informed: set[int] = set()

    def _node(self, row: Randomness, client: int, policy: ClientPolicy) -> SecAggClient:
        key = Ed25519PrivateKey.from_private_bytes(row.random_bytes(0, IDENTITY, client, 32))
        public = key.public_key().public_bytes_raw()
        return SecAggClient(client, public, key.sign, _signed, policy, MemoryAccount(), draw=self.draws[client])

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
            policy = ClientPolicy(
                offer.noise, offer.clip, self.rounds, quorum=offer.quorum,
                honest=offer.honest(self.range_rule.clients), colluders=offer.colluders, divisor=offer.batch,
                records=self.records, record_sampling_rate=offer.record_sampling_rate,
                sparse=bool(offer.degree), degree=offer.degree,
            )  # fmt: skip
            self.nodes = SimulatedClients(self.row, offer.run, offer.epoch, self.clients, policy, offer.threshold)
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
        requests = {roster: round_.request(with_roster=roster) for roster in (False, True)}

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


Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundSketch:
    """One round's map of updates; of a linear head row by row, so that examples can be clipped after it."""

    sketch: Sketch
    head: LinearHead | None = None

    @classmethod
    def of(cls, offer: SecAggSettings, coordinates: int, head: LinearHead | None) -> RoundSketch:
        """The map of this round, fixed by what every node was sent."""
        return cls(Sketch.of(offer, coordinates, 1 if head is None else head.rows), head)

    def apply(self, update: npt.NDArray[np.floating]) -> Doubles:
        """The numbers that are sent instead of the update, not yet clipped."""
        return self.sketch.apply(update if self.head is None else self.head.by_rows(update))

    def restore(self, total: Doubles) -> Doubles:
        """The estimate of the sum of updates: unbiased where nothing was clipped."""
        found = self.sketch.restore(total)
        return found if self.head is None else self.head.as_given(found)

    def squares(self, inputs: npt.NDArray[np.float32]) -> Doubles:
        """What stands for the squared norms of examples' inputs in the clip: those of their maps, bias left out.

        An example's gradient is its residuals times (inputs, 1): its sketch has norm |residuals| |map of (inputs, 1)|.
        """
        assert self.head is not None
        one = np.ones((len(inputs), int(self.head.bias)), dtype=np.float32)
        return self.sketch.squares(np.concatenate([inputs, one], axis=1)) - float(self.head.bias)


Floats = npt.NDArray[Any]


class SecureAggregator(TrustedServerAggregator):
    """Masked vectors, repaired and opened as one sum; a charge for the shares of noise that are in it.

    Every client counts alike: nobody sees one vector, so nobody can weigh it. `answered` is the book of a server that
    lies about dropouts: every round that was answered, opened or not.
    """

    def __init__(self, row: AggregatorContext) -> None:
        if row.codecs is not None:
            raise ValueError(
                "privacy.trust secure-aggregation has its own mechanism: your own codecs need privacy.trust server"
            )
        super().__init__(row)
        self.graph, self.answered = SecAggGraph.of(row.settings), empty_accountant(row.settings)
        law, clip = self.plans[0].law, self.plans[0].clip
        assert isinstance(law, Gaussian)
        assert isinstance(clip, L2)
        self.coordinates = self._coordinates()
        self.exchange = self._exchange(law, clip)

    def _coordinates(self) -> int:
        """How many numbers a client sends: the weights', or the sketch's."""
        size, head, examples = (
            self.settings.compression.sketch,
            self.vectors.head,
            self.settings.training.update == "examples",
        )
        if size is None:
            return self.vectors.size
        if examples and head is None:
            raise ValueError(
                "sketch with update examples needs a model that trains one linear layer: elsewhere the norm of an "
                "example's sketch is not cheap to find, and clipping before the map bounds nothing"
            )
        rows = head.rows if examples and head is not None else 1
        if size < 1 or size % rows or size >= self.vectors.size:
            raise ValueError(f"sketch must be a multiple of {rows} below the {self.vectors.size} weights, got {size}")
        return size

    def _sketch(self, number: int) -> RoundSketch | None:
        if self.settings.compression.sketch is None:
            return None
        head = self.vectors.head if self.settings.training.update == "examples" else None
        return RoundSketch.of(self.exchange.offer(number), self.vectors.size, head)

    def measure(self, number: int) -> Measure | None:
        made = self._sketch(number)
        return None if made is None or made.head is None else made.squares

    def _exchange(self, law: Gaussian, clip: L2) -> SimulatedProtocol:
        chosen, graph, examples = self.settings, self.graph, self.settings.training.update == "examples"
        batch = min(draws_of(chosen, plan.batch) for plan in self.plans) if examples else 0.0
        record_sampling_rate = max(plan.batch / plan.records for plan in self.plans) if examples else 1.0
        shape = SecAggSettings(
            self.row.run_id, 1, 0, self.coordinates, 1, 1, law.scale, clip.bound, graph.quorum, graph.colluders, batch,
            record_sampling_rate, graph.degree, graph.threshold,
        )  # fmt: skip
        return SimulatedProtocol(
            self.row.draws, shape, chosen.clients.count, chosen.training.rounds,
            QuantizationRange(law, graph.clients, clip.bound), chosen.compression.masked_bits,
            chosen.compression.quantization_range, chosen.clients.dropout_rate,
            max(plan.records for plan in self.plans),
        )  # fmt: skip

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        rows, sketch = dict(zip(clients, self.vectors.arrays.fetch(raw))), self._sketch(number)
        updates = {k: self._sound(row if sketch is None else sketch.apply(row)) for k, row in rows.items()}
        offer = self.exchange.offer(number)
        traffic = self.exchange.run_round(offer, number, updates, self.row.check())
        self.answered = after_round(self.answered, self.mechanism, clients)
        self.accountant = after_round(self.accountant, self.mechanism, traffic.survivors)
        heard = traffic.survivors if traffic.total is not None else ()
        total = np.zeros(self.vectors.size) if traffic.total is None else traffic.total
        if sketch is not None and traffic.total is not None:
            total = sketch.restore(total)
        clean = updates if sketch is None else rows
        line = self._traffic_metrics(traffic, updates, offer) | self._signal(total, [clean[k] for k in heard])
        aggregate = self.vectors.arrays.put((total / max(1, len(heard))).astype(np.float32))
        return RoundResult(aggregate, heard, clients, 8 * traffic.up, line, down_bits=8 * traffic.down)

    def _sound(self, row: Floats) -> Floats:
        """What the node will send, sketch or update: clipped where whole updates are, zeros for what is no number."""
        clip = self.plans[0].clip
        if self.settings.training.update != "examples" and clip is not None:
            return clip.apply_or_zero(row)
        return row if np.isfinite(row).all() else np.zeros_like(row)

    def _traffic_metrics(self, traffic: ProtocolTraffic, updates: dict[int, Floats], offer: SecAggSettings) -> Line:
        """What can be said about the round; wraps look at raw data: simulation only."""
        line: Line = {"replies": 0, "bits": 8 * traffic.up, "bits_per_coordinate": None}
        if traffic.vectors:
            line["bits_per_coordinate"] = 8 * traffic.up / (traffic.vectors * self.vectors.size)
        line |= {"round_trips": traffic.round_trips, "vector_bits": offer.bits}
        missing = sorted(set(updates) - set(traffic.survivors))
        if missing:
            line["dropped"] = {self.row.name(k): traffic.lost or "no reply" for k in missing}
        if traffic.lost is not None:
            line["lost"] = traffic.lost
        if traffic.total is not None:
            error = traffic.total - np.sum([updates[k] for k in traffic.survivors], axis=0, dtype=np.float64)
            line |= {"replies": len(traffic.survivors), "wraps": int((abs(error) > offer.codec.span / 2).sum())}
        return line

    def _signal(self, total: Floats, sent: list[Floats]) -> Line:
        """The sum's signal over its noise, what a sketch costs included; looks at raw data: simulation only."""
        clean = np.sum(sent, axis=0, dtype=np.float64) if sent else np.zeros(1)
        signal, noise = float(np.square(clean).sum()), float(np.square(total - clean).sum())
        return {"snr_db": 10.0 * math.log10(signal / noise) if 0.0 < signal < math.inf and noise > 0 else None}

    def views(self, rough: bool = False) -> dict[str, float]:
        """epsilon so far of whoever sees the models, and of the server: curious, with colluders, lying."""
        chosen, graph = self.settings, self.graph
        found = self.accountant.observers(chosen.privacy.delta, rough)
        known = views(graph.clients, graph.quorum, graph.colluders)
        covered = tuple(view for view in known if not (graph.degree and view.observer.startswith(LIES)))
        found |= run_epsilons(self.accountant, self.answered, chosen.privacy.delta, covered, graph.clients, rough)
        return found | {view.observer: math.inf for view in known if view not in covered}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"answered": self.answered.state_dict(), **self.exchange.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.answered = empty_accountant(self.settings).load_state_dict(state["answered"])
        self.exchange.load_state_dict(state)
