"""Nodes of sums and their grid in one process: who falls silent at which stage, and all that crossed the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import cepam
from cepam.errors import CepamError
from cepam.flower import SecureAggregation
from cepam.flower.client_mod import SECURE_AGGREGATION, carried, carry
from cepam.flower.secure_aggregation.transport import check_value
from cepam.policy import FileAccount
from cepam.secure_aggregation import RefusalReply, SecAggRound
from cepam.secure_aggregation.messages import TrainRequest
from tests.deployment import flat
from tests.flower.fakes import FakeGrid, Node, adding, copied, outcome, start_arrays

STAGES = {1: "hello", 3: "train", 5: "repair", 7: "unmask"}
TERMS = "noise_scale = 0.001\nclipping_norm = 1.0\nrounds = 100\nquorum = 3\nhonest = 1\n"
SIZE = 400
NAMES = tuple(range(100, 105))


@cache
def key_pair(number: int) -> tuple[bytes, bytes]:
    """A private key file and its public key, as OpenSSH writes them."""
    key = ec.derive_private_key(1000 + number, ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return private, key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def secagg_client(folder: Path, number: int, train: Callable[[Message, Context], Message], **config: str) -> Node:
    """Node 100 + number with a policy, an account and a key of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    key, policy = folder / f"{number}.key", folder / f"{number}.toml"
    key.write_bytes(key_pair(number)[0])
    if not policy.exists():
        policy.write_text(TERMS)
    own = {"cepam-identity": str(key), "cepam-policy": str(policy), "cepam-account": str(folder / f"{number}.account")}
    if not (folder / f"{number}.account").exists():
        FileAccount.create(folder / f"{number}.account")
    node = Node(100 + number, train, **{**own, **config})
    node.public_key = key_pair(number)[1]
    return node


def stage_of(message: Message) -> str:
    """Which stage of a sum a message asks for; empty for none."""
    record = message.content.get(SECURE_AGGREGATION) if message.has_content() else None
    return STAGES.get(carried(record)[4], "") if record is not None else ""


class SumGrid(FakeGrid):
    """Nodes fall silent by stage: `deaf` ones never get the message, `mute` ones act on it and are not heard.

    `between` is called with each stage and node before delivery; `traffic` has every (stage, node, message, reply).
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self.deaf: set[tuple[str, int]] = set()
        self.mute: set[tuple[str, int]] = set()
        self.traffic: list[tuple[str, int, Message, Message]] = []
        self.between: Callable[[str, int], None] = lambda stage, node: None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        came: list[Message] = []
        for message in messages:
            stage, node = stage_of(message), message.metadata.dst_node_id
            sent = copied(message)
            self.between(stage, node)
            if (stage, node) in self.deaf or node not in self.nodes:
                message.metadata.__dict__["_message_id"] = f"lost-{id(message)}"
                continue
            replies = super().send_and_receive([message])
            self.traffic += [(stage, node, sent, copied(r) if r.has_content() else r) for r in replies]
            came += replies if (stage, node) not in self.mute else []
        return came

    def replies(self, stage: str) -> dict[int, bytes]:
        """The last answers to a stage, by node."""
        return {
            node: carried(reply.content[SECURE_AGGREGATION])
            for at, node, _, reply in self.traffic
            if at == stage and reply.has_content()
        }


def sum_fleet(folder: Path, count: int = 5, size: int = SIZE, **config: str) -> tuple[SumGrid, np.ndarray]:
    """Nodes whose updates have norm 1/2, and those updates."""
    updates = np.random.default_rng(5).normal(size=(count, size))
    updates *= 0.5 / np.linalg.norm(updates, axis=1, keepdims=True)
    return SumGrid([secagg_client(folder, k, adding(updates[k], loss=0.5), **config) for k in range(count)]), updates


def summing(strategy: Any = None, sigma: float = 0.05, **options: Any) -> SecureAggregation:
    """A server that learns sums; short messages are waited for briefly."""
    if "epsilon" not in options:
        options.setdefault("noise", cepam.Gaussian(sigma))
    return SecureAggregation(strategy or FedAvg(), clip=cepam.L2(1.0), unmask_timeout=0.02, **flat(**options))


def request(node: Node, said: bytes, content: dict[str, Any] | None = None, kind: str = "train") -> Message:
    """A message to a node that carries this request."""
    made = Message(
        RecordDict({**(content or {}), SECURE_AGGREGATION: carry(said)}), dst_node_id=node.node_id, message_type=kind
    )
    made.metadata.__dict__["_run_id"] = node.context.run_id
    return made


def trained(folder: Path, **options: Any) -> tuple[SumGrid, SecAggRound]:
    """Nodes that have answered a training request and wait for repair or unmask, and the server's end of that round."""
    grid, _ = sum_fleet(folder)
    grid.deaf = {("unmask", node) for node in grid.nodes}
    outcome(summing(**options), grid, start_arrays(SIZE))
    sent = next(message for stage, _, message, _ in grid.traffic if stage == "train")
    asked = TrainRequest.decode(carried(sent.content[SECURE_AGGREGATION]))
    assert asked.roster is not None
    sums = SecAggRound(asked.settings, asked.roster, asked.cohort, _check(sent))
    for node, said in grid.replies("train").items():
        sums.take(node, said)
    grid.deaf = set()
    return grid, sums


def ask(node: Node, said: bytes, content: dict[str, Any] | None = None) -> bytes | str:
    """A node's answer to a request; of a refusal its kind, of an error its reason."""
    reply = node.handle(request(node, said, content))
    if reply.has_error():
        return str(reply.error.reason)
    assert list(reply.content) == [SECURE_AGGREGATION]
    answer = carried(reply.content[SECURE_AGGREGATION])
    try:
        return RefusalReply.decode(answer).kind
    except CepamError:
        return answer


def _check(sent: Message) -> bytes:
    return check_value(sent.content, "parameters", {}, sent.metadata.message_type, sent.metadata.group_id)
