"""A stand-in for the seal on machines without `cryptography`: FOR BENCHMARKS, it hides nothing.

The package has one seal and no switch to turn it off. A benchmark that must run where `cryptography` cannot be had puts
this in its place in its own process: the payload in the clear with a keyed hash of 16 bytes behind it, so that messages
keep their length and damaged ones are still refused. Nothing in `src/` knows of it.
"""

from __future__ import annotations

import hashlib
import hmac
from importlib.util import find_spec

from cepam.codec import wire
from cepam.errors import SealBroken
from cepam.keys import StreamKeys


def _hash(keys: StreamKeys, payload: bytes, context: bytes) -> bytes:
    return hashlib.blake2b(context + payload, digest_size=wire.SEAL_BYTES, key=keys.seal).digest()


def _append(keys: StreamKeys, payload: bytes, context: bytes) -> bytes:
    return payload + _hash(keys, payload, context)


def _remove(keys: StreamKeys, sealed: bytes, context: bytes) -> bytes:
    payload, mark = sealed[: -wire.SEAL_BYTES], sealed[-wire.SEAL_BYTES :]
    if not hmac.compare_digest(mark, _hash(keys, payload, context)):
        raise SealBroken("the stand-in for the seal does not match")
    return payload


def put_in_place_if_needed() -> str:
    """What seals messages from here on: the real seal where it is installed, else the stand-in."""
    if find_spec("cryptography") is not None:
        return "AES-256-GCM-SIV"
    wire._encrypt, wire._decrypt = _append, _remove
    return "STAND-IN (no cryptography here): clear payload with a keyed hash, same length, no secrecy"
