"""The clients of a run as nodes of a sum, in this process: real keys, shares and bytes, found by address.

Every secret of a node comes from the row's randomness at (round, client), so that a resumed run, which begins with new
nodes, sends the same bytes: a node that is asked for a later position moves its chains there by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cepam.fl.engine.randomness import Randomness
from cepam.secure import HelloReply, HelloRequest, MemoryJournal, Roster, SumNode, Terms

IDENTITY, HELLO, ANSWER = 32, 33, 34
"""Purposes of the row's randomness, apart from those of `cepam.fl.engine.sampling`."""


class AddressedDraw:
    """Random bytes of one client, in order from the address that it was last sent to."""

    def __init__(self, row: Randomness, client: int) -> None:
        self.row, self.client = row, client
        self.left = memoryview(b"")

    def go_to(self, round: int, purpose: int, count: int) -> None:
        """Nothing; the next `count` bytes are those of this address."""
        self.left = memoryview(self.row.random_bytes(round, purpose, self.client, count))

    def __call__(self, count: int) -> bytes:
        if count > len(self.left):
            raise ValueError(f"{count} bytes were drawn, the address has {len(self.left)}: bytes would repeat")
        drawn, self.left = self.left[:count], self.left[count:]
        return bytes(drawn)


@cache
def _signed(identity: bytes, transcript: bytes, signature: bytes) -> bool:
    """Whether the holder of this Ed25519 key signed; every node asks, one answer serves them all."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, transcript)
    except (InvalidSignature, ValueError):
        return False
    return True


class SumNodes:
    """One seed's clients as nodes of an epoch, who have said hello.

    Guarantee: what they answer depends on the row, the round and the request alone, not on what they were asked before
    (tests/fl/engine/test_sum_uplink.py).
    """

    def __init__(self, row: Randomness, run: bytes, epoch: int, clients: int, terms: Terms, threshold: int) -> None:
        self.threshold = threshold
        self.draws = [AddressedDraw(row, client) for client in range(clients)]
        self.nodes = [self._node(row, client, terms) for client in range(clients)]
        ask, replies = HelloRequest(run, epoch).encode(), []
        for node, draw in zip(self.nodes, self.draws):
            draw.go_to(epoch, HELLO, 32)
            replies.append(node.hello(ask))
        self.hello = ([ask] * clients, replies)
        self.roster = Roster.of(run, epoch, [HelloReply.decode(reply).peer for reply in replies])
        self.informed: set[int] = set()

    def _node(self, row: Randomness, client: int, terms: Terms) -> SumNode:
        key = Ed25519PrivateKey.from_private_bytes(row.random_bytes(0, IDENTITY, client, 32))
        public = key.public_key().public_bytes_raw()
        return SumNode(client, public, key.sign, _signed, terms, MemoryJournal(), draw=self.draws[client])

    def train(self, client: int, round: int, requests: Mapping[bool, bytes], model: bytes, update: Any) -> bytes:
        """A client's masked update; of the two requests it takes the one with the roster where it has not seen it."""
        self.draws[client].go_to(round, ANSWER, 2 * 32 + 48 * (self.threshold - 1))
        reply = self.nodes[client].train(requests[client not in self.informed], model, lambda _: update)
        self.informed.add(client)
        return reply

    def repair(self, client: int, request: bytes) -> bytes:
        """A client's mask keys with the missing."""
        return self.nodes[client].repair(request)

    def unmask(self, client: int, request: bytes) -> bytes:
        """A client's shares of the survivors' seeds."""
        return self.nodes[client].unmask(request)
