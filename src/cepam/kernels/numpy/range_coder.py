"""The range coder in NumPy: one coder a lane, all lanes in step.

A lane is a block of the message. Every call names the lanes that take part, so blocks of different length and with
different decisions advance together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.plan import Ints

_WORD, _HALF = np.uint64(32), np.uint64(16)
_LEAST, _ALL = np.uint64(1 << 32), np.uint64(2**64 - 1)
_SHIFTS = np.array([56, 48, 40, 32], dtype=np.uint64)


class LaneWriter:
    """Writes decisions of many lanes."""

    def __init__(self, lanes: int) -> None:
        self.low = np.zeros(lanes, dtype=np.uint64)
        self.span = np.full(lanes, _ALL)
        self.at = np.zeros(lanes, dtype=np.int64)
        self.out = np.zeros((lanes, 1024), dtype=np.uint8)

    def code(self, lanes: Ints, p: Ints, bit: Ints) -> Ints:
        """The bits themselves, once written with chance p of a 1 (in 2^-16)."""
        low, span = self.low[lanes], self.span[lanes]
        bound = (span >> _HALF) * p.astype(np.uint64)
        one = bit.astype(np.bool_)
        raised = np.where(one, low, low + bound)
        for lane in lanes[raised < low]:
            self._carry(int(lane))
        self.low[lanes] = raised
        self.span[lanes] = np.where(one, bound, span - bound)
        full = lanes[self.span[lanes] < _LEAST]
        if len(full):
            if self.at[full].max() + 16 > self.out.shape[1]:
                self.out = np.pad(self.out, ((0, 0), (0, self.out.shape[1])))
            top = (self.low[full, None] >> _SHIFTS).astype(np.uint8)
            self.out[full[:, None], self.at[full, None] + np.arange(4)] = top
            self.at[full] += 4
            self.low[full] <<= _WORD
            self.span[full] <<= _WORD
        return bit

    def _carry(self, lane: int) -> None:
        at = int(self.at[lane]) - 1
        while at >= 0:
            self.out[lane, at] = (int(self.out[lane, at]) + 1) & 255
            if self.out[lane, at]:
                return
            at -= 1

    def finish(self, lane: int) -> bytes:
        """The shortest bytes of a lane that still decode; a decoder reads zeros past their end."""
        low, span = int(self.low[lane]), int(self.span[lane])
        for kept in range(9):
            mask = (1 << (64 - 8 * kept)) - 1
            value = (low + mask) & ~mask
            if value - low < span:
                break
        if value >> 64:
            self._carry(lane)
        tail = (value & (2**64 - 1)).to_bytes(8, "big")[:kept]
        return (self.out[lane, : self.at[lane]].tobytes() + tail).rstrip(b"\0")


class LaneReader:
    """Reads decisions of many lanes."""

    def __init__(self, blocks: list[bytes]) -> None:
        width = max((len(block) for block in blocks), default=0) + 16
        self.data = np.zeros((len(blocks), width), dtype=np.uint8)
        for lane, block in enumerate(blocks):
            self.data[lane, : len(block)] = np.frombuffer(block, dtype=np.uint8)
        self.at = np.zeros(len(blocks), dtype=np.int64)
        self.span = np.full(len(blocks), _ALL)
        every = np.arange(len(blocks))
        self.value = self._word(every) << _WORD
        self.value |= self._word(every)

    def _word(self, lanes: Ints) -> npt.NDArray[np.uint64]:
        place = np.minimum(self.at[lanes, None] + np.arange(4), self.data.shape[1] - 1)
        self.at[lanes] += 4
        parts = self.data[lanes[:, None], place].astype(np.uint64) << np.array([24, 16, 8, 0], dtype=np.uint64)
        return np.asarray(np.bitwise_or.reduce(parts, axis=1), dtype=np.uint64)

    def code(self, lanes: Ints, p: Ints, bit: Ints) -> Ints:
        """The bits read with chance p of a 1; what is handed in as `bit` is not looked at."""
        value, span = self.value[lanes], self.span[lanes]
        bound = (span >> _HALF) * p.astype(np.uint64)
        one = value < bound
        self.value[lanes] = np.where(one, value, value - bound)
        self.span[lanes] = np.where(one, bound, span - bound)
        full = lanes[self.span[lanes] < _LEAST]
        if len(full):
            self.value[full] = (self.value[full] << _WORD) | self._word(full)
            self.span[full] <<= _WORD
        return one.astype(np.int64)
