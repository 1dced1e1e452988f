"""A run's randomness: one secret of 32 bytes, and by address whatever a round draws.

Keys, record draws, cohorts and dropouts all come from the secret by HKDF; nothing is consumed, so a resumed run,
another order of work or a subset of the clients finds the same words. Whoever holds the secret can strip the noise from
every message of the run; without it, settings, seed and nonce tell nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cepam.fl.config.settings import Settings
from cepam.keys import KEY_BYTES, Key, hkdf

NONCE_BYTES = 16
LONG_DRAW = 1 << 16
"""Bytes from which a draw takes long enough to be made ahead."""
Words = npt.NDArray[np.uint64]
Place = tuple[int, int, int, int]


@dataclass
class Prefetched:
    """The last long draw, and what is at hand already, by (round, purpose, client, bytes)."""

    last: Place | None = None
    ready: dict[Place, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Randomness:
    """What one seed's row of a run draws from: a root key, and words found by (round, purpose, client)."""

    root: Key = field(repr=False)
    prefetched: Prefetched = field(default_factory=Prefetched, repr=False, compare=False)

    def key(self, client: int) -> Key:
        """The key that this client shares with the server."""
        return Key(hkdf(self.root.secret, b"cepam run", b"client key v1" + struct.pack("<Q", client), KEY_BYTES))

    def own_key(self, client: int) -> Key:
        """The key that this client keeps to itself: what it draws with it nobody else can draw."""
        return Key(hkdf(self.root.secret, b"cepam run", b"client's own v1" + struct.pack("<Q", client), KEY_BYTES))

    def random_bytes(self, round: int, purpose: int, client: int, count: int) -> bytes:
        """So many bytes of the keystream of this address (SHAKE-256 of a key of its own)."""
        place = round, purpose, client, count
        if count >= LONG_DRAW:
            self.prefetched.last = place
        return self.prefetched.ready.pop(place, None) or self._draw(*place)

    def _draw(self, round: int, purpose: int, client: int, count: int) -> bytes:
        info = b"draws v1" + struct.pack("<QQQ", round, purpose, client)
        return hashlib.shake_256(hkdf(self.root.secret, b"cepam run", info, KEY_BYTES)).digest(count)

    def prefetch(self) -> None:
        """Make the last long draw for the next round too, while the caller waits for something else.

        A draw is found by its address, so that it is the same whenever it is made.
        """
        if self.prefetched.last is not None:
            round, purpose, client, count = self.prefetched.last
            place = round + 1, purpose, client, count
            if place not in self.prefetched.ready:
                self.prefetched.ready = {place: self._draw(*place)}

    def words(self, round: int, purpose: int, client: int, count: int) -> Words:
        """So many words of 64 bits of the address."""
        return np.frombuffer(self.random_bytes(round, purpose, client, 8 * count), dtype="<u8").astype(np.uint64)

    def uniform(self, round: int, purpose: int, client: int, count: int) -> npt.NDArray[np.float64]:
        """So many numbers in [0, 1) of the address, multiples of 2^-53."""
        return np.asarray(self.words(round, purpose, client, count) >> np.uint64(11), dtype=np.float64) * 2.0**-53


@dataclass(frozen=True)
class RunSecret:
    """The secret of a run, and the public nonce that sets its addresses apart from those of every other run.

    Guarantee: by default two runs with equal settings share no key, no draw and no noise, and the secret cannot be
    computed from what a run leaves behind (tests/fl/runs/test_secrecy.py).
    """

    secret: bytes | None = field(repr=False)
    nonce: bytes
    """None stands for a simulation: every row's randomness then comes from its seed."""

    @classmethod
    def fresh(cls) -> RunSecret:
        """A secret and a nonce from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(NONCE_BYTES))

    @classmethod
    def simulated(cls, settings: Settings) -> RunSecret:
        """No secret: seeds give the keys and draws, and equal settings the same nonce. Protects nobody."""
        return cls(None, hashlib.sha256(repr(settings).encode()).digest()[:NONCE_BYTES])

    @classmethod
    def of(cls, settings: Settings) -> RunSecret:
        """What a new run with these settings starts from."""
        return cls.simulated(settings) if settings.run.simulate else cls.fresh()

    def row(self, seed: int) -> Randomness:
        """The randomness of this seed's row."""
        if self.secret is None:
            return Randomness(Key.simulated(seed))
        return Randomness(Key(hkdf(self.secret, self.nonce, b"cepam seed row" + struct.pack("<Q", seed), KEY_BYTES)))

    def mark_key(self) -> bytes:
        """The key under which the run marks its data: once the secret is erased, the marks tell nothing."""
        return hkdf(self.secret or bytes(KEY_BYTES), self.nonce, b"cepam fingerprint", KEY_BYTES)

    def checkpoint_key(self) -> bytes:
        """The key under which the run's checkpoints are encrypted; of a simulation it is public."""
        return hkdf(self.secret or bytes(KEY_BYTES), self.nonce, b"cepam checkpoint", KEY_BYTES)
