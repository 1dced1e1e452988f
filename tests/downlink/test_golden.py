"""Pinned messages, and a reader written from the page alone: a change of these bytes is a change of the format."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

import cepam
from tests.downlink.cases import FILE, RUN, STEPS, messages, weights
from tests.oracle.broadcast_reader import read_broadcast


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_messages_are_the_pinned_ones(backend: str) -> None:
    assert {name: message.hex() for name, message in messages(backend)} == json.loads(FILE.read_text())


def test_the_header_is_small() -> None:
    pinned = json.loads(FILE.read_text())
    assert len(bytes.fromhex(pinned["start, up to date"])) == 8 + 16


def test_the_page_is_enough_to_read_them() -> None:
    """Oracle: rational numbers and plain Python, along a run with steps that halve and grow."""
    start = weights(0).astype(np.float32)
    server = cepam.Broadcast(RUN, start)
    held: list[Fraction] | None = [Fraction(round(Fraction(float(w)) * 2**40)) for w in start]
    for number, step in enumerate(STEPS):
        message = server.publish(weights(number + 1), step)
        begun, version, held, values = read_broadcast(message, RUN, held)
        assert (begun, version) == (number, number + 1)
        np.testing.assert_array_equal(np.array(values, dtype=np.float32), server.weights)
    _, version, again, _ = read_broadcast(server.message_from(None), RUN, None)
    assert (version, again) == (4, held)


def test_the_page_is_enough_for_several_blocks() -> None:
    draw = np.random.default_rng(3)
    first = draw.normal(size=8300).astype(np.float32)
    server = cepam.Broadcast(RUN)
    _, _, held, _ = read_broadcast(server.publish(first, 0.01), RUN, None)
    message = server.publish(first + draw.normal(size=8300).astype(np.float32) * np.float32(0.001), 0.01)
    _, _, _, values = read_broadcast(message, RUN, held)
    np.testing.assert_array_equal(np.array(values, dtype=np.float32), server.weights)
