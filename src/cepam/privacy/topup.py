"""Noise that does not depend on who replied: clients bring shares of a public total, and the server brings the rest.

    topup = privacy.TopUp(total=z * clip, cap=1283)  # every client's codec has the law topup.law
    mean = topup.mean(sum_of_the_decoded_vectors, replies=871, expected=1000)  # what is published

Whoever drops out, the published sum has Gaussian noise of standard deviation `total`, and is divided by the expected
cohort, never by the replies: the round is the subsampled Gaussian mechanism (docs/privacy.md, "Dropouts").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.keys import Address, Key
from cepam.noise.lattices import Integer, Lattice
from cepam.noise.laws import Floats, Gaussian, check_scale
from cepam.privacy.release import check_count

UPWARD = 1.0 + 2.0**-50
"""More than float64 rounds off here: the server's part is never too small."""

MOST_SHARES = 1 << 20
"""Of more equal shares in one, the server's noise would lie on a grid too coarse to blend with that of one reply."""

LINE = Integer(1)


def server_noise(sigma: float, coordinates: int, at: Address | None = None, lattice: Lattice = LINE) -> Floats:
    """Gaussian noise that only the server knows: what the codec decodes of zeros, on the public grid of `sigma`.

    The key is fresh, from the operating system, and kept by nobody; or `at` is where the randomness lives, an address
    under a key that only the server can derive and that nothing else uses.
    Guarantee: exactly the law, as any decoded vector (docs/exactness.md; tests/privacy/test_topup.py).
    """
    check_count("coordinates", coordinates)
    codec, own = Codec(Gaussian(sigma), lattice), at or Address(Key.generate(), round=0, client=0)
    return np.asarray(codec.decode(codec.encode(np.zeros(coordinates), own), own), dtype=np.float64)


@dataclass(frozen=True)
class Share:
    """What one client brings to a weighted sum: noise of `law` times `weight`, on the lattice of its codec.

    `lattice` is None where that may be one of several built-in ones.
    """

    weight: float
    law: Gaussian
    lattice: Lattice | None = None

    @property
    def noise(self) -> float:
        """The standard deviation of this noise in the weighted sum."""
        return self.weight * self.law.scale


def noise_for(
    asked: Mapping[Share, int], came: Iterable[Share], coordinates: int, at: Address | None = None
) -> list[tuple[float, Floats]]:
    """What the server adds for the shares that did not come, of so many `asked`: noises, each with its weight.

    One draw for all of them where the shares are alike; else one for each, of its own law, weight and lattice, so that
    the sum is what it had been, had the client replied with zeros. Either way grids blend with those of the replies
    (docs/privacy.md, "Dropouts"), on a lattice that is charged. ValueError for a share that was not asked for.
    Guarantee: tests/privacy/test_topup.py.
    """
    left = Counter(asked)
    left.subtract(came)
    if (least := min(left.values(), default=0)) < 0:
        raise ValueError(f"replies must be at most the shares asked, {sum(asked.values())}, got {-least} not asked for")
    if len(left) == 1:
        ((share, many),) = asked.items()
        sigma = TopUp(share.law.scale * math.sqrt(many), many).missing(many - left[share])
        missing = [Share(share.weight, Gaussian(sigma), share.lattice)] if sigma else []
    else:
        missing = list(left.elements())
    drawn = []
    for place, one in enumerate(missing):
        own = None if at is None else replace(at, client=place)
        drawn.append((one.weight, server_noise(one.law.scale, coordinates, own, one.lattice or LINE)))
    return drawn


@dataclass(frozen=True)
class TopUp:
    """`total`, the noise of every published sum, and `cap`, the most clients that are asked: both public constants.

    Guarantee: the noise of the sum is Gaussian of standard deviation `total` whoever replies, against c colluders at
    least `share` times sqrt(cap - c) (docs/privacy.md; tests/privacy/test_topup.py).
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
        """The noise that the server adds where so many clients replied; zero where all of the cap did."""
        check_count("replies", replies, 0)
        if replies > self.cap:
            raise ValueError(f"replies must be at most the cap, {self.cap}, got {replies}: the excess is not asked")
        return self.share * math.sqrt(self.cap - replies) * UPWARD

    def mean(self, summed: npt.ArrayLike, replies: int, expected: float) -> Floats:
        """What is published: the sum of the decoded vectors and the missing noise, over the expected cohort."""
        vector = np.asarray(summed, dtype=np.float64)
        if vector.ndim != 1 or not np.isfinite(vector).all():
            raise ValueError(f"the sum must be one finite vector, got shape {vector.shape}")
        if not (0 < expected < math.inf):
            raise ValueError(f"expected must be positive, the expected cohort, got {expected!r}")
        sigma = self.missing(replies)
        noisy = vector + server_noise(sigma, len(vector)) if sigma else vector
        return np.asarray(noisy / expected, dtype=np.float64)
