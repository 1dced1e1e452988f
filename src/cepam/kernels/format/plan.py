"""A codec lowered to plain numbers, the blocks of a message, the task that a backend is given, and its keystream."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import Any, Literal, Protocol, overload

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Law, check_scale
from cepam.distributions.radius import SHAPE, SMALLEST, radius_table
from cepam.lattices.geometry import CoordinateOrder, exact_inverse
from cepam.lattices.lattice import Lattice, Search

# All positions are integers in one *unit*, a power of two of about 2^-40 of the noise scale; the public grid that
# decoded vectors live on is 2^28 units, about 2^-12 of the noise scale.


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GRID_BITS = 28
SCALE_BITS = 40
RANGE_BITS = 61
LEAST_ACCEPTANCE = 1e-3
MOST_TRIALS = 1 << 16
_LARGEST_RADIUS_BITS = 48
_RARE_OCTAVE = 58


class Accept(IntEnum):
    """Which errors end the rejection sampling."""

    L1_BALL = 0
    L2_BALL = 1
    CELL = 2


@dataclass(frozen=True, eq=False)
class Plan:
    """The numbers of one quantizer."""

    search: Search
    accept: Accept
    n: int
    words: int
    unit: float
    scale: float
    step: int
    inverse_ball: float
    table: Floats
    basis: Ints
    box: Ints
    inverse: Floats
    relevant: Ints
    steps: Ints
    determinant: int
    trials: int
    walk: CoordinateOrder

    @property
    def grid(self) -> float:
        """The public grid: decoded values are its multiples."""
        return math.ldexp(self.unit, GRID_BITS)

    @property
    def reach(self) -> float:
        """The largest magnitude of a coordinate that the format carries: at least a million noise scales."""
        return math.ldexp(self.unit, RANGE_BITS)

    def fingerprint(self) -> bytes:
        """32 bytes that two plans share exactly when they quantize alike."""
        digest = hashlib.sha256(b"cepam plan v1")
        digest.update(bytes([int(self.search), int(self.accept), self.n]))
        digest.update(np.array([self.unit, self.scale, self.inverse_ball], dtype="<f8").tobytes())
        digest.update(np.array([self.step], dtype="<i8").tobytes())
        for array in (self.table, self.basis, self.box, self.inverse):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()


@lru_cache(maxsize=64)
def layered_plan(law: Law, lattice: Lattice) -> Plan:
    """The plan of the layered quantizer (Paper: LRSUQ) for a law on a lattice; refuses hopeless pairs."""
    share = lattice.acceptance(law.norm)
    if share < LEAST_ACCEPTANCE:
        raise ValueError(
            f"{law.name} noise on {lattice.name} would accept one trial in {1 / share:,.0f} (at least one in"
            f" {1 / LEAST_ACCEPTANCE:,.0f} is required): choose a lattice of lower dimension"
        )
    n = lattice.dimension
    unit, scale = _units(law.scale)
    table = radius_table(law, n).reshape(-1)
    _check_radii(law, table, scale)
    accept = Accept.L1_BALL if law.norm == "l1" else Accept.L2_BALL
    return _plan(lattice, accept, unit, scale, 0, table, 1.0 / lattice.ball_radius(law.norm), _most_trials(share))


@lru_cache(maxsize=64)
def cell_plan(lattice: Lattice, step: float) -> Plan:
    """The plan of the subtractive dithered quantizer (Paper: SDQ): a lattice whose cells have volume step^n."""
    check_scale("step", step)
    unit, scale = _units(step)
    side = round(scale / lattice.determinant ** (1.0 / lattice.dimension))
    return _plan(lattice, Accept.CELL, unit, scale, max(side, 1), np.zeros(8), 1.0 / lattice.ball_radius("l2"), 1)


def _most_trials(acceptance: float) -> int:
    """So many trials that all are refused with chance under 2^-100 only: what a decoder has to put up with."""
    if acceptance > 1 - 1e-9:
        return 1
    return min(math.ceil(-100 * math.log(2) / math.log1p(-acceptance)), MOST_TRIALS)


def _units(scale: float) -> tuple[float, float]:
    exponent = math.frexp(scale)[1] - 1
    unit = math.ldexp(1.0, exponent - SCALE_BITS)
    return unit, scale / unit


def _check_radii(law: Law, table: Floats, scale: float) -> None:
    rows = table.reshape(SHAPE)
    largest, rare = rows.sum(axis=-1).max(), rows[0, _RARE_OCTAVE, 0, 0]
    if not (largest * scale < 2.0**_LARGEST_RADIUS_BITS and rare > SMALLEST):
        raise ValueError(
            f"{law!r} has latent radii from {rare:.3g} to {largest:.3g} scales; the format carries 2^-30 to 2^7"
            " scales: change what the law calls its scale, or cut its tails"
        )


def _plan(
    lattice: Lattice,
    accept: Accept,
    unit: float,
    scale: float,
    step: int,
    table: Floats,
    inverse_ball: float,
    trials: int,
) -> Plan:
    n, basis, general = lattice.dimension, lattice.basis, lattice.search is Search.GENERAL
    steps = lattice.relevant if general else np.zeros((0, n), dtype=np.int64)
    return Plan(
        search=lattice.search,
        accept=accept,
        n=n,
        words=n + 2 if general else n,
        unit=unit,
        scale=scale,
        step=step,
        inverse_ball=inverse_ball,
        table=table,
        basis=basis,
        box=lattice.box,
        inverse=exact_inverse(basis),
        relevant=steps @ basis.T,
        steps=steps,
        determinant=lattice.determinant,
        trials=trials,
        walk=lattice.walk,
    )


@dataclass(frozen=True, eq=False)
class JoinedBlocks(Sequence[bytes]):
    """Blocks one after the other: their bytes in any buffer, and the length of each."""

    data: Any
    lengths: npt.NDArray[np.int64]

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """Where each block ends in the buffer."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        end, length = int(self.ends[place]), int(self.lengths[place])
        return bytes(memoryview(self.data)[end - length : end])


def joined(blocks: Sequence[bytes]) -> JoinedBlocks:
    """The blocks in one buffer, as they are where they already lie in one."""
    if isinstance(blocks, JoinedBlocks):
        return blocks
    return JoinedBlocks(b"".join(blocks), np.array([len(block) for block in blocks], dtype=np.int64))


Coder = Literal["adaptive", "search", "paper"]
MODEL_TABLES = ("scalar.npz", "vector.npz")
LARGEST_ON_GPU = 8
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class CodingTask:
    """A plan, the code for its symbols, and the key of the keystream."""

    plan: Plan
    coder: Coder
    key: bytes = field(repr=False)
    per_block: int
    bound: int = 0
    acceptance: float = 1.0

    @property
    def cpu_only(self) -> str | None:
        """What keeps this task off a GPU, or None."""
        return cpu_only(self.coder, self.plan.search, self.plan.n)


def cpu_only(coder: Coder, search: Search, n: int) -> str | None:
    """What has no kernels on a GPU about this coder on a lattice, or None where it has them."""
    if coder == "paper":
        return "the paper's coder"
    if search is Search.GENERAL:
        return "a lattice from a generator of one's own"
    return f"a lattice in {n} dimensions" if n > LARGEST_ON_GPU else None


@cache
def model_fingerprint() -> bytes:
    """32 bytes that change with the shipped tables of the adaptive coder."""
    digest = hashlib.sha256(b"cepam models v1")
    folder = resources.files("cepam.kernels.format") / "tables"
    for name in MODEL_TABLES:
        with (folder / name).open("rb") as file, np.load(file) as archive:
            for field_name in sorted(archive.files):
                digest.update(np.ascontiguousarray(archive[field_name]).astype("<i8").tobytes())
    return digest.digest()


Half = npt.NDArray[np.uint32]

# The keystream of a task: ChaCha's constants, its rounds, and which stream holds what.
ROUNDS = 12
CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
LATENT_STREAM = 0


def dither_stream(trial: int) -> int:
    """The number of the stream that holds the dithers of a trial, counted from 0."""
    return trial + 1


def key_words(key: bytes) -> Half:
    """A 32-byte key as eight little-endian words; several keys one after the other as so many more."""
    return np.frombuffer(key, dtype="<u4").astype(np.uint32)


class Backend(Protocol):
    """A loop over blocks. Every backend gives the same bytes and the same vectors."""

    span_blocks: int

    def encode_span(self, task: CodingTask, values: Values, first: int) -> list[bytes]:
        """The blocks of consecutive values, the first of which belongs to sub-vector number `first`."""

    def decode_span(self, task: CodingTask, blocks: list[bytes], first: int, out: Values) -> None:
        """Fills out with the decoded values of consecutive blocks."""


def rows_of(values: Values, n: int) -> int:
    """The number of sub-vectors that the values fill, the last one padded with zeros."""
    return -(-len(values) // n)


def block_slices(count: int, n: int, per_block: int) -> list[slice]:
    """Where the blocks of `count` values begin and end."""
    step = n * per_block
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def padded_rows(units: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Units as rows of n, zeros at the end."""
    rows = np.zeros(rows_of(units, n) * n, dtype=np.int64)
    rows[: len(units)] = units
    return rows.reshape(-1, n)
