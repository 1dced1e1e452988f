"""A model's named arrays: as the vector of an update, and on the public grid of a quantized broadcast."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.downlink import Broadcast, Receiver
from cepam.errors import CepamError
from cepam.protocol.agreement import WIRE, Declined, Vector

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

# Counters of batch normalisation come back as floats once they were averaged: their name tells them.
COUNTERS = ("num_batches_tracked",)
# Variances: noise can bring them below zero, where a model computes NaN.
POSITIVE = ("running_var", "moving_variance")
STATISTICS = (*POSITIVE, "running_mean", "moving_mean")
SMALLEST_PART = 0.1
SMALLEST_VARIANCE = 1e-5
BATCH_NORM = (
    "the model has statistics of batch normalisation: they travel as part of the update, take their share of the clip, "
    "and get noise, which harms; group normalisation (torch.nn.GroupNorm) has none"
)


def travels(name: str, array: Array) -> bool:
    """Whether an array of this name is part of the update: floating-point arrays are, counters never."""
    return np.issubdtype(array.dtype, np.floating) and not name.endswith(COUNTERS)


def travelling(reference: Arrays) -> list[str]:
    """The names of the arrays that travel, in the server's order: the others stay as the server sent them."""
    names = [name for name, array in reference.items() if travels(name, array)]
    if not names:
        raise ValueError("the server's arrays hold no floating-point array: nothing to send")
    return names


def count(reference: Arrays) -> int:
    """How many coordinates travel."""
    return sum(int(reference[name].size) for name in travelling(reference))


def to_vector(reply: Arrays, reference: Arrays, difference: bool) -> Vector:
    """The reply as one float32 vector, less the reference if `difference`; names and shapes must match."""
    if set(reply) != set(reference):
        odd = sorted(set(reply) ^ set(reference))
        raise ValueError(f"the reply's arrays are not the server's: {', '.join(odd[:3])} on one side only")
    parts = []
    for name in travelling(reference):
        value = np.asarray(reply[name])
        if value.shape != reference[name].shape:
            raise ValueError(f"array {name!r} has shape {value.shape}, the server's {reference[name].shape}")
        made = value.astype(np.float64).ravel()
        if difference:
            made -= reference[name].astype(np.float64).ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            parts.append(made.astype(np.float32))
    return np.concatenate(parts)


def from_vector(vector: npt.NDArray[np.floating], reference: Arrays, step: float | None) -> dict[str, Array]:
    """The reference plus `step` times the vector, or the vector itself if `step` is None; other arrays unchanged."""
    made: dict[str, Array] = {}
    at, names = 0, set(travelling(reference))
    for name, array in reference.items():
        if name not in names:
            made[name] = array
            continue
        piece = vector[at : at + array.size].reshape(array.shape)
        at += array.size
        value = piece if step is None else array + step * piece
        made[name] = np.asarray(value, dtype=array.dtype)
    return made


@dataclass(frozen=True)
class Layout:
    """The types that a model's arrays had when they were first sent: an average has floats where integers were."""

    dtypes: tuple[tuple[str, np.dtype[np.generic]], ...]

    @classmethod
    def of(cls, arrays: Arrays) -> Layout:
        """The layout of these arrays."""
        return cls(tuple((name, array.dtype) for name, array in arrays.items()))

    def restored(self, arrays: Arrays) -> dict[str, Array]:
        """The arrays with those that were integers as integers again; arrays of other names as they are."""
        known, made = dict(self.dtypes), dict(arrays)
        for name, array in arrays.items():
            then = known.get(name, array.dtype)
            if array.dtype != then and not np.issubdtype(then, np.floating):
                made[name] = np.asarray(np.rint(array), dtype=then)
        return made


def kept_positive(arrays: Arrays, reference: Arrays) -> dict[str, Array]:
    """The arrays, their variances at least a tenth of the reference's and at least 1e-5.

    This only looks at what is published, so it costs no privacy. Guarantee: tests/protocol/test_models.py.
    """
    made = dict(arrays)
    for name, array in arrays.items():
        if name.endswith(POSITIVE) and name in reference and np.issubdtype(array.dtype, np.floating):
            least = np.maximum(SMALLEST_PART * reference[name].astype(np.float64), SMALLEST_VARIANCE)
            made[name] = np.asarray(np.maximum(array, least.reshape(array.shape)), dtype=array.dtype)
    return made


def is_batch_statistic(name: str) -> bool:
    """Whether an array of this name is a running mean or variance of batch normalisation."""
    return name.endswith(STATISTICS)


def has_batch_statistics(arrays: Arrays) -> bool:
    """Whether some array looks like a statistic of batch normalisation."""
    return any(name.endswith((*COUNTERS, *POSITIVE)) for name in arrays)


def digest(arrays: Arrays) -> str:
    """A hash of the values that travel, whatever their names, their order and their number format."""
    values = (np.ascontiguousarray(arrays[name], dtype="<f4").tobytes() for name in travelling(arrays))
    each = sorted(hashlib.sha256(value).digest() for value in values)
    return hashlib.sha256(b"cepam model v1" + b"".join(each)).hexdigest()[:32]


# The downlink over the protocol: one broadcast from what each node is known to hold, and its messages.


@dataclass(frozen=True)
class ModelLayout:
    """Which arrays a model has, in order: the shapes of those on the grid, None for those that travel beside it."""

    entries: tuple[tuple[str, tuple[int, ...] | None], ...]

    @classmethod
    def of(cls, arrays: Arrays) -> ModelLayout:
        """The layout of these arrays; ValueError where none can lie on the grid."""
        made = cls(
            tuple((name, tuple(array.shape) if on_grid(name, array) else None) for name, array in arrays.items())
        )
        if not made.size:
            raise ValueError("downlink='grid' needs float32 arrays in the model, which has none")
        return made

    def fit(self, arrays: Arrays) -> bool:
        """Whether arrays have these names and shapes; strategies make float64 of float32, which the grid rounds."""
        return [name for name, _ in self.entries] == list(arrays) and all(
            shape is None or (arrays[name].shape == shape and travels(name, arrays[name]))
            for name, shape in self.entries
        )

    @cached_property
    def size(self) -> int:
        """How many coordinates lie on the grid."""
        return sum(math.prod(shape) for _, shape in self.entries if shape is not None)

    @property
    def beside(self) -> list[str]:
        """The names of the arrays that travel beside the broadcast."""
        return [name for name, shape in self.entries if shape is None]

    def vector(self, arrays: Arrays) -> npt.NDArray[np.floating]:
        """The arrays on the grid as one vector, in their own precision."""
        return np.concatenate([arrays[name].ravel() for name, shape in self.entries if shape is not None])

    def arrays(self, vector: Vector, beside: Arrays) -> dict[str, Array]:
        """All arrays: those on the grid from the vector, as arrays of their own, and the others."""
        made: dict[str, Array] = {}
        at = 0
        for name, shape in self.entries:
            if shape is None:
                made[name] = beside[name]
                continue
            size = math.prod(shape)
            made[name] = vector[at : at + size].reshape(shape).copy()
            at += size
        return made

    def to_text(self) -> str:
        """The layout as text."""
        return json.dumps(self.entries, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ModelLayout:
        """The layout that `to_text` wrote; ValueError for anything else."""
        try:
            entries = tuple((str(name), None if shape is None else _shape(shape)) for name, shape in json.loads(text))
        except (TypeError, ValueError, RecursionError) as unreadable:
            raise ValueError(f"the layout of the broadcast cannot be read: {unreadable}") from unreadable
        return cls(entries)


def _shape(read: Any) -> tuple[int, ...]:
    if any(isinstance(side, bool) or not isinstance(side, int) or side < 0 for side in read):
        raise ValueError(f"{read!r} is not a shape")
    return tuple(read)


def on_grid(name: str, array: Array) -> bool:
    """Whether an array of this name is part of the broadcast: float32 arrays that travel are, batch statistics not."""
    return array.dtype == np.float32 and travels(name, array) and not is_batch_statistic(name)


DOWNLINK = "cepam-downlink"
Field = int | str | bytes


@dataclass(frozen=True)
class BroadcastMessage:
    """The grid's name, the model's layout (empty where the node has it), and the broadcast."""

    grid: bytes
    layout: str
    message: bytes

    def to_fields(self) -> dict[str, Field]:
        """What travels beside the broadcast, as fields."""
        return {"wire": WIRE, "grid": self.grid, "layout": self.layout}

    @classmethod
    def from_fields(cls, record: Mapping[str, object], message: bytes) -> BroadcastMessage:
        """The broadcast of these fields and a broadcast; ValueError if they are something else."""
        wire, grid, layout = record.get("wire"), record.get("grid"), record.get("layout")
        if type(wire) is not int or wire != WIRE:
            raise ValueError(f"the broadcast comes in version {wire!r:.40} of this exchange, this end reads {WIRE}")
        if not isinstance(grid, bytes) or not grid:
            raise ValueError("'grid' beside the broadcast is missing, empty or not bytes")
        if not isinstance(layout, str):
            raise ValueError("'layout' beside the broadcast is missing or not text")
        return cls(grid, layout, message)


@dataclass(frozen=True)
class ClientModel:
    """A node's copy of the model, to be kept between messages: the grid, the layout, the receiver's state."""

    grid: bytes
    layout: str
    state: dict[str, Any]

    @property
    def report(self) -> dict[str, Field]:
        """What the server is sent: the version that is held, and its check value."""
        return {"version": int(self.state["version"]), "check": bytes(self.state["check"])[:16]}


def unpack(
    broadcast: BroadcastMessage, beside: Arrays, kept: ClientModel | None
) -> tuple[dict[str, Array], ClientModel]:
    """The model's arrays and the copy that now holds them; `Declined` where the broadcast does not lead on from `kept`.

    Guarantee: the arrays are, bit for bit, the server's public ones, or nothing comes back (tests/protocol/
    test_downlink.py). The code `version` says that a snapshot is needed.
    """
    known = kept if kept is not None and kept.grid == broadcast.grid else None
    text = broadcast.layout or (known.layout if known is not None else "")
    if not text:
        raise Declined("version", "this node holds nothing of the model that the broadcast leads on from")
    try:
        layout = ModelLayout.from_text(text)
        if sorted(layout.beside) != sorted(beside):
            raise ValueError(f"beside the broadcast came {sorted(beside)[:3]}, not {sorted(layout.beside)[:3]}")
    except ValueError as odd:
        raise Declined("arrays", str(odd)) from odd
    receiver = _receiver(broadcast.grid, layout.size, known if known is not None and known.layout == text else None)
    try:
        weights = receiver.apply(broadcast.message)
    except (CepamError, ValueError) as unfit:
        raise Declined("version", str(unfit)) from unfit
    return layout.arrays(weights, beside), ClientModel(broadcast.grid, text, receiver.state_dict())


def _receiver(grid: bytes, size: int, known: ClientModel | None) -> Receiver:
    """A receiver that holds the kept copy, or nothing where there is none or it is damaged."""
    receiver = Receiver(grid, size=size)
    if known is not None:
        try:
            receiver.load_state_dict(known.state)
        except (CepamError, ValueError, TypeError):
            return Receiver(grid, size=size)
    return receiver


# Batch statistics, integers and arrays of other types travel beside the broadcast, as they are. The mark of a
# broadcast sees to it that a node computes at the server's public weights or not at all; the server's notes of who
# holds what only save bytes, so a node that claims another version than it holds harms itself.


GRID_BYTES = 8


class Downlink:
    """The server's half: one model on one grid, and what each node is known to hold of it.

    The exact arrays stay with the server: the next ones are made from them, so that nothing adds up
    (docs/downlink.md). What clients compute at, and what the server answers for, are the public ones.
    Guarantee: a node ends with the bits of `public`, whatever it missed (tests/protocol/test_downlink.py).
    """

    def __init__(self, arrays: Arrays, step: float, history: int = 64) -> None:
        self._layout = ModelLayout.of(arrays)
        self._grid = secrets.token_bytes(GRID_BYTES)
        self._broadcast = Broadcast(self._grid, history=history)
        self._checks: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        self.publish(arrays, step)

    def publish(self, exact: Arrays, step: float) -> None:
        """Set `public` to the grid point nearest to these arrays."""
        self._broadcast.publish(self._layout.vector(exact), step)
        self._checks[self._broadcast.version] = self._broadcast.check
        self.exact = dict(exact)
        self.public = self._layout.arrays(self._broadcast.weights, exact)

    def fits(self, arrays: Arrays) -> bool:
        """Whether these arrays could be the next ones: the same names and shapes."""
        return self._layout.fit(arrays)

    def knows(self, arrays: Arrays) -> bool:
        """Whether these arrays are the public ones, or the exact ones behind them."""
        return any(_same(arrays, known) for known in (self.public, self.exact))

    @property
    def coordinates(self) -> int:
        """How many coordinates lie on the grid."""
        return self._layout.size

    def message_for(self, node: int) -> BroadcastMessage:
        """What brings this node to the public arrays; the same object of bytes for all that hold the same."""
        version = self._held.get(node)
        layout = self._layout.to_text() if version is None else ""
        return BroadcastMessage(self._grid, layout, self._broadcast.message_from(version))

    @property
    def beside(self) -> list[str]:
        """The names of the arrays that travel beside the broadcast."""
        return self._layout.beside

    def forget(self, node: int) -> None:
        """Treat the node as holding no model."""
        self._held.pop(node, None)

    def hear(self, node: int, report: Mapping[str, object]) -> None:
        """Note what the node reports to hold; CepamError if it did not compute at the public arrays."""
        version, check = report.get("version"), report.get("check")
        self.forget(node)
        if isinstance(version, int) and version in self._checks and self._checks[version] == check:
            self._held[node] = version
        if self._held.get(node) != self._broadcast.version:
            raise CepamError(f"it computed at version {version!r}, not at {self._broadcast.version} as published")


def _same(arrays: Arrays, known: Arrays) -> bool:
    return list(arrays) == list(known) and all(
        arrays[name].dtype == known[name].dtype and np.array_equal(arrays[name], known[name]) for name in known
    )
