"""Who and what takes part in a round: record draws, cohorts and dropouts, found by (round, purpose), never consumed.

They come from the run's secret: amplification by sampling needs draws that the observer does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.fl.engine.randomness import Randomness
from cepam.fl.engine.settings import Settings

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]

RECORDS, COHORT, DROPOUT, NOISE, MASKS, STREAMS = range(6)
STEP_RECORDS, STEP_MASKS = 2**32, 2**33
"""Purposes of local steps start here: the step's number is added."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The records that clients use in a round, as places among each one's own.

    `places` has an entry a client: [steps, batch], or with update `examples` a row of any length, whose sum of
    gradients is divided by the client's public `expected` number of them.
    """

    places: Sequence[Index]
    expected: Floats


def drawn(settings: Settings, draws: Randomness, round: int, held: Index, clients: Sequence[int]) -> Drawn:
    """What these clients draw by the settings' `sampling`; `held` counts the records of every client."""
    steps, batch = settings.tau, settings.batch
    if settings.sampling == "poisson":
        chance = settings.expected_batch / int(held.sum())
        places: Sequence[Index] = poisson(draws, round, held, chance)
        return Drawn([places[k] for k in clients], np.array([chance * int(held[k]) for k in clients], dtype=np.float32))
    make = with_replacement if settings.sampling == "replacement" else without_replacement
    return Drawn(list(make(draws, round, held, steps, batch)[list(clients)]), np.full(len(clients), batch, np.float32))


def with_replacement(draws: Randomness, round: int, held: Index, steps: int, batch: int) -> Index:
    """Places [clients, steps, batch] among each client's `held[k]` records, uniform, with replacement.

    Paper: Section II-A, the indices j_t^k.
    """
    uniform = draws.uniform(round, RECORDS, 0, len(held) * steps * batch).reshape(len(held), steps, batch)
    return np.minimum((uniform * held[:, None, None]).astype(np.int64), held[:, None, None] - 1)


def without_replacement(draws: Randomness, round: int, held: Index, steps: int, batch: int) -> Index:
    """Places [clients, steps, batch], all different within a client and a round."""
    many = steps * batch
    if held.min() < many:
        raise ValueError(f"{many} different records a round need clients with as many, got {held.min()}")
    words = np.split(draws.words(round, RECORDS, 0, int(held.sum())), np.cumsum(held)[:-1])
    return np.stack([_smallest(part, many).reshape(steps, batch) for part in words])


def poisson(draws: Randomness, round: int, held: Index, chance: float) -> list[Index]:
    """For each client the places of its records that were drawn, each by itself with this chance."""
    drawn = draws.uniform(round, RECORDS, 0, int(held.sum())) < chance
    return [np.flatnonzero(part) for part in np.split(drawn, np.cumsum(held)[:-1])]


def asked(clients: int, share: float) -> int:
    """How many clients a round asks: all, or the nearest whole number to the share, halves upward, at least one."""
    return clients if share >= 1.0 else max(1, int(np.floor(share * clients + 0.5)))


def cohort(draws: Randomness, round: int, clients: int, share: float) -> Index:
    """The clients asked in this round: all, or a uniform subset of the given share (at least one)."""
    if share >= 1.0:
        return np.arange(clients)
    return np.sort(_smallest(draws.words(round, COHORT, 0, clients), asked(clients, share)))


def silent(draws: Randomness, round: int, attempt: int, clients: int, chance: float) -> npt.NDArray[np.bool_]:
    """Which clients do not reply to this attempt of the round."""
    return draws.uniform(round, DROPOUT, attempt, clients) < chance


def masks(draws: Randomness, round: int, client: int, steps: int) -> Index:
    """A seed for each local step of a client, for what its module draws as it trains, such as dropout."""
    return (draws.words(round, MASKS, client, steps) >> np.uint64(1)).astype(np.int64)


def of_step(draws: Randomness, round: int, step: int, client: int, held: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each of a client's records, anew in each local step (update dp-sgd)."""
    return draws.uniform(round, STEP_RECORDS + step, client, held)


def mask_of_step(draws: Randomness, round: int, step: int, client: int) -> int:
    """A seed for what a client's module draws in this local step (update dp-sgd)."""
    return int(draws.words(round, STEP_MASKS + step, client, 1)[0] >> np.uint64(1))


def _smallest(words: npt.NDArray[np.uint64], many: int) -> Index:
    """The places of the smallest words, smallest first: a uniform ordered choice without repetition."""
    places = np.argpartition(words, many - 1)[:many]
    return places[np.argsort(words[places], kind="stable")]
