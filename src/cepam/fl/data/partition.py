"""Partitions: which training records each client holds.

Every function takes the records' labels and gives one sorted index array a client; no record is held twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Index = npt.NDArray[np.int64]
GIVEN = "given"
"""The partition of data that say whose record is whose, which nobody draws."""
NAMES = ("iid", "unequal", "label", "dirichlet", "dirichlet-even")


@dataclass(frozen=True, eq=False)
class Parts(Sequence[Index]):
    """One index array a client, as one flat array and where each ends: a million clients are two arrays."""

    records: Index
    ends: Index

    @classmethod
    def of(cls, arrays: Iterable[Index]) -> Parts:
        """The parts of one array a client."""
        made = list(arrays)
        return cls(np.concatenate(made), np.cumsum([len(one) for one in made]))

    @property
    def held(self) -> Index:
        """How many records each client holds."""
        return np.diff(self.ends, prepend=0)

    def within(self, records: Index) -> Parts:
        """The parts whose places were among these records."""
        return Parts(records[self.records], self.ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, place: int) -> Index: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Index]: ...
    def __getitem__(self, place: int | slice) -> Index | Sequence[Index]:
        if isinstance(place, slice):
            return [self[k] for k in range(len(self))[place]]
        k = range(len(self))[place]
        return self.records[self.ends[k - 1] if k else 0 : self.ends[k]]


def _check(labels: Labels, clients: int) -> None:
    if clients < 1:
        raise ValueError(f"clients must be at least 1, got {clients}")
    if len(labels) < clients:
        raise ValueError(f"{clients} clients cannot share {len(labels)} records")


def _check_classes(labels: Labels, clients: int, concentration: float = 1.0) -> None:
    _check(labels, clients)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError("partitions by label need class numbers, and these records have values: use iid or unequal")
    if not concentration > 0:
        raise ValueError(f"data.concentration must be positive, got {concentration}")


def _cut(order: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Parts:
    """The order cut to these sizes, each part sorted."""
    whose = np.repeat(np.arange(len(sizes)), sizes)
    return Parts(order[: len(whose)][np.lexsort((order[: len(whose)], whose))], np.cumsum(sizes))


def _shares(weights: npt.NDArray[np.float64], records: int) -> npt.NDArray[np.int64]:
    """Whole numbers in proportion to the weights, at least one each, that sum to `records`."""
    sizes: npt.NDArray[np.int64] = np.maximum(1, np.floor(weights / weights.sum() * records).astype(np.int64))
    while sizes.sum() > records:
        sizes[np.argmax(sizes)] -= 1
    sizes[np.argsort(-weights, kind="stable")[: records - sizes.sum()]] += 1
    return sizes


def iid(labels: Labels, clients: int, draw: np.random.Generator, even: bool = True) -> Parts:
    """Records shuffled and dealt out; equal sizes (what does not divide stays unused) unless `even` is off.

    Paper: Section V-A, "equally distributed among K clients".
    """
    _check(labels, clients)
    order = draw.permutation(len(labels))
    if even:
        return _cut(order, np.full(clients, len(labels) // clients))
    return Parts.of(np.sort(part) for part in np.array_split(order, clients))


def unequal(labels: Labels, clients: int, draw: np.random.Generator, spread: float = 1.0) -> Parts:
    """Records shuffled and dealt out in sizes proportional to a log-normal draw of this spread."""
    _check(labels, clients)
    if not spread >= 0:
        raise ValueError(f"spread must not be negative, got {spread}")
    sizes = _shares(np.exp(spread * draw.normal(size=clients)), len(labels))
    return _cut(draw.permutation(len(labels)), sizes)


def by_label(labels: Labels, clients: int, draw: np.random.Generator, shards_per_client: int = 2) -> Parts:
    """Records sorted by label, cut into `shards_per_client` shards per client, and dealt out: few labels each."""
    _check_classes(labels, clients)
    if shards_per_client < 1 or shards_per_client * clients > len(labels):
        raise ValueError(f"data.shards_per_client must lie in [1, {len(labels) // clients}], got {shards_per_client}")
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, clients * shards_per_client)
    dealt = draw.permutation(clients * shards_per_client).reshape(clients, shards_per_client)
    return Parts.of(np.sort(np.concatenate([shards[s] for s in row])) for row in dealt)


def dirichlet(labels: Labels, clients: int, draw: np.random.Generator, concentration: float = 0.5) -> Parts:
    """Records of every label dealt out in Dirichlet(concentration) proportions; every client holds at least one."""
    _check_classes(labels, clients, concentration)
    held: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        order = draw.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(draw.dirichlet(np.full(clients, concentration)))[:-1] * len(order)).astype(np.int64)
        for mine, piece in zip(held, np.split(order, cuts)):
            mine.append(piece)
    parts = [np.concatenate(mine) for mine in held]
    for k, part in enumerate(parts):
        if len(part) == 0:
            richest = max(range(clients), key=lambda j: len(parts[j]))
            parts[k], parts[richest] = parts[richest][:1], parts[richest][1:]
    return Parts.of(np.sort(part) for part in parts)


def even_dirichlet(labels: Labels, clients: int, draw: np.random.Generator, concentration: float = 0.5) -> Parts:
    """Equal sizes, what does not divide stays unused; label proportions per client, Dirichlet(concentration).

    Every record is drawn without replacement from what is left of a label, in proportion to the client's mixture; where
    nothing of its labels is left, from whatever there is.
    """
    _check_classes(labels, clients, concentration)
    known, each = np.unique(labels), len(labels) // clients
    pools = [draw.permutation(np.flatnonzero(labels == label)) for label in known]
    left = np.array([len(pool) for pool in pools])
    mixtures = draw.dirichlet(np.full(len(known), concentration), clients)
    order = np.empty(clients * each, dtype=np.int64)
    for at, uniform in enumerate(draw.random(len(order))):
        cumulative = np.cumsum(mixtures[at // each] * (left > 0))
        if not cumulative[-1] > 0:
            cumulative = np.cumsum(left, dtype=np.float64)
        label = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
        left[label] -= 1
        order[at] = pools[label][left[label]]
    return _cut(order, np.full(clients, each))


def given(owners: Labels, clients: tuple[str, ...]) -> Parts:
    """The records of each client by the data's own account; every client must hold some."""
    held = np.bincount(owners, minlength=len(clients))
    if not held.all():
        who = clients[int(np.argmin(held))]
        raise ValueError(f"client {who!r} holds no training record: leave it out, or lower data.validation_records")
    return Parts(np.argsort(owners, kind="stable"), np.cumsum(held))


def partition(
    name: str, labels: Labels, clients: int, seed: int, concentration: float, shards_per_client: int
) -> Parts:
    """The named partition, drawn from the seed alone."""
    draw = np.random.Generator(np.random.PCG64([seed, 0x504152]))
    if name == "iid":
        return iid(labels, clients, draw)
    if name == "unequal":
        return unequal(labels, clients, draw, concentration)
    if name == "label":
        return by_label(labels, clients, draw, shards_per_client)
    if name == "dirichlet-even":
        return even_dirichlet(labels, clients, draw, concentration)
    if name == "dirichlet":
        return dirichlet(labels, clients, draw, concentration)
    if name == GIVEN:
        raise ValueError("partition given needs data that say whose record is whose: fl.from_clients, fl.from_table")
    raise ValueError(f"partition must be one of {', '.join(NAMES)}, got {name!r}")
