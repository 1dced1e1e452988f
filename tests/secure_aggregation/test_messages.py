"""The messages of a sum: one way to write each, and nothing else is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.errors import MalformedMessage
from cepam.secure_aggregation import HelloReply, HelloRequest, RefusalReply, SecAggRefused, SecAggRound
from cepam.secure_aggregation import messages as wire
from cepam.secure_aggregation.client import NodeState
from cepam.secure_aggregation.messages import (
    RepairReply,
    RepairRequest,
    SecAggMessage,
    TrainReply,
    TrainRequest,
    UnmaskReply,
    UnmaskRequest,
)
from cepam.secure_aggregation.roster import KINDS

from . import sums
from .sums import MODEL, cohort

KINDS_OF_MESSAGE = (
    HelloRequest, HelloReply, TrainRequest, TrainReply, RepairRequest, RepairReply, UnmaskRequest, UnmaskReply,
    RefusalReply,
)  # fmt: skip


def samples() -> list[SecAggMessage]:
    """One message of each kind, from a real round with a dropout."""
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    request = round_.request()
    replies = [group.train(name, request) for name in (10, 11, 12, 13)]
    for name, reply in zip((10, 11, 12, 13), replies):
        round_.take(name, reply)
    repairs = round_.repairs()
    repaired = {name: group.nodes[name].repair(ask) for name, ask in repairs.items()}
    for name, reply in repaired.items():
        round_.take_repair(name, reply)
    unmask = round_.unmasks()[10]
    return [
        HelloRequest(sums.RUN, 1), HelloReply(group.roster.peers[0]), TrainRequest.decode(request),
        TrainReply.decode(replies[0]), RepairRequest.decode(repairs[10]), RepairReply.decode(repaired[10]),
        UnmaskRequest.decode(unmask), UnmaskReply.decode(group.nodes[10].unmask(unmask)), RefusalReply("quorum"),
    ]  # fmt: skip


SAMPLES = samples()


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back(message: SecAggMessage) -> None:
    assert type(message).decode(message.encode()) == message
    assert [kind.code for kind in KINDS_OF_MESSAGE] == list(range(1, 10))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_cut_and_every_extra_byte_is_refused(message: SecAggMessage) -> None:
    data = message.encode()
    for length in range(len(data)):
        with pytest.raises(MalformedMessage):
            type(message).decode(data[:length])
    with pytest.raises(MalformedMessage):
        type(message).decode(data + b"\0")
    for other in KINDS_OF_MESSAGE:
        if other is not type(message):
            with pytest.raises(MalformedMessage):
                other.decode(data)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(range(len(SAMPLES))))
def test_mutated_messages_are_refused_or_mean_what_they_say(seed: int, which: int) -> None:
    data = mutate(SAMPLES[which].encode(), random.Random(seed))
    try:
        found = type(SAMPLES[which]).decode(data)
    except MalformedMessage:
        return
    assert found.encode() == data


def mutate(data: bytes, source: random.Random) -> bytes:
    """A few bytes changed, cut out or put in."""
    changed = bytearray(data)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(changed) + 1)
        kind = source.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            changed[at : at + source.randint(0, 8)] = b""
        elif kind == 2:
            changed[at:at] = source.randbytes(source.randint(1, 8))
        else:
            changed[at : at + 4] = source.choice([b"\xff" * 4, bytes(4), b"\x01\0\0\0"])
    return bytes(changed)


def stages(group: sums.Cohort) -> dict[type, Callable[[bytes], bytes]]:
    node = group.nodes[10]
    return {
        HelloRequest: node.hello,
        TrainRequest: lambda data: group.train(10, data),
        RepairRequest: node.repair,
        UnmaskRequest: node.unmask,
    }


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([HelloRequest, TrainRequest, RepairRequest, UnmaskRequest]))
def test_a_node_that_is_sent_mutated_messages_refuses_them_or_keeps_its_rules(seed: int, kind: type) -> None:
    group, source = cohort(5), random.Random(seed)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    request = round_.request()
    if kind in (RepairRequest, UnmaskRequest):
        for name in group.nodes:
            round_.take(name, group.train(name, request))
    everyone = group.roster.names
    good = {
        HelloRequest: lambda: HelloRequest(sums.RUN, 2).encode(),
        TrainRequest: lambda: request,
        RepairRequest: lambda: RepairRequest(round_.salt, (11,)).encode(),
        UnmaskRequest: lambda: UnmaskRequest(
            round_.salt, everyone, tuple(round_._sealed(name, 10) for name in everyone if name != 10)
        ).encode(),
    }[kind]()
    with suppress(MalformedMessage, SecAggRefused):
        stages(group)[kind](mutate(good, source))
    opened = NodeState.decode(group.nodes[10].state).open
    if opened is not None:
        assert len(set(opened.neighbourhood) - opened.repaired) >= opened.threshold


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_server_that_is_sent_mutated_replies_refuses_them_by_name(seed: int) -> None:
    group, source = cohort(5), random.Random(seed)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    with suppress(MalformedMessage, SecAggRefused):
        for name in group.nodes:
            reply = group.train(name, round_.request())
            round_.take(name, mutate(reply, source) if name == 10 else reply)
        while asks := round_.repairs():
            for name, ask in asks.items():
                reply = group.nodes[name].repair(ask)
                round_.take_repair(name, mutate(reply, source) if name == 11 else reply)
        for name, ask in round_.unmasks().items():
            reply = group.nodes[name].unmask(ask)
            round_.take_unmask(name, mutate(reply, source) if name == 12 else reply)
        round_.open()


def test_refusals_say_a_code_and_nothing_else() -> None:
    for kind in KINDS:
        data = RefusalReply(kind).encode()
        assert len(data) == len(wire.MAGIC) + 3
        assert RefusalReply.decode(data).kind == kind
    with pytest.raises(ValueError, match="kind"):
        SecAggRefused("other", "…")  # type: ignore[arg-type]


def test_fields_out_of_range() -> None:
    request = next(message for message in SAMPLES if isinstance(message, TrainRequest))
    for wrong in (
        {"noise": -1.0},
        {"clip": float("nan")},
        {"record_sampling_rate": -0.0},
        {"bits": 33},
        {"degree": 3},
        {"quorum": 0},
    ):
        bad = replace(request, settings=replace(request.settings, **{"threshold": 4, **wrong}))
        with pytest.raises(MalformedMessage):
            TrainRequest.decode(bad.encode())
