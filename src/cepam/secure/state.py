"""What a node keeps between messages: secrets, to be kept in memory by whoever drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cepam.secure.fields import ByteReader, ByteWriter
from cepam.secure.roster import LONGEST_RUN
from cepam.secure.shamir import SHARE_BYTES

MAGIC = b"cepam sum state v1"


@dataclass(frozen=True)
class OpenRound:
    """A round that was answered and not yet closed: what repair and unmask may still reveal."""

    salt: bytes
    threshold: int
    circle: tuple[int, ...]
    masks: Mapping[int, bytes] = field(repr=False)
    seals: Mapping[int, bytes] = field(repr=False)
    share: bytes = field(repr=False)
    repaired: frozenset[int] = frozenset()

    def write(self, writer: ByteWriter) -> None:
        """Nothing; the fields are appended."""
        writer.raw(self.salt).number(self.threshold, 4).names(self.circle).raw(self.share).names(self.repaired)
        for keys in (self.masks, self.seals):
            _write_keys(writer, keys)

    @classmethod
    def read(cls, reader: ByteReader) -> OpenRound:
        """The round whose fields come next."""
        salt, threshold, circle = reader.raw(32), reader.number(4), reader.names()
        share, repaired = reader.raw(SHARE_BYTES), frozenset(reader.names())
        return cls(salt, threshold, circle, _read_keys(reader), _read_keys(reader), share, repaired)


@dataclass(frozen=True)
class NodeState:
    """An epoch as a node sees it: its private key until the first round, then chains, one for each peer of its circle.

    `roster` is the digest of the one roster that the epoch has, empty before the first round. `answered` counts the
    rounds that the journal held when this was written: a journal with fewer was rolled back.
    """

    run: bytes
    epoch: int
    public: bytes
    private: bytes = field(default=b"", repr=False)
    roster: bytes = b""
    degree: int = 0
    position: int = 0
    chains: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    open: OpenRound | None = None
    answered: int = 0

    def encode(self) -> bytes:
        """The state as bytes: SECRET."""
        writer = ByteWriter(MAGIC).blob(self.run).number(self.epoch, 8).raw(self.public).blob(self.private)
        writer.blob(self.roster).number(self.degree, 4).number(self.position, 8)
        _write_keys(writer, self.chains)
        writer.number(self.answered, 8).number(int(self.open is not None), 1)
        if self.open is not None:
            self.open.write(writer)
        return writer.bytes()

    @classmethod
    def decode(cls, data: bytes) -> NodeState:
        """The state that these bytes are."""
        reader = ByteReader(data)
        if reader.raw(len(MAGIC)) != MAGIC:
            raise ValueError("this is not the state of a node")
        run, epoch, public, private = reader.blob(LONGEST_RUN), reader.number(8), reader.raw(32), reader.blob(32)
        roster, degree, position, chains = reader.blob(32), reader.number(4), reader.number(8), _read_keys(reader)
        answered = reader.number(8)
        opened = OpenRound.read(reader) if reader.number(1, most=1) else None
        reader.end()
        return cls(run, epoch, public, private, roster, degree, position, chains, opened, answered)


def _write_keys(writer: ByteWriter, keys: Mapping[int, bytes]) -> None:
    writer.names(keys).pieces(keys[name] for name in sorted(keys))


def _read_keys(reader: ByteReader) -> dict[int, bytes]:
    return dict(zip(reader.names(), reader.pieces(32)))
