"""The keys of a pair of nodes: a root agreed once, a chain that forgets, and a round's keys under labels of their own.

Only mask keys are ever revealed. A chain cannot be computed from them, nor a sealing key, nor another round's keys.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cepam.keys import hkdf
from cepam.secure.refusal import SumRefused
from cepam.secure.roster import Roster
from cepam.secure.shamir import SHARE_BYTES

SEALED_BYTES = SHARE_BYTES + 16
_NONCE = bytes(12)


def _pair(a: int, b: int) -> bytes:
    return struct.pack("<QQ", min(a, b), max(a, b))


def agree_root(private: bytes, roster: Roster, node: int, peer: int) -> bytes:
    """The secret that this node and a peer share, and nobody else; bound to the whole roster."""
    try:
        public = X25519PublicKey.from_public_bytes(roster.peer(peer).public)
        shared = X25519PrivateKey.from_private_bytes(private).exchange(public)
    except ValueError as weak:
        raise SumRefused("cohort", f"the public key of node {peer} is a weak point") from weak
    return hkdf(shared, roster.digest, b"cepam sum root v1" + _pair(node, peer), 32)


def advance(chain: bytes) -> bytes:
    """The chain's next key, from which this one cannot be computed."""
    return hkdf(chain, b"", b"cepam sum ratchet v1", 32)


@dataclass(frozen=True)
class PairKeys:
    """A round's keys of a pair: one for the mask, one to seal shares in each direction."""

    mask: bytes = field(repr=False)
    outward: bytes = field(repr=False)
    inward: bytes = field(repr=False)


def round_keys(chain: bytes, salt: bytes, node: int, peer: int) -> PairKeys:
    """The keys of this node with a peer, in the round that the salt names."""
    mask = hkdf(chain, salt, b"cepam sum mask v1" + _pair(node, peer), 32)
    seals = hkdf(chain, salt, b"cepam sum seals v1" + _pair(node, peer), 64)
    upward, downward = seals[:32], seals[32:]
    return PairKeys(mask, upward, downward) if node < peer else PairKeys(mask, downward, upward)


def seal_share(key: bytes, salt: bytes, share: bytes) -> bytes:
    """A share that only the peer of this key opens; a key seals one share."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, share, salt)


def open_share(key: bytes, salt: bytes, sealed: bytes) -> bytes:
    """The share that a peer sealed for this node in this round."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, salt)
    except InvalidTag as broken:
        raise SumRefused("share", "a share was not sealed by this peer for this node and round") from broken


def self_mask(seed: bytes, salt: bytes) -> bytes:
    """The key of a node's own mask."""
    return hkdf(seed, salt, b"cepam sum self mask v1", 32)


def commit(seed: bytes, salt: bytes) -> bytes:
    """32 bytes that fix the seed of a self-mask and tell nothing about it."""
    return hashlib.sha256(b"cepam sum commitment v1" + salt + seed).digest()
