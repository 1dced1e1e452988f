"""Broadcasts that must not be taken: damaged, cut, replayed, out of order, of another run; and what stays then."""

from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam.errors import CepamError, CheckFailed, MalformedMessage, WrongAddress, WrongVersion

RUN = b"refusals"
SIZE = 120
START = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
WALK = START + np.cumsum(np.random.default_rng(1).normal(size=(5, SIZE)) * 0.01, axis=0)


def served(count: int = 5) -> tuple[cepam.Broadcast, list[bytes]]:
    """A server after some rounds, and its messages."""
    server = cepam.Broadcast(RUN, START)
    return server, [server.publish(weights, 2.0**-6) for weights in WALK[:count]]


def refused(receiver: cepam.Receiver, message: bytes, error: type[CepamError] = CepamError) -> None:
    """The message raises, and the receiver still holds what it held."""
    before = receiver.version, receiver.check
    with pytest.raises(error):
        receiver.apply(message)
    assert (receiver.version, receiver.check) == before


def test_every_damaged_bit_is_refused() -> None:
    _, (message, *_) = served(1)
    receiver = cepam.Receiver(RUN, START)
    for place in range(len(message)):
        for bit in range(8):
            damaged = bytearray(message)
            damaged[place] ^= 1 << bit
            refused(receiver, bytes(damaged))
    receiver.apply(message)


def test_every_truncation_and_extension_is_refused() -> None:
    server, (message, *_) = served(1)
    for whole in (message, server.message_from(None)):
        receiver = cepam.Receiver(RUN, START)
        for length in range(len(whole)):
            refused(receiver, whole[:length])
        for tail in (b"\0", b"\1", bytes(16)):
            refused(receiver, whole + tail)
        receiver.apply(whole)


def test_a_header_written_in_more_bytes_is_refused() -> None:
    """Numbers have one spelling: a varint of two bytes for 0 is not taken for the one that was marked."""
    _, (message, *_) = served(1)
    refused(cepam.Receiver(RUN, START), message[:5] + b"\x80\x00" + message[6:], CheckFailed)


def test_replayed_and_reordered_messages_are_refused() -> None:
    _, messages = served()
    receiver = cepam.Receiver(RUN, START)
    receiver.apply(messages[0])
    refused(receiver, messages[0], WrongVersion)
    refused(receiver, messages[2], WrongVersion)
    receiver.apply(messages[1])
    receiver.apply(messages[2])
    for old in messages[:3]:
        refused(receiver, old, WrongVersion)


def test_an_old_snapshot_is_refused() -> None:
    early, _ = served(2)
    snapshot = early.message_from(None)
    _, messages = served()
    receiver = cepam.Receiver(RUN, START)
    for message in messages:
        receiver.apply(message)
    refused(receiver, snapshot, WrongVersion)
    refused(receiver, early.message_from(0), WrongVersion)


def test_a_message_of_another_run_is_refused() -> None:
    _, (message, *_) = served(1)
    refused(cepam.Receiver(b"another run", START), message, WrongAddress)


def test_a_message_readdressed_to_another_run_is_refused() -> None:
    """The tag is for a clear error only; the mark binds the whole name of the run."""
    _, (message, *_) = served(1)
    other = cepam.Broadcast(b"another run", START).publish(WALK[0], 2.0**-6)
    refused(cepam.Receiver(b"another run", START), message[:3] + other[3:5] + message[5:], CheckFailed)


def test_a_message_renamed_to_another_version_is_refused() -> None:
    server, messages = served(2)
    receiver = cepam.Receiver(RUN, START)
    receiver.apply(messages[0])
    renamed = bytearray(messages[1])
    assert renamed[5:7] == bytes([1, 1])
    renamed[6] = 2
    refused(receiver, bytes(renamed), CheckFailed)
    receiver.apply(messages[1])
    assert receiver.check == server.check


def test_another_start_never_diverges_silently_and_a_snapshot_mends_it() -> None:
    server, messages = served(1)
    other = START.copy()
    other[7] += np.float32(1.0)
    receiver = cepam.Receiver(RUN, other)
    assert receiver.check != cepam.Broadcast(RUN, START).check
    refused(receiver, messages[0], CheckFailed)
    receiver.apply(server.message_from(None))
    assert receiver.check == server.check


def test_a_receiver_without_the_start_cannot_use_what_begins_there() -> None:
    server, messages = served(1)
    receiver = cepam.Receiver(RUN, size=SIZE)
    refused(receiver, messages[0], WrongVersion)
    receiver.apply(server.message_from(None))
    assert receiver.check == server.check


def test_another_size_is_refused_before_memory_is_taken() -> None:
    _, (message, *_) = served(1)
    refused(cepam.Receiver(RUN, START[:-1]), message, MalformedMessage)
    head = cepam.Broadcast(RUN).publish(START, 0.1)[:5]
    for size in (b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff\xff\xff\x7f"):
        refused(cepam.Receiver(RUN), head + b"\x00\x01" + size + bytes(16), MalformedMessage)


def test_wild_bytes_are_refused() -> None:
    draw, receiver = np.random.default_rng(9), cepam.Receiver(RUN, START)
    _, (message, *_) = served(1)
    for _ in range(300):
        refused(receiver, draw.bytes(int(draw.integers(0, 80))))
        refused(receiver, message[:24] + draw.bytes(int(draw.integers(0, 60))))


@pytest.mark.parametrize("message", ["text", None, 3])
def test_a_message_is_bytes(message: object) -> None:
    with pytest.raises(ValueError, match="a message is bytes"):
        cepam.Receiver(RUN, START).apply(message)  # type: ignore[arg-type]


def test_points_out_of_range_are_refused() -> None:
    """A stream may say a size that no server writes: the sum is checked before it is taken for a point."""
    server = cepam.Broadcast(RUN)
    message = server.publish(np.full(64, 2.0**20), 2.0**-9)
    receiver = cepam.Receiver(RUN)
    receiver.apply(message)
    far = server.publish(np.full(64, -(2.0**20)), 2.0**-9)
    mirrored = cepam.Receiver(RUN)
    mirrored.apply(cepam.Broadcast(RUN).publish(np.full(64, -(2.0**20)), 2.0**-9))
    refused(mirrored, far, MalformedMessage)
