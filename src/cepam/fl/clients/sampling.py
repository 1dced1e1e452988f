"""Who and what takes part in a round: records, cohorts, slices and dropouts, found by (round, purpose)."""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cepam.fl.config.settings import Settings, clients_per_round
from cepam.fl.optim import schedule
from cepam.keys import KEY_BYTES, Key, hkdf
from cepam.privacy import CorrelatedNoise, best_decay

# A run's randomness: one secret of 32 bytes, and by address whatever a round draws.
#
# Keys, record draws, cohorts and dropouts all come from the secret by HKDF; nothing is consumed, so a resumed run,
# another order of work or a subset of the clients finds the same words. Whoever holds the secret can strip the noise
# from every message of the run; without it, settings, seed and nonce tell nothing.


NONCE_BYTES = 16
LONG_DRAW = 1 << 16
"""Bytes from which a draw takes long enough to be made ahead."""
Words = npt.NDArray[np.uint64]
Place = tuple[int, int, int, int]


@dataclass
class Prefetched:
    """The last long draw, and what is at hand already, by (round, purpose, client, bytes)."""

    last: Place | None = None
    ready: dict[Place, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Randomness:
    """What one seed's row of a run draws from: a root key, and words found by (round, purpose, client)."""

    root: Key = field(repr=False)
    prefetched: Prefetched = field(default_factory=Prefetched, repr=False, compare=False)

    def key(self, client: int) -> Key:
        """The key that this client shares with the server."""
        return Key(hkdf(self.root.secret, b"cepam run", b"client key v1" + struct.pack("<Q", client), KEY_BYTES))

    def own_key(self, client: int) -> Key:
        """The key that this client keeps to itself: what it draws with it nobody else can draw."""
        return Key(hkdf(self.root.secret, b"cepam run", b"client's own v1" + struct.pack("<Q", client), KEY_BYTES))

    def random_bytes(self, round: int, purpose: int, client: int, count: int) -> bytes:
        """So many bytes of the keystream of this address (SHAKE-256 of a key of its own)."""
        place = round, purpose, client, count
        if count >= LONG_DRAW:
            self.prefetched.last = place
        return self.prefetched.ready.pop(place, None) or self._draw(*place)

    def _draw(self, round: int, purpose: int, client: int, count: int) -> bytes:
        info = b"draws v1" + struct.pack("<QQQ", round, purpose, client)
        return hashlib.shake_256(hkdf(self.root.secret, b"cepam run", info, KEY_BYTES)).digest(count)

    def prefetch(self) -> None:
        """Make the last long draw for the next round too, while the caller waits for something else.

        A draw is found by its address, so that it is the same whenever it is made.
        """
        if self.prefetched.last is not None:
            round, purpose, client, count = self.prefetched.last
            place = round + 1, purpose, client, count
            if place not in self.prefetched.ready:
                self.prefetched.ready = {place: self._draw(*place)}

    def words(self, round: int, purpose: int, client: int, count: int) -> Words:
        """So many words of 64 bits of the address."""
        return np.frombuffer(self.random_bytes(round, purpose, client, 8 * count), dtype="<u8").astype(np.uint64)

    def uniform(self, round: int, purpose: int, client: int, count: int) -> npt.NDArray[np.float64]:
        """So many numbers in [0, 1) of the address, multiples of 2^-53."""
        return np.asarray(self.words(round, purpose, client, count) >> np.uint64(11), dtype=np.float64) * 2.0**-53


@dataclass(frozen=True)
class RunSecret:
    """The secret of a run, and the public nonce that sets its addresses apart from those of every other run.

    Guarantee: by default two runs with equal settings share no key, no draw and no noise, and the secret cannot be
    computed from what a run leaves behind (tests/fl/runs/test_secrecy.py).
    """

    secret: bytes | None = field(repr=False)
    nonce: bytes
    """None stands for a simulation: every row's randomness then comes from its seed."""

    @classmethod
    def fresh(cls) -> RunSecret:
        """A secret and a nonce from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(NONCE_BYTES))

    @classmethod
    def simulated(cls, settings: Settings) -> RunSecret:
        """No secret: seeds give the keys and draws, and equal settings the same nonce. Protects nobody."""
        return cls(None, hashlib.sha256(repr(settings).encode()).digest()[:NONCE_BYTES])

    @classmethod
    def of(cls, settings: Settings) -> RunSecret:
        """What a new run with these settings starts from."""
        return cls.simulated(settings) if settings.run.simulate else cls.fresh()

    def row(self, seed: int) -> Randomness:
        """The randomness of this seed's row."""
        if self.secret is None:
            return Randomness(Key.simulated(seed))
        return Randomness(Key(hkdf(self.secret, self.nonce, b"cepam seed row" + struct.pack("<Q", seed), KEY_BYTES)))

    def mark_key(self) -> bytes:
        """The key under which the run marks its data: once the secret is erased, the marks tell nothing."""
        return hkdf(self.secret or bytes(KEY_BYTES), self.nonce, b"cepam fingerprint", KEY_BYTES)

    def checkpoint_key(self) -> bytes:
        """The key under which the run's checkpoints are encrypted; of a simulation it is public."""
        return hkdf(self.secret or bytes(KEY_BYTES), self.nonce, b"cepam checkpoint", KEY_BYTES)


# They come from the run's secret: amplification by sampling needs draws that the observer does not know.


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


# Fixed slices of each client's records, one per round in turn, and how their noise is correlated.
#
# A record's slice is its place among its client's modulo `slices`. Places are public and stay: a record that is
# removed leaves its place empty (`Dataset.without`), so it moves no other, and divisors count places, never what is
# in them. With sampling `cyclic` a round uses the whole slice and nothing is secret. With sampling `poisson` it draws
# in secret among the slice's records, and what a message tells of an update ends before its slice comes again.


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


def drawn_slices(
    settings: Settings, draws: Randomness, round: int, held: Index, clients: Sequence[int], positions: Sequence[int]
) -> Drawn:
    """What clients use of their slices at these positions: all, or each record by itself, afresh and in secret."""
    total = int(held.sum())
    expected = np.array([divisor(settings, int(held[k]), int(held[k]) / total) for k in clients], dtype=np.float32)
    if settings.training.record_sampling != "poisson":
        return Drawn([slice_of(settings, int(held[k]), at) for k, at in zip(clients, positions)], expected)
    coins = poisson(draws, round, held, settings.training.expected_batch_size * settings.training.slices / total)
    turns = [at % settings.training.slices for at in positions]
    return Drawn([coins[k][coins[k] % settings.training.slices == turn] for k, turn in zip(clients, turns)], expected)
