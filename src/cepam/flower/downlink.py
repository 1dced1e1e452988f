"""The server's downlink: a broadcast in each message, and a snapshot for nodes that lack its origin."""

from __future__ import annotations

from collections.abc import Iterable
from logging import WARNING, getLogger
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from cepam.downlink import Broadcast
from cepam.errors import CepamError
from cepam.flower.client_mod import BROADCAST, numpy_of, pack, record_of
from cepam.protocol.models import DOWNLINK, Arrays, BroadcastMessage, Downlink
from cepam.protocol.server import Refused, refusing
from cepam.protocol.settings import QuantizedBroadcast, Step

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


def is_stale(reply: Message) -> bool:
    """Whether a node says that it does not hold what the broadcast leads on from."""
    return bool(reply.has_error() and reply.error.reason == "cepam: version")


class Distribution:
    """One quantized model for all nodes: the strategy computes with the exact arrays, nodes with the public ones.

    `step` is the quantization step, or a function of the round; None takes `factor` times the noise by which a round
    moves the model, and never a larger one than before.
    Guarantee: a node that missed rounds, restarted or is new replies in the same round, computed at the public arrays
    (tests/flower/test_downlink.py).
    """

    def __init__(self, step: Step | None, factor: float) -> None:
        self._given, self._factor = step, factor
        self._step: float | None = None
        self._downlink: Downlink | None = None
        self._packed: dict[BroadcastMessage, tuple[ArrayRecord, ConfigRecord]] = {}
        self._seen: tuple[ArrayRecord, bool] | None = None
        self._bytes = 0
        self._dense = 0

    def exact(self, arrays: Arrays) -> Arrays:
        """The exact arrays behind these, or these themselves where they are not what was published."""
        known = self._downlink
        return known.exact if known is not None and known.knows(arrays) else arrays

    @property
    def public(self) -> Arrays:
        """The arrays that were published last."""
        if self._downlink is None:
            raise ValueError("nothing was published yet")
        return self._downlink.public

    def publish(self, exact: Arrays, server_round: int, noise: float) -> Arrays:
        """The quantized public arrays, nearest to the exact ones; all messages from now on lead there.

        `noise` is the standard deviation per coordinate by which a round's noise moves the model.
        """
        self._step = self._next_step(server_round, noise)
        if self._downlink is None or not self._downlink.fits(exact):
            self._downlink = Downlink(exact, self._step)
        else:
            self._downlink.publish(exact, self._step)
        self._beside = record_of({name: exact[name] for name in self._downlink.beside})
        self._packed, self._seen = {}, None
        return self._downlink.public

    def publish_if_new(self, exact: Arrays, server_round: int, noise: float) -> None:
        """Publish the arrays unless they are what was published last."""
        if self._downlink is None or not self._downlink.knows(exact):
            self.publish(exact, server_round, noise)

    def _next_step(self, server_round: int, noise: float) -> float:
        if self._given is not None:
            return self._given(server_round) if callable(self._given) else self._given
        rule = Broadcast.step_for(1.0, noise, self._factor)
        return rule if self._step is None else min(rule, self._step)

    def put_into(self, message: Message) -> bool:
        """Whether the message now carries the broadcast: not where a strategy made arrays of its own for this node."""
        records = message.content.array_records
        if self._downlink is None or len(records) != 1:
            return False
        name, record = next(iter(records.items()))
        if BROADCAST not in record and not self._is_model(record):
            return False
        broadcast = self._downlink.message_for(message.metadata.dst_node_id)
        if broadcast not in self._packed:
            self._packed[broadcast] = (pack(broadcast.message, self._beside), ConfigRecord(broadcast.to_fields()))
        arrays, fields = self._packed[broadcast]
        message.content = RecordDict({**dict(message.content.items()), name: arrays, DOWNLINK: fields})
        self._bytes += len(broadcast.message)
        self._dense += 4 * self._downlink.coordinates
        return True

    def _is_model(self, record: ArrayRecord) -> bool:
        if self._seen is None or self._seen[0] is not record:
            self._seen = (record, self._downlink is not None and self._downlink.knows(numpy_of(record)))
        return self._seen[1]

    def take_report(self, reply: Message) -> None:
        """Note what the node holds; `Refused` for a reply that was computed at another version."""
        node = reply.metadata.src_node_id
        report = reply.content.get(DOWNLINK)
        if self._downlink is None or not isinstance(report, ConfigRecord):
            raise Refused("version", node, "it does not say at which version of the model it was computed")
        del reply.content[DOWNLINK]
        try:
            self._downlink.hear(node, report)
        except CepamError as elsewhere:
            raise Refused("version", node, str(elsewhere)) from elsewhere

    def again(self, message: Message) -> Message:
        """The message anew, with a snapshot for its node."""
        was = message.metadata
        if self._downlink is not None:
            self._downlink.forget(was.dst_node_id)
        content = RecordDict(dict(message.content.items()))
        made = Message(content, was.dst_node_id, was.message_type, ttl=was.ttl, group_id=was.group_id)
        self.put_into(made)
        return made

    def evaluated(
        self, replies: Iterable[Message], requests: list[Message], grid: Grid, timeout: float
    ) -> list[Message]:
        """The evaluation replies computed at the public arrays, those to a second message among them."""
        sent = {message.metadata.message_id: message for message in requests if DOWNLINK in message.content}
        came = list(replies)
        stale = [reply for reply in came if is_stale(reply) and reply.metadata.reply_to_message_id in sent]
        if stale:
            second = [self.again(sent[reply.metadata.reply_to_message_id]) for reply in stale]
            came = [reply for reply in came if reply not in stale] + list(
                grid.send_and_receive(second, timeout=timeout)
            )
            sent |= {message.metadata.message_id: message for message in second}
        return [reply for reply in came if reply.metadata.reply_to_message_id not in sent or self._is_good(reply)]

    def _is_good(self, reply: Message) -> bool:
        try:
            with refusing(reply.metadata.src_node_id):
                if not reply.has_error():
                    self.take_report(reply)
        except Refused as refused:
            log(WARNING, "cepam: dropped the evaluation of node %s: %s", refused.node, refused)
            return False
        return True

    def count(self) -> tuple[int, int]:
        """The bytes of all broadcasts since the last call, and what they would have been as float32."""
        counted, self._bytes, self._dense = (self._bytes, self._dense), 0, 0
        return counted


def distribution_for(
    downlink: Literal["float32", "quantized"] | QuantizedBroadcast, is_model: bool
) -> Distribution | None:
    """What sends quantized models; None where they travel as they are. `is_model`: aggregates are whole models."""
    if downlink == "float32":
        return None
    if downlink != "quantized" and not isinstance(downlink, QuantizedBroadcast):
        raise ValueError(f"downlink must be 'float32', 'quantized' or QuantizedBroadcast(…), got {downlink!r}")
    chosen = downlink if isinstance(downlink, QuantizedBroadcast) else QuantizedBroadcast()
    if chosen.step is None and not is_model:
        raise ValueError(
            "QuantizedBroadcast(step=…) must be given with Gradient(learning_rate=None): how far noise moves the model "
            "is not known"
        )
    return Distribution(chosen.step, chosen.step_factor)
