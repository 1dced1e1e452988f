"""A run that draws nothing in secret: each client's records in fixed slices, one a round in turn, and their noise.

A record's slice is its number modulo `slices`: it depends on that record alone, so one more or one less moves no other.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cepam.fl.engine.schedule import schedule
from cepam.fl.engine.settings import Settings
from cepam.privacy import Correlation, best_carry

Index = npt.NDArray[np.int64]


@lru_cache(maxsize=64)
def link_of(settings: Settings) -> Correlation | None:
    """How the noise of a run's messages is correlated, and over how many slices; None where records are drawn.

    The carry is the settings', or the one that leaves least noise in the weights of such a run.
    """
    if settings.sampling != "cyclic":
        return None
    if settings.noise_shape == "independent" or settings.carry is not None:
        return Correlation(settings.carry or 0.0, settings.slices)
    return Correlation(best_carry(settings.rounds, settings.slices, *_optimiser(settings)), settings.slices)


def _optimiser(settings: Settings) -> tuple[float, list[float]]:
    """The momentum of the server's steps and the rate of each, over the largest."""
    s, tau = settings, settings.tau
    made = schedule(s.schedule, s.rate, s.rounds * tau, tau, s.convexity, s.smoothness)
    rates = [made.at((round + 1) * tau - 1) for round in range(s.rounds)]
    return (0.0 if s.server == "sgd" else s.momentum), [rate / max(rates) for rate in rates]


def slice_of(settings: Settings, held: int, position: int) -> Index:
    """The places of the records that a client with `held` of them uses at this position of its stream.

    A row; where the update is no sum over examples, [steps, batch]: the slice in order, again from its start if short.
    """
    places = np.arange(position % settings.slices, held, settings.slices)
    return places if settings.update == "examples" else np.resize(places, (settings.tau, settings.batch))
