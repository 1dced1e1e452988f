"""Saved and restored: both halves go on to the same bytes, and a state of something else is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import cepam
from cepam.errors import CheckFailed

RUN = b"states"
START = np.random.default_rng(0).normal(size=90).astype(np.float32)
WALK = START + np.cumsum(np.random.default_rng(1).normal(size=(8, 90)) * 0.01, axis=0)
STEPS = [2.0**-6, 2.0**-6, 2.0**-7, 2.0**-5, 2.0**-5, 2.0**-6, 2.0**-6, 2.0**-7]


@pytest.mark.parametrize("start", [START, None])
@pytest.mark.parametrize("killed_after", range(8))
def test_a_server_goes_on_to_the_same_bytes(start: Any, killed_after: int) -> None:
    straight, broken = cepam.Broadcast(RUN, start), cepam.Broadcast(RUN, start)
    for number, (weights, step) in enumerate(zip(WALK, STEPS)):
        if number == killed_after:
            saved = pickle.loads(pickle.dumps(broken.state_dict()))
            broken = cepam.Broadcast(RUN, start)
            broken.load_state_dict(saved)
            if number:
                for version in (None, *range(number + 1)):
                    assert broken.message_from(version) == straight.message_from(version)
        assert broken.publish(weights, step) == straight.publish(weights, step)
    assert broken.check == straight.check


@pytest.mark.parametrize("start", [START, None])
def test_a_receiver_goes_on_from_what_it_held(start: Any) -> None:
    server, receiver = cepam.Broadcast(RUN, start), cepam.Receiver(RUN, start)
    for weights, step in zip(WALK, STEPS):
        restarted = cepam.Receiver(RUN, start)
        restarted.load_state_dict(pickle.loads(pickle.dumps(receiver.state_dict())))
        assert (restarted.version, restarted.check) == (receiver.version, receiver.check)
        receiver = restarted
        receiver.apply(server.publish(weights, step))
    assert receiver.weights.tobytes() == server.weights.tobytes()


def test_a_state_of_another_run_or_start_is_refused() -> None:
    receiver = cepam.Receiver(RUN, START)
    fresh = receiver.state_dict()
    receiver.apply(cepam.Broadcast(RUN, START).publish(WALK[0], 0.1))
    held = receiver.state_dict()
    for other, state in (
        (cepam.Receiver(b"another", START), held),
        (cepam.Receiver(b"another", START), fresh),
        (cepam.Receiver(RUN, START + np.float32(1)), fresh),
        (cepam.Receiver(RUN), fresh),
    ):
        with pytest.raises(CheckFailed):
            other.load_state_dict(state)


def test_a_damaged_state_is_refused() -> None:
    receiver = cepam.Receiver(RUN, START)
    receiver.apply(cepam.Broadcast(RUN, START).publish(WALK[0], 0.1))
    state = receiver.state_dict()
    for name, value in (("version", 2), ("shift", 30), ("steps", state["steps"] + 1)):
        with pytest.raises(CheckFailed):
            receiver.load_state_dict({**state, name: value})
    for bad in ({}, {**state, "shift": 99}, {**state, "steps": np.zeros(3)}, {"version": 1, "steps": state["steps"]}):
        with pytest.raises(ValueError, match=r"saved state|steps must be"):
            receiver.load_state_dict(bad)


def test_both_halves_survive_a_pickle() -> None:
    """As they are, in the midst of a run: for processes that are sent a receiver."""
    server, receiver = cepam.Broadcast(RUN, START), cepam.Receiver(RUN, START)
    for weights, step in zip(WALK, STEPS):
        receiver.apply(server.publish(weights, step))
        server, receiver = pickle.loads(pickle.dumps((server, receiver)))
        assert receiver.check == server.check
        assert receiver.weights.tobytes() == server.weights.tobytes()
