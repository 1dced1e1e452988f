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
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cepam.errors import CepamError
from cepam.keys import Address, Key, KeyChain, hkdf

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
