"""The server's half of a round: offers go out with the training messages, replies are opened one by one, aggregated
and charged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import DEBUG, INFO, WARNING, getLogger
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from cepam.distributions.laws import Gaussian, Law
from cepam.errors import NoUsableReplies, one_line
from cepam.flower.client_mod import carried, numpy_of, record_of
from cepam.flower.downlink import Distribution, is_stale
from cepam.protocol.account import Accounting, Reply
from cepam.protocol.agreement import RECORD, Answer, Peer
from cepam.protocol.models import Arrays, count, from_vector
from cepam.protocol.server import Pending, Refused, ServerEnd, Shares, noise_of_average, refusing
from cepam.protocol.settings import Dropouts, UplinkSettings

if TYPE_CHECKING:
    from cepam.flower.strategy import Budget
    from cepam.privacy import Accountant, Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

MetricsKind = frozenset[tuple[str, int]]


@dataclass
class Sent:
    """One training message on its way: the offer that it carries, and the arrays that the reply is compared with."""

    pending: Pending
    arrays_name: str
    reference: Arrays
    message: Message
    broadcast: bool

    @property
    def node(self) -> int:
        """The node that it goes to."""
        return self.pending.offer.node


@dataclass
class Opened:
    """A good reply: what it took on the wire, its decoded vector, and the rest of its content."""

    node: int
    settings: UplinkSettings
    message: Message
    message_bytes: int
    coordinates: int
    metrics_kind: MetricsKind
    vector: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros(0))
    sent: Sent | None = None

    def dense(self, step: float | None) -> Message:
        """The reply with dense arrays for the wrapped strategy, `step` along the vector, which is let go."""
        if self.sent is None:
            raise ValueError(f"the vector of node {self.node} is not there")
        arrays = record_of(from_vector(self.vector, self.sent.reference, step))
        self.message.content = RecordDict({**dict(self.message.content.items()), self.sent.arrays_name: arrays})
        self.vector = self.vector[:0]
        return self.message


class Replies:
    """Puts an offer into each training message of a round and opens the replies, each by itself.

    `level` is the log's for what tells how many nodes were sampled.
    """

    def __init__(self, end: ServerEnd, model: Distribution | None = None, level: int = INFO) -> None:
        self._end, self._level = end, level
        self._model = model
        self._waiting: list[Sent] = []
        self.sent = 0

    def offer(
        self, message: Message, settings: UplinkSettings, server_round: int, identity: bytes, known: Known
    ) -> None:
        """Put an offer for its node into the message, in a record dictionary of its own."""
        arrays = message.content.array_records
        if len(arrays) != 1:
            raise ValueError(f"a training message must hold exactly one ArrayRecord, got {len(arrays)}")
        name, record = next(iter(arrays.items()))
        reference = known.of(record)
        broadcast = self._model is not None and self._model.put_into(message)
        peer = Peer(message.metadata.run_id, message.metadata.dst_node_id, identity)
        pending = self._end.offer(settings, peer, count(reference) + settings.beside, server_round)
        self._send(Sent(pending, name, reference, message, broadcast))
        self.sent += 1

    def _send(self, sent: Sent) -> Message:
        offer = ConfigRecord(sent.pending.offer.to_fields())
        sent.message.content = RecordDict({**dict(sent.message.content.items()), RECORD: offer})
        self._waiting.append(sent)
        return sent.message

    def with_second(self, replies: list[Message], grid: Grid | None, timeout: float) -> list[Message]:
        """The replies; nodes that do not hold what their message leads on from get a snapshot and reply to that."""
        rest, second = [], []
        for reply in replies:
            sent = self._answered(reply) if is_stale(reply) and self._model is not None else None
            if sent is None or self._model is None:
                rest.append(reply)
            else:
                second.append(self._send_again(sent, self._model))
        if not second or grid is None:
            return rest
        log(self._level, "cepam: %d nodes do not hold the model's last version and are sent a snapshot", len(second))
        return rest + list(grid.send_and_receive(second, timeout=timeout))

    def _send_again(self, sent: Sent, model: Distribution) -> Message:
        """A second message to a node, with a snapshot and a new offer."""
        offer = sent.pending.offer
        self._end.expire(sent.pending)
        peer = Peer(offer.run, offer.node, offer.identity)
        pending = self._end.offer(offer.settings, peer, sent.pending.size, offer.server_round)
        return self._send(Sent(pending, sent.arrays_name, sent.reference, model.again(sent.message), True))

    def open(self, reply: Message, weight_key: str) -> Opened:
        """The reply with its update decoded; `Refused` says why it is of no use."""
        sent = self._answered(reply)
        if reply.has_error():
            # Errors that the SuperLink makes carry its own id: the message says whom they are about.
            node = sent.node if sent else reply.metadata.src_node_id
            raise Refused("error", node, f"code {reply.error.code}: {reply.error.reason}")
        node = reply.metadata.src_node_id
        if sent is None or sent.node != node:
            raise Refused("unsolicited", node, "it does not answer a message of this round, or answers it again")
        if sent.broadcast and self._model is not None:
            self._model.take_report(reply)
        answer, message = Answer.from_fields(_record(reply)), _sealed_message(reply)
        settings = sent.pending.offer.settings
        vector = self._end.open(sent.pending, answer, message)
        name, metrics = _metrics(reply, node, weight_key, settings.weight)
        if name == sent.arrays_name:
            raise Refused("malformed", node, f"its metrics are named {name!r}, as the arrays are")
        kept = {
            name: record
            for name, record in reply.content.items()
            if name != RECORD and not isinstance(record, ArrayRecord | MetricRecord)
        }
        reply.content = RecordDict({**kept, name: metrics})
        kind = _kind_of(name, metrics)
        return Opened(node, settings, reply, len(message), len(vector), kind, vector, sent)

    def silent(self) -> Iterable[int]:
        """The sampled nodes that sent neither an update nor an error."""
        return [sent.node for sent in self._waiting]

    def close_round(self) -> None:
        """Forget the keys of this round, those of messages that were not answered too."""
        for sent in self._waiting:
            self._end.expire(sent.pending)
        self._waiting.clear()
        self.sent = 0

    def _answered(self, reply: Message) -> Sent | None:
        """The message that this reply answers, taken out so that it is answered once."""
        for place, sent in enumerate(self._waiting):
            if sent.message.metadata.message_id == reply.metadata.reply_to_message_id != "":
                return self._waiting.pop(place)
        return None


class Known:
    """The models of a round's messages, read once: strategies put one record into many messages."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[ArrayRecord, Arrays]] = {}

    def of(self, record: ArrayRecord) -> Arrays:
        """The record's arrays."""
        if id(record) not in self._read:
            self._read[id(record)] = (record, numpy_of(record))
        return self._read[id(record)][1]

    @property
    def models(self) -> list[Arrays]:
        """The different models that were sent."""
        return [arrays for _, arrays in self._read.values()]


def _record(reply: Message) -> ConfigRecord:
    record = reply.content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise ValueError("the reply has no answer to the offer: does the ClientApp use cepam.flower.Uplink?")
    return record


def _sealed_message(reply: Message) -> bytes:
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"a training reply needs exactly one ArrayRecord, got {len(records)}")
    return carried(records[0])


def _metrics(reply: Message, node: int, weight_key: str, weight: float) -> tuple[str, MetricRecord]:
    """The reply's metrics with the public weight in place of the claimed one."""
    records = list(reply.content.metric_records.items())
    if len(records) > 1:
        raise Refused("metrics", node, f"at most one MetricRecord may come, got {len(records)}")
    name, record = records[0] if records else ("metrics", MetricRecord())
    values = dict(record)
    if weight_key in values:
        values.pop(weight_key)
    _check_finite(values, node)
    return name, MetricRecord({**values, weight_key: float(weight)})


def consistent_metrics(replies: Iterable[Message], weight_key: str) -> list[Message]:
    """Select the evaluation replies that can be averaged: Flower ends the run for one that differs from the others.

    Args:
        replies: what came; errors are kept, strategies count them.
        weight_key: the metric that weighs a reply, a positive number.

    Returns:
        The replies whose metrics are finite and of the majority's kind.
    """
    kinds: list[tuple[Message, MetricsKind | None]] = []
    for reply in replies:
        try:
            with refusing(reply.metadata.src_node_id):
                if reply.has_error():  # strategies log its reason as it is
                    reply.error = Error(reply.error.code, one_line(str(reply.error.reason)))
                kinds.append((reply, None if reply.has_error() else _evaluated_kind(reply, weight_key)))
        except Refused as refused:
            _drop_evaluation(refused)
    counted = Counter(kind for _, kind in kinds if kind is not None)
    usual = counted.most_common(1)[0][0] if counted else None
    for reply, kind in kinds:
        if kind not in (None, usual):
            _drop_evaluation(
                Refused("metrics", reply.metadata.src_node_id, "its metrics are not those of the other replies")
            )
    return [reply for reply, kind in kinds if kind in (None, usual)]


def _evaluated_kind(reply: Message, weight_key: str) -> MetricsKind:
    node, records = reply.metadata.src_node_id, list(reply.content.metric_records.items())
    if len(records) != 1:
        raise Refused("metrics", node, f"exactly one MetricRecord may come, got {len(records)}")
    name, metrics = records[0]
    _check_finite(metrics, node)
    weight = metrics.get(weight_key, 1)
    if isinstance(weight, list) or not weight > 0:
        raise Refused("metrics", node, f"the weight {weight_key!r} must be a positive number")
    return _kind_of(name, metrics)


def _drop_evaluation(refused: Refused) -> None:
    log(WARNING, "cepam: dropped the evaluation of node %s: %s", refused.node, refused)


def _check_finite(metrics: Mapping[str, float | list[float]], node: int) -> None:
    for key, value in metrics.items():
        if not all(math.isfinite(number) for number in (value if isinstance(value, list) else [value])):
            raise Refused("metrics", node, f"the metric {key!r} is not finite")


def _kind_of(name: str, metrics: MetricRecord) -> MetricsKind:
    shapes = ((key, len(value) if isinstance(value, list) else -1) for key, value in metrics.items())
    return frozenset([(name, -2), *shapes])


@dataclass
class RoundMetrics:
    """What became of one round's replies; `down` are the bytes of its broadcasts, and as float32 (0: none).

    Where the cohort is `secret`, what tells who was sampled, or how many, is logged at DEBUG and is no metric.
    """

    sampled: int
    down: tuple[int, int] = (0, 0)
    secret: bool = False
    opened: list[Opened] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def drop(self, refused: Refused) -> None:
        """Count a reply that is of no use by its reason, and log the reason."""
        self.refused.append(refused)
        log(
            DEBUG if self.secret else WARNING,
            "cepam: dropped the reply of node %s: %s (%s)",
            refused.node,
            refused,
            refused.kind,
        )

    def drop_odd_metrics(self) -> None:
        """Drop replies whose metrics differ in kind from the majority's: Flower would end the run."""
        kinds = Counter(o.metrics_kind for o in self.opened)
        if len(kinds) < 2:
            return
        usual = kinds.most_common(1)[0][0]
        for odd in [o for o in self.opened if o.metrics_kind != usual]:
            self.drop(Refused("metrics", odd.node, "its metrics are not those of the other replies"))
        self.opened = [o for o in self.opened if o.metrics_kind == usual]

    def report(self, server_round: int, metrics: MetricRecord | None, epsilon: float, delta: float) -> MetricRecord:
        """The metrics with the counts and epsilon among them; the log says the same in a line."""
        report = MetricRecord(dict(metrics) if metrics is not None else {})
        so_far = f"epsilon so far {epsilon:.4g} at delta {delta:g}"
        if self.secret:
            log(INFO, "cepam: round %d: %s; the cohort is secret", server_round, so_far)
        log(DEBUG if self.secret else INFO, "cepam: round %d: %s, %s", server_round, self, so_far)
        counts = {} if self.secret else self._counts()
        for key, value in {**counts, "cepam-epsilon": epsilon, "cepam-delta": delta}.items():
            report[key] = value
        return report

    @property
    def message_bytes(self) -> int:
        """What the good replies took."""
        return sum(o.message_bytes for o in self.opened)

    @property
    def dense_bytes(self) -> int:
        """What they would have taken as float32."""
        return sum(4 * o.coordinates for o in self.opened)

    def _counts(self) -> dict[str, int]:
        dropped = Counter(refused.kind for refused in self.refused)
        counts = {
            "cepam-sampled": self.sampled,
            "cepam-replies": len(self.opened),
            "cepam-dropped": len(self.refused),
            "cepam-message-bytes": self.message_bytes,
            "cepam-float32-bytes": self.dense_bytes,
        }
        if self.down[0]:
            counts |= {"cepam-downlink-bytes": self.down[0], "cepam-downlink-float32-bytes": self.down[1]}
        return counts | {f"cepam-dropped-{kind}": times for kind, times in dropped.items()}

    def __str__(self) -> str:
        sent, dense = self.message_bytes, self.dense_bytes
        times = dense / sent if sent else 0.0
        down = f"; down {self.down[0]} bytes (float32: {self.down[1]})" if self.down[0] else ""
        replies = f"{len(self.opened)} of {self.sampled} replies"
        return f"{replies}, {sent} bytes (float32: {dense}, {times:.1f} times){down}"


MOST_REASONS = 3
MOST_KEPT = 1000  # nodes choose parts of these texts
TRANSIENT = ("cepam: training", "cepam: version", "cepam: order", "cepam: internal")
HINTS = {
    "cepam: policy": "a node's own policy refuses what this server asks for, or the node has none (docs/production.md)",
    "cepam: legacy-app": "the ClientApp is built from client_fn or NumPyClient: use @app.train() (docs/flower.md)",
    "cepam: training": "the ClientApp's training function raised; the node's log says what",
    "cepam: key-file": "a file that the node's configuration names cannot be read",
    "cepam: arrays": "the reply must hold one ArrayRecord with the names and shapes of the model",
    "cepam: unsigned": "nodes know a server key that this server does not sign with: Authentication(server_key=…)",
    "cepam: secure-aggregation-only": "the nodes answer to secure aggregation only: cepam.flower.SecureAggregation",
}


def is_refusal(refused: Refused) -> bool:
    """Whether a node refuses for a reason that the next round will not change: a configuration, not a fault."""
    if refused.kind == "error":
        said = str(refused).partition(": ")[2]
        return said.startswith("cepam: ") and said not in TRANSIENT
    if refused.kind == "refused":  # a node that lost its state refuses once, and takes part in the next epoch
        return not str(refused).endswith((": position", ": cohort"))
    return refused.kind in ("agreement", "malformed")


@dataclass
class RunFailure:
    """Follows a run until one round is published that a good reply is in; `secret`: nobody may learn who was sampled.

    A round without a usable reply is a warning. The run ends at once where every node of its first round refused, and
    at its end where no reply was ever used.
    """

    secret: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    trained: bool = False
    hopeless: bool = False
    _refusals: int = 0

    def note(self, refused: Refused) -> None:
        """Count why a reply, or a whole round (node None), was of no use."""
        reason = f"{refused} ({refused.kind})"
        if not self.trained and (reason in self.reasons or len(self.reasons) < MOST_KEPT):
            self.reasons[reason] += 1
        self._refusals += refused.node is not None and is_refusal(refused)

    def end_round(self, server_round: int, sampled: int, trained: bool) -> None:
        """Count a round for which so many nodes were sampled; `trained`: it was published and a reply is in it."""
        refusals, self._refusals = self._refusals, 0
        if not sampled:
            return
        self.rounds += 1
        self.trained = self.trained or trained
        if not trained and not self.secret:
            log(WARNING, "cepam: round %d trained nothing: no reply could be used", server_round)
            self.hopeless = self.rounds == 1 and refusals >= sampled

    def check(self, metrics: Mapping[int, Any]) -> None:
        """Raise where nothing was trained although nodes were sampled.

        Raises:
            NoUsableReplies: The commonest reasons, and the metrics of all rounds.
        """
        if self.trained or not self.rounds:
            return
        commonest = self.reasons.most_common(MOST_REASONS)
        said = "; ".join(reason if self.secret else f"{times} times {reason}" for reason, times in commonest)
        hints = [hint for code, hint in HINTS.items() if any(code in reason for reason, _ in commonest)]
        where = "every node of the first round refused" if self.hopeless else "no reply of any round could be used"
        raise NoUsableReplies(
            f"nothing was trained: {where}: {said or 'no reply came'}" + "".join(f". {hint}" for hint in hints),
            dict(self.reasons),
            dict(metrics),
        )


# Which strategies of Flower can be wrapped, and which publish nothing but a function of the weighted average.
#
# To add a strategy whose published model depends on replies through their weighted average alone, name it in
# `AVERAGING`. A subclass of one of them is not covered by its parent's name: it may publish more.


# Strategies of Flower whose published model depends on the replies through their weighted average alone.
AVERAGING = (FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi)


def publishes_average(strategy: Strategy, account: Accounting) -> bool:
    """Whether the noise of all replies may be counted together: only where nothing but their average is published."""
    if account.released == "auto":
        return type(strategy) in AVERAGING
    return account.released == "average"


Aggregate = tuple[ArrayRecord | None, MetricRecord | None]


class ReplyAggregator:
    """The base of all aggregators: average the replies that came and charge their noise (dropout handling `charge`).

    `average` says that nothing but the average of the replies is published, so that the noise of all counts. A round
    with fewer than `least_replies` is not published and costs nothing. `is_secret` says that nobody may learn who was
    sampled, nor how many; `is_open` that a round is published even if nobody was; `clip` is the next one, if it moves.
    `step` is the server's step along the averaged update; None hands on the vectors themselves.
    """

    is_secret = False

    def __init__(self, account: Accounting, average: bool, least_replies: int) -> None:
        self.account, self.average, self.least_replies = account, average, least_replies
        self.is_open = False
        self.clip: float | None = None
        self._sampled: list[Reply] = []
        self._model: Arrays = {}
        self._step: float | None = 1.0

    def planned(self, settings: UplinkSettings, nodes: int, coordinates: int) -> Mechanism:
        """A round as it is meant: so many nodes that all reply."""
        return self._mechanism([(node, settings) for node in range(nodes)], coordinates)

    def noise(self, sampled: Sequence[UplinkSettings]) -> float:
        """The standard deviation per coordinate of what is published where these are sampled."""
        return noise_of_average(sampled)

    def choose(self, messages: list[Message], settings: UplinkSettings, taken: Mapping[int, int]) -> list[Message]:
        """The messages that are sent, of those of the strategy; `taken` says how often nodes were sampled."""
        return messages

    def foreseen(self, sampled: list[Reply], coordinates: int) -> Mechanism | None:
        """What the round costs at least if these are sampled, where that is known before; None where it is not.

        Fewer replies bring less noise and cost more, where all have one setting and every round is charged as its worst
        client paid it. With nodes that pay for their own rounds alone, one that stays away may make a round affordable.
        """
        alike = len({settings for _, settings in sampled}) == 1
        return self._mechanism(sampled, coordinates) if alike and not self.account.stable_nodes else None

    def close(self) -> None:
        """End the round."""
        self.is_open = False

    @property
    def counted(self) -> list[int]:
        """The nodes whose rounds are counted."""
        return []

    def figures(self, spending: Budget) -> dict[str, float]:
        """What else goes among a round's metrics."""
        return {}

    def begin(self, sampled: list[Reply], models: list[Arrays], step: float | None) -> None:
        """Begin a round with these nodes and models, which goes so far along what comes back.

        Settings that cannot be accounted for together are refused, before anything leaves.
        """
        self._sampled, self._model, self._step = sampled, models[0], step
        self._mechanism(sampled, count(models[0]))

    def resume(self, accountant: Accountant, run: str, clip: float | None) -> None:
        """Take up the rounds of this run that are on the account already, and the clip that followed from them."""

    def mechanism(self, opened: Sequence[Opened]) -> Mechanism | None:
        """The round as the accountant sees it, or None where it is not to be published."""
        return self._mechanism(self._charged(opened), count(self._model)) if self._enough(opened) else None

    def _enough(self, opened: Sequence[Opened]) -> bool:
        if len(opened) < self.least_replies:
            log(
                WARNING,
                "cepam: %d good replies, %d needed: nothing is published this round, nothing is charged",
                len(opened),
                self.least_replies,
            )
        return len(opened) >= self.least_replies

    def aggregate(self, strategy: Strategy, server_round: int, tally: RoundMetrics) -> Aggregate:
        """What the wrapped strategy makes of the round."""
        made: Aggregate = strategy.aggregate_train(server_round, [one.dense(self._step) for one in tally.opened])
        return made

    def _charged(self, opened: Sequence[Opened]) -> list[Reply]:
        """Whose noise is in the round."""
        return [(one.node, one.settings) for one in opened]

    def _mechanism(self, replies: list[Reply], coordinates: int) -> Mechanism:
        return self.account.mechanism(replies, self.average, coordinates)

    def __str__(self) -> str:
        noise = "all replies" if self.average else "each reply by itself (more than the average may be published)"
        return f"noise counted: {noise}"


class CompensatingAggregator(ReplyAggregator):
    """Dropout handling `compensate`: the noise is that of all sampled nodes; the server adds what is missing.

    The sum is divided by the weights of all sampled nodes, never by those that replied; the wrapped strategy is handed
    one reply, the compensated average, and does with it what it does with an average.
    Guarantee: the law of the noise and epsilon do not depend on who replied (tests/flower/test_dropouts.py).
    """

    def begin(self, sampled: list[Reply], models: list[Arrays], step: float | None) -> None:
        super().begin(sampled, models, step)
        check_one_model(models)
        self._settings = sampled[0][1]

    def foreseen(self, sampled: list[Reply], coordinates: int) -> Mechanism | None:
        """What the round costs, whoever replies."""
        return self._mechanism(sampled, coordinates) if sampled else None

    @property
    def shares(self) -> Shares:
        """What nodes and server bring, and the divisor."""
        return Shares.of(settings for _, settings in self._sampled)

    def mean(self, tally: RoundMetrics) -> npt.NDArray[np.float64]:
        """The compensated average of what came."""
        came = [(one.settings, one.vector) for one in tally.opened]
        return self.shares.mean(came, count(self._model) + self._settings.beside)

    def aggregate(self, strategy: Strategy, server_round: int, tally: RoundMetrics) -> Aggregate:
        moved = from_vector(self.mean(tally), self._model, self._step)
        return one_reply(strategy, server_round, tally, record_of(moved))

    def _charged(self, opened: Sequence[Opened]) -> list[Reply]:
        return self._sampled

    def __str__(self) -> str:
        return "noise counted: that of all sampled nodes, whoever replies: the server adds what is missing"


def check_one_model(models: list[Arrays]) -> None:
    """Refuse messages with different models, whose updates cannot be added up."""
    if len(models) > 1:
        raise ValueError(f"dropout compensation needs one model for all nodes, got {len(models)} models")


def one_reply(strategy: Strategy, server_round: int, tally: RoundMetrics, average: ArrayRecord) -> Aggregate:
    """What the strategy makes of one reply that holds the average, with the metrics of all replies."""
    weight_key = getattr(strategy, "weighted_by_key", "num-examples")
    aggregate = getattr(strategy, "train_metrics_aggr_fn", aggregate_metricrecords)
    metrics = aggregate([one.message.content for one in tally.opened], weight_key) if tally.opened else MetricRecord()
    content = RecordDict(
        {
            getattr(strategy, "arrayrecord_key", "arrays"): average,
            "cepam-metrics": MetricRecord({**metrics, weight_key: 1.0}),
        }
    )
    arrays, _ = strategy.aggregate_train(server_round, [Message(content, 0, MessageType.TRAIN)])
    return arrays, metrics


def reply_aggregator_for(dropouts: Dropouts, account: Accounting, average: bool, law: Law) -> ReplyAggregator:
    """The aggregator of this dropout handling; `auto` compensates where that is possible."""
    fits = average and isinstance(law, Gaussian)
    if dropouts.handling == "compensate" and not fits:
        raise ValueError(
            "dropout handling 'compensate' needs Gaussian noise and a strategy that publishes nothing but the average "
            "(set Accounting(released='average') if your strategy publishes the average only)"
        )
    kind = CompensatingAggregator if fits and dropouts.handling != "charge" else ReplyAggregator
    return kind(account, average, dropouts.least_replies)
