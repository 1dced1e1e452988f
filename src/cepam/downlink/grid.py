"""The public grid of a run: weights to its nearest point, differences of two points to messages, and back."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.wire import BLOCK_COORDINATES, LARGEST_SIZE, count_blocks, read_varint, varint
from cepam.downlink.backends import Loop, loop_named
from cepam.errors import CheckFailed, MalformedMessage, WrongAddress
from cepam.kernels.dispatch import BackendName, side_by_side
from cepam.kernels.format.broadcast_contexts import BYTES_A_COORDINATE, DITHER_BITS, RESOLUTION
from cepam.kernels.format.plan import Ints
from cepam.keys import hkdf

# The grid needs no secrecy: its dither comes from the run's id alone, so that everybody who knows the run finds it.
# Both ends compute with whole numbers only (`difference_coder`); weights come out as float32, the same bits
# everywhere.


Floats = npt.NDArray[np.float32]
Steps = npt.NDArray[np.int32]
Weights = npt.NDArray[Any]

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
        self.loop: Loop = loop_named(backend, self.key)
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
