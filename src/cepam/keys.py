"""The shared randomness: keys, addresses, and the keystream that an address names.

An address is a place, not a state: (key, run, attempt, round, client) gives two fresh keys by HKDF-SHA256 (RFC 5869),
one for the dithers and latents, one for the seal; inside, every word of the ChaCha keystream is found by its
sub-vector and trial. Nothing is consumed, nothing depends on the order of calls.

HKDF is written on the standard library's HMAC so that machines without `cryptography` can derive the same keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import warnings
from dataclasses import dataclass, field

from cepam.errors import WrongAddress

KEY_BYTES = 32
_LARGEST_COUNT = 2**64 - 1
_LARGEST_ATTEMPT = 2**32 - 1


def hkdf(key: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """`length` bytes of key material (RFC 5869 with SHA-256)."""
    extracted = hmac.digest(salt or bytes(32), key, "sha256")
    block, material = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        material += block
    return material[:length]


@dataclass(frozen=True)
class Key:
    """32 secret bytes that one client and the server share, and nobody else.

    Whoever holds the key and the traffic can strip the noise: never share one key between clients, and erase old ones
    (`KeyChain`).
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes | bytearray | memoryview):
            raise ValueError(f"a key must be {KEY_BYTES} bytes, got {type(self.secret).__name__}")
        secret = bytes(self.secret)
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a key must be exactly {KEY_BYTES} bytes, got {len(secret)}")
        object.__setattr__(self, "secret", secret)

    @classmethod
    def generate(cls) -> Key:
        """A fresh key from the operating system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int | bytes, client: int = 0) -> Key:
        """`simulated`, with a warning: for scripts in which a key from a seed may have been meant for use."""
        warnings.warn("a key made from a seed protects nobody: simulation only", SimulationOnly, stacklevel=2)
        return cls.simulated(seed, client)

    @classmethod
    def simulated(cls, seed: int | bytes, client: int = 0) -> Key:
        """A key computed from a seed: FOR SIMULATION ONLY, since whoever guesses the seed can strip the noise.

        The one door for keys that are no secret. Whoever calls it must say "simulated" beside every figure it shows.
        """
        material = seed if isinstance(seed, bytes) else str(int(seed)).encode()
        return cls(hkdf(material, b"cepam simulation", struct.pack("<Q", client), KEY_BYTES))


class SimulationOnly(UserWarning):
    """Something was used that is meant for simulations and gives no protection."""


@dataclass(frozen=True)
class Address:
    """Where in the shared randomness one message lives. Use each address ONCE.

    Two messages at one address would share their noise: their difference would reveal the difference of the updates.
    `run` separates training runs that share keys, `attempt` a second try within a round.
    """

    key: Key = field(repr=False)
    round: int
    client: int
    run: bytes = b""
    attempt: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.key, Key):
            object.__setattr__(self, "key", Key(self.key))
        for name, limit in (("round", _LARGEST_COUNT), ("client", _LARGEST_COUNT), ("attempt", _LARGEST_ATTEMPT)):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) <= limit:
                raise ValueError(f"{name} must be an integer from 0 to {limit}, got {value!r}")
            object.__setattr__(self, name, int(value))
        if isinstance(self.run, str):
            object.__setattr__(self, "run", self.run.encode())
        if not isinstance(self.run, bytes):
            raise ValueError(f"run must be bytes or text, got {type(self.run).__name__}")

    def derive(self) -> StreamKeys:
        """The two keys of this address."""
        info = b"cepam address v1" + struct.pack("<QQI", self.round, self.client, self.attempt)
        salt = hashlib.sha256(b"cepam run" + self.run).digest()
        material = hkdf(self.key.secret, salt, info, 2 * KEY_BYTES)
        return StreamKeys(noise=material[:KEY_BYTES], seal=material[KEY_BYTES:])


@dataclass(frozen=True)
class StreamKeys:
    """What an address derives to: the keystream's key and the seal's key."""

    noise: bytes = field(repr=False)
    seal: bytes = field(repr=False)


class KeyChain:
    """A key that moves forward a round at a time and forgets where it was (forward secrecy).

    Both ends start from the same key and call `advance` after each round. The key of round r cannot be computed from
    that of round r + 1. Erasing overwrites the buffer held here; copies that Python made are beyond our reach.
    """

    def __init__(self, key: Key | bytes, round: int = 0) -> None:
        start = key if isinstance(key, Key) else Key(key)
        self._secret = bytearray(start.secret)
        if isinstance(round, bool) or not isinstance(round, int) or round < 0:
            raise ValueError(f"round must be a non-negative integer, got {round!r}")
        self._round = round

    @property
    def round(self) -> int:
        """The round that the chain stands at."""
        return self._round

    def address(self, client: int, run: bytes = b"", attempt: int = 0) -> Address:
        """The address of this round's message."""
        self._check_alive()
        return Address(Key(bytes(self._secret)), round=self._round, client=client, run=run, attempt=attempt)

    def advance(self) -> None:
        """Nothing; the chain now stands at the next round and the old key is overwritten."""
        self._check_alive()
        self._secret[:] = hkdf(bytes(self._secret), b"", b"cepam ratchet v1", KEY_BYTES)
        self._round += 1

    def _check_alive(self) -> None:
        if not any(self._secret):
            raise WrongAddress("this key chain was erased")

    def erase(self) -> None:
        """Nothing; the key is overwritten for good."""
        self._secret[:] = bytes(KEY_BYTES)


class UsedAddresses:
    """The set of addresses that this end has used: what makes a replayed or repeated message visible.

    Decoding is stateless and cannot see a replay by itself: hand one of these to every `encode` (client) and `decode`
    (server). It holds 16 bytes an address and can be saved and restored with `bytes(used)` and `UsedAddresses(data)`.
    """

    def __init__(self, data: bytes = b"") -> None:
        if len(data) % 16:
            raise ValueError(f"saved addresses come in 16 bytes each, got {len(data)} bytes")
        self._seen = {data[i : i + 16] for i in range(0, len(data), 16)}

    def claim(self, at: Address) -> None:
        """Nothing; raises `WrongAddress` if the address was claimed before."""
        mark = hashlib.sha256(b"cepam used" + at.derive().noise).digest()[:16]
        if mark in self._seen:
            raise WrongAddress(f"round {at.round}, client {at.client}, attempt {at.attempt} was used before")
        self._seen.add(mark)

    def __contains__(self, at: Address) -> bool:
        return hashlib.sha256(b"cepam used" + at.derive().noise).digest()[:16] in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def __bytes__(self) -> bytes:
        return b"".join(sorted(self._seen))
