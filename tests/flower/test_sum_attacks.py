"""A server that cheats over Flower: each attack must fail to learn, through the mod as Flower calls it."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cepam.errors import CepamError
from cepam.flower.arrays import SUM, carried
from cepam.flower.sum_records import check_value
from cepam.secure import SumRound
from cepam.secure.messages import (
    HelloRequest,
    RepairReply,
    RepairRequest,
    SumMessage,
    TrainReply,
    TrainRequest,
    UnmaskReply,
    UnmaskRequest,
)
from cepam.secure.shamir import SHARE_BYTES
from cepam.secure.state import NodeState

from .fakes import Node, start_arrays, vector_of
from .sum_fakes import NAMES, SIZE, SumGrid, ask, sum_fleet, summing, trained

CODES = {"cepam: offer", "cepam: arrays", "cepam: internal", "cepam: version"}
KINDS = {"terms", "cohort", "unsigned", "position", "quorum", "share"}


def state_of(node: Node) -> NodeState:
    return NodeState.decode(node.context.state[SUM]["state"])


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
    assert ask(grid.nodes[101], bad.encode()) == "share"
    asked = UnmaskRequest.decode(unmasks[102])
    swapped = UnmaskRequest(asked.salt, asked.survivors, asked.shares[::-1])
    assert ask(grid.nodes[102], swapped.encode()) == "share"
    foreign = UnmaskRequest.decode(unmasks[104])
    assert ask(grid.nodes[103], foreign.encode()) == "share"
    assert all(state_of(node).open is None for name, node in grid.nodes.items() if name != 104)


def _unmasks(sums: SumRound) -> dict[int, bytes]:
    assert not sums.repairs()
    return sums.unmasks()


def test_a_replayed_training_request_is_answered_once(tmp_path) -> None:
    grid, _ = trained(tmp_path)
    sent = {node: message for stage, node, message, _ in grid.traffic if stage == "train"}
    for node in grid.nodes.values():
        assert _said(node, sent[node.node_id]) == "position"


def _said(node: Node, message: Message) -> bytes | str:
    content = {name: record for name, record in message.content.items() if name != SUM}
    return ask(node, carried(message.content[SUM]), content)


@pytest.mark.parametrize("downlink", ["float32", "grid"])
@pytest.mark.parametrize("what", ["model", "configuration", "update"])
def test_another_model_or_configuration_for_one_node(what: str, downlink: str, tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    strategy = summing(downlink=downlink)
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    deliver = grid.nodes[102].handle

    def deceive(message: Message) -> Message:
        if SUM in message.content and carried(message.content[SUM])[4] == TrainRequest.code:
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
    metrics = strategy.start(grid, start_arrays(SIZE), num_rounds=1).train_metrics_clientapp[1]
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
        if SUM in grid.nodes[node].context.state:
            state = state_of(grid.nodes[node])
            kept.extend([*state.chains.values(), state.private])
            if state.open is not None:
                kept.extend(state.open.seals.values())

    grid.between = remember
    grid.deaf = {("train", 104)}
    summing().start(grid, start_arrays(SIZE), num_rounds=2)
    said = b"".join(carried(reply.content[SUM]) for _, _, _, reply in grid.traffic)
    secrets = {secret for secret in kept if len(secret) == 32}
    assert len(secrets) > 50
    assert not any(secret in said for secret in secrets)


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
    metrics = strategy.start(grid, start_arrays(SIZE), num_rounds=1).train_metrics_clientapp[1]
    assert metrics["cepam-opened"] == 0
    assert not grid.replies("train")


def test_the_check_value_binds_every_record_key_type_and_bit() -> None:
    def of(**records: object) -> bytes:
        return check_value(RecordDict(records), "parameters")

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
        check_value(RecordDict(base), "gradient"),
    }
    assert len(values) == 9
    assert of(**base, **{SUM: start_arrays(4)}) == of(**dict(reversed(base.items())))


REQUESTS: dict[str, type[SumMessage]] = {
    "hello": HelloRequest,
    "train": TrainRequest,
    "repair": RepairRequest,
    "unmask": UnmaskRequest,
}
REPLIES = {"train": TrainReply, "repair": RepairReply, "unmask": UnmaskReply}


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> tuple[SumGrid, dict[str, tuple[bytes, dict[str, object]]], bytes, bytes]:
    """A node that waits for repair or unmask, valid requests to it with what travels beside, its state and journal."""
    import os

    kept, os.fsync = os.fsync, lambda descriptor: None
    grid, sums = trained(tmp_path_factory.mktemp("fuzz"))
    os.fsync = kept
    node = grid.nodes[100]
    sent = next(m for stage, name, m, _ in grid.traffic if stage == "train" and name == 100)
    asked = TrainRequest.decode(carried(sent.content[SUM]))
    ahead = type(asked.settings)(**{**_fields(asked.settings), "position": 1})
    beside = {name: record for name, record in sent.content.items() if name != SUM}
    requests = {
        "hello": (HelloRequest(asked.settings.run, asked.settings.epoch + 1).encode(), {}),
        "train": (TrainRequest(ahead, asked.cohort, asked.roster_digest, asked.roster).encode(), beside),
        "repair": (RepairRequest(sums.salt, (104,)).encode(), {}),
        "unmask": (_unmasks(sums)[100], {}),
    }
    with open(node.config["cepam-state"], "rb") as journal:
        return grid, requests, bytes(node.context.state[SUM]["state"]), journal.read()


def _fields(settings: object) -> dict[str, object]:
    return {name: getattr(settings, name) for name in type(settings).__dataclass_fields__}


def _restored(grid: SumGrid, state: bytes, journal: bytes) -> Node:
    node = grid.nodes[100]
    with open(node.config["cepam-state"], "wb") as file:
        file.write(journal)
    node.context.state[SUM] = ConfigRecord({"state": state})
    return node


def _mangled(data: st.DataObject, request: bytes) -> bytes:
    """The request cut, longer, or with some bytes changed."""
    how = data.draw(st.sampled_from(["cut", "longer", "changed", "spliced"]))
    if how == "cut":
        return request[: data.draw(st.integers(0, len(request) - 1))]
    if how == "longer":
        return request + data.draw(st.binary(min_size=1, max_size=40))
    made = bytearray(request)
    if how == "spliced":
        at, size = data.draw(st.integers(0, len(made) - 1)), data.draw(st.integers(1, 40))
        made[at : at + size] = data.draw(st.binary(max_size=40))
        return bytes(made)
    for _ in range(data.draw(st.integers(1, 3))):
        made[data.draw(st.integers(0, len(made) - 1))] ^= data.draw(st.integers(1, 255))
    return bytes(made)


@pytest.mark.parametrize("stage", REQUESTS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mangled_requests_of_every_stage(stage: str, ready, data) -> None:
    grid, requests, state, journal = ready
    node = _restored(grid, state, journal)
    request, beside = requests[stage]
    made = _mangled(data, request)
    try:
        type(REQUESTS[stage].decode(made))
        readable = made != request
    except CepamError:
        readable = False
    said = ask(node, made, dict(beside))
    after = bytes(node.context.state[SUM]["state"])
    if isinstance(said, bytes):
        assert readable or made == request or made[4:5] != request[4:5]
        _check_answer(said)
    else:
        assert said in CODES | KINDS, said
    if said in CODES:
        assert after == state
        assert isinstance(ask(node, request, dict(beside)), bytes)
    secrets = [secret for secret in (*NodeState.decode(state).chains.values(),) if secret]
    assert not any(secret in (said if isinstance(said, bytes) else said.encode()) for secret in secrets)


def _check_answer(said: bytes) -> None:
    """A request that still reads as one may be answered, as the rules allow; the answer then has its usual form."""
    if said[4] == UnmaskReply.code:
        assert (len(said) - 5 - 32 - 4) % SHARE_BYTES == 0
    elif said[4] in (TrainReply.code, RepairReply.code):
        next(kind for kind in REPLIES.values() if kind.code == said[4]).decode(said)
    else:
        assert said[4] == 2


def test_answers_of_every_stage_mangled_on_their_way_cost_their_node_only(tmp_path) -> None:
    rng = np.random.default_rng(3)
    grid, updates = sum_fleet(tmp_path)
    strategy = summing(sigma=0.001, quorum=3)

    def mangle(node: int, reply: Message) -> list[Message]:
        if node == 103 and reply.has_content() and SUM in reply.content:
            said = bytearray(carried(reply.content[SUM]))
            del said[int(rng.integers(len(said))) :]
            reply.content[SUM] = ArrayRecord({"update": _array(bytes(said))})
        return [reply]

    grid.meddle = mangle
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=3)
    assert result.train_metrics_clientapp[3]["cepam-asked"] == 4
    grid.meddle = lambda node, reply: [reply]
    strategy = summing(sigma=0.001, quorum=3)
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    grid.meddle = mangle
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    assert result.train_metrics_clientapp[1]["cepam-opened"] == 1
    expected = (updates.sum(axis=0) - updates[3]) / 5
    np.testing.assert_allclose(vector_of(result.arrays), expected, atol=9 * 0.001 * np.sqrt(5 * 13 / 12) / 5)


def _array(said: bytes):
    from flwr.app import Array

    return Array("uint8", (len(said),), "cepam.v1", said)
