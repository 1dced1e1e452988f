"""A client that tries to end the server's run by one message: it costs that client its place in the round only."""

from __future__ import annotations

import base64
import logging
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import cepam
from cepam.flower import Private
from cepam.flower.client_mod import SECURE_AGGREGATION, carried, carry
from cepam.protocol.agreement import Answer, canonical, sign, verify
from cepam.protocol.server import Refused, refusing
from cepam.secure_aggregation import HelloReply, RosterEntry, SecAggRound
from cepam.secure_aggregation.messages import HelloRequest
from cepam.secure_aggregation.roster import hello_transcript

from ..flower.conftest import _fast_disk, _identity  # noqa: F401
from ..flower.fakes import RUN, FakeGrid, Node, adding, start_arrays
from ..flower.secure_aggregation.fakes import SIZE, key_pair, stage_of, sum_fleet, summing

GUILTY = 103
FORGED = "gone\n\x1b[31mcepam: round 9: all is well\u202e"


def compressed_identity() -> bytes:
    """An OpenSSH key whose point is written in the other encoding: its parser raises NotImplementedError."""
    key = ec.derive_private_key(77, ec.SECP256R1()).public_key()
    point = key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
    parts = (b"ecdsa-sha2-nistp256", b"nistp256", point)
    return b"ecdsa-sha2-nistp256 " + base64.b64encode(b"".join(struct.pack(">I", len(p)) + p for p in parts))


def pem_of(identity: bytes) -> bytes:
    return serialization.load_ssh_public_key(identity).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def resigned(entry: RosterEntry, epoch: int) -> RosterEntry:
    transcript = hello_transcript(f"flower {RUN}".encode(), epoch, entry.node, entry.identity, entry.public)
    return replace(entry, signature=sign(key_pair(GUILTY - 100)[0], transcript))


HELLOS: dict[str, Callable[[RosterEntry, int], RosterEntry]] = {
    "another point encoding": lambda entry, epoch: replace(entry, identity=compressed_identity()),
    "a key of another kind": lambda entry, epoch: replace(entry, identity=b"ssh-ed25519 AAAA"),
    "not text": lambda entry, epoch: replace(entry, identity=bytes(range(256))),
    "no identity": lambda entry, epoch: replace(entry, identity=b""),
    "no signature": lambda entry, epoch: replace(entry, signature=b""),
    "another node": lambda entry, epoch: replace(entry, node=100),
    # These two are signed: honest nodes would refuse the whole roster for them, round after round.
    "a weak point": lambda entry, epoch: resigned(replace(entry, public=bytes(32)), epoch),
    "identity as PEM": lambda entry, epoch: resigned(replace(entry, identity=pem_of(entry.identity)), epoch),
}


@pytest.mark.parametrize("odd", HELLOS)
def test_one_hello_costs_its_node_only(odd: str, tmp_path) -> None:
    pinned = tmp_path / "cohort.pub"
    pinned.write_bytes(b"\n".join(key_pair(k)[1] for k in range(5)))
    grid, _ = sum_fleet(tmp_path, **{"cepam-cohort": str(pinned)})
    deliver = grid.nodes[GUILTY].handle

    def handle(message: Message) -> Message:
        if stage_of(message) != "hello":
            return deliver(message)
        epoch = HelloRequest.decode(carried(message.content[SECURE_AGGREGATION])).epoch
        reply = deliver(message)
        said = HelloReply.decode(carried(reply.content[SECURE_AGGREGATION])).peer
        reply.content[SECURE_AGGREGATION] = carry(HelloReply(HELLOS[odd](said, epoch)).encode())
        return reply

    grid.nodes[GUILTY].handle = handle  # type: ignore[method-assign]
    result = summing().start(grid, start_arrays(SIZE), num_rounds=2)
    for number in (1, 2):
        assert result.train_metrics_clientapp[number]["cepam-opened"] == 1
        assert result.train_metrics_clientapp[number]["cepam-sampled"] == 4


def test_identities_that_no_parser_reads_are_refused_with_the_documented_error() -> None:
    for odd in (compressed_identity(), b"ssh-ed25519 AAAA", b"ecdsa-sha2-nistp256 AAAA", bytes(40), b""):
        with pytest.raises(ValueError, match="identity"):
            canonical(odd)
        assert not verify(odd, b"statement", b"signature")


def test_a_registered_key_that_no_parser_reads_is_an_unknown_one(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    grid.nodes[GUILTY].public_key = compressed_identity()
    metrics = summing().start(grid, start_arrays(SIZE), num_rounds=1).train_metrics_clientapp[1]
    assert metrics["cepam-opened"] == 1


ODD_RECORDS: dict[str, Callable[[Message], RecordDict]] = {
    "empty": lambda reply: RecordDict(),
    "a configuration in its place": lambda reply: RecordDict({SECURE_AGGREGATION: ConfigRecord({"update": 1})}),
    "metrics in its place": lambda reply: RecordDict({SECURE_AGGREGATION: MetricRecord({"update": 1.0})}),
    "another array": lambda reply: RecordDict({SECURE_AGGREGATION: ArrayRecord({"update": Array(np.zeros(3))})}),
    "no bytes": lambda reply: RecordDict({SECURE_AGGREGATION: carry(b"")}),
    "noise": lambda reply: RecordDict({SECURE_AGGREGATION: carry(b"cps\x01" + bytes(range(256)))}),
    "text": lambda reply: RecordDict({SECURE_AGGREGATION: carry(FORGED.encode())}),
}


@pytest.mark.parametrize("stage", ["hello", "train", "repair", "unmask"])
@pytest.mark.parametrize("odd", ODD_RECORDS)
def test_odd_answers_to_every_stage(stage: str, odd: str, tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path, 6)
    grid.deaf = {("train", 105)} if stage == "repair" else set()
    asked: list[str] = []
    grid.between = lambda at, node: asked.append(at)

    def meddle(node: int, reply: Message) -> list[Message]:
        if node == GUILTY and asked[-1] == stage and reply.has_content():
            reply.content = ODD_RECORDS[odd](reply)
        return [reply]

    grid.meddle = meddle
    result = summing(quorum=4 if stage == "repair" else 5).start(grid, start_arrays(SIZE), 1)
    assert result.train_metrics_clientapp[1]["cepam-opened"] == 1


def test_a_mistake_of_our_own_is_counted_and_named_and_the_round_goes_on(tmp_path, monkeypatch, caplog) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    grid, _ = sum_fleet(tmp_path)
    take = SecAggRound.take

    def broken(self: SecAggRound, node: int, reply: bytes) -> None:
        if node == GUILTY:
            raise KeyError(FORGED)
        take(self, node, reply)

    monkeypatch.setattr(SecAggRound, "take", broken)
    metrics = summing().start(grid, start_arrays(SIZE), num_rounds=1).train_metrics_clientapp[1]
    assert (metrics["cepam-opened"], metrics["cepam-dropped-internal"]) == (1, 1)
    said = next(record.getMessage() for record in caplog.records if "KeyError" in record.getMessage())
    assert f"node {GUILTY}" in said
    assert said.isprintable()


def test_what_a_node_says_cannot_forge_lines_of_the_log(tmp_path, caplog) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    grid, _ = sum_fleet(tmp_path)

    def meddle(node: int, reply: Message) -> list[Message]:
        if node != GUILTY:
            return [reply]
        asked = Message(RecordDict(), dst_node_id=node, message_type="train")
        asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
        return [Message(Error(7, FORGED * 1000), reply_to=asked)]

    grid.meddle = meddle
    assert summing().start(grid, start_arrays(SIZE), 1).train_metrics_clientapp[1]["cepam-opened"] == 1
    ours = [record.getMessage() for record in caplog.records if "all is well" in record.getMessage()]
    assert ours
    assert all(line.isprintable() and len(line) < 500 for line in ours)


def test_the_boundary_passes_refusals_and_lets_the_operator_stop() -> None:
    with pytest.raises(Refused) as kept, refusing(7):
        raise Refused("seal", 3, "broken")
    assert (kept.value.kind, kept.value.node) == ("seal", 3)
    for raised, kind in (
        (ValueError("x"), "malformed"),
        (RecursionError("x"), "internal"),
        (MemoryError(), "internal"),
    ):
        with pytest.raises(Refused) as found, refusing(7):
            raise raised
        assert (found.value.kind, found.value.node) == (kind, 7)
    with pytest.raises(KeyboardInterrupt), refusing(7):
        raise KeyboardInterrupt


def evaluating(train: Callable[..., Message], **metrics: object) -> Callable[..., Message]:
    def app(message: Message, context: object) -> Message:
        if message.metadata.message_type != "evaluate":
            return train(message, context)
        records = {"metrics": MetricRecord(metrics)} if metrics else {}  # type: ignore[arg-type]
        return Message(RecordDict(records), reply_to=message)

    return app


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"num-examples": 5},
        {"num-examples": 5, "loss": 0.5, "more": 1.0},
        {"num-examples": [5], "loss": 0.5},
        {"num-examples": -20, "loss": 0.5},
        {"num-examples": 5, "loss": float("nan")},
        {"num-examples": 5, "loss": [0.5, 0.5]},
    ],
    ids=str,
)
def test_one_evaluation_does_not_end_the_run_of_a_server_that_opens_replies(odd: dict[str, object]) -> None:
    train = adding(np.full(400, 0.01))
    good = [Node(k, evaluating(train, **{"num-examples": 10, "loss": 0.25})) for k in (8, 9)]
    grid = FakeGrid([Node(7, evaluating(train, **odd)), *good])
    grid.evaluates = True
    result = Private(FedAvg(), noise=cepam.Gaussian(0.01), clip=cepam.L2(1.0)).start(grid, start_arrays(), num_rounds=2)
    assert result.evaluate_metrics_clientapp[2]["loss"] == 0.25


def test_a_mistake_while_opening_a_reply_costs_that_reply_only(monkeypatch) -> None:
    read = Answer.from_fields

    def broken(record: object) -> Answer:
        seen.append(1)
        if len(seen) == 1:
            raise NotImplementedError("never met before")
        return read(record)  # type: ignore[arg-type]

    seen: list[int] = []
    monkeypatch.setattr(Answer, "from_fields", broken)
    grid = FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in (7, 8, 9)])
    strategy = Private(FedAvg(), noise=cepam.Gaussian(0.01), clip=cepam.L2(1.0))
    counts = strategy.start(grid, start_arrays(), num_rounds=1).train_metrics_clientapp[1]
    assert (counts["cepam-replies"], counts["cepam-dropped-internal"]) == (2, 1)
