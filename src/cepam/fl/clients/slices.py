"""Fixed slices of each client's records, one per round in turn, and how their noise is correlated.

A record's slice is its place among its client's modulo `slices`. Places are public and stay: a record that is removed
leaves its place empty (`Dataset.without`), so it moves no other, and divisors count places, never what is in them.
With sampling `cyclic` a round uses the whole slice and nothing is secret. With sampling `poisson` it draws in secret
among the slice's records, and what a message tells of an update ends before its slice comes again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cepam.fl.clients import sampling
from cepam.fl.clients.randomness import Randomness
from cepam.fl.clients.sampling import Drawn
from cepam.fl.config.settings import Settings
from cepam.fl.optim import schedule
from cepam.privacy import CorrelatedNoise, best_decay

Index = npt.NDArray[np.int64]


@lru_cache(maxsize=64)
def link_of(settings: Settings) -> CorrelatedNoise | None:
    """How the noise of a run's messages is correlated, and over how many slices; None where there are no streams.

    The matrix or carry is the settings', or the carry that leaves least noise in the weights of such a run. With
    sampling `poisson` a carry ends after as many messages as there are slices: the theorem that accounts for both
    (docs/privacy.md, "Secret draws and bands") is false for more.
    """
    s = settings
    if not s.streams:
        return None
    if s.matrix is not None:
        return _own(s)
    bands = s.slices if s.sampling == "poisson" else None
    carry = s.carry if s.noise_shape == "matrix" else 0.0
    if carry is None:
        carry = best_decay(s.rounds, s.slices, *_optimiser(s), bands)
    return (
        CorrelatedNoise(carry, s.slices)
        if bands is None
        else CorrelatedNoise.from_matrix(carry ** np.arange(bands), bands)
    )


def _own(settings: Settings) -> CorrelatedNoise:
    """The correlation of the matrix that the settings name, or a ValueError where it does not fit the run."""
    assert settings.matrix is not None
    link = CorrelatedNoise.from_matrix(settings.matrix, settings.slices)
    if link.longest is not None and link.longest < settings.rounds:
        raise ValueError(f"matrix {settings.matrix} has {link.longest} rows, under the run's {settings.rounds} rounds")
    if settings.sampling == "poisson" and (link.bands or 0) > settings.slices:
        raise ValueError(
            f"sampling poisson needs a matrix of at most slices = {settings.slices} bands, got {link.bands}: "
            "raise --slices, or use sampling cyclic"
        )
    return link


def _optimiser(settings: Settings) -> tuple[float, list[float]]:
    """The momentum of the server's steps and the rate of each, over the largest."""
    s, tau = settings, settings.tau
    made = schedule(s.schedule, s.rate, s.rounds * tau, tau, s.convexity, s.smoothness)
    rates = [made.at((round + 1) * tau - 1) for round in range(s.rounds)]
    return (0.0 if s.server == "sgd" else s.momentum), [rate / max(rates) for rate in rates]


def lasting(link: CorrelatedNoise) -> float:
    """Between a message's noise in its own round and what later rounds leave of it, in geometric mean: over sigma."""
    first = link.rows[-1][-1] if link.rows is not None else link.column(1)[0]
    return 1.0 / math.sqrt(first * link.gain)


def slice_of(settings: Settings, held: int, position: int) -> Index:
    """The places of the records that a client with `held` of them uses at this position of its stream.

    A row; where the update is no sum over examples, [steps, batch]: the slice in order, again from its start if short.
    """
    places = np.arange(position % settings.slices, held, settings.slices)
    return places if settings.update == "examples" else np.resize(places, (settings.tau, settings.batch))


def divisor(settings: Settings, held: int, share: float) -> float:
    """The public number that divides a client's sum over examples: its expected draws, or its mean slice."""
    return held / settings.slices if settings.sampling == "cyclic" else settings.expected_batch * share


def most_examples(settings: Settings, held: int, over: float) -> float:
    """How many clips long an update can be: 1, or where it is a sum over examples all of a slice over its divisor."""
    return math.ceil(held / settings.slices) / over if settings.update == "examples" else 1.0


def drawn(
    settings: Settings, draws: Randomness, round: int, held: Index, clients: Sequence[int], positions: Sequence[int]
) -> Drawn:
    """What clients use of their slices at these positions: all, or each record by itself, afresh and in secret."""
    total = int(held.sum())
    expected = np.array([divisor(settings, int(held[k]), int(held[k]) / total) for k in clients], dtype=np.float32)
    if settings.sampling != "poisson":
        return Drawn([slice_of(settings, int(held[k]), at) for k, at in zip(clients, positions)], expected)
    coins = sampling.poisson(draws, round, held, settings.expected_batch * settings.slices / total)
    turns = [at % settings.slices for at in positions]
    return Drawn([coins[k][coins[k] % settings.slices == turn] for k, turn in zip(clients, turns)], expected)
