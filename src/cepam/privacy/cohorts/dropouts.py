"""Dropout compensation: clients bring shares of a public noise total, and the server brings the rest.

    compensation = privacy.DropoutCompensation(total=z * clip, cap=1283)  # compensation.law: every client's noise
    rest = privacy.server_noise(compensation.missing(replies=871), coordinates)  # what the server adds

Whoever drops out, the published sum has Gaussian noise of standard deviation `total`, and is divided by the expected
cohort, never by the replies: the round is the subsampled Gaussian mechanism (docs/proofs/cohorts-and-dropouts.md,
"Dropouts").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cepam.codec.codec import Codec
from cepam.distributions.laws import Floats, Gaussian, check_scale
from cepam.keys import Address, Key
from cepam.lattices.lattice import Integer, Lattice
from cepam.privacy.mechanisms.mechanism import check_count

UPWARD = 1.0 + 2.0**-50
"""More than float64 rounds off here: the server's part is never too small."""

MOST_SHARES = 1 << 20
"""Of more equal shares in one, the server's noise would lie on a grid too coarse to blend with that of one reply."""

LINE = Integer(1)


class NoiseShare(NamedTuple):
    """What a client brings to a weighted sum: its weight, its noise, and the lattice of its codec, if that is one."""

    weight: float
    sigma: float
    lattice: Lattice | None = None

    @property
    def noise(self) -> float:
        """The standard deviation of this noise in the sum."""
        return self.weight * self.sigma


def server_noise(sigma: float, coordinates: int, at: Address | None = None, lattice: Lattice = LINE) -> Floats:
    """Gaussian noise that only the server knows: what the codec decodes of zeros, on the public grid of `sigma`.

    The key is fresh, from the operating system, and kept by nobody; or `at` is where the randomness lives, an address
    under a key that only the server can derive and that nothing else uses.
    Guarantee: exactly the law, as any decoded vector (docs/proofs/finite-precision.md; tests/privacy/test_dropouts.py).

    Args:
        sigma: Standard deviation per coordinate.
        coordinates: Length of the vector.
        at: Where the randomness lies; fresh and unknown to all by default.
        lattice: The codec's lattice.

    Returns:
        A vector on the public grid.
    """
    check_count("coordinates", coordinates)
    codec, own = Codec(Gaussian(sigma), lattice, coder="layered"), at or Address(Key.generate(), round=0, client=0)
    return np.asarray(codec.decode(codec.encode(np.zeros(coordinates), own), own), dtype=np.float64)


def stand_in(
    missing: Mapping[NoiseShare, int], coordinates: int, at: Address | None = None
) -> list[tuple[float, Floats]]:
    """Weights, and noise of the server's own under each: what clients that are missing would have brought.

    `missing` says of each share how many. For each kind there is one vector for the first missing client and one for
    all others. They have the kind's weight, its grid but for a power of two, and its lattice, which is the one that is
    charged (the line, where clients choose among several and the worst is charged). So they smooth the sum as the
    clients' own noise does (docs/proofs/finite-precision.md, "Sums of grids"). `at` as in `server_noise`, one client
    each.
    """
    made: list[tuple[float, Floats]] = []
    for share, many in sorted(missing.items(), key=lambda kind: kind[0][:2]):
        for part in [1] * min(1, many) + [many - 1] * (many > 1):
            own = None if at is None else replace(at, client=at.client + len(made))
            sigma = share.sigma * math.sqrt(part) * UPWARD
            made.append((share.weight, server_noise(sigma, coordinates, own, share.lattice or LINE)))
    return made


@dataclass(frozen=True)
class DropoutCompensation:
    """The noise of a published sum, which the server completes where clients do not reply.

    Args:
        total: Standard deviation of the noise of every sum; public.
        cap: The most clients that are sampled; public.

    Guarantee: the noise of the sum is Gaussian with standard deviation `total`, whoever replies. Against c colluders
    at least `share` times sqrt(cap - c) is left (docs/proofs/cohorts-and-dropouts.md;
    tests/privacy/test_dropouts.py). Condition: the server follows the protocol.
    """

    total: float
    cap: int

    def __post_init__(self) -> None:
        check_scale("total", self.total)
        check_count("cap", self.cap)
        if self.cap > MOST_SHARES:
            raise ValueError(f"cap must be at most {MOST_SHARES}, the most shares of one sum, got {self.cap}")

    @property
    def share(self) -> float:
        """The noise of one client: 1/sqrt(cap) of the total."""
        return self.total / math.sqrt(self.cap)

    @property
    def law(self) -> Gaussian:
        """The law of every client's codec."""
        return Gaussian(self.share)

    def missing(self, replies: int) -> float:
        """The noise that the server adds where so many clients replied; zero where all of the cap did.

        Args:
            replies: Clients that replied, at most the cap.

        Returns:
            A standard deviation.

        Raises:
            ValueError: There are more replies than the cap.
        """
        check_count("replies", replies, 0)
        if replies > self.cap:
            raise ValueError(f"replies must be at most the cap, {self.cap}, got {replies}: the excess is not contacted")
        return self.share * math.sqrt(self.cap - replies) * UPWARD
