"""Every message of a sum mangled on its way through the mod and the wrapper: refused, nothing said, state intact."""

from __future__ import annotations

import os

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cepam.errors import CepamError
from cepam.flower.client_mod import SECURE_AGGREGATION, carried
from cepam.secure_aggregation.channel import SHARE_BYTES
from cepam.secure_aggregation.client import NodeState
from cepam.secure_aggregation.messages import (
    HelloRequest,
    RepairReply,
    RepairRequest,
    SecAggMessage,
    TrainReply,
    TrainRequest,
    UnmaskReply,
    UnmaskRequest,
)
from tests.flower.fakes import Node, start_arrays, vector_of

from .fakes import SIZE, SumGrid, ask, sum_fleet, summing, trained

CODES = {"cepam: offer", "cepam: arrays", "cepam: internal", "cepam: version"}
KINDS = {"policy", "cohort", "unsigned", "position", "quorum", "share"}
REQUESTS: dict[str, type[SecAggMessage]] = {
    "hello": HelloRequest,
    "train": TrainRequest,
    "repair": RepairRequest,
    "unmask": UnmaskRequest,
}
REPLIES = {"train": TrainReply, "repair": RepairReply, "unmask": UnmaskReply}


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> tuple[SumGrid, dict[str, tuple[bytes, dict[str, object]]], bytes, bytes]:
    """A node that waits for repair or unmask, valid requests to it with what travels beside, its state and account."""
    kept, os.fsync = os.fsync, lambda descriptor: None
    grid, sums = trained(tmp_path_factory.mktemp("fuzz"))
    os.fsync = kept
    assert not sums.repairs()
    node = grid.nodes[100]
    sent = next(m for stage, name, m, _ in grid.traffic if stage == "train" and name == 100)
    asked = TrainRequest.decode(carried(sent.content[SECURE_AGGREGATION]))
    ahead = type(asked.settings)(**{**_fields(asked.settings), "position": 1})
    beside = {name: record for name, record in sent.content.items() if name != SECURE_AGGREGATION}
    requests = {
        "hello": (HelloRequest(asked.settings.run, asked.settings.epoch + 1).encode(), {}),
        "train": (TrainRequest(ahead, asked.cohort, asked.roster_digest, asked.roster).encode(), beside),
        "repair": (RepairRequest(sums.salt, (104,)).encode(), {}),
        "unmask": (sums.unmasks()[100], {}),
    }
    with open(node.config["cepam-account"], "rb") as account:
        return grid, requests, bytes(node.context.state[SECURE_AGGREGATION]["state"]), account.read()


def _fields(settings: object) -> dict[str, object]:
    return {name: getattr(settings, name) for name in type(settings).__dataclass_fields__}


def _restored(grid: SumGrid, state: bytes, account: bytes) -> Node:
    node = grid.nodes[100]
    with open(node.config["cepam-account"], "wb") as file:
        file.write(account)
    with open(f"{node.config['cepam-account']}.mark", "wb") as mark:
        mark.write(b"0")
    node.context.state[SECURE_AGGREGATION] = ConfigRecord({"state": state})
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
    grid, requests, state, account = ready
    node = _restored(grid, state, account)
    request, beside = requests[stage]
    made = _mangled(data, request)
    try:
        type(REQUESTS[stage].decode(made))
        readable = made != request
    except CepamError:
        readable = False
    said = ask(node, made, dict(beside))
    after = bytes(node.context.state[SECURE_AGGREGATION]["state"])
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
        if node == 103 and reply.has_content() and SECURE_AGGREGATION in reply.content:
            said = bytearray(carried(reply.content[SECURE_AGGREGATION]))
            del said[int(rng.integers(len(said))) :]
            reply.content[SECURE_AGGREGATION] = ArrayRecord({"update": _array(bytes(said))})
        return [reply]

    grid.meddle = mangle
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=3)
    assert result.train_metrics_clientapp[3]["cepam-sampled"] == 4
    grid.meddle = lambda node, reply: [reply]
    strategy = summing(sigma=0.001, quorum=3)
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    grid.meddle = mangle
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    assert result.train_metrics_clientapp[1]["cepam-opened"] == 1
    expected = (updates.sum(axis=0) - updates[3]) / 5
    np.testing.assert_allclose(vector_of(result.arrays), expected, atol=9 * 0.001 * np.sqrt(5 * 13 / 12) / 5)


def _array(said: bytes) -> Array:
    return Array("uint8", (len(said),), "cepam.v1", said)
