"""Rounds whose noise does not depend on who replied: the sum of what came, and the noise of what did not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.exchange.uplink_settings import UplinkSettings
from cepam.noise.laws import Gaussian
from cepam.privacy.topup import Share, noise_for

Came = Sequence[tuple[UplinkSettings, npt.NDArray[np.floating]]]


@dataclass(frozen=True)
class Shares:
    """The public constants of a round: which shares of noise make its total, and what the weighted sum is divided by.

    `counts` says of each share how many there are. One that no reply brings the server brings, from secret randomness
    of its own.
    Guarantee: what is published has the same noise whoever replied, and is never divided by the replies
    (docs/privacy.md, "Dropouts"; tests/exchange/test_topup.py).
    """

    counts: tuple[tuple[Share, int], ...]
    divisor: float

    @classmethod
    def of(cls, asked: Iterable[UplinkSettings]) -> Shares:
        """The shares of these clients, and the sum of their weights; ValueError for noise that is not Gaussian."""
        settings = list(asked)
        counts = Counter(share_of(one) for one in settings)
        return cls(tuple(counts.items()), math.fsum(one.weight for one in settings))

    @property
    def noise(self) -> float:
        """The standard deviation, a coordinate, of the noise in what is published."""
        return math.sqrt(math.fsum(many * share.noise**2 for share, many in self.counts)) / self.divisor

    def mean(self, came: Came, coordinates: int) -> npt.NDArray[np.float64]:
        """What is published: the weighted sum of the decoded vectors and the missing noise, over the divisor."""
        summed = np.zeros(coordinates)
        for settings, vector in came:
            summed += settings.weight * vector.astype(np.float64)
        for weight, noise in noise_for(dict(self.counts), (share_of(one) for one, _ in came), coordinates):
            summed += weight * noise
        return summed / self.divisor


def share_of(settings: UplinkSettings) -> Share:
    """What a client that is asked for this brings; ValueError for noise that is not Gaussian."""
    if not isinstance(settings.law, Gaussian):
        raise ValueError(f"policy 'top-up' needs Gaussian noise (a sum of others is of no law), got {settings.law!r}")
    return Share(settings.weight, settings.law, settings.own_lattice)
