"""The protocol's messages as bytes: four requests, four replies, and a refusal (docs/proofs/secure-aggregation.md).

A message is `cps`, a byte for version 1, a byte for its kind, then its fields in a fixed order. Integers are
little-endian; 32-bit lengths and counts stand before what varies; ids rise strictly; no bytes are left over.

1. Hello request: run, epoch (8 bytes).
2. Hello reply: node id (8), identity, X25519 key (32), signature.
3. Train request: settings, the cohort's ids, roster digest (32), 0, or 1 and the roster: run, epoch, count, peers as
   in 2.
4. Train reply: salt (32), vector, commitment (32), sealed shares (49 each) by rising id of the peer.
5. Repair request: salt, ids of all missing so far.
6. Repair reply: salt, mask keys (32 each) by rising id.
7. Unmask request: salt, survivors' ids, the shares that they sealed for this node (49 each), its own left out.
8. Unmask reply: salt, shares (33 each) by rising id; 33 zero bytes where what this peer sealed does not open.
9. Refusal: its kind (1), an index into `refusal.KINDS`.

Settings: run, epoch (8), position (8), coordinates (4), bits (1), gain (4), noise, clip, divisor and sampling rate
(float64 each), quorum, colluders, degree, threshold (4 each).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from cepam.errors import MalformedMessage
from cepam.secure_aggregation.channel import PRIME, SEALED_BYTES, SHARE_BYTES
from cepam.secure_aggregation.fields import ByteReader, ByteWriter
from cepam.secure_aggregation.mechanism import MOST_COORDINATES
from cepam.secure_aggregation.roster import KINDS, LEAST_COHORT, LONGEST_RUN, RefusalKind, Roster, RosterEntry
from cepam.secure_aggregation.settings import SecAggSettings

MAGIC = b"cps"
VERSION = 1
NO_SHARE = bytes(SHARE_BYTES)
"""In place of a share that did not open; a true share is zero with probability 2^-256."""


class SecAggMessage(ABC):
    """A message with a number for its kind; subclasses write and read their fields."""

    code: ClassVar[int]

    @abstractmethod
    def write(self, writer: ByteWriter) -> None:
        """Append the fields to what is written.

        Args:
            writer: Takes the bytes.
        """

    @classmethod
    @abstractmethod
    def read(cls, reader: ByteReader) -> Self:
        """Read the message whose fields come next.

        Args:
            reader: Gives the bytes.

        Returns:
            The message.

        Raises:
            MalformedMessage: The bytes are not the fields of this message.
        """

    def encode(self) -> bytes:
        """Write the message as bytes; there is one way to write it.

        Returns:
            The bytes.
        """
        writer = ByteWriter(MAGIC + bytes([VERSION, self.code]))
        self.write(writer)
        return writer.bytes()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a message of this kind from bytes.

        Args:
            data: What `encode` returned.

        Returns:
            The message.

        Raises:
            MalformedMessage: The bytes are anything else.
        """
        reader = ByteReader(data)
        start = reader.raw(len(MAGIC) + 2)
        if start[:-2] != MAGIC or start[-2] != VERSION or start[-1] != cls.code:
            raise MalformedMessage(f"not a {cls.__name__} of version {VERSION}")
        message = cls.read(reader)
        reader.end()
        return message


@dataclass(frozen=True)
class HelloRequest(SecAggMessage):
    """Asks a node for a fresh key for an epoch.

    Args:
        run: Id of the run.
        epoch: Number of the epoch in the run.
    """

    run: bytes
    epoch: int
    code: ClassVar[int] = 1

    def write(self, writer: ByteWriter) -> None:
        writer.blob(self.run).number(self.epoch, 8)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        return cls(reader.blob(LONGEST_RUN), reader.number(8))


@dataclass(frozen=True)
class HelloReply(SecAggMessage):
    """A node's key of the epoch, signed.

    Args:
        peer: The node, its key of the epoch, and the signature.
    """

    peer: RosterEntry
    code: ClassVar[int] = 2

    def write(self, writer: ByteWriter) -> None:
        self.peer.write(writer)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        return cls(RosterEntry.read(reader))


@dataclass(frozen=True)
class TrainRequest(SecAggMessage):
    """Asks for a masked update; the roster itself is there for a node's first round of an epoch."""

    settings: SecAggSettings
    cohort: tuple[int, ...]
    roster_digest: bytes
    roster: Roster | None = None
    code: ClassVar[int] = 3

    def write(self, writer: ByteWriter) -> None:
        self.settings.write(writer)
        writer.names(self.cohort).raw(self.roster_digest).number(int(self.roster is not None), 1)
        if self.roster is not None:
            writer.raw(self.roster.encoded)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        settings, cohort, digest = SecAggSettings.read(reader), reader.names(LEAST_COHORT), reader.raw(32)
        return cls(settings, cohort, digest, Roster.read(reader) if reader.number(1, most=1) else None)


@dataclass(frozen=True)
class TrainReply(SecAggMessage):
    """A masked vector, a commitment to the seed of its self-mask, and the seed's shares, sealed by rising id."""

    salt: bytes
    vector: bytes
    commitment: bytes
    shares: tuple[bytes, ...]
    code: ClassVar[int] = 4

    def write(self, writer: ByteWriter) -> None:
        writer.raw(self.salt).blob(self.vector).raw(self.commitment).pieces(self.shares)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        return cls(reader.raw(32), reader.blob(4 * MOST_COORDINATES), reader.raw(32), reader.pieces(SEALED_BYTES))


@dataclass(frozen=True)
class RepairRequest(SecAggMessage):
    """Names all who are missing so far; asks for the mask keys with them."""

    salt: bytes
    missing: tuple[int, ...]
    code: ClassVar[int] = 5

    def write(self, writer: ByteWriter) -> None:
        writer.raw(self.salt).names(self.missing)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        return cls(reader.raw(32), reader.names(1))


@dataclass(frozen=True)
class RepairReply(SecAggMessage):
    """The mask keys with the missing, by rising id."""

    salt: bytes
    keys: tuple[bytes, ...]
    code: ClassVar[int] = 6

    def write(self, writer: ByteWriter) -> None:
        writer.raw(self.salt).pieces(self.keys)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        return cls(reader.raw(32), reader.pieces(32))


@dataclass(frozen=True)
class UnmaskRequest(SecAggMessage):
    """Names the survivors and brings the shares that they sealed for this node, by rising id, its own left out."""

    salt: bytes
    survivors: tuple[int, ...]
    shares: tuple[bytes, ...]
    code: ClassVar[int] = 7

    def write(self, writer: ByteWriter) -> None:
        writer.raw(self.salt).names(self.survivors).pieces(self.shares)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        return cls(reader.raw(32), reader.names(1), reader.pieces(SEALED_BYTES))


@dataclass(frozen=True)
class UnmaskReply(SecAggMessage):
    """A node's shares of the survivors' seeds, by rising id; `NO_SHARE` where a peer's share did not open."""

    salt: bytes
    shares: tuple[bytes, ...]
    code: ClassVar[int] = 8

    def write(self, writer: ByteWriter) -> None:
        writer.raw(self.salt).pieces(self.shares)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        salt, shares = reader.raw(32), reader.pieces(SHARE_BYTES)
        if any(int.from_bytes(share, "little") >= PRIME for share in shares):
            raise MalformedMessage("a share must be a number below the prime")
        return cls(salt, shares)


@dataclass(frozen=True)
class RefusalReply(SecAggMessage):
    """A node's refusal: its kind and nothing else.

    Args:
        kind: Why, as in `SecAggRefused`.
    """

    kind: RefusalKind
    code: ClassVar[int] = 9

    def write(self, writer: ByteWriter) -> None:
        writer.number(KINDS.index(self.kind), 1)

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        return cls(KINDS[reader.number(1, most=len(KINDS) - 1)])
