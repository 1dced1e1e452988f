"""The mod by itself: what it sends, what it refuses to send, and what it tells about that."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from cepam.flower import Uplink

from .fakes import FakeGrid, Node, adding, start_arrays, vector_of
from .test_faults import GOOD, SIZE, grid_of, run
from .test_strategy import fleet, private


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_an_update_that_is_not_finite_leaves_as_zero_with_its_noise(value: float) -> None:
    change = np.full(SIZE, 0.01)
    change[3] = value

    def train(message, context):
        weights = message.content["arrays"]["w"].numpy().astype(np.float64)
        arrays = ArrayRecord({"w": Array(weights + change.reshape(weights.shape))})
        metrics = MetricRecord({"num-examples": 10, "loss": float("nan"), "each": [1.0, float("inf")]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    grid = grid_of(train)
    for node in GOOD:
        grid.nodes[node].train = adding(np.full(SIZE, 0.01), loss=1.0, each=[1.0, 2.0])
    result = run(grid)
    counts = result.train_metrics_clientapp[1]
    assert (counts["cepam-replies"], counts["cepam-dropped"]) == (3, 0)
    assert vector_of(result.arrays).mean() == pytest.approx(0.02 / 3, abs=0.002)
    assert counts["loss"] == pytest.approx(2 / 3)


def test_error_replies_carry_fixed_codes_and_no_text_that_depends_on_data() -> None:
    def crash(message, context):
        raise RuntimeError("record 4711 of patient X is broken")

    def other_shape(message, context):
        arrays = ArrayRecord({"w": Array(np.zeros(4711, np.float32))})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    def own_error(message, context):
        return Message(Error(2, "patient X"), reply_to=message)

    def unreadable(message, context):
        arrays = ArrayRecord({"w": Array("float32", (SIZE,), "patient X", b"patient X")})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    for train, code in (
        (crash, "training"),
        (other_shape, "arrays"),
        (own_error, "training"),
        (unreadable, "internal"),
    ):
        seen: list[str] = []
        grid = grid_of(train)

        def meddle(node, reply, seen=seen):
            seen.extend([reply.error.reason] if reply.has_error() else [])
            return [reply]

        grid.meddle = meddle
        run(grid)
        assert seen == [f"cepam: {code}"]


def test_a_crash_of_the_training_function_and_odd_replies_stay_local() -> None:
    def crash(message, context):
        raise RuntimeError("out of memory")

    def nothing(message, context):
        return Message(RecordDict(), reply_to=message)

    def other_shape(message, context):
        arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    def other_names(message, context):
        arrays = ArrayRecord({"v": Array(np.zeros(SIZE, np.float32))})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    for train in (crash, nothing, other_shape, other_names):
        assert run(grid_of(train)).train_metrics_clientapp[1]["cepam-replies"] == 2


def test_updates_are_clipped_on_the_client() -> None:
    change = np.zeros(400)
    change[0] = 50.0
    grid = FakeGrid([Node(k, adding(change)) for k in (1, 2)])
    arrays = private(sigma=1e-3).start(grid, start_arrays(400), num_rounds=1).arrays
    assert vector_of(arrays)[0] == pytest.approx(1.0, abs=0.01)


def test_the_same_training_message_twice_never_uses_an_address_twice() -> None:
    grid, _ = fleet(2, size=SIZE)
    private().start(grid, start_arrays(SIZE), num_rounds=2)
    node = next(iter(grid.nodes.values()))
    last = [m for m in grid.seen if m.metadata.dst_node_id == node.node_id][-1]
    reply = node.handle(last)
    assert reply.has_error()
    assert reply.error.reason == "cepam: agreement"


def test_an_offer_for_another_run_or_node_is_refused() -> None:
    grid, _ = fleet(2, size=SIZE)
    private().start(grid, start_arrays(SIZE), num_rounds=1)
    first, second = grid.nodes.values()
    message = next(m for m in grid.seen if m.metadata.dst_node_id == first.node_id)
    assert second.handle(message).error.reason == "cepam: elsewhere"


def test_messages_of_other_servers_pass_or_are_refused() -> None:
    node = Node(1, lambda message, context: Message(RecordDict({"x": MetricRecord({"a": 1})}), reply_to=message))
    plain = Message(RecordDict({"arrays": start_arrays(8)}), dst_node_id=1, message_type="train")
    assert node.handle(plain).error.reason == "cepam: no-offer"
    asked = Message(RecordDict({"config": ConfigRecord()}), dst_node_id=1, message_type="evaluate")
    assert not node.handle(asked).has_error()
    node.uplink = Uplink(required=False)
    assert not node.handle(plain).has_error()
