"""Secure aggregation as a channel to certify or attack: what comes back is the sum as the server opens it."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Gaussian
from cepam.keys import Address, hkdf
from cepam.lattices.lattice import Integer, Lattice
from cepam.secure_aggregation.mechanism import WORD_BITS, MaskedSumCodec
from cepam.secure_aggregation.quantization_range import fit

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
