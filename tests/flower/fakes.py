"""A grid and nodes in one process: the mod and the wrapper as Flower calls them, without Flower's processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

from cepam.errors import NoUsableReplies
from cepam.flower import Uplink

RUN = 77
_ids = itertools.count(1)


class Node:
    """A SuperNode: keeps `context.state` between messages, and forgets it on `restart`."""

    def __init__(self, node_id: int, train: Callable[[Message, Context], Message], **config: str) -> None:
        self.node_id = node_id
        self.train = train
        self.config = config
        self.public_key = b""
        self.run_config: dict[str, float | str] = {}
        self.uplink = Uplink()
        self.restart()

    def restart(self) -> None:
        self.context = Context(RUN, self.node_id, self.config, RecordDict(), self.run_config)

    def handle(self, message: Message) -> Message:
        try:
            return self.uplink(message, self.context, self.train)
        except Exception as raised:  # as flwr-clientapp does
            return Message(Error(2, repr(raised)), reply_to=message)


def copied(message: Message) -> Message:
    """The message as it arrives elsewhere: records of its own, the metadata kept."""
    made = {name: record.copy() for name, record in message.content.items()}
    return Message(content=RecordDict(made), metadata=message.metadata)


class FakeGrid(Grid):
    """Delivers messages at once; `meddle` may change, replace, repeat or swallow replies to training messages.

    Replies to evaluation messages come back if `evaluates`.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.meddle: Callable[[int, Message], list[Message]] = lambda node, reply: [reply]
        self.seen: list[Message] = []
        self.evaluates = False
        self.run_config: dict[str, float | str] = {}
        self.came: list[Message] = []

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> SimpleNamespace:
        return SimpleNamespace(run_id=RUN, override_config=self.run_config)

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(node_id=n.node_id, public_key=n.public_key) for n in self.nodes.values()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        self.came = self.send_and_receive(sent)
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        came, self.came = self.came, []
        return came

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies: list[Message] = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(_ids)}"
            message.metadata.__dict__["_run_id"] = RUN
            node = message.metadata.dst_node_id
            reply = self.nodes[node].handle(copied(message))
            if message.metadata.message_type == "train":
                self.seen.append(copied(message))
                replies += self.meddle(node, reply)
            elif self.evaluates:
                replies.append(reply)
        return replies


class AppNode(Node):
    """A SuperNode that hands its messages to a whole ClientApp, mods included."""

    def __init__(self, node_id: int, app: ClientApp, **config: Any) -> None:
        self.app = app
        super().__init__(node_id, lambda message, context: message, **config)

    def handle(self, message: Message) -> Message:
        try:
            return self.app(message, self.context)
        except Exception as raised:  # as flwr-clientapp does
            return Message(Error(2, repr(raised)), reply_to=message)


def run_in_process(server_app: ServerApp, client_app: ClientApp, num_supernodes: int) -> None:
    """`flwr.simulation.run_simulation` without Flower's processes: both apps as they stand, in this one."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1  # as Flower's processes do
    configs = [{"partition-id": k, "num-partitions": num_supernodes} for k in range(num_supernodes)]
    grid = FakeGrid([AppNode(k, client_app, **config) for k, config in enumerate(configs, start=1)])
    server_app(grid, Context(RUN, 0, {}, RecordDict(), {}))


def outcome(strategy: Any, grid: FakeGrid, arrays: ArrayRecord, num_rounds: int = 1, **named: Any) -> Any:
    """The result of a run; of one that trained nothing its metrics, no arrays, and the error."""
    try:
        return strategy.start(grid, arrays, num_rounds, **named)
    except NoUsableReplies as nothing:
        return SimpleNamespace(train_metrics_clientapp=nothing.metrics, arrays=ArrayRecord(), error=nothing)


def adding(change: np.ndarray, examples: int = 10, **metrics: float) -> Callable[[Message, Context], Message]:
    """A training function whose trained parameters are the broadcast ones plus `change`."""

    def train(message: Message, context: Context) -> Message:
        assert "cepam" not in message.content
        weights = message.content["arrays"]["w"].numpy()
        arrays = ArrayRecord({"w": _array(weights + change.reshape(weights.shape).astype(np.float32))})
        record = MetricRecord({"num-examples": examples, **metrics})
        return Message(RecordDict({"arrays": arrays, "metrics": record}), reply_to=message)

    return train


def _array(values: np.ndarray) -> Array:
    return Array(np.ascontiguousarray(values))


def start_arrays(size: int = 400, value: float = 0.0) -> ArrayRecord:
    return ArrayRecord({"w": _array(np.full((size // 4, 4), value, dtype=np.float32))})


def vector_of(arrays: ArrayRecord) -> np.ndarray:
    return arrays["w"].numpy().ravel()
