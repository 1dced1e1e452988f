"""Partitions: which training records each client holds.

Every function takes the records' labels and gives one sorted index array a client; no record is held twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Parts = tuple[npt.NDArray[np.int64], ...]
GIVEN = "given"
"""The partition of data that say whose record is whose, which nobody draws."""
NAMES = ("iid", "unequal", "label", "dirichlet")


def _check(labels: Labels, clients: int) -> None:
    if clients < 1:
        raise ValueError(f"clients must be at least 1, got {clients}")
    if len(labels) < clients:
        raise ValueError(f"{clients} clients cannot share {len(labels)} records")


def _check_classes(labels: Labels) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError("partitions by label need class numbers, and these records have values: use iid or unequal")


def _cut(order: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Parts:
    ends = np.cumsum(sizes)
    return tuple(np.sort(order[end - size : end]) for size, end in zip(sizes, ends))


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
    return tuple(np.sort(part) for part in np.array_split(order, clients))


def unequal(labels: Labels, clients: int, draw: np.random.Generator, spread: float = 1.0) -> Parts:
    """Records shuffled and dealt out in sizes proportional to a log-normal draw of this spread."""
    _check(labels, clients)
    if not spread >= 0:
        raise ValueError(f"spread must not be negative, got {spread}")
    sizes = _shares(np.exp(spread * draw.normal(size=clients)), len(labels))
    return _cut(draw.permutation(len(labels)), sizes)


def by_label(labels: Labels, clients: int, draw: np.random.Generator, labels_each: int = 2) -> Parts:
    """Records sorted by label, cut into `labels_each` shards a client, and dealt out: few labels each."""
    _check(labels, clients)
    _check_classes(labels)
    if labels_each < 1 or labels_each * clients > len(labels):
        raise ValueError(f"labels_each must lie in [1, {len(labels) // clients}], got {labels_each}")
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, clients * labels_each)
    dealt = draw.permutation(clients * labels_each).reshape(clients, labels_each)
    return tuple(np.sort(np.concatenate([shards[s] for s in row])) for row in dealt)


def dirichlet(labels: Labels, clients: int, draw: np.random.Generator, alpha: float = 0.5) -> Parts:
    """Records of every label dealt out in Dirichlet(alpha) proportions; every client holds at least one record."""
    _check(labels, clients)
    _check_classes(labels)
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    held: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        order = draw.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(draw.dirichlet(np.full(clients, alpha)))[:-1] * len(order)).astype(np.int64)
        for mine, piece in zip(held, np.split(order, cuts)):
            mine.append(piece)
    parts = [np.concatenate(mine) for mine in held]
    for k, part in enumerate(parts):
        if len(part) == 0:
            richest = max(range(clients), key=lambda j: len(parts[j]))
            parts[k], parts[richest] = parts[richest][:1], parts[richest][1:]
    return tuple(np.sort(part) for part in parts)


def given(owners: Labels, clients: tuple[str, ...]) -> Parts:
    """The records of each client by the data's own account; every client must hold some."""
    parts = tuple(np.flatnonzero(owners == k) for k in range(len(clients)))
    for who, part in zip(clients, parts):
        if not len(part):
            raise ValueError(f"client {who!r} holds no training record: leave it out, or lower validation")
    return parts


def partition(name: str, labels: Labels, clients: int, seed: int, alpha: float, labels_each: int) -> Parts:
    """The named partition, drawn from the seed alone."""
    draw = np.random.Generator(np.random.PCG64([seed, 0x504152]))
    if name == "iid":
        return iid(labels, clients, draw)
    if name == "unequal":
        return unequal(labels, clients, draw, alpha)
    if name == "label":
        return by_label(labels, clients, draw, labels_each)
    if name == "dirichlet":
        return dirichlet(labels, clients, draw, alpha)
    if name == GIVEN:
        raise ValueError("partition given needs data that say whose record is whose: fl.from_clients, fl.from_table")
    raise ValueError(f"partition must be one of {', '.join(NAMES)}, got {name!r}")
