"""Broken, forged, replayed and missing replies: each costs itself only, with a reason that is counted."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import cepam
from cepam.errors import NoUsableReplies
from cepam.flower import Private

from .fakes import FakeGrid, Node, adding, copied, start_arrays, vector_of

SIZE = 2000
BAD, GOOD = 7, (8, 9)


def grid_of(train=None) -> FakeGrid:
    change = np.full(SIZE, 0.01)
    return FakeGrid([Node(BAD, train or adding(change)), *(Node(k, adding(change)) for k in GOOD)])


def run(grid: FakeGrid, rounds: int = 1, **options):
    strategy = Private(FedAvg(), noise=cepam.Gaussian(0.01), clip=cepam.L2(1.0), **options)
    return strategy.start(grid, start_arrays(SIZE), num_rounds=rounds)


def with_payload(reply: Message, data: bytes) -> Message:
    reply.content["arrays"] = ArrayRecord({"update": Array("uint8", (len(data),), "cepam.v1", data)})
    return reply


def payload(reply: Message) -> bytes:
    return reply.content["arrays"]["update"].data


def flipped(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def plain(reply: Message) -> Message:
    reply.content["arrays"] = start_arrays(SIZE)
    return reply


def changed(name: str, value: object):
    def change(reply: Message) -> Message:
        reply.content["cepam"][name] = value
        return reply

    return change


def without(name: str):
    def remove(reply: Message) -> Message:
        del reply.content[name]
        return reply

    return remove


def metrics(**values):
    def change(reply: Message) -> Message:
        reply.content["metrics"] = MetricRecord({"num-examples": 1, **values})
        return reply

    return change


def renamed(reply: Message) -> Message:
    reply.content = RecordDict(
        {"x": reply.content["arrays"], "arrays": reply.content["metrics"], "cepam": reply.content["cepam"]}
    )
    return reply


def doubled(reply: Message) -> Message:
    reply.content = RecordDict(
        {
            "x": reply.content["arrays"],
            "arrays": ConfigRecord({"a": 1}),
            "metrics": MetricRecord({"num-examples": 1, "more": 1.0}),
            "cepam": reply.content["cepam"],
        }
    )
    return reply


FAULTS = {
    "metrics named as the arrays": (renamed, "malformed"),
    "a record named as the arrays": (doubled, "metrics"),
    "garbage": (lambda r: with_payload(r, b"garbage" * 40), "seal"),
    "truncated": (lambda r: with_payload(r, payload(r)[:-9]), "seal"),
    "bit flipped": (lambda r: with_payload(r, flipped(payload(r))), "seal"),
    "empty": (lambda r: with_payload(r, b""), "seal"),
    "longer": (lambda r: with_payload(r, payload(r) + b"\0"), "seal"),
    "plain arrays": (plain, "malformed"),
    "no arrays": (without("arrays"), "malformed"),
    "no answer": (without("cepam"), "malformed"),
    "other position": (changed("position", 5), "malformed"),
    "other attempt": (changed("attempt", 1), "seal"),
    "huge attempt": (changed("attempt", 2**40), "seal"),
    "wrong kind of field": (changed("attempt", "1"), "malformed"),
    "other public key": (changed("public", bytes(range(32))), "seal"),
    "weak public key": (changed("public", bytes(32)), "agreement"),
    "short public key": (changed("public", b"short"), "agreement"),
    "no public key": (changed("public", b""), "agreement"),
    "bad signature": (changed("signature", b"signature"), "agreement"),
    "metric not finite": (metrics(loss=float("nan")), "metrics"),
    "other metrics": (metrics(evil=1.0), "metrics"),
    "error": (lambda r: Message(Error(2, "it crashed"), reply_to=_asked(r)), "error"),
}


def _asked(reply: Message) -> Message:
    made = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type="train")
    made.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return made


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_costs_itself_only(fault: str) -> None:
    spoil, kind = FAULTS[fault]
    grid = grid_of()
    grid.meddle = lambda node, reply: [spoil(reply)] if node == BAD else [reply]
    result = run(grid)
    counts = result.train_metrics_clientapp[1]
    assert counts["cepam-replies"] == 2
    assert counts["cepam-dropped"] == 1
    assert counts[f"cepam-dropped-{kind}"] == 1
    # Two updates of three: the sum is divided by those who were asked.
    assert vector_of(result.arrays).mean() == pytest.approx(0.01 * 2 / 3, abs=0.002)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_is_welcome_again_after_a_bad_round(fault: str) -> None:
    spoil, _ = FAULTS[fault]
    grid = grid_of()
    spoiled = []

    def meddle(node, reply):
        if node == BAD and not spoiled:
            spoiled.append(1)
            return [spoil(reply)]
        return [reply]

    grid.meddle = meddle
    result = run(grid, rounds=3)
    assert [result.train_metrics_clientapp[r]["cepam-replies"] for r in (1, 2, 3)] == [2, 3, 3]


def test_a_missing_reply_is_counted() -> None:
    grid = grid_of()
    grid.meddle = lambda node, reply: [] if node == BAD else [reply]
    counts = run(grid).train_metrics_clientapp[1]
    assert (counts["cepam-sampled"], counts["cepam-replies"], counts["cepam-dropped-missing"]) == (3, 2, 1)


def test_an_error_that_the_superlink_made_is_attributed(caplog) -> None:
    grid = grid_of()

    def meddle(node, reply):
        if node != BAD:
            return [reply]
        error = Message(Error(5, "node unavailable"), reply_to=_asked(reply))
        error.metadata.__dict__["_src_node_id"] = 1
        return [error]

    grid.meddle = meddle
    counts = run(grid).train_metrics_clientapp[1]
    assert counts["cepam-dropped"] == counts["cepam-dropped-error"] == 1


def test_replies_that_are_repeated_or_not_asked_for_are_dropped() -> None:
    grid = grid_of()
    grid.meddle = lambda node, reply: [reply, copied(reply)] if node == BAD else [reply]
    counts = run(grid).train_metrics_clientapp[1]
    assert (counts["cepam-replies"], counts["cepam-dropped-unsolicited"]) == (3, 1)


def test_an_old_payload_in_a_fresh_reply_is_dropped() -> None:
    grid = grid_of()
    kept: list[bytes] = []

    def meddle(node, reply):
        if node == BAD:
            kept.append(payload(reply))
            with_payload(reply, kept[0])
        return [reply]

    grid.meddle = meddle
    result = run(grid, rounds=3)
    assert [result.train_metrics_clientapp[r].get("cepam-dropped-seal", 0) for r in (1, 2, 3)] == [0, 1, 1]


def test_an_old_reply_moved_whole_into_a_fresh_one_is_dropped() -> None:
    grid = grid_of()
    kept: list[tuple[bytes, ConfigRecord]] = []

    def meddle(node, reply):
        if node == BAD:
            kept.append((payload(reply), reply.content["cepam"].copy()))
            with_payload(reply, kept[0][0])
            reply.content["cepam"] = kept[0][1].copy()
            reply.content["cepam"]["position"] = len(kept) - 1
        return [reply]

    grid.meddle = meddle
    result = run(grid, rounds=2)
    assert result.train_metrics_clientapp[2]["cepam-replies"] == 2


def test_one_client_cannot_speak_for_another() -> None:
    grid = grid_of()
    kept: list[Message] = []

    def meddle(node, reply):
        if node in (BAD, GOOD[0]):
            kept.append(copied(reply))
            reply.content = copied(kept[0]).content
        return [reply]

    grid.meddle = meddle
    counts = run(grid).train_metrics_clientapp[1]
    assert (counts["cepam-replies"], counts["cepam-dropped-seal"]) == (2, 1)


def test_an_update_beyond_its_clip_is_dropped() -> None:
    from cepam.flower import client_mod as uplink

    class Greedy(uplink.Uplink):
        """A client that skips the clip."""

        def _sealed(self, reply, reference, offer, context, *more):
            object.__setattr__(offer.settings, "clip", cepam.L2(1e6))
            return super()._sealed(reply, reference, offer, context, *more)

    grid = grid_of(adding(np.full(SIZE, 5.0)))
    grid.nodes[BAD].uplink = Greedy()
    counts = run(grid).train_metrics_clientapp[1]
    assert (counts["cepam-replies"], counts["cepam-dropped-values"]) == (2, 1)


def test_a_size_that_was_not_asked_for_is_dropped() -> None:
    from cepam.flower import client_mod as uplink

    class Short(uplink.Uplink):
        def _sealed(self, reply, reference, offer, context, *more):
            small = {"w": np.zeros((5, 4), np.float32)}
            reply.content["arrays"] = ArrayRecord({"w": Array(small["w"])})
            return super()._sealed(reply, small, offer, context, *more)

    grid = grid_of()
    grid.nodes[BAD].uplink = Short()
    counts = run(grid).train_metrics_clientapp[1]
    assert (counts["cepam-replies"], counts["cepam-dropped-seal"]) == (2, 1)


def test_a_round_without_any_good_reply_leaves_the_model_and_costs_nothing() -> None:
    grid = grid_of()
    grid.meddle = lambda node, reply: [with_payload(reply, b"no")]
    with pytest.raises(NoUsableReplies) as nothing:
        run(grid)
    counts = nothing.value.metrics[1]
    assert counts["cepam-replies"] == 0
    assert counts["cepam-epsilon"] == 0.0
