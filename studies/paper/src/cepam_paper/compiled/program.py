"""A sequential network as a program: a table of numbers that the compiled passes read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import nn

Table = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[Any]
Room = tuple[int, int, int]

CONV, POOL, RELU, TANH, DENSE, FRAME = range(6)
(KIND, SRC, SRC_SIZE, DST, DST_SIZE, WEIGHT, BIAS, CHANNELS, HEIGHT, WIDTH, OUTS, KERNEL, STRIDE, PAD, LINES, COLUMNS,
 WINNER, FIRST) = range(18)  # fmt: skip
BESIDE = 8
"""Zeros beside an opened line: four on either side, as many as a tile has places."""


@dataclass(frozen=True)
class Program:
    """What the passes read: one line of numbers a layer, and how many vectors of room a block of examples needs."""

    table: Table
    values: int
    winners: int
    opened: int
    size: int

    @property
    def room(self) -> Room:
        """The three scratch sizes of one block."""
        return self.values, self.winners, self.opened

    @property
    def vectors(self) -> int:
        """All that a thread needs: values and slopes, winners, an opened layer, and three times the weights."""
        return 2 * self.values + self.winners + self.opened + 3 * self.size


class Workspace(NamedTuple):
    """A lowered network and one thread's room to run it in."""

    table: Table
    room: Room
    block: Floats


class Examples(NamedTuple):
    """The examples, and what makes numbers of their pixels: times `scale` plus `shift`."""

    images: Pixels
    labels: Table
    scale: float
    shift: float


class Rows(NamedTuple):
    """What is summed: row r takes examples records[r, :counts[r]] at weights[of[r]].

    Where bounds[r] is finite each gradient is first scaled down to that l2 norm.
    """

    weights: Floats
    of: Table
    records: Table
    counts: Table
    bounds: Floats


class _Table:
    """The table as it grows: the current shape and the next free place in each scratch buffer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.lines: list[list[int]] = []
        self.values = int(np.prod(shape))
        self.winners = self.opened = self.size = 0

    def line(self, kind: int, shape: tuple[int, ...]) -> list[int]:
        made = [0] * 18
        made[KIND], made[FIRST] = kind, int(not any(row[KIND] in (CONV, DENSE) for row in self.lines))
        made[SRC_SIZE], made[DST_SIZE] = int(np.prod(self.shape)), int(np.prod(shape))
        made[SRC], made[DST] = self.values - made[SRC_SIZE], self.values
        self.values += made[DST_SIZE]
        self.shape = shape
        self.lines.append(made)
        return made

    def parameters(self, row: list[int], weight: int, bias: int) -> None:
        row[WEIGHT], row[BIAS] = self.size, self.size + weight if bias else -1
        self.size += weight + bias

    def conv(self, layer: nn.Conv2d) -> None:
        kernel, stride, pad = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        if pad:
            channels, height, width = self.shape
            frame = self.line(FRAME, (channels, height + 2 * pad, width + 2 * pad))
            frame[CHANNELS : PAD + 1] = [channels, height, width, channels, 0, 0, pad]
        channels, height, width = self.shape
        lines, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        row = self.line(CONV, (layer.out_channels, lines, columns))
        row[CHANNELS : COLUMNS + 1] = [channels, height, width, layer.out_channels, kernel, stride, 0, lines, columns]
        opened = ((lines - 1) * stride + 1) * ((columns - 1) * stride + 1 + BESIDE)
        self.opened = max(self.opened, layer.out_channels * opened)
        self.parameters(row, layer.weight.numel(), layer.out_channels if layer.bias is not None else 0)

    def pool(self, layer: nn.MaxPool2d) -> None:
        channels, height, width = self.shape
        size, stride = int(layer.kernel_size), int(layer.stride)  # type: ignore[arg-type]
        row = self.line(POOL, (channels, (height - size) // stride + 1, (width - size) // stride + 1))
        row[CHANNELS : PAD + 1] = [channels, height, width, channels, size, stride, 0]
        row[WINNER] = self.winners
        self.winners += row[DST_SIZE]

    def dense(self, layer: nn.Linear) -> None:
        row = self.line(DENSE, (layer.out_features,))
        self.opened = max(self.opened, layer.out_features * (1 + BESIDE))
        self.parameters(row, layer.weight.numel(), layer.out_features if layer.bias is not None else 0)


def lower(module: nn.Module, shape: tuple[int, ...]) -> Program | None:
    """The program of a sequential network over inputs of this shape, or None when it holds another kind of layer."""
    if not isinstance(module, nn.Sequential):
        return None
    to = _Table(shape)
    for layer in module:
        if isinstance(layer, nn.Conv2d) and _plain_conv(layer) and len(to.shape) == 3:
            to.conv(layer)
        elif isinstance(layer, nn.MaxPool2d) and _plain_pool(layer) and len(to.shape) == 3:
            to.pool(layer)
        elif isinstance(layer, nn.Linear) and to.shape == (layer.in_features,):
            to.dense(layer)
        elif isinstance(layer, (nn.ReLU, nn.Tanh)):
            to.line(RELU if isinstance(layer, nn.ReLU) else TANH, to.shape)
        elif isinstance(layer, nn.Flatten):
            to.shape = (int(np.prod(to.shape)),)
        else:
            return None
    if not to.lines or to.lines[-1][KIND] != DENSE:
        return None
    return Program(np.array(to.lines, dtype=np.int64), to.values, max(to.winners, 1), max(to.opened, 1), to.size)


def _plain_conv(layer: nn.Conv2d) -> bool:
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    same = isinstance(layer.padding, tuple) and layer.dilation == (1, 1) and layer.groups == 1
    return square and same and layer.padding_mode == "zeros"


def _plain_pool(layer: nn.MaxPool2d) -> bool:
    whole = isinstance(layer.kernel_size, int) and isinstance(layer.stride, int) and layer.padding == 0
    return whole and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
