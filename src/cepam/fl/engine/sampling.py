"""The simulation's own randomness, addressed by (seed, round, purpose) and never consumed.

A resumed run, another order of work or a subset of the clients finds the same draws. These are seeded and therefore no
secret: they simulate what each client would draw privately.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]

RECORDS, COHORT, DROPOUT, NOISE = range(4)


def generator(seed: int, round: int, purpose: int, client: int = 0) -> np.random.Generator:
    """The generator of one address."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, round, purpose, client])))


def with_replacement(seed: int, round: int, held: Index, steps: int, batch: int) -> Index:
    """Places [clients, steps, batch] among each client's `held[k]` records, uniform, with replacement.

    Paper: Section II-A, the indices j_t^k.
    """
    uniform = generator(seed, round, RECORDS).random((len(held), steps, batch))
    return np.minimum((uniform * held[:, None, None]).astype(np.int64), held[:, None, None] - 1)


def without_replacement(seed: int, round: int, held: Index, steps: int, batch: int) -> Index:
    """Places [clients, steps, batch], all different within a client and a round."""
    draw = generator(seed, round, RECORDS)
    if held.min() < steps * batch:
        raise ValueError(f"{steps * batch} different records a round need clients with as many, got {held.min()}")
    return np.stack([draw.permutation(int(n))[: steps * batch].reshape(steps, batch) for n in held])


def poisson(seed: int, round: int, held: Index, chance: float) -> list[Index]:
    """For each client the places of its records that were drawn, each by itself with this chance."""
    draw = generator(seed, round, RECORDS)
    drawn = draw.random(int(held.sum())) < chance
    return [np.flatnonzero(part) for part in np.split(drawn, np.cumsum(held)[:-1])]


def cohort(seed: int, round: int, clients: int, share: float) -> Index:
    """The clients asked in this round: all, or a uniform subset of the given share (at least one)."""
    if share >= 1.0:
        return np.arange(clients)
    count = max(1, round_half_up(share * clients))
    return np.sort(generator(seed, round, COHORT).permutation(clients)[:count])


def round_half_up(value: float) -> int:
    """The nearest whole number, halves upward."""
    return int(np.floor(value + 0.5))


def silent(seed: int, round: int, attempt: int, clients: int, chance: float) -> npt.NDArray[np.bool_]:
    """Which clients do not reply to this attempt of the round."""
    return generator(seed, round, DROPOUT, attempt).random(clients) < chance
