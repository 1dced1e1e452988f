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
    """How the noise of a run's messages is correlated, and over how many slices; None where there are none.

    The matrix or decay is the settings', or the decay that leaves least noise in the weights of such a run. With
    record sampling `poisson` the correlation ends after as many messages as there are slices: the theorem that accounts
    for both (docs/proofs/matrix-mechanism.md, "Secret draws and bands") is false for more.
    """
    s = settings
    if not s.sliced:
        return None
    if s.privacy.matrix is not None:
        return _own(s)
    bands = s.training.slices if s.training.record_sampling == "poisson" else None
    decay = s.privacy.decay if s.privacy.noise_correlation == "matrix" else 0.0
    if decay is None:
        decay = best_decay(s.training.rounds, s.training.slices, *_optimiser(s), bands)
    return (
        CorrelatedNoise(decay, s.training.slices)
        if bands is None
        else CorrelatedNoise.from_matrix(decay ** np.arange(bands), bands)
    )


def _own(settings: Settings) -> CorrelatedNoise:
    """The correlation of the matrix that the settings name, or a ValueError where it does not fit the run."""
    assert settings.privacy.matrix is not None
    link = CorrelatedNoise.from_matrix(settings.privacy.matrix, settings.training.slices)
    if link.longest is not None and link.longest < settings.training.rounds:
        raise ValueError(
            f"privacy.matrix {settings.privacy.matrix} has {link.longest} rows, under the run's "
            f"{settings.training.rounds} rounds"
        )
    if settings.training.record_sampling == "poisson" and (link.bands or 0) > settings.training.slices:
        raise ValueError(
            f"training.record_sampling poisson needs a matrix of at most training.slices = {settings.training.slices} "
            f"bands, got {link.bands}: raise training.slices, or use record_sampling cyclic"
        )
    return link


def _optimiser(settings: Settings) -> tuple[float, list[float]]:
    """The momentum of the server's steps and the rate of each, over the largest."""
    s, tau = settings, settings.training.local_steps
    made = schedule(
        s.training.schedule,
        s.training.server_learning_rate,
        s.training.rounds * tau,
        tau,
        s.training.convexity,
        s.training.smoothness,
    )
    rates = [made.at((round + 1) * tau - 1) for round in range(s.training.rounds)]
    return (0.0 if s.training.server_optimizer == "sgd" else s.training.server_momentum), [
        rate / max(rates) for rate in rates
    ]


def lasting(link: CorrelatedNoise) -> float:
    """Between a message's noise in its own round and what later rounds leave of it, in geometric mean: over sigma."""
    first = link.rows[-1][-1] if link.rows is not None else link.column(1)[0]
    return 1.0 / math.sqrt(first * link.gain)


def slice_of(settings: Settings, held: int, position: int) -> Index:
    """The places of the records that a client with `held` of them uses at this position of its stream.

    A row; where the update is no sum over examples, [steps, batch]: the slice in order, again from its start if short.
    """
    places = np.arange(position % settings.training.slices, held, settings.training.slices)
    return (
        places
        if settings.training.update == "examples"
        else np.resize(places, (settings.training.local_steps, settings.training.batch_size))
    )


def divisor(settings: Settings, held: int, share: float) -> float:
    """The public number that divides a client's sum over examples: its expected draws, or its mean slice."""
    return (
        held / settings.training.slices
        if settings.training.record_sampling == "cyclic"
        else settings.training.expected_batch_size * share
    )


def most_examples(settings: Settings, held: int, over: float) -> float:
    """How many clips long an update can be: 1, or where it is a sum over examples all of a slice over its divisor."""
    return math.ceil(held / settings.training.slices) / over if settings.training.update == "examples" else 1.0


def drawn(
    settings: Settings, draws: Randomness, round: int, held: Index, clients: Sequence[int], positions: Sequence[int]
) -> Drawn:
    """What clients use of their slices at these positions: all, or each record by itself, afresh and in secret."""
    total = int(held.sum())
    expected = np.array([divisor(settings, int(held[k]), int(held[k]) / total) for k in clients], dtype=np.float32)
    if settings.training.record_sampling != "poisson":
        return Drawn([slice_of(settings, int(held[k]), at) for k, at in zip(clients, positions)], expected)
    coins = sampling.poisson(
        draws, round, held, settings.training.expected_batch_size * settings.training.slices / total
    )
    turns = [at % settings.training.slices for at in positions]
    return Drawn([coins[k][coins[k] % settings.training.slices == turn] for k, turn in zip(clients, turns)], expected)
