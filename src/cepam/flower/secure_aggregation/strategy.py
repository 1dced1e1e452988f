"""The server's half of secure aggregation: any averaging strategy of Flower, fed with noisy sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cepam.clip import L2, Clip
from cepam.distributions.laws import Gaussian, Law
from cepam.flower.arrays import SUM, record_of
from cepam.flower.averaging import AVERAGING
from cepam.flower.downlink import is_stale
from cepam.flower.replies import Opened
from cepam.flower.round_metrics import RoundMetrics
from cepam.flower.secure_aggregation.membership import Membership
from cepam.flower.secure_aggregation.observers import Observers
from cepam.flower.secure_aggregation.options import Sum, sum_of
from cepam.flower.secure_aggregation.records import check_value, run_bytes, run_config
from cepam.flower.secure_aggregation.round import RoundDriver
from cepam.flower.secure_aggregation.transport import Transport
from cepam.flower.strategy import Private
from cepam.lattices.lattice import Integer
from cepam.protocol.server import Refused
from cepam.protocol.vectors import from_vector
from cepam.secure_aggregation.quantization_range import QuantizationRange, fit
from cepam.secure_aggregation.refusal import SecAggRefused
from cepam.secure_aggregation.server import SecAggRound
from cepam.secure_aggregation.settings import SecAggSettings
from cepam.secure_aggregation.sketch import Sketch

if TYPE_CHECKING:
    from cepam.privacy import Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

ALLOWED = frozenset(
    {"update", "learning_rate", "records", "account", "budget", "authentication", "server_key", "accounts"}
    | {"downlink", "step", "epsilon", "rounds", "delta", "nodes", "unit"}
)
REASONS = {
    "of_node": "all parts of a sum have one law and one weight",
    "lattice": "sums are coded on the integers",
    "coder": "sums are not entropy coded: every vector has one length",
    "bucket": "every vector has one length already",
    "cohort": "the server knows whom it asks, so a secret draw hides nobody from it",
    "adaptive": "how many updates were clipped is one more release, which no sum carries",
    "policy": "a sum holds the noise of the nodes that are in it, and is charged for it",
    "streams": "the server would have to undo the stream of each node",
    "sketch": "cepam.flower.Sum(sketch=…) says how many numbers a node sends",
    "least_replies": "cepam.flower.Sum(quorum=…) says how many nodes must be in a sum",
}


class SecureAggregation(Private):
    """What `Private(…, trust="sum")` makes: the server learns one noisy sum a round, over a quorum of nodes at least.

    Every node needs a configuration of its own with `ClientPolicy` (docs/trust.md), and refuses what falls below them.
    The wrapped strategy is handed one reply: the model moved by the sum over the number of nodes that were asked,
    however many answered. Nodes are not asked to evaluate. A round is charged for the nodes that are in it, on disk
    before the first share is asked for. Guarantee: docs/trust.md; tests/flower/secure_aggregation/test_attacks.py.
    """

    _counts = (*Private._counts, "cepam-opened")

    def __init__(
        self, strategy: Strategy, *, law: Law | type[Law], clip: Clip, trust: str | Sum = "sum", **named: Any
    ) -> None:
        self._trust = sum_of(trust)
        for name in named:
            if name not in ALLOWED:
                reason = REASONS.get(name, "it needs a server that sees single replies")
                raise ValueError(f"{name} does not go with trust='sum': {reason}")
        if law is not Gaussian and not isinstance(law, Gaussian):
            raise ValueError(f"law must be cepam.Gaussian with trust='sum': no other noise adds up; got {law!r}")
        if not isinstance(clip, L2):
            raise ValueError(f"clip must be cepam.L2 with trust='sum', got {clip!r}")
        super().__init__(strategy, law=law, clip=clip, lattice=Integer(1), policy="charge", **named)
        if type(strategy) not in AVERAGING and self.account.released != "average":
            raise ValueError(
                f"strategy must be one that moves the model by the average with trust='sum' "
                f"({', '.join(known.__name__ for known in AVERAGING)}), got {type(strategy).__name__}"
            )
        if self.account.released == "vectors":
            raise ValueError("released='vectors' does not go with trust='sum': the server has no vectors")
        if self._trust.sketch is not None and self.account.clipped == "example":
            raise ValueError(
                "sketch does not go with clipped='example': the ClientApp clips before the map, which bounds nothing "
                "after it; clip whole updates, or leave the sketch out"
            )
        key = named.get("server_key")
        self._courier = Transport(Path(key).read_bytes() if key else None, self._trust.unmask_timeout)
        self._members = Membership(self._courier, named.get("authentication", "warn"))
        self._observers = Observers(self.account.colluders, self.account.delta)
        self._reach: QuantizationRange | None = None
        self._under_way: RoundDriver | None = None

    def summary(self) -> None:
        """Logs what the wrapper does, then what the wrapped strategy says of itself."""
        self._noise.summarise()
        log(INFO, "\t│\t└── one noisy sum a round, quorum %s; no metrics, no evaluation", self._trust.quorum)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages to the nodes that can be in a sum, each with its request."""
        self._under_way = None
        messages = self._messages(server_round, arrays, config, grid)
        if not messages:
            return []
        wanted = {message.metadata.dst_node_id: message for message in messages}
        roster = self._members.settle(wanted, grid)
        cohort = self._members.cohort(wanted)
        configured = run_config(grid.run)
        try:
            settings = self._settings_for(len(cohort), roster.epoch, int(grid.run.run_id))
            asked = [self.settings] * len(cohort)
            self._moved = self._policy.noise(asked) * self._replies.rate(asked)
            if self._model.downlink is not None:
                self._model.downlink.publish_if_new(self._model.reference, server_round, self._moved)
            check = self._check_value([wanted[node] for node in cohort], configured)
            sums = SecAggRound(settings, roster, cohort, check)
        except (SecAggRefused, ValueError) as unfit:
            log(WARNING, "cepam: no sum is asked for in round %d: %s", server_round, unfit)
            return []
        self._observers.asked(self._mechanism(cohort), settings.quorum)
        self._under_way = RoundDriver(sums, {node: wanted[node] for node in cohort}, self._courier, self._members)
        return self._requests(self._under_way)

    def _settings_for(self, nodes: int, epoch: int, run: int) -> SecAggSettings:
        """What this round's nodes are told; ValueError where their number makes no sum."""
        asks, account = self.settings, self.account
        quorum = self._trust.quorum_of(nodes, account.colluders)
        coordinates = self._trust.numbers_of(self._model.coordinates)
        law = Gaussian(asks.law.scale)
        reach = QuantizationRange(law, nodes, float(asks.clip.bound))
        reach.restore(self._reach.saved() if self._reach is not None else ())
        self._reach = reach
        bits = None if self._trust.bits == "auto" else self._trust.bits
        code = fit(law, nodes, coordinates, reach.value, bits=bits)
        one = account.mechanism([(0, asks)], True, coordinates)
        batch = asks.records if one.sampling.kind == "all" else one.sampling.draws
        return SecAggSettings(
            run_bytes(run), epoch, self._members.next_position(), coordinates, code.bits, code.gain,
            float(asks.law.scale), float(asks.clip.bound), quorum, account.colluders,
            float(batch) if account.clipped == "example" else 0.0, one.chance(0),
        )  # fmt: skip

    def _check_value(self, messages: list[Message], configured: Mapping[str, Any]) -> bytes:
        """What all nodes are told to train on; ValueError where a strategy tells them different things."""
        sent = {
            (id(message.content), message.metadata.message_type, message.metadata.group_id): message.content
            for message in messages
        }
        update = self.settings.update
        found = {
            check_value(self._as_received(content), update, configured, message_type, group_id)
            for (_, message_type, group_id), content in sent.items()
        }
        if len(found) != 1:
            raise ValueError(
                "the strategy sends messages with different models, configurations, types or groups: their sum could "
                "not be opened"
            )
        return found.pop()

    def _as_received(self, content: RecordDict) -> RecordDict:
        if self._model.downlink is None:
            return content
        name = next(iter(content.array_records))
        return RecordDict({**dict(content.items()), name: record_of(self._model.downlink.public)})

    def _requests(self, asked: RoundDriver) -> list[Message]:
        known, new = asked.sums.request(with_roster=False), asked.sums.request()
        for node, message in asked.messages.items():
            if self._model.downlink is not None and not self._model.downlink.put_into(message):
                raise ValueError("the strategy sends arrays of its own, which downlink='grid' does not carry")
            request = new if self._members.needs_roster(node) else known
            self._courier.put(message, message.metadata.run_id, request, self.settings.update)
        return list(asked.messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of the sum, if a quorum is in it; the counts and epsilons as metrics."""
        asked, self._under_way = self._under_way, None
        down = self._model.downlink
        tally = RoundMetrics(0 if asked is None else len(asked.messages), down.count() if down is not None else (0, 0))
        arrays, metrics, is_open = None, None, False
        if asked is not None and self._grid is not None:
            self._take(asked, self._with_second(asked, list(replies), self._grid), tally)
            is_open = self._open(asked, self._grid, tally)
            if is_open:
                arrays, metrics = self.strategy.aggregate_train(server_round, [self._aggregate(asked)])
                arrays, model = self._model.published(arrays, server_round + 1, self._moved)
                self._spending.note_model(model)
        report = tally.report(server_round, metrics, self.epsilon, self.account.delta)
        report["cepam-opened"] = int(is_open)
        for observer, epsilon in self._observers.epsilons().items():
            report[f"cepam-epsilon-{observer.replace(' ', '-')}"] = epsilon
        return self._keep(server_round, arrays, report)

    def _with_second(self, asked: RoundDriver, replies: list[Message], grid: Grid) -> list[Message]:
        """The replies; nodes that do not hold what their message leads on from get a snapshot and reply to that."""
        self._courier.expect(asked.messages.values())
        stale = [reply for reply in replies if is_stale(reply) and self._courier.node_of(reply) is not None]
        if self._model.downlink is None or not stale:
            return replies
        again = {}
        for reply in stale:
            node = self._courier.asked[reply.metadata.reply_to_message_id]
            again[node] = self._model.downlink.again(asked.messages[node])
        second = list(grid.send_and_receive(again.values(), timeout=self._timeout))
        asked.messages |= again
        self._courier.expect(asked.messages.values())
        return [reply for reply in replies if reply not in stale] + second

    def _take(self, asked: RoundDriver, replies: list[Message], tally: RoundMetrics) -> None:
        """Nothing; the masked vectors are in, the rest is counted by its reason."""
        down = self._model.downlink

        def drop(refused: Refused) -> None:
            self._members.note_refusal(refused)
            tally.drop(refused)

        for reply in replies:
            asked.take(reply, down.take_report if down is not None else _ignore, drop)
        for node in self._courier.asked.values():
            tally.drop(Refused("missing", node, "no reply came in time"))

    def _open(self, asked: RoundDriver, grid: Grid, tally: RoundMetrics) -> bool:
        """Whether the sum is open: a quorum is left, the budget allows it, and the account on disk has it."""
        if not asked.repair(grid, tally.drop):
            return False
        mechanism = self._mechanism(asked.sums.survivors)
        for node in asked.sums.survivors:
            message, size = asked.messages[node], asked.bytes_of[node]
            tally.opened.append(Opened(node, self.settings, message, size, self._model.coordinates, frozenset()))
        if not self._spending.allows(mechanism):
            return False
        self._spending.charge(mechanism, None)
        self._observers.released(mechanism, len(asked.sums.cohort), asked.sums.settings.quorum)
        return asked.unmask(grid, tally.drop)

    def _mechanism(self, nodes: Iterable[int]) -> Mechanism:
        numbers = self._trust.numbers_of(self._model.coordinates)
        return self.account.mechanism([(node, self.settings) for node in nodes], True, numbers)

    def _aggregate(self, asked: RoundDriver) -> Message:
        """The one reply that the wrapped strategy sees: the sum over the nodes that were asked, of weight 1."""
        if asked.opened is None or self._reach is None:
            raise ValueError("the sum is not open")
        self._reach.observe(asked.opened)
        message = next(iter(asked.messages.values()))
        name = next(key for key in message.content.array_records if key != SUM)
        total = asked.opened
        if self._trust.sketch is not None:
            total = Sketch.of(asked.sums.settings, self._model.coordinates).restore(total)
        mean = total / len(asked.sums.cohort)
        arrays = record_of(from_vector(mean, self._model.reference, self._replies.step_of(self.settings)))
        weight = MetricRecord({getattr(self.strategy, "weighted_by_key", "num-examples"): 1.0})
        return Message(RecordDict({name: arrays, f"{name}-weight": weight}), reply_to=message)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: nodes of sums do not evaluate; `start(…, evaluate_fn=…)` does, on the server."""
        return []


def _ignore(reply: Message) -> None:
    """Nothing; there is no report where models travel as they are."""
