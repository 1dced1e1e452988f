"""A stand-in for the seal on machines without `cryptography`: FOR BENCHMARKS, it hides nothing.

The package has one seal and no switch to turn it off. A benchmark that must run where `cryptography` cannot be had puts
this in its place in its own process: the payload in the clear with a keyed hash of 16 bytes behind it, so that messages
keep their length and damaged ones are still refused. Nothing in `src/` knows of it.
"""

from __future__ import annotations

import hashlib
import hmac
from importlib.util import find_spec
from typing import Any

from cepam.codec import wire
from cepam.errors import SealBroken


class StandIn:
    """The two calls of a cipher that the seal needs."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, nonce: bytes, payload: Any, context: bytes) -> bytes:
        """The payload in the clear, and its keyed hash."""
        return bytes(payload) + self._hash(nonce, payload, context)

    def decrypt(self, nonce: bytes, sealed: Any, context: bytes) -> bytes:
        """The payload, if its hash matches."""
        payload, mark = bytes(sealed)[: -wire.SEAL_BYTES], bytes(sealed)[-wire.SEAL_BYTES :]
        if not hmac.compare_digest(mark, self._hash(nonce, payload, context)):
            raise SealBroken("the stand-in for the seal does not match")
        return payload

    def _hash(self, nonce: bytes, payload: Any, context: bytes) -> bytes:
        whole = nonce + context + bytes(payload)
        return hashlib.blake2b(whole, digest_size=wire.SEAL_BYTES, key=self._key).digest()


def put_in_place_if_needed() -> str:
    """What seals messages from here on: the real seal where it is installed, else the stand-in."""
    if find_spec("cryptography") is not None:
        return "AES-256-GCM-SIV"
    wire.cipher_of = StandIn
    wire.opened = lambda work: work()
    return "STAND-IN (no cryptography here): clear payload with a keyed hash, same length, no secrecy"
