"""Who takes part in an epoch, under which signed keys, who shares masks with whom, and how a node refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

from cepam.errors import CepamError
from cepam.secure_aggregation.fields import MOST_NAMES, ByteReader, ByteWriter

RefusalKind = Literal["policy", "cohort", "unsigned", "position", "quorum", "share", "commitment"]
KINDS: tuple[RefusalKind, ...] = get_args(RefusalKind)


class SecAggRefused(CepamError):
    """A stage of secure aggregation that does not go on.

    Args:
        kind: Why: `policy`, the offer breaks the node's policy, or its rounds are spent; `cohort`, names, keys or
            sizes do not fit; `unsigned`, a key without a valid signature; `position`, a round that is not open, or
            was used; `quorum`, too few are left; `share`, a share does not open; `commitment`, shares do not give
            the committed seed.
        reason: The text, which stays where it was raised; only the kind may travel.
    """

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes, bytes], bool]

PUBLIC_BYTES = 32
LONGEST_RUN = 64
LONGEST_IDENTITY = 4096
LONGEST_SIGNATURE = 1024
LEAST_COHORT = 3


def hello_transcript(run: bytes, epoch: int, node: int, identity: bytes, public: bytes) -> bytes:
    """What a node signs: that in this run and epoch this key is its own."""
    writer = ByteWriter(b"cepam sum hello v1").blob(run).number(epoch, 8).number(node, 8).blob(identity).raw(public)
    return hashlib.sha256(writer.bytes()).digest()


@dataclass(frozen=True)
class RosterEntry:
    """One node of an epoch.

    Args:
        node: Its id.
        identity: Its registered key.
        public: Its X25519 key of the epoch.
        signature: The signature over that key.
    """

    node: int
    identity: bytes
    public: bytes
    signature: bytes

    def write(self, writer: ByteWriter) -> None:
        """Append the entry's fields to what is written.

        Args:
            writer: Takes the bytes.
        """
        writer.number(self.node, 8).blob(self.identity).raw(self.public).blob(self.signature)

    @classmethod
    def read(cls, reader: ByteReader) -> RosterEntry:
        """Read the entry whose fields come next.

        Args:
            reader: Gives the bytes.

        Returns:
            The entry.

        Raises:
            MalformedMessage: The bytes are not an entry.
        """
        node, identity = reader.number(8), reader.blob(LONGEST_IDENTITY)
        return cls(node, identity, reader.raw(PUBLIC_BYTES), reader.blob(LONGEST_SIGNATURE))


@dataclass(frozen=True)
class Roster:
    """The nodes of one epoch of one run, by rising id.

    Args:
        run: Id of the run.
        epoch: Number of the epoch in the run.
        peers: The nodes, by rising id (`of` sorts them).
    """

    run: bytes
    epoch: int
    peers: tuple[RosterEntry, ...]

    @classmethod
    def of(cls, run: bytes, epoch: int, peers: Iterable[RosterEntry]) -> Roster:
        """A roster of these peers in any order.

        Args:
            run: Id of the run.
            epoch: Number of the epoch in the run.
            peers: The nodes.

        Returns:
            The roster.
        """
        return cls(run, epoch, tuple(sorted(peers, key=lambda peer: peer.node)))

    @cached_property
    def names(self) -> tuple[int, ...]:
        """The ids, rising."""
        return tuple(peer.node for peer in self.peers)

    @cached_property
    def encoded(self) -> bytes:
        """The roster as bytes."""
        writer = ByteWriter().blob(self.run).number(self.epoch, 8).number(len(self.peers), 4)
        for peer in self.peers:
            peer.write(writer)
        return writer.bytes()

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that two rosters share exactly when they are equal."""
        return hashlib.sha256(b"cepam sum roster v1" + self.encoded).digest()

    @classmethod
    def read(cls, reader: ByteReader) -> Roster:
        """Read the roster whose fields come next.

        Args:
            reader: Gives the bytes.

        Returns:
            The roster.

        Raises:
            MalformedMessage: The bytes are not a roster.
        """
        run, epoch = reader.blob(LONGEST_RUN), reader.number(8)
        return cls(
            run, epoch, tuple(RosterEntry.read(reader) for _ in range(reader.number(4, LEAST_COHORT, MOST_NAMES)))
        )

    @cached_property
    def _by_name(self) -> dict[int, RosterEntry]:
        return {peer.node: peer for peer in self.peers}

    def peer(self, node: int) -> RosterEntry:
        """The peer of this id.

        Args:
            node: Its id.

        Returns:
            Its entry.

        Raises:
            SecAggRefused: No node has this id.
        """
        if node not in self._by_name:
            raise SecAggRefused("cohort", f"node {node} is not in the roster")
        return self._by_name[node]

    def check(self, verify: Verify, neighbourhood: Iterable[int]) -> None:
        """Raise `SecAggRefused` unless ids, keys and identities all differ and the neighbourhood's keys are
        signed.

        Args:
            verify: Verifies a signature under a registered key.
            neighbourhood: The nodes whose keys this node uses.

        Raises:
            SecAggRefused: Something does not hold.
        """
        if any(low >= high for low, high in pairwise(self.names)) or len(self.peers) < LEAST_COHORT:
            raise SecAggRefused("cohort", f"a roster names at least {LEAST_COHORT} nodes, each once, by rising id")
        for field in ("public", "identity"):
            if len({getattr(peer, field) for peer in self.peers}) != len(self.peers):
                raise SecAggRefused("cohort", f"two nodes of the roster have one {field} key")
        for peer in map(self.peer, neighbourhood):
            transcript = hello_transcript(self.run, self.epoch, peer.node, peer.identity, peer.public)
            if not verify(peer.identity, transcript, peer.signature):
                raise SecAggRefused("unsigned", f"the key of node {peer.node} is not signed with its identity")

    @cached_property
    def _ring(self) -> tuple[int, ...]:
        """The ids in an order that depends on everybody's fresh key: what a sparse graph is laid on."""
        return tuple(
            sorted(self.names, key=lambda name: hashlib.sha256(self.digest + name.to_bytes(8, "little")).digest())
        )

    @cached_property
    def _ring_places(self) -> dict[int, int]:
        return {name: place for place, name in enumerate(self._ring)}

    def neighbourhood(self, node: int, degree: int) -> tuple[int, ...]:
        """The ids, rising, that share masks with this node, and itself: all, or `degree` neighbours on the ring.

        Paper: Bell et al. 2020 (SecAgg+), a Harary graph in random order.

        Args:
            node: Its id.
            degree: Neighbors per node; 0: everybody.

        Returns:
            Ids, rising, this node's among them.
        """
        if degree == 0 or degree >= len(self.peers) - 1:
            return self.names
        place, size = self._ring_places[self.peer(node).node], len(self._ring)
        return tuple(sorted(self._ring[(place + step) % size] for step in range(-(degree // 2), degree // 2 + 1)))
