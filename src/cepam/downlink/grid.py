"""The public grid of a run: which of its points a server publishes, differences of two points to messages, and back."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.wire import BLOCK_COORDINATES, LARGEST_SIZE, count_blocks, read_varint, varint
from cepam.errors import CheckFailed, MalformedMessage, WrongAddress
from cepam.kernels.dispatch import BackendName, broadcast_loop, side_by_side
from cepam.kernels.format.broadcast_contexts import BYTES_A_COORDINATE, DITHER_BITS, RESOLUTION, BroadcastLoop
from cepam.kernels.format.plan import Ints
from cepam.keys import hkdf

# The grid needs no secrecy: its dither comes from the run's id alone, so that everybody who knows the run finds it.
# Both ends compute with whole numbers only (`kernels/*/broadcast_coder.py`); weights come out as float32, the same bits
# everywhere.


Floats = npt.NDArray[np.float32]
Steps = npt.NDArray[np.int32]
Weights = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

SPAN = 16 * BLOCK_COORDINATES
LARGEST_STEPS = 2**30
LARGEST_PLACE = 2**61
LARGEST_WEIGHT = 2.0**20
SMALLEST_STEP = 2.0**-RESOLUTION


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the grid whose step is 2**(shift - 40): how many steps each coordinate lies off its dither."""

    shift: int
    steps: Steps


Origin = Point | Weights | int
"""What a difference starts from: a point, the weights of a public start, or nothing (so many zeros)."""


def shift_of(step: float) -> int:
    """The shift of the grid whose step is the largest power of two that is not above `step`."""
    if (
        isinstance(step, bool)
        or not isinstance(step, int | float | np.floating)
        or not SMALLEST_STEP <= step < math.inf
    ):
        raise ValueError(f"step must be a number from 2**-{RESOLUTION} on, got {step!r}")
    return min(math.frexp(step)[1] - 1 + RESOLUTION, DITHER_BITS)


def check_run(run: bytes | str) -> bytes:
    """The run's id as bytes."""
    name = run.encode() if isinstance(run, str) else run
    if not isinstance(name, bytes) or not name:
        raise ValueError(f"run must be bytes or text that names the run, got {run!r}")
    return name


def check_weights(name: str, weights: npt.ArrayLike, size: int | None = None) -> Weights:
    """The weights as a vector of finite float32 or float64 within the quantization range; raises `ValueError` for all
    others."""
    values = np.asarray(weights)
    if values.ndim != 1 or values.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"{name} must be a one-dimensional float32 or float64 array, got {values.dtype} of shape {values.shape}"
        )
    if size is not None and len(values) != size:
        raise ValueError(f"{name} must have {size} coordinates, got {len(values)}")
    if len(values):
        # NaN fails both comparisons.
        low, high = float(values.min()), float(values.max())
        if not (low >= -LARGEST_WEIGHT and high <= LARGEST_WEIGHT):
            raise ValueError(f"{name} must be finite and within {LARGEST_WEIGHT:.0f} of zero, got [{low}, {high}]")
    return values


class Grid:
    """One run's grids, of every step: a finer one contains all coarser ones."""

    def __init__(self, run: bytes, backend: BackendName = "auto", threads: int | None = None) -> None:
        material = hkdf(run, b"cepam broadcast", b"cepam grid v1", 64)
        self.key, self.name = material[:32], material[32:]
        self.loop: BroadcastLoop = broadcast_loop(backend, self.key)
        self.drawn: tuple[int, int, Ints] = (0, 0, np.zeros(0, dtype=np.int64))
        self.threads = threads

    def dithers(self, start: int, count: int) -> Ints:
        """The dithers of so many coordinates from this one on; the last are kept, since most models are one part."""
        first, many, kept = self.drawn
        if (first, many) != (start, count):
            kept = self.loop.dithers(start, count)
            self.drawn = start, count, kept
        return kept

    def nearest(self, weights: Weights, shift: int) -> Point:
        """The point of this shift nearest to the weights, of two equally near the upper one.

        Guarantee: no coordinate is off by more than half a step and 2**-41 (tests/downlink/test_grid.py).
        """
        steps = np.empty(len(weights), dtype=np.int32)

        def work(part: slice) -> None:
            steps[part] = _within(self._nearest(weights, part, shift), shift, ValueError)

        self._side_by_side(work, len(weights))
        return Point(shift, steps)

    def weights(self, point: Point) -> Floats:
        """The float32 values of a point."""
        values = np.empty(len(point.steps), dtype=np.float32)

        def work(part: slice) -> None:
            values[part] = self.loop.values_of_places(self._places(point, part))

        self._side_by_side(work, len(values))
        return values

    def encode(self, origin: Origin, point: Point) -> list[bytes]:
        """The blocks of the difference from an origin to a point, in the point's own steps."""

        def work(part: slice) -> list[bytes]:
            steps = point.steps[part].astype(np.int64)
            held = _within(self._nearest(origin, part, point.shift), point.shift, ValueError)
            return self.loop.encode(_blocks(steps - held))

        return [block for blocks in self._side_by_side(work, len(point.steps)) for block in blocks]

    def decode(self, origin: Origin, shift: int, blocks: Sequence[bytes]) -> Point:
        """The point of this shift that these blocks lead to from the origin; raises `MalformedMessage`."""
        count = _count(origin)
        steps = np.empty(count, dtype=np.int32)

        def work(part: slice) -> None:
            held = _within(self._nearest(origin, part, shift), shift, MalformedMessage)
            steps[part] = _within(held + self._read(blocks, part), shift, MalformedMessage)

        self._side_by_side(work, count)
        return Point(shift, steps)

    def before(self, point: Point, blocks: Sequence[bytes], shift: int) -> Point:
        """The point of this shift, not finer than the given one's, from which these blocks led to the given one."""
        steps = np.empty_like(point.steps)

        def work(part: slice) -> None:
            first = self.dithers(part.start, part.stop - part.start)
            earlier = point.steps[part].astype(np.int64) - self._read(blocks, part)
            places = self.loop.places_of_points(earlier, first, point.shift)
            steps[part] = self.loop.nearest_points(places, first, shift)

        self._side_by_side(work, len(steps))
        return Point(shift, steps)

    def _read(self, blocks: Sequence[bytes], part: slice) -> Ints:
        first = part.start // BLOCK_COORDINATES
        lengths = [len(block) for block in _blocks(np.empty(part.stop - part.start, dtype=np.int8))]
        return np.concatenate(self.loop.decode(list(blocks[first : first + len(lengths)]), lengths))

    def _places(self, origin: Origin, part: slice, dithers: Ints | None = None) -> Ints:
        if isinstance(origin, int):
            return np.zeros(part.stop - part.start, dtype=np.int64)
        if isinstance(origin, Point):
            if dithers is None:
                dithers = self.dithers(part.start, part.stop - part.start)
            return self.loop.places_of_points(origin.steps[part], dithers, origin.shift)
        return self.loop.places_of_values(origin[part])

    def _nearest(self, origin: Origin, part: slice, shift: int) -> Ints:
        if isinstance(origin, Point) and origin.shift == shift:
            return origin.steps[part].astype(np.int64)
        dithers = self.dithers(part.start, part.stop - part.start)
        return self.loop.nearest_points(self._places(origin, part, dithers), dithers, shift)

    def _side_by_side(self, work: Callable[[slice], Any], count: int) -> list[Any]:
        parts = [slice(start, min(start + SPAN, count)) for start in range(0, count, SPAN)]
        return side_by_side(self.threads, work, parts)


def _count(origin: Origin) -> int:
    if isinstance(origin, int):
        return origin
    return len(origin.steps) if isinstance(origin, Point) else len(origin)


def _blocks(values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return [values[start : start + BLOCK_COORDINATES] for start in range(0, len(values), BLOCK_COORDINATES)]


def _within(steps: Ints, shift: int, error: type[Exception]) -> Ints:
    most = min(LARGEST_STEPS, LARGEST_PLACE >> shift)
    if len(steps) and max(-int(steps.min()), int(steps.max())) > most:
        raise error(f"a coordinate lies more than {most} steps of 2**{shift - RESOLUTION} off: the step is too fine")
    return steps


# Which point of the grid a server publishes: coordinates move late, and their lag is kept out of the directions that
# matter.
#
# Rounding to the nearest point moves a coordinate back and forth as noise carries it over a boundary. With hysteresis
# it stays where it is until it is farther off. Alone that harms: weights lag behind, all in the direction in which
# training moves. The lag is therefore kept orthogonal to the leading directions of the aggregates so far, matrix by
# matrix: they are where gradients lie, and so where an error changes what the model computes (docs/downlink.md).
#
# Only the server computes here, in floats. Receivers hold whatever grid point was published. A resumed run must
# choose the same points on any number of threads: else clients would send other updates under noise that they drew
# before. So products are sums in a fixed order, where BLAS splits them by threads.


DIRECTIONS = 16
"""Leading directions of each matrix from which the lag is kept."""
MOST_ROWS = 64
"""Matrices with more rows are folded to so many, with signs, before they are decomposed: the work stays small."""
PASSES = 4
NEAREST = 0.5
"""The hysteresis of rounding to the nearest point: half a step."""
MARGIN = 0.5
"""Steps by which a weight may be off beyond the zone, so that the lag stays small along the leading directions."""


@dataclass
class LeadingDirections:
    """The leading right singular vectors of all rows seen so far, by an incremental decomposition.

    Args:
        columns: Length of a row.
        most: Directions that are kept.
    """

    columns: int
    most: int = DIRECTIONS
    scaled: Doubles = field(init=False)
    """The directions, each times its singular value, the largest first."""

    def __post_init__(self) -> None:
        self.scaled = np.zeros((0, self.columns))

    def add(self, rows: Doubles) -> None:
        """Take in further rows."""
        both = np.concatenate((self.scaled, _folded(rows)))
        squares, left = np.linalg.eigh(_inner(both, both))
        kept = np.argsort(-squares, kind="stable")[: self.most]
        kept = kept[squares[kept] > 1e-12 * max(float(squares.max()), 1e-300)]
        self.scaled = _combined(left[:, kept].T, both)

    @property
    def unit(self) -> Doubles:
        """The directions at length 1, one a row."""
        unit: Doubles = self.scaled / np.linalg.norm(self.scaled, axis=1, keepdims=True)
        return unit


def _inner(left: Doubles, right: Doubles) -> Doubles:
    """Every inner product of a row of the left and a row of the right."""
    made: Doubles = np.einsum("ik,jk->ij", left, right)
    return made


def _combined(weights: Doubles, rows: Doubles) -> Doubles:
    """Sums of the rows, each times its weight."""
    made: Doubles = np.einsum("ij,jk->ik", np.ascontiguousarray(weights), rows)
    return made


def _folded(rows: Doubles) -> Doubles:
    """At most `MOST_ROWS` signed sums of the rows, whose directions are on average those of the rows."""
    if len(rows) <= MOST_ROWS:
        return rows
    signs = np.random.Generator(np.random.PCG64(0)).choice([-1.0, 1.0], len(rows))
    made = np.zeros((MOST_ROWS, rows.shape[1]))
    for start in range(0, len(rows), MOST_ROWS):
        few = rows[start : start + MOST_ROWS]
        made[: len(few)] += signs[start : start + len(few), None] * few
    return made


def farthest(zone: float) -> float:
    """How many steps a weight that is chosen with a hysteresis of `zone` steps is off at most."""
    return zone + MARGIN


class Hysteresis:
    """Chooses the point to publish: coordinates of matrices stay put within `zone` steps, others go to the nearest.

    Args:
        zone: How many steps a coordinate is off before it moves, from 0.5.
        tensors: Coordinates and rows of every tensor of the model, in order; 0 rows for a tensor that is no matrix.

    Guarantee: no coordinate is off by more than `farthest(zone)` steps, whatever the weights and aggregates were
    (tests/downlink/test_hysteresis.py): what would be farther off goes to the nearest point.
    """

    def __init__(self, zone: float, tensors: Sequence[tuple[int, int]]) -> None:
        self.zones = np.full(sum(size for size, _ in tensors), NEAREST)
        self.matrices: list[tuple[slice, int, LeadingDirections]] = []
        start = 0
        for size, rows in tensors:
            if rows and size // rows >= 4 * DIRECTIONS:
                place = slice(start, start + size)
                self.zones[place] = zone
                self.matrices.append((place, rows, LeadingDirections(size // rows)))
            start += size

    def choose(
        self,
        exact: npt.NDArray[Any],
        held: npt.NDArray[Any],
        aggregate: npt.NDArray[Any],
        step: float,
        nearest: Callable[[Doubles], npt.NDArray[Any]],
    ) -> Doubles:
        """Choose the next public weights.

        Args:
            exact: The server's weights.
            held: The public weights so far.
            aggregate: What this round's step was made of.
            step: The grid's step.
            nearest: Gives the nearest point of the grid.

        Returns:
            A point of the grid, no coordinate of which is more than `farthest(zone)` steps off the server's.
        """
        weights, before = exact.astype(np.float64), held.astype(np.float64)

        def moved(target: Doubles) -> Doubles:
            made = np.where(np.abs(target - before) > self.zones * step, nearest(target), before)
            over = np.abs(made - weights) > (self.zones + MARGIN) * step
            return np.where(over, nearest(weights), made) if over.any() else made

        for place, rows, leading in self.matrices:
            leading.add(aggregate[place].astype(np.float64).reshape(rows, -1))
        units = [leading.unit for _, _, leading in self.matrices]
        chosen, shift = moved(weights), np.zeros_like(weights)
        for _ in range(PASSES):
            for (place, rows, _), unit in zip(self.matrices, units):
                lag = (chosen[place] - weights[place]).reshape(rows, -1)
                shift[place] -= _combined(_inner(lag, unit), unit).ravel()
            chosen = moved(weights + shift)
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the directions so far."""
        return {f"directions {i}": leading.scaled for i, (_, _, leading) in enumerate(self.matrices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved directions."""
        for i, (_, _, leading) in enumerate(self.matrices):
            leading.scaled = np.asarray(state[f"directions {i}"], dtype=np.float64).reshape(-1, leading.columns)


# The wire format of a broadcast: header, check value and blocks.
#
# A number in parentheses is a count of bytes:
#
#     message = format (1) | kind (1) | shift (1) | tag (2) | from (varint) | rounds (varint) | size (varint)
#               | mark (16) | lengths of all blocks but the last (varints) | blocks


FORMAT = 1
DIFFERENCE, SNAPSHOT = 0, 1
HEAD_BYTES, TAG_BYTES, MARK_BYTES = 5, 2, 16
LARGEST_VERSION = 2**62


@dataclass(frozen=True)
class BroadcastFrame:
    """What a message says: the version it starts from (None: from nothing), the one it leads to, and the blocks."""

    start: int | None
    version: int
    shift: int
    size: int
    blocks: Sequence[bytes]


def write_frame(frame: BroadcastFrame, grid: Grid, check: bytes) -> bytes:
    """The message, marked with the check of its result."""
    kind, start = (SNAPSHOT, 0) if frame.start is None else (DIFFERENCE, frame.start)
    head = bytes([FORMAT, kind, frame.shift]) + grid.name[:TAG_BYTES]
    head += varint(start) + varint(frame.version - start) + varint(frame.size)
    body = b"".join([*(varint(len(block)) for block in frame.blocks[:-1]), *frame.blocks])
    return head + _mark(grid, check, head, body) + body


def verify_frame(message: bytes, grid: Grid, check: bytes) -> None:
    """Raise `CheckFailed` unless the message is, to the last byte, the one that leads to this check."""
    at = HEAD_BYTES
    for _ in range(3):
        _, at = read_varint(message, at)
    mark, body = message[at : at + MARK_BYTES], message[at + MARK_BYTES :]
    if not hmac.compare_digest(mark, _mark(grid, check, message[:at], body)):
        raise CheckFailed("the broadcast does not lead to what its mark says: damaged, or this receiver has diverged")


def _mark(grid: Grid, check: bytes, head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"cepam broadcast mark v1" + grid.name + check + head + body).digest()[:MARK_BYTES]


def read_frame(message: bytes, grid: Grid, size: int | None) -> BroadcastFrame:
    """What a message says, its table of blocks checked; raises `MalformedMessage` or `WrongAddress`."""
    if len(message) < HEAD_BYTES + 3 + MARK_BYTES:
        raise MalformedMessage(f"a broadcast has at least {HEAD_BYTES + 3 + MARK_BYTES} bytes, got {len(message)}")
    if message[0] != FORMAT or message[1] not in (DIFFERENCE, SNAPSHOT) or message[2] > DITHER_BITS:
        raise MalformedMessage(f"this package reads broadcasts of format {FORMAT}, got {message[:3].hex()}")
    if message[3:HEAD_BYTES] != grid.name[:TAG_BYTES]:
        raise WrongAddress("the broadcast belongs to another run")
    start, at = read_varint(message, HEAD_BYTES)
    rounds, at = read_varint(message, at)
    claimed, at = read_varint(message, at)
    if size is not None and claimed != size:
        raise MalformedMessage(f"a broadcast of {size} coordinates was expected, this one has {claimed}")
    if claimed > LARGEST_SIZE or start + rounds > LARGEST_VERSION or (start and message[1] == SNAPSHOT):
        raise MalformedMessage(f"{claimed} coordinates from version {start} by {rounds} is beyond the format")
    blocks = _split(message, at + MARK_BYTES, claimed)
    return BroadcastFrame(None if message[1] == SNAPSHOT else start, start + rounds, message[2], claimed, blocks)


def _split(data: bytes, at: int, size: int) -> tuple[bytes, ...]:
    total = count_blocks(size, 1)
    if total > len(data) - at + 1:
        raise MalformedMessage(f"a broadcast of {len(data)} bytes cannot hold {size} coordinates")
    lengths = []
    for _ in range(total - 1):
        length, at = read_varint(data, at)
        lengths.append(length)
    last = len(data) - at - sum(lengths)
    if last < 0 or (last > 0 and not total):
        raise MalformedMessage("the block table does not match the broadcast")
    blocks = []
    for length in [*lengths, last][:total]:
        if length > BLOCK_COORDINATES * BYTES_A_COORDINATE:
            raise MalformedMessage(f"a block of {length} bytes is longer than any that this package writes")
        blocks.append(data[at : at + length])
        at += length
    return tuple(blocks)
