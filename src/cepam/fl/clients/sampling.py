"""Who and what takes part in a round: records, cohorts and dropouts, found by (round, purpose), never consumed.

They come from the run's secret: amplification by sampling needs draws that the observer does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.fl.clients.randomness import Randomness
from cepam.fl.config.settings import Settings, clients_per_round

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]

RECORDS, COHORT, DROPOUT, NOISE, MASKS, _UNUSED, EXCESS, COMPENSATION, OWN_RECORDS = range(9)
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
    steps, batch = settings.training.local_steps, settings.training.batch_size
    if settings.training.record_sampling == "poisson":
        sampling_rate = settings.training.expected_batch_size / int(held.sum())
        places: Sequence[Index] = poisson(draws, round, held, sampling_rate)
        return Drawn(
            [places[k] for k in clients], np.array([sampling_rate * int(held[k]) for k in clients], dtype=np.float32)
        )
    if settings.training.record_sampling == "all":
        return every_record(steps, held, clients)
    make = with_replacement if settings.training.record_sampling == "replacement" else without_replacement
    return Drawn(list(make(draws, round, held, steps, batch)[list(clients)]), np.full(len(clients), batch, np.float32))


def padded(picked: Sequence[Index]) -> tuple[Index, Index]:
    """Rows of records of any length as one array, and how many places of each row count."""
    count = np.array([len(one) for one in picked], dtype=np.int64)
    index = np.zeros((len(picked), max(1, int(count.max()))), dtype=np.int64)
    for row, one in enumerate(picked):
        index[row, : len(one)] = one
    return index, count


def every_record(steps: int, held: Index, clients: Sequence[int]) -> Drawn:
    """All that these clients hold, in every local step."""
    counts = held[list(clients)]
    return Drawn([np.tile(np.arange(count), (steps, 1)) for count in counts], counts.astype(np.float32))


def drawn_by_each(settings: Settings, draws: Randomness, round: int, held: Index, clients: Sequence[int]) -> Drawn:
    """What these clients draw, each from an address of its own: nothing is as long as the population."""
    steps, batch = settings.training.local_steps, settings.training.batch_size
    if settings.training.record_sampling == "all":
        return every_record(steps, held, clients)
    places = []
    for k in clients:
        if settings.training.record_sampling == "replacement":
            uniform = draws.uniform(round, OWN_RECORDS, k, steps * batch)
            drawn = np.minimum((uniform * held[k]).astype(np.int64), held[k] - 1)
        else:
            _check_enough(int(held[k]), steps * batch)
            drawn = _smallest(draws.words(round, OWN_RECORDS, k, int(held[k])), steps * batch)
        places.append(drawn.reshape(steps, batch))
    return Drawn(places, np.full(len(clients), batch, np.float32))


def _check_enough(held: int, many: int) -> None:
    if held < many:
        raise ValueError(f"{many} different records a round need clients with as many, got {held}")


def with_replacement(draws: Randomness, round: int, held: Index, steps: int, batch: int) -> Index:
    """Places [clients, steps, batch] among each client's `held[k]` records, uniform, with replacement.

    Paper: Section II-A, the indices j_t^k.
    """
    uniform = draws.uniform(round, RECORDS, 0, len(held) * steps * batch).reshape(len(held), steps, batch)
    return np.minimum((uniform * held[:, None, None]).astype(np.int64), held[:, None, None] - 1)


def without_replacement(draws: Randomness, round: int, held: Index, steps: int, batch: int) -> Index:
    """Places [clients, steps, batch], all different within a client and a round."""
    many = steps * batch
    _check_enough(int(held.min()), many)
    words = np.split(draws.words(round, RECORDS, 0, int(held.sum())), np.cumsum(held)[:-1])
    return np.stack([_smallest(part, many).reshape(steps, batch) for part in words])


def poisson(draws: Randomness, round: int, held: Index, sampling_rate: float) -> list[Index]:
    """For each client the places of its records that were drawn, each by itself with this probability."""
    ends = np.cumsum(held)
    places = np.flatnonzero(draws.uniform(round, RECORDS, 0, int(ends[-1])) < sampling_rate)
    parts = np.split(places, np.searchsorted(places, ends[:-1]))
    return [part - start for part, start in zip(parts, ends - held)]


def cohort(draws: Randomness, round: int, clients: int, share: float) -> Index:
    """The clients sampled in this round: all, or a uniform subset of the given share (at least one)."""
    if share >= 1.0:
        return np.arange(clients)
    return np.sort(_smallest(draws.words(round, COHORT, 0, clients), clients_per_round(clients, share)))


def poisson_cohort(draws: Randomness, round: int, clients: int, sampling_rate: float) -> Index:
    """The clients drawn in this round, each by itself with this probability, to 2^-64.

    Of each client's 64 bits the first 16 decide, and only where they tie the rest is looked at: this alone, of all
    that a round does, is as long as the population.
    """
    first, rest = divmod(min(int(sampling_rate * 2.0**64), 2**64), 2**48)
    bits = np.frombuffer(draws.random_bytes(round, COHORT, 0, 2 * clients), dtype="<u2")
    tied = np.flatnonzero(bits == first)
    more = draws.words(round, COHORT, 1, len(tied)) >> np.uint64(16)
    return np.sort(np.concatenate([np.flatnonzero(bits < first), tied[more < np.uint64(rest)]]))


def capped(draws: Randomness, round: int, drawn: Index, cap: int) -> Index:
    """A uniform choice of `cap` of those drawn, where they are more."""
    if len(drawn) <= cap:
        return drawn
    return np.sort(drawn[_smallest(draws.words(round, EXCESS, 0, len(drawn)), cap)])


def silent(draws: Randomness, round: int, attempt: int, clients: int, dropout_rate: float) -> npt.NDArray[np.bool_]:
    """Which clients do not reply to this attempt of the round."""
    return draws.uniform(round, DROPOUT, attempt, clients) < dropout_rate


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
