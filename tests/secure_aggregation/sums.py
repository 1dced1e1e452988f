"""A cohort of nodes and their server in one process: what the tests of the protocol share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cepam.distributions.laws import Gaussian
from cepam.policy import ClientPolicy, FileAccount, MemoryAccount
from cepam.secure_aggregation import (
    HelloReply,
    HelloRequest,
    Roster,
    SecAggClient,
    SecAggRefused,
    SecAggRound,
    SecAggSettings,
    fit,
)
from cepam.secure_aggregation.client import NodeState
from cepam.secure_aggregation.messages import TrainReply

MODEL = hashlib.sha256(b"a model").digest()
RUN = b"run 7"
NOISE, CLIP = 0.25, 1.0
COORDINATES = 1 << 20
"""More than any model of these tests has."""
TERMS = ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=1000, honest=1)


@cache
def identity(number: int) -> tuple[bytes, Callable[[bytes], bytes]]:
    """A registered key as PEM bytes, and the function that signs with it."""
    key = ec.derive_private_key(1000 + number, ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return public, lambda transcript: key.sign(transcript, ec.ECDSA(hashes.SHA256()))


@cache
def verify(identity: bytes, transcript: bytes, signature: bytes) -> bool:
    """Whether the holder of this key signed the transcript."""
    try:
        key = serialization.load_pem_public_key(identity)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, transcript, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def node(number: int, policy: ClientPolicy = TERMS, **more: Any) -> SecAggClient:
    """Node 10 + number with an account of its own."""
    public, sign = identity(number)
    more.setdefault("account", MemoryAccount())
    return SecAggClient(10 + number, public, sign, verify, policy, **more)


def file_account(path: Path) -> FileAccount:
    """The account in this file, opened where there is none."""
    return FileAccount(path) if path.exists() else FileAccount.create(path)


def settings(quorum: int, coordinates: int = 12, clients: int = 5, **more: Any) -> SecAggSettings:
    """Settings of a round at position 0 of epoch 1."""
    code = fit(Gaussian(NOISE), clients, coordinates, clients * CLIP, bits=more.pop("bits", None))
    values: dict[str, Any] = {
        "run": RUN, "epoch": 1, "position": 0, "coordinates": coordinates, "bits": code.bits, "gain": code.gain,
        "noise": NOISE, "clip": CLIP, "quorum": quorum,
    }  # fmt: skip
    return SecAggSettings(**{**values, **more})


@dataclass
class Cohort:
    """Nodes that said hello, their roster, and what they would send."""

    nodes: dict[int, SecAggClient]
    roster: Roster
    updates: dict[int, np.ndarray] = field(default_factory=dict)

    def work(self, name: int) -> Callable[[SecAggSettings], np.ndarray]:
        """The training of one node."""
        return lambda asked: self.updates.get(name, np.zeros(asked.coordinates, dtype=np.float32))

    def train(self, name: int, request: bytes, model: bytes = MODEL) -> bytes:
        """One node's answer to a training request."""
        return self.nodes[name].train(request, model, self.work(name), COORDINATES)


def cohort(clients: int, coordinates: int = 12, policy: ClientPolicy = TERMS, epoch: int = 1) -> Cohort:
    """A cohort that agreed on an epoch; updates are distinct and within the clip."""
    nodes = {10 + number: node(number, policy) for number in range(clients)}
    roster = hello(nodes.values(), epoch)
    rng = np.random.default_rng(clients)
    updates = {name: (rng.normal(size=coordinates) / np.sqrt(9 * coordinates)).astype(np.float32) for name in nodes}
    return Cohort(nodes, roster, updates)


def hello(nodes: Iterable[SecAggClient], epoch: int, run: bytes = RUN) -> Roster:
    """The roster of a new epoch."""
    ask = HelloRequest(run, epoch).encode()
    return Roster.of(run, epoch, [HelloReply.decode(member.hello(ask)).peer for member in nodes])


def run_round(
    group: Cohort,
    asked: SecAggSettings,
    no_train: Collection[int] = (),
    no_repair: Collection[int] = (),
    no_unmask: Collection[int] = (),
    with_roster: bool = True,
) -> tuple[SecAggRound, np.ndarray]:
    """The round and its sum, these nodes falling silent at these stages."""
    round_ = SecAggRound(asked, group.roster, group.roster.names, MODEL)
    request = round_.request(with_roster)
    for name in group.nodes:
        if name not in no_train:
            round_.take(name, group.train(name, request))
    while asks := round_.repairs():
        for name, ask in asks.items():
            if name not in no_repair:
                round_.take_repair(name, group.nodes[name].repair(ask))
    for name, ask in round_.unmasks().items():
        if name not in no_unmask:
            round_.take_unmask(name, group.nodes[name].unmask(ask))
    return round_, round_.open()


def trained(clients: int = 5, quorum: int = 4, **more: object) -> tuple[Cohort, SecAggRound]:
    """A cohort of which all have trained, and the round."""
    group = cohort(clients)
    round_ = SecAggRound(settings(quorum, clients=clients, **more), group.roster, group.roster.names, MODEL)
    for name in group.nodes:
        round_.take(name, group.train(name, round_.request()))
    return group, round_


def replies(round_: SecAggRound) -> dict[int, TrainReply]:
    return round_._replies


def sealed_for(round_: SecAggRound, node: int, senders: tuple[int, ...]) -> tuple[bytes, ...]:
    return tuple(round_._sealed(sender, node) for sender in senders if sender != node)


def state(group: Cohort, name: int) -> NodeState:
    return NodeState.decode(group.nodes[name].state)


def refused(kind: str) -> pytest.RaisesExc[SecAggRefused]:
    return pytest.raises(SecAggRefused, check=lambda error: error.kind == kind)
