"""Flower's own strategies, mods and workflow as shipped, on a grid in this process.

Real `Message` objects pass through a real `ClientApp` with its mods and through `strategy.start`; only the transport is
replaced by a function call. All clients take part in every round and take one step on all their records. The wrappers
hide whole clients, so their unit is the client whatever the task's own is.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity

from cepam_peers.tasks import Floats, Problem, epsilon_of, noise_for

RUN = 77
QUANTILE_RATE, COUNT_DEVIATIONS = 0.2, 6.0
Made = tuple[Any, list[Any]]


class LocalGrid(Grid):  # type: ignore[misc]
    """Hands every message to the app of its node at once, and counts the bytes of its records."""

    def __init__(self, apps: dict[int, Callable[[Message], Message]]) -> None:
        self.apps, self.up, self.down, self._ids = apps, 0, 0, itertools.count(1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Any:
        """The run, of which legacy code reads the number."""
        return SimpleNamespace(run_id=RUN)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Deprecated in Flower."""
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        """All nodes."""
        return list(self.apps)

    def get_nodes(self) -> list[Any]:
        """Not asked for by the strategies here."""
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Not asked for by the strategies here."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Not asked for by the strategies here."""
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The reply of each node's app."""
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(self._ids)}"
            message.metadata.__dict__["_run_id"] = RUN
            self.down += size_of(message)
            reply = self.apps[message.metadata.dst_node_id](received(message))
            if reply.has_error():
                raise RuntimeError(str(reply.error))
            reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            self.up += size_of(reply)
            replies.append(reply)
        return replies


def received(message: Message) -> Message:
    """The message as it arrives elsewhere: mods change configurations in place, so these are copied."""
    content = message.content
    records = {name: record.copy() if name in content.config_records else record for name, record in content.items()}
    return Message(content=RecordDict(records), metadata=message.metadata)


def size_of(message: Message) -> int:
    """Bytes of a message's records, without metadata, transport and empty lists, which Flower cannot count."""
    total = 0
    for record in message.content.values():
        if isinstance(record, ConfigRecord):
            record = ConfigRecord({name: value for name, value in record.items() if value != []})
        total += record.count_bytes()
    return total


def client_app(problem: Problem, rate: float, mods: list[Any]) -> ClientApp:
    """One step on all records of the client, equal weights: what a user of Flower has before privacy."""
    app = ClientApp(mods=mods)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        held = message.content["arrays"]
        weights = {name: array.numpy() for name, array in held.items()}
        slope = problem.gradient(weights, int(context.node_config["partition-id"]))
        moved = ArrayRecord({name: Array(weights[name] - np.float32(rate) * slope[name]) for name in weights})
        return Message(RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def server_fixed(inner: Any, noise: float, clip: float, clients: int, delta: float) -> Made:
    """Clipping by the server."""
    config = PrivacyConfig(delta, clients, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = RdpAccountant(config)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, noise, clip, clients, accountant=accountant)
    return strategy, []


def client_fixed(inner: Any, noise: float, clip: float, clients: int, delta: float) -> Made:
    """Clipping by a mod on the client."""
    config = PrivacyConfig(delta, clients, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = RdpAccountant(config)
    strategy = DifferentialPrivacyClientSideFixedClipping(inner, noise, clip, clients, accountant=accountant)
    return strategy, [fixedclipping_mod]


def server_adaptive(inner: Any, noise: float, clip: float, clients: int, delta: float) -> Made:
    """An adaptive clip, kept by the server; the count's noise as shipped, or larger where that is refused."""
    deviation = None if noise < clients / 10 else noise
    return DifferentialPrivacyServerSideAdaptiveClipping(
        inner, noise, clients, initial_clipping_norm=clip, clipped_count_stddev=deviation
    ), []


def client_adaptive(inner: Any, noise: float, clip: float, clients: int, delta: float) -> Made:
    """An adaptive clip, applied by a mod on the client."""
    deviation = None if noise < clients / 10 else noise
    return DifferentialPrivacyClientSideAdaptiveClipping(
        inner, noise, clients, initial_clipping_norm=clip, clipped_count_stddev=deviation
    ), [adaptiveclipping_mod]


FLOWER: dict[str, tuple[str, Callable[[Any, float, float, int, float], Made]]] = {
    "flower-server-fixed": ("Flower, server-side fixed clipping", server_fixed),
    "flower-client-fixed": ("Flower, client-side fixed clipping", client_fixed),
    "flower-server-adaptive": ("Flower, server-side adaptive clipping", server_adaptive),
    "flower-client-adaptive": ("Flower, client-side adaptive clipping", client_adaptive),
}
CLIPS = {"hospitals": (0.1, 0.5, 2.0), "chitchat-prompts": (10.0, 20.0, 40.0), "private": (0.1, 1.0, 10.0)}
"""Clipping norms tried on held-out clients; a client's step is half of the norm, as in the presets."""


def train(problem: Problem, name: str, clip: float, seed: int) -> tuple[dict[str, Floats], dict[str, Any]]:
    """One run: the last weights, and what it sent, spent and reports."""
    told, clients = problem.settings.training, problem.clients
    epsilon, delta = problem.settings.privacy.epsilon, problem.settings.privacy.delta
    assert epsilon is not None
    noise = noise_for(clients, told.rounds, epsilon, delta)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy, mods = FLOWER[name][1](inner, noise, clip, clients, delta)
    app = client_app(problem, clip / 2.0, mods)
    contexts = {k: Context(RUN, k, {"partition-id": k}, RecordDict(), {}) for k in range(clients)}
    grid = LocalGrid({k: lambda message, k=k: app(message, contexts[k]) for k in contexts})  # type: ignore[misc]
    np.random.seed(seed)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    start = ArrayRecord({key: Array(value) for key, value in problem.start().items()})
    found = strategy.start(grid, start, num_rounds=told.rounds)
    weights = {key: np.asarray(array.numpy()) for key, array in found.arrays.items()}
    adaptive = name.endswith("adaptive")
    effective = noise * (least_ratio(strategy, clients) if adaptive else 1.0)
    return weights, {
        "up": grid.up, "down": grid.down, "messages": clients * told.rounds, "last_clip": strategy.clipping_norm,
        "proved": epsilon_of(clients, told.rounds, effective, delta),
        "reported": None if adaptive else strategy.privacy_spent().epsilon,
    }  # fmt: skip


def least_ratio(strategy: Any, clients: int) -> float:
    """How much less noise than stated a round has at most: the norm moves between clipping and noise.

    The noise is scaled by the norm of the next round, exp(-0.2 (fraction - 0.5)) of this one's. The fraction is noisy:
    six deviations above 1 are left out, a chance of 1e-9 a round. The noise on the updates alone is a little more than
    the multiplier asked for; both it and the count are charged as one mechanism, scaled by the ratio. An absent
    client counts one half, in Flower's favour.
    """
    most = 1.0 + COUNT_DEVIATIONS * float(strategy.clipped_count_stddev) / clients
    return math.exp(-QUANTILE_RATE * (most - strategy.target_clipped_quantile))
