"""The two messages beside a sealed update: what the server asks of a client, and what the client answers.

Both are plain fields (text, bytes, counts); a framework carries them as it carries its own records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cepam.protocol.agreement import sign, verify
from cepam.protocol.settings import UplinkSettings

RECORD = "cepam"
WIRE = 1
Field = int | str | bytes
Fields = Mapping[str, object]


@dataclass(frozen=True)
class Offer:
    """What the server asks: settings, the round, a position on the key chain, and a public key to agree anew.

    `chain` names the chain that the server holds for this node (empty: none); `identity` is the public key that
    the node is registered with; `signature` is the server's, over all the rest (empty: none). Where messages are a
    stream, `stream` names the one that the server holds, and `place` is the position after the last that came.
    """

    settings: UplinkSettings
    run: int
    node: int
    server_round: int
    position: int
    chain: bytes
    public: bytes
    identity: bytes
    signature: bytes = b""
    stream: bytes = b""
    place: int = 0

    def signed(self, key_file: bytes) -> Offer:
        """The offer with the server's signature."""
        return replace(self, signature=sign(key_file, self._statement()))

    def is_signed_by(self, server: bytes) -> bool:
        """Whether the holder of this public key made the offer."""
        return verify(server, self._statement(), self.signature)

    def _statement(self) -> bytes:
        digest = hashlib.sha256(b"cepam flower offer v1")
        for name, value in sorted(replace(self, signature=b"").to_fields().items()):
            text = value if isinstance(value, bytes) else str(value).encode()
            digest.update(f"{name} {len(text)} ".encode() + text)
        return digest.digest()

    def to_fields(self) -> dict[str, Field]:
        """The offer as fields; the two ids as text, since they may not fit a signed integer."""
        return {
            "wire": WIRE,
            "settings": self.settings.to_json(),
            "run": str(self.run),
            "node": str(self.node),
            "round": self.server_round,
            "position": self.position,
            "chain": self.chain,
            "public": self.public,
            "identity": self.identity,
            "signature": self.signature,
            **({} if self.settings.correlated_noise is None else {"stream": self.stream, "place": self.place}),
        }

    @classmethod
    def from_fields(cls, record: Fields) -> Offer:
        """The offer in these fields; ValueError if it is not one."""
        if _integer(record, "wire") != WIRE:
            raise ValueError(f"the server speaks version {record['wire']} of this exchange, this end {WIRE}")
        settings = UplinkSettings.from_json(_text(record, "settings"))
        return cls(
            settings=settings,
            run=int(_text(record, "run")),
            node=int(_text(record, "node")),
            server_round=_integer(record, "round"),
            position=_integer(record, "position"),
            chain=_bytes(record, "chain"),
            public=_bytes(record, "public"),
            identity=_bytes(record, "identity"),
            signature=_bytes(record, "signature"),
            stream=b"" if settings.correlated_noise is None else _bytes(record, "stream"),
            place=0 if settings.correlated_noise is None else _integer(record, "place"),
        )


@dataclass(frozen=True)
class Answer:
    """What the client answers: where its message stands, and its public key if it agreed anew (else empty).

    `stream` and `place` are the stream that it belongs to, if to one, and its position there.
    """

    position: int
    attempt: int
    public: bytes = b""
    signature: bytes = b""
    stream: bytes = b""
    place: int = 0

    def to_fields(self) -> dict[str, Field]:
        """The answer as fields."""
        return {
            "wire": WIRE,
            "position": self.position,
            "attempt": self.attempt,
            "public": self.public,
            "signature": self.signature,
            **({"stream": self.stream, "place": self.place} if self.stream else {}),
        }

    @classmethod
    def from_fields(cls, record: Fields) -> Answer:
        """The answer in these fields; ValueError if it is not one."""
        if _integer(record, "wire") != WIRE:
            raise ValueError(f"the client speaks version {record['wire']} of this exchange, this end {WIRE}")
        return cls(
            position=_integer(record, "position"),
            attempt=_integer(record, "attempt"),
            public=_bytes(record, "public"),
            signature=_bytes(record, "signature"),
            stream=_bytes(record, "stream") if "stream" in record else b"",
            place=_integer(record, "place") if "place" in record else 0,
        )


def _integer(record: Fields, key: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key!r} is missing or not a count")
    return value


def _bytes(record: Fields, key: str) -> bytes:
    value = record.get(key)
    if not isinstance(value, bytes):
        raise ValueError(f"{key!r} is missing or not bytes")
    return value


def _text(record: Fields, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is missing or not text")
    return value
