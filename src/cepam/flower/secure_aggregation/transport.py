"""How the protocol's requests travel to nodes and their answers come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, getLogger

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from cepam.errors import CepamError
from cepam.flower.arrays import SECURE_AGGREGATION, carry
from cepam.flower.secure_aggregation.records import secagg_message, statement
from cepam.protocol.agreement import sign
from cepam.protocol.messages import RECORD
from cepam.protocol.server import Refused, refusing
from cepam.secure_aggregation.messages import RefusalReply
from cepam.secure_aggregation.refusal import RefusalKind

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
            raise Refused("unsolicited", reply.metadata.src_node_id, "it does not answer a message of this trip")
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
