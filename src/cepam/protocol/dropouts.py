"""Dropout compensation over the protocol: the sum of what came, and the noise of what did not.

The noise itself is `cepam.privacy.cohorts.dropouts.stand_in`. `flower/dropouts.py` and `flare/job.py` use this module;
the engine compensates in `fl/aggregation/trusted_server.py` and, for whole clients, in `fl/aggregation/cohorts.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Gaussian
from cepam.privacy.cohorts.dropouts import UPWARD, NoiseShare, stand_in
from cepam.protocol.settings import UplinkSettings

Came = Sequence[tuple[UplinkSettings, npt.NDArray[np.floating]]]


@dataclass(frozen=True)
class Shares:
    """The public constants of a round: which shares of noise make its total, and what the weighted sum is divided by.

    `noises` says of each share how many there are. What no reply brings the server brings, from secret randomness of
    its own.
    Guarantee: what is published has the same noise whoever replied, and is never divided by the replies
    (docs/proofs/cohorts-and-dropouts.md, "Dropouts"; tests/protocol/test_dropouts.py).
    """

    noises: tuple[tuple[NoiseShare, int], ...]
    divisor: float

    @classmethod
    def of(cls, offered: Iterable[UplinkSettings]) -> Shares:
        """The shares of these clients, and the sum of their weights; ValueError for noise that is not Gaussian."""
        settings = list(offered)
        noises = Counter(share_of(one) for one in settings)
        return cls(tuple(noises.items()), math.fsum(one.weight for one in settings))

    @property
    def noise(self) -> float:
        """The standard deviation per coordinate of the noise in what is published."""
        return math.sqrt(math.fsum(many * share.noise**2 for share, many in self.noises)) / self.divisor

    def absent(self, came: Iterable[UplinkSettings]) -> dict[NoiseShare, int]:
        """How many shares of each kind these do not bring; ValueError if they are not all of the offered."""
        counts = Counter(share_of(one) for one in came)
        left = {kind: many - counts.pop(kind, 0) for kind, many in self.noises}
        if counts:
            raise ValueError(f"replies with weight, noise and lattice {list(counts)} were not requested")
        if min(left.values(), default=0) < 0:
            raise ValueError(f"replies must be at most the cap of each kind, got {left} left")
        return left

    def missing(self, came: Iterable[UplinkSettings]) -> float:
        """The noise that the server adds to the weighted sum of these; ValueError if they are not all of the
        offered."""
        return math.hypot(*(share.noise * math.sqrt(many) for share, many in self.absent(came).items())) * UPWARD

    def mean(self, came: Came, coordinates: int) -> npt.NDArray[np.float64]:
        """What is published: the weighted sum of the decoded vectors and the missing noise, over the divisor."""
        summed = np.zeros(coordinates)
        for settings, vector in came:
            summed += settings.weight * vector.astype(np.float64)
        for weight, noise in stand_in(self.absent(settings for settings, _ in came), coordinates):
            summed += weight * noise
        return summed / self.divisor


def share_of(settings: UplinkSettings) -> NoiseShare:
    """What a client that gets this offer brings; ValueError for noise that is not Gaussian."""
    if not isinstance(settings.law, Gaussian):
        raise ValueError(
            "dropout compensation needs Gaussian noise (other noise does not add up to its own kind), "
            f"got {settings.law!r}"
        )
    return NoiseShare(settings.weight, settings.law.scale, settings.lattice)
