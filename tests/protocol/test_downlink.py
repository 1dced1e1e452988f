"""A model on its way down: every node holds the server's public arrays bit for bit, or nothing, whatever it missed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cepam
from cepam.errors import CepamError
from cepam.protocol.agreement import Declined
from cepam.protocol.models import BroadcastMessage, ClientModel, Downlink, ModelLayout, unpack
from cepam.protocol.server import noise_of_average
from cepam.protocol.settings import UplinkSettings

STEP = 2.0**-6


def model(seed: int, size: int = 60) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        "a.weight": draw.normal(size=(size // 4, 4)).astype(np.float32),
        "norm.running_var": draw.uniform(0.5, 1.0, size=5).astype(np.float32),
        "norm.num_batches_tracked": np.array(seed),
        "half": draw.normal(size=3).astype(np.float16),
        "a.bias": draw.normal(size=size // 4).astype(np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }


def beside(down: Downlink) -> dict[str, np.ndarray]:
    return {name: down.public[name] for name in down.beside}


def assert_same(arrays: dict[str, np.ndarray], public: dict[str, np.ndarray]) -> None:
    assert list(arrays) == list(public)
    for name, array in public.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].tobytes() == array.tobytes()


def test_the_public_arrays_are_within_half_a_step_and_the_others_as_they_are() -> None:
    exact = model(1)
    down = Downlink(exact, STEP)
    assert down.beside == ["norm.running_var", "norm.num_batches_tracked", "half"]
    for name in ("a.weight", "a.bias"):
        assert np.abs(down.public[name] - exact[name]).max() <= STEP / 2 + 1e-6
        assert not np.array_equal(down.public[name], exact[name])
    for name in down.beside:
        assert down.public[name] is exact[name]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["gets", "misses", "loses", "crashes"]), st.integers(0, 2)), max_size=12))
def test_any_pattern_of_missed_rounds_and_restarts_ends_at_the_public_arrays(events: list[tuple[str, int]]) -> None:
    down = Downlink(model(0), STEP)
    copies: dict[int, ClientModel | None] = dict.fromkeys(range(3))
    for number, (event, node) in enumerate(events, 1):
        down.publish(model(number), STEP / (1 + number // 4))
        if event == "misses":
            continue
        if event == "loses":
            copies[node] = None
        try:
            arrays, copy = unpack(down.message_for(node), beside(down), copies[node])
        except Declined:  # the server is wrong about this node, which is sent a snapshot
            down.forget(node)
            arrays, copy = unpack(down.message_for(node), beside(down), copies[node])
        assert_same(arrays, down.public)
        copies[node] = copy
        if event != "crashes":  # the reply is lost: the server does not hear of it
            down.hear(node, copy.report)


def test_one_message_serves_all_who_hold_the_same() -> None:
    down = Downlink(model(0), STEP)
    assert down.message_for(1).message is down.message_for(2).message
    _, copy = unpack(down.message_for(1), beside(down), None)
    down.hear(1, copy.report)
    down.publish(model(0), STEP)
    assert down.message_for(1).layout == ""
    assert len(down.message_for(1).message) < len(down.message_for(2).message)


def test_a_damaged_replayed_or_foreign_parcel_changes_nothing() -> None:
    down, other = Downlink(model(0), STEP), Downlink(model(0), STEP)
    first = down.message_for(1)
    _, copy = unpack(first, beside(down), None)
    down.hear(1, copy.report)
    down.publish(model(1), STEP)
    second = down.message_for(1)
    _, now = unpack(second, beside(down), copy)
    spoiled = [
        (first, now),  # an old snapshot leads back
        (second, now),  # the same message again
        (second, None),  # a difference, to a node that holds nothing
        (replace(second, message=second.message[:-1]), copy),
        (replace(second, message=second.message[:-1] + bytes([second.message[-1] ^ 1])), copy),
        (replace(second, message=other.message_for(1).message), copy),
        (replace(second, grid=other.message_for(1).grid), copy),
        (second, replace(copy, state={**copy.state, "steps": copy.state["steps"] + 1})),
    ]
    for broadcast, kept in spoiled:
        with pytest.raises(Declined) as declined:
            unpack(broadcast, beside(down), kept)
        assert declined.value.code == "version"
    with pytest.raises(Declined, match="beside the broadcast"):
        unpack(second, {}, copy)


def test_a_report_of_another_version_or_check_is_not_believed() -> None:
    down = Downlink(model(0), STEP)
    _, copy = unpack(down.message_for(1), beside(down), None)
    for report in ({}, {**copy.report, "version": 7}, {**copy.report, "check": bytes(16)}, {"version": "1"}):
        with pytest.raises(CepamError, match="it computed at version"):
            down.hear(1, report)
        assert down.message_for(1).layout != ""
    down.hear(1, copy.report)
    assert down.message_for(1).layout == ""


def test_inventory_and_parcels_survive_the_journey_or_are_refused() -> None:
    layout = ModelLayout.of(model(0))
    assert ModelLayout.from_text(layout.to_text()) == layout
    for text in ("", "{}", "[[1,2,3]]", '[["a",[-1]]]', '[["a",[true]]]', '[["a","b"]]', "[5]"):
        if text != "{}":
            with pytest.raises(ValueError, match="cannot be read"):
                ModelLayout.from_text(text)
    broadcast = BroadcastMessage(b"grid", "[]", b"message")
    assert BroadcastMessage.from_fields(broadcast.to_fields(), b"message") == broadcast
    with pytest.raises(ValueError, match="this end reads"):
        BroadcastMessage.from_fields({"wire": 9}, b"")
    with pytest.raises(ValueError, match="float32"):
        Downlink({"w": np.zeros(3)}, STEP)


def test_the_noise_of_an_average_is_that_of_the_weighted_replies() -> None:
    one = UplinkSettings(cepam.Gaussian(0.3), cepam.L2(1.0))
    assert noise_of_average([one] * 9) == pytest.approx(0.1)
    heavy = replace(one, weight=3.0)
    assert noise_of_average([one, heavy]) == pytest.approx(0.3 * np.sqrt(10) / 4)
    assert noise_of_average([UplinkSettings(cepam.Laplace(0.3), cepam.L1(1.0))]) == pytest.approx(0.3 * np.sqrt(2))
