"""The mechanism that an audit attacks: updates that really go through encode and decode."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cepam.codec.codec import Codec
from cepam.codec.vectors import UpdateCodec
from cepam.distributions.laws import Floats
from cepam.keys import Address, Key
from cepam.privacy.mechanisms.mechanism import Mechanism, check_count

AddressMaker = Callable[[int, int], Address]
STRIDE = 24  # a multiple of every built-in lattice's dimension: 1, 2, 3, 4 and 8


class RoundTrip:
    """A mechanism that really encodes and decodes: one trial for each stretch of `stride` coordinates.

    `codecs` has one codec for each client, and `address` makes a place in the shared randomness from a round and a
    client, a new one for every message. The first coordinate of a stretch carries a trial and the others are zero;
    `stride` is a multiple of the lattice's dimension, so that trials share no latent and no dither.
    """

    def __init__(
        self, codecs: tuple[UpdateCodec, ...], address: AddressMaker, stride: int = STRIDE, longest: int = 1 << 20
    ) -> None:
        check_count("stride", stride)
        check_count("longest", longest)
        self.codecs, self.address, self.stride = codecs, address, stride
        self.trials_a_message = max(1, longest // stride)
        self.messages = 0

    @classmethod
    def of_mechanism(cls, mechanism: Mechanism, noise_factor: float = 1.0) -> RoundTrip:
        """The package's own codec for every client's law, under a fresh key.

        `noise_factor` makes the mechanism use other noise than the record says: 0.5 is a control that an
        audit must refute.
        """
        noisy = mechanism.with_noise([client.law.scale * noise_factor for client in mechanism.clients])
        made = {client.law: Codec(client.law) for client in set(noisy.clients)}
        stride = math.lcm(*(codec.on.dimension for codec in made.values()))
        key = Key.generate()

        def address(round: int, client: int) -> Address:
            return Address(key, round=round, client=client)

        return cls(tuple(made[client.law] for client in noisy.clients), address, stride)

    def __call__(self, updates: Floats, client: int, round: int) -> Floats:
        """The decoded values of `updates`, in the client's noise."""
        made = []
        codec = self.codecs[client]
        for start in range(0, len(updates), self.trials_a_message):
            part = updates[start : start + self.trials_a_message]
            long = np.zeros(len(part) * self.stride)
            long[:: self.stride] = part
            at = self.address(self.messages, client)
            self.messages += 1
            decoded = codec.decode(codec.encode(long, at), at)
            made.append(np.asarray(decoded, dtype=np.float64)[:: self.stride])
        return np.concatenate(made)
