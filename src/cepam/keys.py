"""The shared randomness: keys, addresses, and the keystream that an address names.

An address is a place, not a state: (key, run, attempt, round, client) gives two fresh keys by HKDF-SHA256 (RFC 5869),
one for the dithers and latents, one for the seal; inside, every word of the ChaCha keystream is found by its
sub-vector and trial. Nothing is consumed, nothing depends on the order of calls.

HKDF is written on the standard library's HMAC so that machines without `cryptography` can derive the same keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import BinaryIO

from cepam._internal.files import locked_file, write_atomically
from cepam.errors import WrongAddress

KEY_BYTES = 32
_LARGEST_COUNT = 2**64 - 1
_LARGEST_ATTEMPT = 2**32 - 1
_CHAIN_HEAD = "cepam key chain v1"
_MARK_BYTES = 16


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
    """A key: 32 secret bytes that one client and the server share, and nobody else.

    Whoever holds the key and the traffic can remove the noise. Never share one key between clients, and erase old keys
    (`KeyChain`).

    Args:
        secret: 32 bytes.

    Raises:
        ValueError: `secret` is not 32 bytes.
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
        """Return a fresh key from the operating system's randomness.

        Returns:
            The key.
        """
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def simulated(cls, seed: int | bytes, client: int = 0) -> Key:
        """Return a key computed from a seed, FOR SIMULATION ONLY: whoever guesses the seed can remove the noise.

        Every figure of such a run must say "simulated".

        Args:
            seed: An integer or bytes.
            client: The client's number; each client has another key.

        Returns:
            The key, the same for the same arguments.
        """
        material = seed if isinstance(seed, bytes) else str(int(seed)).encode()
        return cls(hkdf(material, b"cepam simulation", struct.pack("<Q", client), KEY_BYTES))


@dataclass(frozen=True)
class Address:
    """The address of one message in the shared randomness. Use each address ONCE.

    Two messages at one address share their noise: their difference reveals the difference of the updates.

    Args:
        key: The key that client and server share, or its 32 bytes.
        round: The round, from 0 to 2^64 - 1.
        client: The client's number, from 0 to 2^64 - 1.
        run: Bytes or text that separate runs which share keys.
        attempt: The number of a further try within a round, from 0 to 2^32 - 1.

    Raises:
        ValueError: An argument is out of range.
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
        """Return the keys of keystream and seal, computed once per object (HKDF-SHA256; docs/wire.md, section 1).

        Returns:
            Both keys.
        """
        return self._derived

    def __getstate__(self) -> dict[str, object]:
        """Leave out derived keys: a pickle holds the fields alone."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _derived(self) -> StreamKeys:
        info = b"cepam address v1" + struct.pack("<QQI", self.round, self.client, self.attempt)
        material = hkdf(self.key.secret, _salt(self.run), info, 2 * KEY_BYTES)
        return StreamKeys(noise=material[:KEY_BYTES], seal=material[KEY_BYTES:])


@lru_cache(maxsize=64)
def _salt(run: bytes) -> bytes:
    return hashlib.sha256(b"cepam run" + run).digest()


@dataclass(frozen=True)
class StreamKeys:
    """The keys of one address: of the keystream and of the seal."""

    noise: bytes = field(repr=False)
    seal: bytes = field(repr=False)


class KeyChain:
    """A key that is replaced after each round and cannot be computed back (forward secrecy).

    Both ends start from the same key and call `advance` after each round. Call `save` after every `advance`, and go on
    with `load`. Never load an older copy: its rounds were used. A `UsedAddresses.kept` file beside it refuses them.

    Args:
        key: The key of the first round, or its 32 bytes.
        round: The number of the first round.

    Raises:
        ValueError: `key` is not 32 bytes, or `round` is negative.

    Guarantee: The key of round r cannot be computed from that of round r + 1. Erasing overwrites the buffer held here;
    copies that Python made may stay in memory.
    """

    def __init__(self, key: Key | bytes, round: int = 0) -> None:
        start = key if isinstance(key, Key) else Key(key)
        self._secret = bytearray(start.secret)
        if isinstance(round, bool) or not isinstance(round, int) or round < 0:
            raise ValueError(f"round must be a non-negative integer, got {round!r}")
        self._round = round

    @property
    def round(self) -> int:
        """The current round."""
        return self._round

    def address(self, client: int, run: bytes = b"", attempt: int = 0) -> Address:
        """Return the address of this round's message.

        Returns:
            The address.

        Args:
            client: The client's number.
            run: Bytes that separate runs which share keys.
            attempt: The number of a further try within the round.

        Raises:
            WrongAddress: The chain was erased.
        """
        self._check_alive()
        return Address(Key(bytes(self._secret)), round=self._round, client=client, run=run, attempt=attempt)

    def advance(self) -> None:
        """Move the chain to the next round and overwrite the old key."""
        self._check_alive()
        self._secret[:] = hkdf(bytes(self._secret), b"", b"cepam ratchet v1", KEY_BYTES)
        self._round += 1

    def save(self, path: str | Path) -> None:
        """Save the chain as it stands, for its owner alone (mode 600), in the place of an older file.

        The older content is gone from the folder, though a disk may keep what it held.

        Args:
            path: The file.

        Raises:
            WrongAddress: The chain was erased.
        """
        self._check_alive()
        lines = (
            _CHAIN_HEAD,
            f"round {self._round}",
            self._secret.hex(),
            _chain_check(bytes(self._secret), self._round),
        )
        write_atomically(Path(path), "\n".join((*lines, "")).encode(), private=True)

    @classmethod
    def load(cls, path: str | Path) -> KeyChain:
        """Return the chain that `save` wrote.

        Returns:
            The chain.

        Args:
            path: The file.

        Raises:
            ValueError: The file is not a saved chain, or it was damaged.
        """
        lines = Path(path).read_bytes().decode("utf-8", "replace").splitlines()
        try:
            head, place, secret, check = lines
            chain = cls(Key(bytes.fromhex(secret)), int(place.removeprefix("round ")))
        except ValueError as refused:
            raise ValueError(f"{path} is not a saved key chain, or it was damaged") from refused
        if head != _CHAIN_HEAD or not hmac.compare_digest(check, _chain_check(bytes(chain._secret), chain.round)):
            raise ValueError(f"{path} is not a saved key chain, or it was damaged")
        return chain

    def _check_alive(self) -> None:
        if not any(self._secret):
            raise WrongAddress("this key chain was erased")

    def erase(self) -> None:
        """Overwrite the key for good."""
        self._secret[:] = bytes(KEY_BYTES)


def _chain_check(secret: bytes, round: int) -> str:
    return hashlib.sha256(_CHAIN_HEAD.encode() + secret + str(round).encode()).hexdigest()[:16]


class UsedAddresses:
    """The addresses that this end has used, so that repeated and replayed messages are refused.

    Decoding is stateless and cannot detect a replay by itself: pass one of these to every `encode` (client) and
    `decode` (server). It takes 16 bytes per address. `kept` stores it in a file; `bytes(used)` and
    `UsedAddresses(data)` save and restore it by hand.

    Args:
        data: What `bytes(used)` returned; empty for a new set.

    Raises:
        ValueError: The length of `data` is not a multiple of 16.
    """

    def __init__(self, data: bytes = b"") -> None:
        if len(data) % _MARK_BYTES:
            raise ValueError(f"saved addresses come in {_MARK_BYTES} bytes each, got {len(data)} bytes")
        self._seen = {data[i : i + _MARK_BYTES] for i in range(0, len(data), _MARK_BYTES)}
        self._file: BinaryIO | None = None

    @classmethod
    @contextmanager
    def kept(cls, path: str | Path) -> Iterator[UsedAddresses]:
        """Open the set in a file (mode 600) as a context manager; the file is created if missing, and locked.

        Returns:
            A context manager that gives the set.

        Args:
            path: The file.

        Raises:
            ValueError: The file is not a list of used addresses.

        Guarantee: An address is on the disk before `claim` returns, so before a message of it exists. What was claimed
        stays claimed whenever the process ends (tests/test_keys.py).
        """
        with locked_file(Path(path)) as file:
            data = file.read()
            if len(data) % _MARK_BYTES:
                raise ValueError(f"{path} is not a list of used addresses, or it was cut: {len(data)} bytes")
            used = cls(data)
            used._file = file
            try:
                yield used
            finally:
                used._file = None

    def claim(self, at: Address) -> None:
        """Claim an address.

        Args:
            at: The address.

        Raises:
            WrongAddress: It was claimed before.
        """
        mark = _mark(at)
        if mark in self._seen:
            raise WrongAddress(f"round {at.round}, client {at.client}, attempt {at.attempt} was used before")
        if self._file is not None:
            self._file.write(mark)
            self._file.flush()
            os.fsync(self._file.fileno())
        self._seen.add(mark)

    def __contains__(self, at: Address) -> bool:
        return _mark(at) in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def __bytes__(self) -> bytes:
        return b"".join(sorted(self._seen))


def _mark(at: Address) -> bytes:
    return hashlib.sha256(b"cepam used" + at.derive().noise).digest()[:_MARK_BYTES]
