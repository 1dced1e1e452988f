"""What a server or a training function can do to a client, and a client to a server's log and epochs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message

from cepam.flower.client_mod import SECURE_AGGREGATION, carry
from cepam.flower.replies import consistent_metrics
from cepam.policy import MemoryAccount
from cepam.policy.account import NodeAccount
from cepam.protocol.agreement import Declined
from cepam.secure_aggregation import RefusalReply, SecAggRound
from cepam.secure_aggregation.messages import TrainReply

from ..flower.conftest import _fast_disk, _identity  # noqa: F401
from ..flower.fakes import start_arrays
from ..flower.secure_aggregation.fakes import SIZE, stage_of, sum_fleet, summing
from ..flower.test_faults import grid_of, run
from ..secure_aggregation import sums

ENDS = [SystemExit, KeyboardInterrupt, GeneratorExit, type("Quit", (BaseException,), {})]


@pytest.mark.parametrize("end", ENDS)
def test_training_that_ends_the_process_sends_the_zero_update_with_its_noise(end: type[BaseException]) -> None:
    group = sums.cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, sums.MODEL)

    def leave(_: object) -> np.ndarray:
        raise end("record 7 is there")

    said = group.nodes[10].train(round_.request(), sums.MODEL, leave, 12)
    assert len(TrainReply.decode(said).vector) == round_.settings.codec.message_bytes


@pytest.mark.parametrize("end", ENDS)
def test_training_that_ends_the_process_costs_one_reply_where_the_server_is_trusted(end: type[BaseException]) -> None:
    def leave(message: Message, context: object) -> Message:
        raise end("record 7 is there")

    grid = grid_of(leave)
    seen: list[str] = []

    def meddle(node: int, reply: Message) -> list[Message]:
        seen.extend([reply.error.reason] if reply.has_error() else [])
        return [reply]

    grid.meddle = meddle
    assert run(grid).train_metrics_clientapp[1]["cepam-replies"] == 2
    assert seen == ["cepam: training"]


def test_a_short_request_for_many_coordinates_takes_no_memory() -> None:
    group = sums.cohort(5)
    asked = replace(sums.settings(4), coordinates=2**31)
    request = SecAggRound(asked, group.roster, group.roster.names, sums.MODEL).request()
    called: list[int] = []
    with sums.refused("cohort"):
        group.nodes[10].train(request, sums.MODEL, called.append, 12)
    assert not called


class WatchedAccount(MemoryAccount):
    """Tells whether it is held."""

    held = False

    @contextmanager
    def hold(self) -> Iterator[NodeAccount]:
        with super().hold() as entry:
            self.held = True
            try:
                yield entry
            finally:
                self.held = False


def test_the_account_is_free_while_a_node_trains() -> None:
    """Another run of the same node answers meanwhile; a second answer of the same run is refused."""
    account = WatchedAccount()
    nodes = {10 + k: sums.node(k, **({"account": account} if not k else {})) for k in range(5)}
    group = sums.Cohort(nodes, sums.hello(nodes.values(), 1))
    request = SecAggRound(sums.settings(4), group.roster, group.roster.names, sums.MODEL).request()
    elsewhere, copy = sums.node(0, account=account), sums.node(0, account=account, state=nodes[10].state)

    def work(_: object) -> np.ndarray:
        assert not account.held
        sums.hello([elsewhere], 1, b"another run")
        return np.zeros(12, np.float32)

    def work_twice(_: object) -> np.ndarray:
        copy.train(request, sums.MODEL, lambda _: np.zeros(12, np.float32), 12)
        return np.zeros(12, np.float32)

    before = nodes[10].state
    with sums.refused("position"):
        nodes[10].train(request, sums.MODEL, work_twice, 12)
    assert nodes[10].state == before
    with account.hold() as entry:
        assert entry.answered.rounds == 1
    assert nodes[11].train(request, sums.MODEL, lambda _: np.zeros(12, np.float32), 12)
    fresh = sums.cohort(5)
    fresh.nodes[10] = replace(fresh.nodes[10])
    again = SecAggRound(sums.settings(4), fresh.roster, fresh.roster.names, sums.MODEL).request()
    watched = WatchedAccount()
    watched._account = fresh.nodes[10].account._account  # type: ignore[attr-defined]
    account, fresh.nodes[10].account = watched, watched
    elsewhere = sums.node(0, account=watched)
    assert fresh.nodes[10].train(again, sums.MODEL, work, 12)
    with watched.hold() as entry:
        assert len(entry.places) == 2


FORGED = "gone\n2026-01-01 INFO node 7 was paid\x1b[2J\r" + "x" * 5000


def test_what_a_client_says_of_its_error_is_one_short_line() -> None:
    asked = Message(start_content(), dst_node_id=1, message_type="evaluate")
    asked.metadata.__dict__["_message_id"] = "1"
    kept = consistent_metrics([Message(Error(2, FORGED), reply_to=asked)], "num-examples")
    reason = kept[0].error.reason
    assert reason.isprintable()
    assert len(reason) <= 300


def start_content():  # type: ignore[no-untyped-def]
    from flwr.app import RecordDict

    return RecordDict({"arrays": start_arrays(4)})


def test_what_a_server_sends_is_one_short_line_in_a_client_log() -> None:
    said = str(Declined("arrays", f"beside the broadcast came {FORGED}"))
    assert said.isprintable()
    assert len(said) <= 300


def test_a_client_that_claims_lost_secrets_starts_few_epochs(tmp_path, caplog) -> None:
    """It refuses every round by `position`: each time all others would have to agree on new keys."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    grid, _ = sum_fleet(tmp_path)
    deliver = grid.nodes[102].handle

    def handle(message: Message) -> Message:
        stage, reply = stage_of(message), deliver(message)
        if stage == "train" and reply.has_content():
            reply.content[SECURE_AGGREGATION] = carry(RefusalReply("position").encode())
        return reply

    grid.nodes[102].handle = handle  # type: ignore[method-assign]
    result = summing().start(grid, start_arrays(SIZE), num_rounds=20)
    hellos = sum(1 for stage, node, _, _ in grid.traffic if stage == "hello" and node == 100)
    assert 0 < hellos <= 6, hellos
    assert all(result.train_metrics_clientapp[number]["cepam-opened"] == 1 for number in range(1, 21))
