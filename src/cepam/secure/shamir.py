"""Shamir's secret sharing of 32 bytes: any `threshold` shares give the secret, fewer tell nothing.

A polynomial of degree threshold - 1 over the integers modulo the prime 2^256 + 297, the secret its value at zero. The
share of place i is its value at i + 1. Guarantee: tests/secure/test_shamir.py checks it against Lagrange interpolation
in fractions, and that every value of the secret fits fewer shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

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
