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
from cepam.privacy import TopUp, server_noise
from cepam.privacy.topup import UPWARD

Came = Sequence[tuple[UplinkSettings, npt.NDArray[np.floating]]]


@dataclass(frozen=True)
class Shares:
    """The public constants of a round: which shares of noise make its total, and what the weighted sum is divided by.

    `noises` says of each share, weight times sigma, how many there are. A share that no reply brings the server brings,
    from secret randomness of its own.
    Guarantee: what is published has the same noise whoever replied, and is never divided by the replies
    (docs/privacy.md, "Dropouts"; tests/exchange/test_topup.py).
    """

    noises: tuple[tuple[float, int], ...]
    divisor: float

    @classmethod
    def of(cls, asked: Iterable[UplinkSettings]) -> Shares:
        """The shares of these clients, and the sum of their weights; ValueError for noise that is not Gaussian."""
        settings = list(asked)
        noises = Counter(_noise(one) for one in settings)
        return cls(tuple(sorted(noises.items())), math.fsum(one.weight for one in settings))

    @property
    def noise(self) -> float:
        """The standard deviation, a coordinate, of the noise in what is published."""
        return math.sqrt(math.fsum(many * noise**2 for noise, many in self.noises)) / self.divisor

    def missing(self, came: Iterable[UplinkSettings]) -> float:
        """The noise that the server adds to the weighted sum of these; ValueError if they are not all of the asked."""
        counts = Counter(_noise(one) for one in came)
        parts = [TopUp(n * math.sqrt(many), many).missing(counts.pop(n, 0)) for n, many in self.noises]
        if counts:
            raise ValueError(f"replies with noise {sorted(counts)} were not asked for")
        return math.hypot(*parts) * UPWARD

    def mean(self, came: Came, coordinates: int) -> npt.NDArray[np.float64]:
        """What is published: the weighted sum of the decoded vectors and the missing noise, over the divisor."""
        summed = np.zeros(coordinates)
        for settings, vector in came:
            summed += settings.weight * vector.astype(np.float64)
        sigma = self.missing(settings for settings, _ in came)
        return (summed + server_noise(sigma, coordinates) if sigma else summed) / self.divisor


def _noise(settings: UplinkSettings) -> float:
    if not isinstance(settings.law, Gaussian):
        raise ValueError(f"policy 'top-up' needs Gaussian noise (a sum of others is of no law), got {settings.law!r}")
    return settings.weight * settings.law.scale
