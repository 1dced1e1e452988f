"""How the protocol's requests travel to nodes and their answers come back, and the records of both."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.config import get_fused_config_from_dir, get_project_dir
from flwr.serverapp import Grid

from cepam.errors import CepamError
from cepam.flower.client_mod import SECURE_AGGREGATION, carried, carry
from cepam.protocol.agreement import RECORD, sign
from cepam.protocol.models import DOWNLINK
from cepam.protocol.server import Refused, refusing
from cepam.secure_aggregation.messages import RefusalReply
from cepam.secure_aggregation.roster import RefusalKind

OURS = frozenset({SECURE_AGGREGATION, RECORD, DOWNLINK})


def run_bytes(run: int) -> bytes:
    """A run of Flower as the messages of a sum name it."""
    return f"flower {run}".encode()


def secagg_message(content: RecordDict) -> bytes:
    """The message of a sum in this content; ValueError if there is none."""
    record = content.get(SECURE_AGGREGATION)
    if not isinstance(record, ArrayRecord):
        raise ValueError(
            "there is no message of secure aggregation: does the other end use cepam.flower.SecureAggregation?"
        )
    return carried(record)


def statement(run: int, node: int, request: bytes) -> bytes:
    """What a server signs that signs its requests: to whom, in which run, and every byte."""
    return hashlib.sha256(b"cepam sum request v1" + struct.pack("<QQ", run, node) + request).digest()


def run_config(run: Any) -> Mapping[str, Any]:
    """The configuration of a run of Flower as the contexts of its nodes have it: the app's own, and what replaces it.

    Args:
        run: `grid.run` of the server.
    """
    replaced = dict(getattr(run, "override_config", None) or {})
    if not getattr(run, "fab_id", ""):
        return replaced
    return dict(get_fused_config_from_dir(get_project_dir(run.fab_id, run.fab_version, run.fab_hash), replaced))


def check_value(
    content: RecordDict, update: str, configured: Mapping[str, Any], message_type: str, group_id: str
) -> bytes:
    """32 bytes that bind a round to all that a node is sent to train on.

    The masks of two nodes that were sent different things do not cancel
    (tests/flower/secure_aggregation/test_attacks.py).

    Args:
        content: the message's records: the model, the configuration.
        update: what the node replies with, parameters or a gradient.
        configured: the run's configuration, which a ClientApp reads from its context.
        message_type: the message's type, which chooses the function of the ClientApp that trains.
        group_id: the message's group, which a ClientApp reads from its metadata.
    """
    digest = hashlib.sha256(b"cepam sum model v2")
    _feed(digest, update.encode(), message_type.encode(), group_id.encode(), struct.pack("<Q", len(configured)))
    for key, value in sorted(configured.items()):
        _feed(digest, key.encode(), repr(value).encode())
    for name, record in sorted(content.items()):
        if name in OURS:
            continue
        _feed(digest, name.encode(), type(record).__name__.encode(), struct.pack("<Q", len(record)))
        for key, value in sorted(record.items()):
            _feed(digest, str(key).encode())
            if isinstance(record, ArrayRecord):
                _feed_array(digest, value.numpy())
            else:
                _feed(digest, repr(value).encode())
    return digest.digest()


def _feed_array(digest: Any, values: np.ndarray[Any, Any]) -> None:
    _feed(digest, values.dtype.str.encode(), repr(values.shape).encode())
    _feed(digest, np.ascontiguousarray(values).tobytes())


def _feed(digest: Any, *parts: bytes) -> None:
    for part in parts:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)


log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

PULL_SECONDS = 0.5


class NodeRefused(Refused):
    """A node refused a stage; `refusal_kind` says why."""

    def __init__(self, kind: RefusalKind, node: int) -> None:
        super().__init__("refused", node, f"the node refuses: {kind}")
        self.refusal_kind = kind


@dataclass
class Transport:
    """Carries requests, signed where the server has a key, and reads what comes back to them.

    `waiting` maps the messages under way to their nodes: an answer counts once, and only from its message's node.
    """

    server_key: bytes | None = field(repr=False)
    timeout: float
    waiting: dict[str, int] = field(default_factory=dict)

    def put(self, message: Message, run: int, request: bytes, update: str = "") -> None:
        """Put the request into the message, beside what it carries."""
        fields: dict[str, str | bytes] = {"update": update}
        if self.server_key is not None:
            fields["signature"] = sign(self.server_key, statement(run, message.metadata.dst_node_id, request))
        content = dict(message.content.items())
        message.content = RecordDict({**content, SECURE_AGGREGATION: carry(request), RECORD: ConfigRecord(fields)})

    def expect(self, messages: Iterable[Message]) -> None:
        """Expect answers to these messages, and to no earlier ones."""
        self.waiting = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}

    def node_of(self, reply: Message) -> int | None:
        """The node that this reply's message is under way to; None where it answers none."""
        return self.waiting.get(reply.metadata.reply_to_message_id)

    def read(self, reply: Message) -> tuple[int, bytes]:
        """The node and its answer; `Refused` says why there is none."""
        node = self.waiting.pop(reply.metadata.reply_to_message_id, None)
        if reply.has_error():
            about = reply.metadata.src_node_id if node is None else node
            raise Refused("error", about, f"code {reply.error.code}: {reply.error.reason}")
        if node is None or node != reply.metadata.src_node_id:
            raise Refused("unsolicited", reply.metadata.src_node_id, "it does not answer a message of this round trip")
        said = secagg_message(reply.content)
        kind = _refusal(said)
        if kind is not None:
            raise NodeRefused(kind, node)
        return node, said

    def exchange(
        self,
        grid: Grid,
        requests: Mapping[int, bytes],
        take: Callable[[int, bytes], None],
        drop: Callable[[Refused], None],
        done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Send requests, and take or drop each answer. Ends when all have answered, or `done`, or the time is over."""
        messages = []
        run = int(grid.run.run_id)
        for node, request in requests.items():
            message = Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN)
            self.put(message, run, request)
            messages.append(message)
        waiting = {name for name in grid.push_messages(messages) if name}
        self.expect(messages)
        until = time.monotonic() + self.timeout
        while waiting and not done():
            came = list(grid.pull_messages(waiting))
            for reply in came:
                waiting.discard(reply.metadata.reply_to_message_id)
                self.give(reply, take, drop)
            left = until - time.monotonic()
            if left <= 0.0:
                break
            if not came:
                time.sleep(min(PULL_SECONDS, left))
        log(INFO, "cepam: %d of %d nodes answered", len(messages) - len(waiting), len(messages))

    def give(self, reply: Message, take: Callable[[int, bytes], None], drop: Callable[[Refused], None]) -> None:
        """Take or drop one reply. All replies of nodes come through here, and nothing in them raises further."""
        node = self.node_of(reply)
        try:
            with refusing(reply.metadata.src_node_id if node is None else node):
                take(*self.read(reply))
        except Refused as refused:
            drop(refused)


def _refusal(said: bytes) -> RefusalKind | None:
    try:
        return RefusalReply.decode(said).kind
    except CepamError:
        return None
