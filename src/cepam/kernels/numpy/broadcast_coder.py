"""The arithmetic and the coder of broadcasts in NumPy: all blocks of a span in step, one lane a block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.kernels.format import broadcast_contexts as g
from cepam.kernels.format.plan import Ints
from cepam.kernels.numpy.keystream import stream_words
from cepam.kernels.numpy.range_coder import LaneReader, LaneWriter
from cepam.kernels.numpy.scalar_coder import Decisions, log


def dithers_of(key: bytes, first: int, count: int) -> Ints:
    """The dithers of coordinates from number `first` on."""
    words = stream_words(key, g.DITHER_STREAM, np.arange(first, first + count))
    return (words & np.uint64((1 << g.DITHER_BITS) - 1)).astype(np.int64)


def places_of_values(values: npt.NDArray[np.floating]) -> Ints:
    """The whole units nearest to the values."""
    return np.rint(values.astype(np.float64) * 2.0**g.RESOLUTION).astype(np.int64)


def places_of_points(points: Ints, dithers: Ints, shift: int) -> Ints:
    """Where points of the grid of this shift lie."""
    return (points.astype(np.int64) << shift) + (dithers & ((1 << shift) - 1))


def nearest_points(places: Ints, dithers: Ints, shift: int) -> Ints:
    """The points of the grid of this shift nearest to the places."""
    return (places - (dithers & ((1 << shift) - 1)) + ((1 << shift) >> 1)) >> shift


def values_of_places(places: Ints) -> npt.NDArray[np.float32]:
    """The float32 values of the places."""
    return (places.astype(np.float64) * 2.0**-g.RESOLUTION).astype(np.float32)


def code_of(size: Ints) -> Ints:
    """Half octaves of sizes in units of 2**-FRACTION."""
    return np.clip((log(size) + 64) >> 7, 0, g.CODES - 1)


class DifferenceWalk(Decisions):
    """The state of the model in every lane."""

    def __init__(self, coder: LaneWriter | LaneReader, lanes: int) -> None:
        super().__init__(coder, g.first_odds(), lanes)
        self.whole = self.sized = self.signed = np.zeros(lanes, dtype=np.int64)

    def start(self, scale: Ints) -> None:
        """Everything that depends on the blocks' scales."""
        self.whole = ((2 + (scale & 1)) << (scale >> 1)) >> 1
        self.sized, self.signed = self.whole.copy(), np.zeros_like(scale)

    def coordinate(self, lanes: Ints, d: Ints) -> Ints:
        """One coordinate of these lanes, written or read; the state has moved on."""
        code = code_of((self.sized[lanes] + self.whole[lanes]) >> 1)
        moved = np.flatnonzero(self.decide(lanes, code, (d != 0).astype(np.int64), g.ZERO_RATE))
        out = np.zeros(len(lanes), dtype=np.int64)
        if len(moved):
            now, code = lanes[moved], code[moved]
            side = g.SIGN_AT + 1 + np.sign(self.signed[now])
            rise = self.decide(now, side, (d[moved] > 0).astype(np.int64), g.SIGN_RATE)
            skip = np.maximum((code >> 1) - g.FRACTION - 4, 0)
            row = np.clip(code - 2 * skip - 2 * g.FRACTION + g.SIZE_CODES - 8, 0, g.SIZE_CODES - 1)
            size = self.size(now, np.abs(d[moved]), g.SIZE_AT + row * g.SIZE_CONTEXTS, skip, g.LARGEST_BITS)
            out[moved] = self.signed[now] = np.where(rise == 1, size, -size)
        self.sized[lanes] += ((np.abs(out) << g.FRACTION) - self.sized[lanes]) >> g.WINDOW
        return out


def measure_scale(d: Ints) -> int:
    """A block's scale code: half octaves of the mean of |d|; NOTHING if all are zero."""
    total = int(np.abs(d).sum())
    return int(code_of(np.array([(total << g.FRACTION) // len(d)]))[0]) if total else g.NOTHING


def encode_blocks(blocks: list[Ints]) -> list[bytes]:
    """The streams of blocks of differences."""
    coder = LaneWriter(len(blocks))
    walk = DifferenceWalk(coder, len(blocks))
    scale = np.array([measure_scale(block) for block in blocks], dtype=np.int64)
    live = np.flatnonzero(scale != g.NOTHING)
    walk.header(live, scale[live], g.CODE_BITS)
    walk.start(np.where(scale == g.NOTHING, 0, scale))
    lengths = np.array([len(block) for block in blocks])
    for i in range(int(lengths[live].max(initial=0))):
        now = live[lengths[live] > i]
        walk.coordinate(now, np.array([blocks[lane][i] for lane in now]))
    return [coder.finish(lane) if scale[lane] != g.NOTHING else b"" for lane in range(len(blocks))]


def decode_blocks(streams: list[bytes], lengths: list[int]) -> list[Ints]:
    """The differences in these streams, each of its length."""
    count = len(streams)
    walk = DifferenceWalk(LaneReader(streams), count)
    scale = walk.header(np.arange(count), np.zeros(count, dtype=np.int64), g.CODE_BITS)
    live = np.flatnonzero(scale < g.CODES)
    walk.start(np.where(scale < g.CODES, scale, 0))
    out = np.zeros((count, max(lengths, default=0)), dtype=np.int64)
    for i in range(out.shape[1]):
        now = live[np.array(lengths)[live] > i]
        out[now, i] = walk.coordinate(now, np.zeros(len(now), dtype=np.int64))
    return [out[lane, : lengths[lane]] for lane in range(count)]


class ReferenceLoop:
    """The reference for the compiled kernels, slow and plain."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def dithers(self, first: int, count: int) -> Ints:
        return dithers_of(self.key, first, count)

    places_of_values = staticmethod(places_of_values)
    places_of_points = staticmethod(places_of_points)
    nearest_points = staticmethod(nearest_points)
    values_of_places = staticmethod(values_of_places)
    encode = staticmethod(encode_blocks)
    decode = staticmethod(decode_blocks)
