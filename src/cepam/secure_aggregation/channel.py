"""Pairwise keys and masks, and secure aggregation as a channel to certify or attack."""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cepam.distributions.laws import Gaussian
from cepam.keys import Address, hkdf
from cepam.lattices.lattice import Integer, Lattice
from cepam.secure_aggregation.mechanism import WORD_BITS, MaskedSumCodec
from cepam.secure_aggregation.roster import Roster, SecAggRefused
from cepam.secure_aggregation.settings import fit

_BYTES = WORD_BITS // 8


@dataclass(frozen=True)
class SecAggChannel:
    """Masked vectors of `clients` who have an equal part of the update each, with noise of the law `share` each.

    All 32 bits of a word are sent, so that the error of the opened sum is the clients' noise and no rounding.
    Guarantee: `cepam.verify.certificate.verify` passes it, and fails it where one client adds no noise
    (tests/secure_aggregation/test_sum_noise.py).
    """

    share: Gaussian
    clients: int = 4

    def __post_init__(self) -> None:
        if type(self.share) is not Gaussian:
            raise ValueError(f"law must be cepam.Gaussian: sums of other noise are not accounted for; {self.share!r}")
        if type(self.clients) is not int or not 2 <= self.clients <= 1000:
            raise ValueError(f"clients must be an integer from 2 to 1000, got {self.clients!r}")

    @property
    def law(self) -> Gaussian:
        """The noise of the sum."""
        return Gaussian(self.share.sigma * math.sqrt(self.clients))

    @property
    def on(self) -> Lattice:
        """Sums are coded on the integers."""
        return Integer(1)

    @property
    def grid(self) -> float:
        """The public grid of each client's noise, and so of the sum."""
        return self._code(1).grid

    @property
    def bound(self) -> float:
        """Updates within this come through unwrapped, noise and all."""
        return self._code(1).span / 4.0

    def encode(self, update: npt.NDArray[Any], at: Address) -> bytes:
        """All clients' vectors, one after the other."""
        part = np.asarray(update, dtype=np.float64) / self.clients
        code = self._code(len(part))
        return b"".join(
            code.mask(self._noised(code, part, client, self._secret(at, client)), [(self._secret(at, client), 1)])
            for client in range(self.clients)
        )

    def decode(self, message: bytes, at: Address) -> npt.NDArray[Any]:
        """The opened sum."""
        size = len(message) // (_BYTES * self.clients)
        parts = [message[_BYTES * size * k : _BYTES * size * (k + 1)] for k in range(self.clients)]
        total: npt.NDArray[Any] = self._code(size).open(
            parts, [(self._secret(at, client), 1) for client in range(self.clients)]
        )
        return total

    def _noised(self, code: MaskedSumCodec, part: npt.NDArray[Any], client: int, secret: bytes) -> Any:
        return code.noised(part, hkdf(secret, b"", b"noise", 32))

    def _code(self, size: int) -> MaskedSumCodec:
        return MaskedSumCodec(self.share, size, WORD_BITS, 1)

    def _secret(self, at: Address, client: int) -> bytes:
        return hkdf(at.derive().noise, b"", b"%d" % client, 32)


@dataclass(frozen=True)
class OpenedSum:
    """A mechanism for the audit: one client's updates in a sum of `clients` masked vectors, the others' zero.

    Bits are few, as in a round: what dropping the others costs is in what comes back. The audited client is 0; the
    noise of the rest is in its sum already. Guarantee: the account of a server's view is not beaten, and is where
    shares are missing (tests/secure_aggregation/test_audit.py).
    """

    share: Gaussian
    clients: int

    def __call__(self, updates: npt.NDArray[np.float64], client: int, round: int) -> npt.NDArray[np.float64]:
        """The opened sums that these updates are in, each coordinate a trial."""
        if client:
            return np.zeros(len(updates))
        code = fit(self.share, self.clients, len(updates), float(np.abs(updates).max(initial=0.0)))
        keys = [(secrets.token_bytes(32), 1) for _ in range(self.clients)]
        vectors = [
            code.mask(code.noised(np.zeros(len(updates)) if k else updates, secrets.token_bytes(32)), [key])
            for k, key in enumerate(keys)
        ]
        opened: npt.NDArray[np.float64] = code.open(vectors, keys)
        return opened


# Keys of a pair of clients, and Shamir's secret sharing of 32 bytes.
#
# A polynomial of degree threshold - 1 over the integers modulo the prime 2^256 + 297, the secret its value at zero.
# The share of place i is its value at i + 1. Guarantee: tests/secure_aggregation/test_shamir.py checks it against
# Lagrange interpolation in fractions, and that every value of the secret fits fewer shares.


PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_SEED_BYTES = 48


def split(secret: bytes, threshold: int, places: int, draw: Callable[[int], bytes]) -> list[bytes]:
    """One share for each of places 0 to places - 1; `draw` gives fresh random bytes."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret must be {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= places:
        raise ValueError(f"threshold must be from 1 to the {places} places, got {threshold!r}")
    # 384 bits modulo a prime of 257 bits are uniform to 2^-127.
    material = draw(_SEED_BYTES * (threshold - 1))
    random = [
        int.from_bytes(material[at : at + _SEED_BYTES], "little") % PRIME for at in range(0, len(material), _SEED_BYTES)
    ]
    shares = []
    for x in range(1, places + 1):
        value = 0
        for coefficient in reversed(random):
            value = (value + coefficient) * x % PRIME
        shares.append(((value + int.from_bytes(secret, "little")) % PRIME).to_bytes(SHARE_BYTES, "little"))
    return shares


def combine(places: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """The secret, from exactly as many shares as the threshold; a ValueError if they do not give 32 bytes."""
    if len(places) != len(shares) or not places:
        raise ValueError(f"one share for each place is needed, got {len(shares)} for {len(places)}")
    total = sum(w * share_value(share) for w, share in zip(_weights(tuple(places)), shares)) % PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise ValueError("these shares do not give a secret of 32 bytes")
    return total.to_bytes(SECRET_BYTES, "little")


def share_value(share: bytes) -> int:
    """The number that a share stands for; a ValueError where there is none."""
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise ValueError(f"a share is a number below the prime in {SHARE_BYTES} bytes")
    return value


@lru_cache(maxsize=4096)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at zero: the same for every secret that these places hold."""
    if len(set(places)) != len(places) or min(places) < 0:
        raise ValueError(f"places must be different and not negative, got {places!r}")
    points = [place + 1 for place in places]
    weights = []
    for x in points:
        above = prod(y for y in points if y != x) % PRIME
        below = prod((y - x) % PRIME for y in points if y != x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


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
        raise SecAggRefused("cohort", f"the public key of node {peer} is a weak point") from weak
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
        raise SecAggRefused("share", "a share was not sealed by this peer for this node and round") from broken


def self_mask(seed: bytes, salt: bytes) -> bytes:
    """The key of a node's own mask."""
    return hkdf(seed, salt, b"cepam sum self mask v1", 32)


def commit(seed: bytes, salt: bytes) -> bytes:
    """32 bytes that fix the seed of a self-mask and tell nothing about it."""
    return hashlib.sha256(b"cepam sum commitment v1" + salt + seed).digest()
