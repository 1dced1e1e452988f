"""Key agreement inside training messages: X25519, HKDF, and a chain that moves forward with every message.

The server's training message carries a fresh public key. A client without a chain (a first round, a restarted
SuperNode) answers with a fresh public key of its own beside its sealed update, so agreeing costs no extra message and
a restart costs no round. Both ends then keep a `KeyChain`: each message stands at its own position, and a position's
key is erased once it is used, so no address can be used twice and old traffic stays closed.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cepam.errors import CepamError, one_line
from cepam.keys import Address, Key, KeyChain, hkdf
from cepam.protocol.correlated_noise import ClientCorrelatedNoise
from cepam.protocol.settings import UplinkSettings

Vector = npt.NDArray[np.float32]

PUBLIC_BYTES = 32
NAME_BYTES = 8
FURTHEST_AHEAD = 1 << 16


class AgreementRefused(CepamError):
    """The two ends could not agree on a key; the message says why."""


@dataclass(frozen=True)
class Peer:
    """Who agrees with whom: the run, the node, and the node's registered public key (empty where unknown)."""

    run: int
    node: int
    identity: bytes = b""

    def transcript(self, server_public: bytes, client_public: bytes) -> bytes:
        """What both ends must have seen alike: it salts the key, and a node may sign it."""
        digest = hashlib.sha256(b"cepam flower agreement v1")
        digest.update(struct.pack("<QQQ", self.run, self.node, len(self.identity)))
        digest.update(self.identity + server_public + client_public)
        return digest.digest()

    def run_bytes(self, server_round: int) -> bytes:
        """The run and round as an address carries them."""
        return b"flower" + struct.pack("<QQ", self.run, server_round)


def new_pair() -> tuple[X25519PrivateKey, bytes]:
    """A fresh private key and its 32 public bytes."""
    private = X25519PrivateKey.generate()
    return private, private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, peer: bytes, transcript: bytes) -> Key:
    """The key that both ends derive from their private key, the other's public key and the transcript."""
    if len(peer) != PUBLIC_BYTES:
        raise AgreementRefused(f"a public key has {PUBLIC_BYTES} bytes, got {len(peer)}")
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as weak:
        raise AgreementRefused("the other end's public key is a weak point") from weak
    return Key(hkdf(shared, transcript, b"cepam flower chain v1", 32))


@dataclass
class Chain:
    """A key chain with a name that tells nothing about its key; `position` is the next one that is free."""

    name: bytes
    keys: KeyChain = field(repr=False)

    @classmethod
    def start(cls, root: Key, position: int) -> Chain:
        """A new chain whose first message stands at `position`."""
        return cls(hkdf(root.secret, b"", b"cepam flower chain name v1", NAME_BYTES), KeyChain(root, position))

    @property
    def position(self) -> int:
        """The position of the next message."""
        return self.keys.round

    @property
    def secret(self) -> bytes:
        """The key at `position`, to be stored; earlier ones cannot be computed from it."""
        return self.keys.address(0).key.secret

    def take(self, position: int, node: int, run: bytes, attempt: int) -> Address:
        """The address at `position`; the chain then stands beyond it, for good."""
        ahead = position - self.position
        if ahead < 0:
            raise AgreementRefused(f"position {position} of the key chain was used before")
        if ahead > FURTHEST_AHEAD:
            raise AgreementRefused(f"position {position} is too far ahead of {self.position}")
        for _ in range(ahead):
            self.keys.advance()
        at = self.keys.address(node, run, attempt)
        self.keys.advance()
        return at


def new_attempt() -> int:
    """32 random bits: even a client whose stored chain was rolled back does not use an address twice."""
    return secrets.randbits(32)


def sign(key_file: bytes, transcript: bytes) -> bytes:
    """The transcript signed with a private key file (OpenSSH or PEM, elliptic curve), as SuperNodes have."""
    return _private_key(key_file).sign(transcript, ec.ECDSA(hashes.SHA256()))


def public_of(key_file: bytes) -> bytes:
    """The public key of a private key file, as `canonical` writes it."""
    return _written(_private_key(key_file).public_key())


def canonical(identity: bytes) -> bytes:
    """A public key (PEM or OpenSSH) as OpenSSH writes it, without a comment: equal keys are equal bytes."""
    return _written(_public_key(identity))


def _private_key(key_file: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_ssh_private_key(key_file, None)
    except ValueError:
        key = serialization.load_pem_private_key(key_file, None)  # type: ignore[assignment]
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key that signs must be an elliptic-curve key")
    return key


def _public_key(identity: bytes) -> ec.EllipticCurvePublicKey:
    """The key that these bytes are; a ValueError for all others, whatever their parser raises."""
    openssh = identity.startswith(b"ecdsa-")
    try:
        key = serialization.load_ssh_public_key(identity) if openssh else serialization.load_pem_public_key(identity)
    except Exception as unreadable:  # NotImplementedError for another encoding of a point, among others
        raise ValueError("an identity must be an elliptic-curve public key, PEM or OpenSSH") from unreadable
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("an identity must be an elliptic-curve key")
    return key


def _written(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def verify(identity: bytes, transcript: bytes, signature: bytes) -> bool:
    """Whether the holder of this public key (PEM or OpenSSH) signed the transcript."""
    try:
        _public_key(identity).verify(signature, transcript, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


# The two messages beside a sealed update: what the server asks of a client, and what the client answers.
#
# Both are plain fields (text, bytes, counts); a framework carries them as it carries its own records.


RECORD = "cepam"
WIRE = 1
Field = int | str | bytes
Fields = Mapping[str, object]


@dataclass(frozen=True)
class Offer:
    """What the server asks: settings, the round, a position on the key chain, and a public key to agree anew.

    `chain` names the chain that the server holds for this node (empty: none); `identity` is the public key that
    the node is registered with; `signature` is the server's, over all the rest (empty: none). With correlated noise
    `noise_id` names the noise that the server can cancel, and `place` is the position after the last that came.
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
    noise_id: bytes = b""
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
            **({} if self.settings.correlated_noise is None else {"stream": self.noise_id, "place": self.place}),
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
            noise_id=b"" if settings.correlated_noise is None else _bytes(record, "stream"),
            place=0 if settings.correlated_noise is None else _integer(record, "place"),
        )


@dataclass(frozen=True)
class Answer:
    """What the client answers: where its message stands, and its public key if it agreed anew (else empty).

    With correlated noise `noise_id` names the client's noise, and `place` is the message's position in it.
    """

    position: int
    attempt: int
    public: bytes = b""
    signature: bytes = b""
    noise_id: bytes = b""
    place: int = 0

    def to_fields(self) -> dict[str, Field]:
        """The answer as fields."""
        return {
            "wire": WIRE,
            "position": self.position,
            "attempt": self.attempt,
            "public": self.public,
            "signature": self.signature,
            **({"stream": self.noise_id, "place": self.place} if self.noise_id else {}),
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
            noise_id=_bytes(record, "stream") if "stream" in record else b"",
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


Code = Literal[
    "no-offer", "offer", "elsewhere", "unsigned", "agreement", "arrays", "version", "training", "key-file", "policy",
    "order", "secure-aggregation-only", "legacy-app",
]  # fmt: skip


class Declined(CepamError):
    """No update leaves this client. `code` may be told to the server, the text stays here.

    The codes are fixed: a text could depend on data, and then tell about it. The text may quote what a server sent, so
    it is one line of printable characters, of bounded length.
    """

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(one_line(reason))
        self.code = code


@dataclass(frozen=True)
class Sealed:
    """What leaves: the sealed message and the answer beside it; `chain` is kept for the next one.

    `replaced` says that the update was not finite and left as zero with its noise.
    """

    message: bytes
    answer: Answer
    chain: Chain = field(repr=False)
    replaced: bool = False


def check_offer(offer: Offer, run: int, node: int, server: bytes | None) -> None:
    """Raise `Declined` for an offer to another client, or one that the known server did not sign."""
    if offer.run != run or offer.node != node:
        raise Declined("elsewhere", "the server's offer is for another run or node")
    if server is not None and not offer.is_signed_by(server):
        raise Declined("unsigned", "the server's offer is not signed by the key that this node knows")


def seal_update(
    update: Vector,
    offer: Offer,
    kept: Chain | None,
    key_file: bytes | None = None,
    correlated_noise: ClientCorrelatedNoise | None = None,
) -> Sealed:
    """The update clipped, with its noise, sealed; a new key is agreed on where the kept chain is not the server's.

    Where the offer asks for correlated noise, what `correlated_noise` makes of the clipped update is sent, and it moves
    on by one.

    An update that is not finite leaves as zero with its noise: a client that falls silent would tell that it was.
    Guarantee: nothing about it can be seen (tests/protocol/test_ends.py); an address is used once.
    """
    sent: Any = offer.settings.clipped(update)
    peer, attempt = Peer(offer.run, offer.node, offer.identity), new_attempt()
    public = signature = b""
    try:
        chain = kept if kept is not None and kept.name == offer.chain else None
        if chain is None:
            private, public = new_pair()
            transcript = peer.transcript(offer.public, public)
            chain = Chain.start(agree(private, offer.public, transcript), offer.position)
            signature = _signature(key_file, transcript) if key_file is not None else b""
        at = chain.take(offer.position, offer.node, peer.run_bytes(offer.server_round), attempt)
    except AgreementRefused as refused:
        raise Declined("agreement", str(refused)) from refused
    answer = Answer(offer.position, attempt, public, signature)
    if offer.settings.correlated_noise is not None:
        if correlated_noise is None:
            raise Declined("policy", "the offer asks for correlated noise, and this end keeps none")
        answer = replace(answer, noise_id=correlated_noise.name, place=correlated_noise.sender.position)
        sent = correlated_noise.sender.next(sent)
    message = offer.settings.codec.sized(len(sent)).encode(sent, at)
    return Sealed(message, answer, chain, replaced=not np.isfinite(update).all())


def _signature(key_file: bytes, transcript: bytes) -> bytes:
    try:
        return sign(key_file, transcript)
    except ValueError as unfit:
        raise Declined("key-file", str(unfit)) from unfit
