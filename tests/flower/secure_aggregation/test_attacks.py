"""A server that cheats over Flower: each attack must fail to learn, through the mod as Flower calls it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from cepam.distributions.laws import Gaussian
from cepam.flower.client_mod import SECURE_AGGREGATION, carried
from cepam.flower.secure_aggregation.transport import check_value
from cepam.protocol.agreement import sign
from cepam.secure_aggregation import HelloReply, Roster, RosterEntry, SecAggRound, SecAggSettings, fit
from cepam.secure_aggregation.client import NodeState
from cepam.secure_aggregation.messages import (
    NO_SHARE,
    HelloRequest,
    RepairRequest,
    TrainReply,
    TrainRequest,
    UnmaskReply,
    UnmaskRequest,
)
from cepam.secure_aggregation.roster import hello_transcript
from tests.flower.fakes import RUN, Node, outcome, start_arrays

from .fakes import NAMES, SIZE, ask, key_pair, sum_fleet, summing, trained


def state_of(node: Node) -> NodeState:
    return NodeState.decode(node.context.state[SECURE_AGGREGATION]["state"])


def others(name: int) -> tuple[int, ...]:
    return tuple(n for n in NAMES if n != name)


def test_repair_for_all_others_and_no_unmask(tmp_path) -> None:
    grid, sums = trained(tmp_path, quorum=3)
    assert ask(grid.nodes[100], RepairRequest(sums.salt, others(100)).encode()) == "quorum"
    assert state_of(grid.nodes[100]).open is None
    # One by one: the quorum is counted over all that was repaired.
    victim = grid.nodes[101]
    assert isinstance(ask(victim, RepairRequest(sums.salt, (102,)).encode()), bytes)
    assert isinstance(ask(victim, RepairRequest(sums.salt, (103,)).encode()), bytes)
    assert ask(victim, RepairRequest(sums.salt, (104,)).encode()) == "quorum"
    assert ask(victim, RepairRequest(sums.salt, (103,)).encode()) == "position"


def test_repair_and_unmask_for_one_client(tmp_path) -> None:
    grid, sums = trained(tmp_path, quorum=3)
    unmasks = _unmasks(sums)
    assert isinstance(ask(grid.nodes[100], RepairRequest(sums.salt, (104,)).encode()), bytes)
    assert ask(grid.nodes[100], unmasks[100]) == "cohort"
    assert isinstance(ask(grid.nodes[101], unmasks[101]), bytes)
    assert ask(grid.nodes[101], RepairRequest(sums.salt, (104,)).encode()) == "position"


def test_unmask_twice_or_with_tampered_swapped_and_foreign_shares(tmp_path) -> None:
    grid, sums = trained(tmp_path)
    unmasks = _unmasks(sums)
    assert isinstance(ask(grid.nodes[100], unmasks[100]), bytes)
    assert ask(grid.nodes[100], unmasks[100]) == "position"
    asked = UnmaskRequest.decode(unmasks[101])
    tampered = bytes([asked.shares[0][0] ^ 1]) + asked.shares[0][1:]
    bad = UnmaskRequest(asked.salt, asked.survivors, (tampered, *asked.shares[1:]))
    told = UnmaskReply.decode(_bytes(ask(grid.nodes[101], bad.encode())))
    assert [share == NO_SHARE for share in told.shares] == [True, False, False, False, False]
    asked = UnmaskRequest.decode(unmasks[102])
    swapped = UnmaskRequest(asked.salt, asked.survivors, asked.shares[::-1])
    assert ask(grid.nodes[102], swapped.encode()) == "share"
    foreign = UnmaskRequest.decode(unmasks[104])
    assert ask(grid.nodes[103], foreign.encode()) == "share"
    assert all(state_of(node).open is None for name, node in grid.nodes.items() if name != 104)


def _unmasks(sums: SecAggRound) -> dict[int, bytes]:
    assert not sums.repairs()
    return sums.unmasks()


def test_a_replayed_training_request_is_answered_once(tmp_path) -> None:
    grid, _ = trained(tmp_path)
    sent = {node: message for stage, node, message, _ in grid.traffic if stage == "train"}
    for node in grid.nodes.values():
        assert _said(node, sent[node.node_id]) == "position"


def _said(node: Node, message: Message) -> bytes | str:
    content = {name: record for name, record in message.content.items() if name != SECURE_AGGREGATION}
    return ask(node, carried(message.content[SECURE_AGGREGATION]), content)


@pytest.mark.parametrize("downlink", ["float32", "quantized"])
@pytest.mark.parametrize("what", ["model", "configuration", "update"])
def test_another_model_or_configuration_for_one_node(what: str, downlink: str, tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    strategy = summing(downlink=downlink)
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    deliver = grid.nodes[102].handle

    def deceive(message: Message) -> Message:
        if (
            SECURE_AGGREGATION in message.content
            and carried(message.content[SECURE_AGGREGATION])[4] == TrainRequest.code
        ):
            if what == "model":
                message.content["arrays"] = start_arrays(SIZE, 0.5)
                message.content.pop("cepam-downlink", None)
            elif what == "configuration":
                message.content["config"] = ConfigRecord({"server-round": 99})
            else:
                message.content["cepam"] = ConfigRecord({"update": "gradient"})
        return deliver(message)

    grid.nodes[102].handle = deceive
    grid.deaf = {("unmask", node) for node in (101, 102)}
    metrics = outcome(strategy, grid, start_arrays(SIZE)).train_metrics_clientapp[1]
    # Its salt is another: its vector is not taken, and what it holds opens nothing of the others.
    kinds = [dict(metrics).get(f"cepam-dropped-{kind}", 0) for kind in ("malformed", "version")]
    assert sum(kinds) == 1
    assert metrics["cepam-replies"] == 4
    told, other = (TrainReply.decode(grid.replies("train")[node]) for node in (102, 101))
    assert told.salt != other.salt
    shares = tuple(TrainReply.decode(grid.replies("train")[node]).shares[1 + (node > 101)] for node in others(102))
    assert ask(grid.nodes[102], UnmaskRequest(other.salt, NAMES, shares).encode()) == "position"
    assert ask(grid.nodes[102], UnmaskRequest(told.salt, NAMES, shares).encode()) == "share"


def test_revealed_shares_and_keys_of_a_round_are_all_that_any_reply_tells(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    kept: list[bytes] = []

    def remember(stage: str, node: int) -> None:
        if SECURE_AGGREGATION in grid.nodes[node].context.state:
            state = state_of(grid.nodes[node])
            kept.extend([*state.chains.values(), state.private])
            if state.open is not None:
                kept.extend(state.open.seals.values())

    grid.between = remember
    grid.deaf = {("train", 104)}
    summing().start(grid, start_arrays(SIZE), num_rounds=2)
    said = b"".join(carried(reply.content[SECURE_AGGREGATION]) for _, _, _, reply in grid.traffic)
    secrets = {secret for secret in kept if len(secret) == 32}
    assert len(secrets) > 50
    assert not any(secret in said for secret in secrets)


def test_a_roster_with_a_key_that_its_node_did_not_sign(tmp_path) -> None:
    """A server between two nodes: it would know their masks, had it put a key of its own in one's place."""
    grid, _ = sum_fleet(tmp_path)
    run = f"flower {RUN}".encode()
    hello = HelloRequest(run, 3).encode()
    entries = [HelloReply.decode(_bytes(ask(node, hello))).peer for node in grid.nodes.values()]
    code = fit(Gaussian(0.1), 5, SIZE, 5.0)
    offer = SecAggSettings(run, 3, 0, SIZE, code.bits, code.gain, 0.1, 1.0, 4)
    beside = {"arrays": start_arrays(SIZE), "config": ConfigRecord(), "cepam": ConfigRecord({"update": "parameters"})}
    mine = X25519PrivateKey.generate().public_key().public_bytes_raw()
    identity = key_pair(60)[1]
    forged = {
        "unsigned": replace(entries[4], public=mine),
        "cohort": replace(entries[4], identity=entries[3].identity),
        # An invented node, signed by an invented identity: only a pinned cohort would know.
        "": _signed(RosterEntry(104, identity, mine, b""), run, key_pair(60)[0]),
    }
    for kind, entry in forged.items():
        roster = Roster.of(run, 3, [*entries[:4], entry])
        said = ask(grid.nodes[100], TrainRequest(offer, NAMES, roster.digest, roster).encode(), dict(beside))
        assert (said == kind) if kind else isinstance(said, bytes)
    odd = replace(entries[4], identity=b"ecdsa-sha2-nistp256 rubbish")
    roster = Roster.of(run, 3, [*entries[:4], odd])
    said = ask(grid.nodes[101], TrainRequest(offer, NAMES, roster.digest, roster).encode(), dict(beside))
    assert said == "unsigned"


def _signed(entry: RosterEntry, run: bytes, key: bytes) -> RosterEntry:
    transcript = hello_transcript(run, 3, entry.node, entry.identity, entry.public)
    return replace(entry, signature=sign(key, transcript))


def test_a_quorum_that_leaves_too_few_honest_nodes(tmp_path) -> None:
    """20 of 39: two sums of 20 would have one node in common only, if the server lied about dropouts."""
    (tmp_path / "0.toml").write_text("noise_scale = 0.001\nclipping_norm = 1.0\nrounds = 9\nquorum = 20\nhonest = 2")
    node = sum_fleet(tmp_path, 1)[0].nodes[100]
    run = f"flower {RUN}".encode()
    ask(node, HelloRequest(run, 3).encode())
    beside = {"arrays": start_arrays(SIZE), "cepam": ConfigRecord({"update": "parameters"})}
    for clients, kind in ((39, "policy"), (38, "cohort")):  # 38 pass the terms, and want for a roster
        code = fit(Gaussian(0.1), clients, SIZE, 5.0)
        offer = SecAggSettings(run, 3, 0, SIZE, code.bits, code.gain, 0.1, 1.0, 20)
        request = TrainRequest(offer, tuple(range(100, 100 + clients)), bytes(32), None)
        assert ask(node, request.encode(), dict(beside)) == kind


def test_a_vector_is_not_in_its_message_and_k_minus_one_of_them_do_not_open(tmp_path) -> None:
    grid, sums = trained(tmp_path, quorum=3)
    codec = sums.settings.codec
    # The most that a server without shares can do: add up all vectors, or all but one, as if masks were gone.
    updates = np.random.default_rng(5).normal(size=(5, SIZE))
    direction = updates.sum(axis=0) / np.linalg.norm(updates.sum(axis=0))
    for names in [NAMES, others(102), (102,)]:
        guess = codec.open([sums._replies[name].vector for name in names], [])
        # A uniform value has deviation span/√12: six of them are exceeded with chance below 1e-8; the sum itself, of
        # norm 1.1 on a direction of length 1, would show only if masks were gone (the control opens it).
        assert abs(guess @ direction) < 7 * codec.span / np.sqrt(12)
    for name, said in _unmasks(sums).items():
        sums.take_unmask(name, _bytes(ask(grid.nodes[name], said)))
    opened = sums.open()
    assert np.abs(opened).max() < codec.span / 8
    assert opened @ direction == pytest.approx(0.5 * np.sqrt(5), abs=0.9)


def _bytes(said: bytes | str) -> bytes:
    assert isinstance(said, bytes)
    return said


def test_a_strategy_that_tells_nodes_different_things_asks_for_nothing(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    strategy = summing()
    inner = strategy.strategy.configure_train

    def uneven(*given: object) -> list[Message]:
        messages = list(inner(*given))
        messages[2].content = RecordDict({"arrays": start_arrays(SIZE, 0.5), "config": ConfigRecord()})
        return messages

    strategy.strategy.configure_train = uneven
    metrics = outcome(strategy, grid, start_arrays(SIZE)).train_metrics_clientapp[1]
    assert metrics["cepam-opened"] == 0
    assert not grid.replies("train")


def test_the_check_value_binds_every_record_key_type_and_bit() -> None:
    def of(**records: object) -> bytes:
        return check_value(RecordDict(records), "parameters", {"lr": 1}, "train", "1")

    base = {"arrays": start_arrays(8), "config": ConfigRecord({"lr": 0.5, "n": 1})}
    values = {
        of(**base),
        of(**{**base, "arrays": start_arrays(8, 0.25)}),
        of(**{**base, "arrays": ArrayRecord({"v": start_arrays(8)["w"]})}),
        of(**{**base, "arrays": start_arrays(16)}),
        of(**{**base, "config": ConfigRecord({"lr": 0.5, "n": 1.0})}),
        of(**{**base, "config": ConfigRecord({"lr": 0.5})}),
        of(**{**base, "more": ConfigRecord({})}),
        of(arrays=base["config"], config=base["arrays"]),
        check_value(RecordDict(base), "gradient", {"lr": 1}, "train", "1"),
        check_value(RecordDict(base), "parameters", {"lr": 1}, "train.other", "1"),
        check_value(RecordDict(base), "parameters", {"lr": 1}, "train", "2"),
        *(
            check_value(RecordDict(base), "parameters", run, "train", "1")
            for run in ({}, {"lr": 1.0}, {"lr": True}, {"l": 1}, {"lr": 1, "n": 1})
        ),
    }
    assert len(values) == 16
    assert of(**base, **{SECURE_AGGREGATION: start_arrays(4)}) == of(**dict(reversed(base.items())))
