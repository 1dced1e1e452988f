"""Whoever missed whatever: every receiver that is served holds the server's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cepam

RUN = b"catching up"
SIZE = 150
START = np.random.default_rng(0).normal(size=SIZE).astype(np.float32) * np.float32(0.1)
STEPS = [2.0**-5, 2.0**-6, 2.0**-6, 2.0**-8]


def walk(rounds: int, seed: int = 1) -> npt.NDArray[np.float64]:
    """Exact weights of a run, one row a round."""
    return START + np.cumsum(np.random.default_rng(seed).normal(size=(rounds, SIZE)) * 0.004, axis=0)


def same(server: cepam.Broadcast, receiver: cepam.Receiver) -> bool:
    """Whether a receiver holds the server's version, bit for bit."""
    equal = server.weights.tobytes() == receiver.weights.tobytes()
    assert equal == (server.check == receiver.check)
    return equal and server.version == receiver.version


@settings(max_examples=40, deadline=None)
@given(
    heard=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=12),
    steps=st.lists(st.sampled_from(STEPS), min_size=12, max_size=12),
    history=st.integers(1, 5),
    start=st.sampled_from([START, None]),
    falling=st.booleans(),
)
def test_any_pattern_of_missed_rounds(
    heard: list[list[bool]], steps: list[float], history: int, start: Any, falling: bool
) -> None:
    server = cepam.Broadcast(RUN, start, history=history)
    receivers = [cepam.Receiver(RUN, start) for _ in range(3)]
    if falling:
        steps = sorted(steps, reverse=True)
    for weights, step, who in zip(walk(len(heard)), steps, heard):
        server.publish(weights, step)
        assert np.abs(server.weights - weights).max() <= step / 2 + 1e-6
        for receiver, present in zip(receivers, who):
            if present:
                receiver.apply(server.message_from(receiver.version))
                assert same(server, receiver)


def test_everybody_present_takes_the_one_message() -> None:
    server = cepam.Broadcast(RUN, START)
    receivers = [cepam.Receiver(RUN, START, backend=backend) for backend in ("numba", "numpy")]
    for weights in walk(4):
        message = server.publish(weights, 2.0**-6)
        for receiver in receivers:
            assert server.message_from(receiver.version) is message
            receiver.apply(message)
            assert same(server, receiver)


def test_the_start_is_version_0_and_costs_nothing() -> None:
    server, receiver = cepam.Broadcast(RUN, START), cepam.Receiver(RUN, START)
    assert receiver.version == server.version == 0
    assert receiver.check == server.check
    np.testing.assert_array_equal(receiver.weights, START)


def test_a_start_that_is_trained_in_place_stays_the_start() -> None:
    mine, theirs = START.copy(), START.copy()
    server, receiver = cepam.Broadcast(RUN, mine), cepam.Receiver(RUN, theirs)
    mine += np.float32(0.5)
    theirs += np.float32(0.5)
    receiver.apply(server.publish(mine, 2.0**-6))
    assert same(server, receiver)
    np.testing.assert_array_equal(cepam.Receiver(RUN, START).apply(server.message_from(0)), server.weights)


def test_without_a_start_the_first_message_carries_it() -> None:
    server, receiver = cepam.Broadcast(RUN), cepam.Receiver(RUN, size=SIZE)
    assert receiver.version is None
    assert receiver.check == b""
    message = server.publish(START, 2.0**-6)
    receiver.apply(message)
    assert same(server, receiver)
    assert len(message) < SIZE


def test_a_missed_message_costs_less_than_the_missed_messages() -> None:
    server, late = cepam.Broadcast(RUN, START), cepam.Receiver(RUN, START)
    messages = [server.publish(weights, 2.0**-7) for weights in walk(12)]
    late.apply(messages[0])
    caught_up = server.message_from(1)
    assert len(caught_up) < sum(map(len, messages[1:]))
    late.apply(caught_up)
    assert same(server, late)


def test_the_server_gives_the_shorter_of_difference_and_snapshot() -> None:
    server = cepam.Broadcast(RUN, START)
    exact = walk(30)
    server.publish(exact[-1], 2.0**-7)
    for weights in exact[:3]:
        server.publish(weights, 2.0**-7)
    # Back near the start: the way from there is shorter than the way back from afar.
    late = cepam.Receiver(RUN, START)
    assert server.message_from(1) is server.message_from(0)
    late.apply(server.message_from(0))
    assert same(server, late)


def test_a_receiver_that_is_up_to_date_gets_a_header() -> None:
    server, receiver = cepam.Broadcast(RUN, START), cepam.Receiver(RUN, START)
    receiver.apply(server.publish(walk(1)[0], 2.0**-6))
    message = server.message_from(receiver.version)
    assert len(message) < 32
    receiver.apply(message)
    assert same(server, receiver)


def test_a_version_of_a_lost_future_gets_a_snapshot() -> None:
    server = cepam.Broadcast(RUN, START)
    exact = walk(3)
    server.publish(exact[0], 2.0**-6)
    saved = server.state_dict()
    receiver = cepam.Receiver(RUN, START)
    for weights in exact[1:]:
        server.publish(weights, 2.0**-6)
    receiver.apply(server.message_from(0))
    set_back = cepam.Broadcast(RUN, START)
    set_back.load_state_dict(saved)
    message = set_back.message_from(receiver.version)
    with pytest.raises(cepam.errors.WrongVersion, match="leads back"):
        receiver.apply(message)
    receiver.forget()
    receiver.apply(message)
    assert same(set_back, receiver)


def test_history_is_bounded() -> None:
    server = cepam.Broadcast(RUN, START, history=3)
    for weights in walk(20):
        server.publish(weights, 2.0**-6)
    assert len(server.state_dict()["kept_messages"]) == 3
    for version in (None, 0, 1, 10, 16, 17, 19, 20, 99):
        receiver = cepam.Receiver(RUN, START)
        snapshot = server.message_from(version)
        if version in (None, 0, 1, 10, 16, 99):
            receiver.apply(snapshot)
            assert same(server, receiver)


def test_blocks_and_threads_make_no_difference() -> None:
    start = np.random.default_rng(5).normal(size=300_000).astype(np.float32)
    later = start + np.random.default_rng(6).normal(size=300_000).astype(np.float32) * np.float32(0.001)
    messages = set()
    for threads in (1, 3):
        server, receiver = cepam.Broadcast(RUN, start, threads=threads), cepam.Receiver(RUN, start, threads=threads)
        messages.add(server.publish(later, 0.02))
        receiver.apply(server.message_from(0))
        assert same(server, receiver)
    assert len(messages) == 1


@pytest.mark.parametrize("history", [0, -1, True, 1.5])
def test_history_must_be_a_count(history: Any) -> None:
    with pytest.raises(ValueError, match="history must be"):
        cepam.Broadcast(RUN, START, history=history)


@pytest.mark.parametrize("version", [-1, True, 1.0, "1"])
def test_a_version_must_be_a_count(version: Any) -> None:
    server = cepam.Broadcast(RUN, START)
    server.publish(START, 0.1)
    with pytest.raises(ValueError, match="version must be"):
        server.message_from(version)


def test_nothing_is_served_before_something_is_published() -> None:
    with pytest.raises(ValueError, match="nothing was published"):
        cepam.Broadcast(RUN, START).message_from(0)
    with pytest.raises(ValueError, match="nothing was published"):
        _ = cepam.Broadcast(RUN).weights
    with pytest.raises(ValueError, match="no broadcast was received"):
        _ = cepam.Receiver(RUN).weights


def test_a_server_that_refuses_weights_stays_where_it_was() -> None:
    server = cepam.Broadcast(RUN, START)
    server.publish(START, 0.1)
    check = server.check
    for bad in (np.full(SIZE, np.nan), np.zeros(SIZE + 1), np.full(SIZE, 1e30)):
        with pytest.raises(ValueError, match="weights must"):
            server.publish(bad, 0.1)
    with pytest.raises(ValueError, match="too fine"):
        server.publish(np.zeros(SIZE), 2.0**-40)
    assert (server.version, server.check) == (1, check)


def test_weights_cannot_be_changed_by_hand() -> None:
    server = cepam.Broadcast(RUN, START)
    server.publish(START, 0.1)
    with pytest.raises(ValueError, match="read-only"):
        server.weights[0] = 1.0
