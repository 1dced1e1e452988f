"""The loops of a small network, compiled for the CPU: LANES examples side by side, one in each lane of a vector.

Activations stand as [channel][row][column][lane]. PyTorch's own operators are the oracle:
`paper_tests/test_compiled.py` compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from cepam.kernels.numba.compiling import PACKAGE, stamp_of, stamped
from cepam_paper.compiled.register_tiles import LANES, ONE, award, contest, enter, put

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

STAMP = stamp_of(Path(__file__).parent, ["."]) + stamp_of(PACKAGE, ["clip.py"])
"""Of what these loops may have compiled in: this folder's sources, and cepam's rule of rounding in a clip."""

# No fast-math flag: sums keep the order written here, whatever path through a loop the compiler chose.
_loop = numba.njit(cache=True, inline="never", error_model="numpy", nogil=True)
# A function compiled by itself is compiled again inside each of its callers: those in the middle are pasted in instead.
_pasted = numba.njit(cache=True, inline="always", error_model="numpy", nogil=True)


def loop(kernel: Any) -> Any:
    """The loop, compiled once for these sources."""
    return _loop(stamped(kernel, STAMP))


def pasted(kernel: Any) -> Any:
    """The loop, compiled into each of its callers."""
    return _pasted(stamped(kernel, STAMP))


@loop
def pad(source: Floats, out: Floats, channels: int, height: int, width: int, edge: int) -> None:
    """Fills `out` with the planes of `source` framed by zeros."""
    out[:] = np.float32(0.0)
    for c in range(channels):
        for y in range(height):
            to = (c * (height + 2 * edge) + y + edge) * (width + 2 * edge) + edge
            out[to : to + width] = source[(c * height + y) * width : (c * height + y + 1) * width]


@loop
def pad_back(ahead: Floats, back: Floats, channels: int, height: int, width: int, edge: int) -> None:
    """Fills `back` with what lies inside the frame."""
    for c in range(channels):
        for y in range(height):
            at = (c * (height + 2 * edge) + y + edge) * (width + 2 * edge) + edge
            back[(c * height + y) * width : (c * height + y + 1) * width] = ahead[at : at + width]


@loop
def pool(
    source: Floats, out: Floats, winner: Floats, channels: int, height: int, width: int, size: int, stride: int
) -> None:
    """Fills `out` with the largest value of each window and `winner` with its place there (the first of equals)."""
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                corner = (c * height + y * stride) * width + x * stride
                held = enter(source, corner)
                for i in range(size):
                    for j in range(1 if i == 0 else 0, size):
                        held = contest(held, source, corner + i * width + j, np.float32(i * size + j))
                at = (c * rows + y) * columns + x
                put(held[:1], ONE, ONE, out, at, 0)
                put(held[1:], ONE, ONE, winner, at, 0)


@loop
def pool_back(
    ahead: Floats, winner: Floats, back: Floats, channels: int, height: int, width: int, size: int, stride: int
) -> None:
    """Fills `back` with each window's derivative at its winner."""
    back[:] = np.float32(0.0)
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                at, corner = (c * rows + y) * columns + x, (c * height + y * stride) * width + x * stride
                for i in range(size):
                    for j in range(size):
                        award(ahead, winner, at, np.float32(i * size + j), back, corner + i * width + j)


@loop
def tanh(source: Floats, out: Floats) -> None:
    """Fills `out` with tanh, as a ratio of polynomials so that it vectorises (error below 4e-7)."""
    for t in range(source.size):
        x = source[t]
        x = np.float32(-7.9) if x < np.float32(-7.9) else (np.float32(7.9) if x > np.float32(7.9) else x)
        s = x * x
        p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
        p = p * s + np.float32(-8.60467152213735e-11)
        p = p * s + np.float32(5.12229709037114e-08)
        p = p * s + np.float32(1.48572235717979e-05)
        p = p * s + np.float32(6.37261928875436e-04)
        p = p * s + np.float32(4.89352455891786e-03)
        q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
        q = q * s + np.float32(2.26843463243900e-03)
        q = q * s + np.float32(4.89352518554385e-03)
        out[t] = x * p / q


@loop
def tanh_back(out: Floats, ahead: Floats, back: Floats) -> None:
    """Fills `back` with the derivative to the input of tanh, given its output."""
    for t in range(out.size):
        back[t] = ahead[t] * (np.float32(1.0) - out[t] * out[t])


@loop
def relu(source: Floats, out: Floats) -> None:
    """Fills `out` with what is positive in `source`, zeros elsewhere; what is not a number stays so."""
    for t in range(source.size):
        out[t] = np.float32(0.0) if source[t] < np.float32(0.0) else source[t]


@loop
def relu_back(source: Floats, ahead: Floats, back: Floats) -> None:
    """Fills `back` with the derivative to the input of `relu`."""
    for t in range(source.size):
        back[t] = ahead[t] if source[t] > np.float32(0.0) else np.float32(0.0)


@loop
def cross_entropy(
    logits: Floats, labels: Integers, picks: Integers, back: Floats, losses: npt.NDArray[np.float64]
) -> None:
    """Fills `losses` with each lane's loss and `back` with its derivative to the logits; its label is that picked."""
    for lane in range(LANES):
        label = labels[picks[lane]]
        top = logits[0, lane]
        for t in range(1, logits.shape[0]):
            top = max(top, logits[t, lane])
        total = np.float32(0.0)
        for t in range(logits.shape[0]):
            back[t, lane] = np.exp(logits[t, lane] - top)
            total += back[t, lane]
        for t in range(logits.shape[0]):
            back[t, lane] /= total
        back[label, lane] -= np.float32(1.0)
        losses[lane] = np.log(total) + top - logits[label, lane]
