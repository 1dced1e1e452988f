"""The quantizer as the published program computes it, not as the paper defines it: for comparison only.

With alpha = 1/1000, radii r (encoder) and r' (decoder), dithers v and v' uniform on [-1/2, 1/2), all drawn apart:

    n = 1 and Laplace    lambda = floor((x/r - v)/alpha + 1/2)    decoded r' alpha (lambda + v'), about r' (x/r - v)
    n = 2, 3             lambda = floor(x/(r alpha) - v + 1/2)    decoded r' alpha lambda, about r' x/r

Sub-vectors of a tensor are strided: with L columns, sub-vector i is the entries i, i + L, i + 2 L. For n = 2, 3 the
acceptance test looks at r alpha lambda - x, without the dither. That is always shorter than r, so the first trial is
accepted. The trial is counted from 0, and the decoder draws that many dithers: none.

It differs from LRSUQ in three ways, each of which breaks the noise law: the decoder draws a radius and a dither of its
own instead of the encoder's; the cell is r alpha, where it must be 2r for a ball of radius r to fit in; dithers start
anew from the same seed at every tensor and every round. What comes out is the update times r'/r, in one dimension less
r' v: a gain and a noise that depends on the update. Sharing the radius and the dither alone does not mend it: the noise
is then half of sigma in one dimension and next to nothing in two and three.

Guarantee: paper_tests/test_published.py feeds the draws of a run of the program itself through `points_of` and
`decoded_of` and finds its integers and its outputs (paper_tests/program_outputs.json, numbers only).
Departs: draws come from addressed generators, not from PyTorch's, and arithmetic is float64, not float32. On a CUDA
device the program also starts its radii anew at every tensor and round; this port has what it does on a CPU. The
program's FL+Gaussian and FL+Laplace are rounded to multiples of alpha, which adds 0.04 % to the noise of sigma = 0.01;
the rows "published" of these two baselines are not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Gaussian, Laplace
from cepam.errors import MalformedMessage
from cepam.keys import Address

Floats = npt.NDArray[np.float64]
ALPHA = 1e-3
ARITHMETIC = 3
"""Raised when a figure "as published" changes its meaning; parts keep it beside their numbers."""


def mean_gain(law: Gaussian | Laplace, n: int = 1) -> float:
    """E[r'/r] = E[r] E[1/r] of two independent latent radii: what the published decoder multiplies an update by.

    Gaussian: r is sigma times chi with n + 2 degrees of freedom: 4/pi, 3 pi/8, 32/(9 pi). Laplace: b times
    Gamma(2, 1): 2.
    """
    if isinstance(law, Laplace):
        return 2.0
    from scipy.special import gammaln

    k = n + 2
    return float(np.exp(gammaln((k + 1) / 2) + gammaln((k - 1) / 2) - 2 * gammaln(k / 2)))


def points_of(rows: Floats, radii: Floats, dither: Floats) -> Floats:
    """The integers lambda of sub-vectors (count, n), given the encoder's radii (count,) and dithers (count, n)."""
    scaled = rows / radii[:, None]
    # In one dimension the program takes the dither off before it divides by alpha, in two and three after it.
    points = (scaled - dither) / ALPHA if rows.shape[1] == 1 else scaled / ALPHA - dither
    return np.asarray(np.floor(points + 0.5))


def decoded_of(points: Floats, radii: Floats, dither: Floats | None) -> Floats:
    """What the program's server makes of the integers with radii of its own, and for n = 1 a dither of its own."""
    if (dither is None) != (points.shape[1] > 1):
        raise ValueError("the program's decoder has a dither for n = 1 and none for n = 2 and 3")
    return np.asarray(radii[:, None] * ALPHA * (points if dither is None else points + dither))


def strided(tensor: Floats, n: int) -> Floats:
    """The sub-vectors (count, n) of one tensor, zeros after its end: entries i, i + count, i + 2 count."""
    return np.pad(tensor, (0, -len(tensor) % n)).reshape(n, -1).T


def unstrided(rows: Floats, size: int) -> Floats:
    """The tensor of `size` entries that `strided` cut into these sub-vectors."""
    return rows.T.ravel()[:size]


@dataclass(frozen=True)
class PublishedChannel:
    """Encode and decode with the published arithmetic; `sizes` are the tensors' lengths.

    The message is the raw integers: the published code makes no bytes, so their number means nothing. Every draw is
    addressed (key, round), so that a run can be repeated.
    """

    law: Gaussian | Laplace
    n: int
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.n not in (1, 2, 3) or (self.n > 1 and isinstance(self.law, Laplace)):
            raise ValueError(f"the published code has n = 1, 2, 3 (Laplace: 1), got {self.n} for {self.law!r}")
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes must be positive tensor lengths, got {self.sizes!r}")

    def encode(self, update: npt.NDArray[np.float32], at: Address) -> bytes:
        """The integers lambda of every sub-vector, 64 bits each."""
        if update.shape != (sum(self.sizes),):
            raise ValueError(f"an update must have {sum(self.sizes)} coordinates, got shape {update.shape}")
        rows = self._rows(update.astype(np.float64))
        points = points_of(rows, self._radii(at, b"encoder"), self._dither(at, b"encoder"))
        return points.astype("<i8").tobytes()

    def decode(self, message: bytes, at: Address) -> npt.NDArray[np.float32]:
        """The update as the published server sees it: with a radius of its own, and for n = 1 a dither of its own."""
        count = sum(self._counts)
        if len(message) != 8 * self.n * count:
            raise MalformedMessage(f"{8 * self.n * count} bytes were due, got {len(message)}")
        points = np.frombuffer(message, dtype="<i8").reshape(count, self.n).astype(np.float64)
        dither = self._dither(at, b"decoder") if self.n == 1 else None
        rows = decoded_of(points, self._radii(at, b"decoder"), dither)
        starts = np.cumsum((0, *self._counts))
        pieces = [unstrided(rows[a:b], size) for a, b, size in zip(starts[:-1], starts[1:], self.sizes)]
        return np.concatenate(pieces).astype(np.float32)

    @property
    def _counts(self) -> tuple[int, ...]:
        return tuple(-(-size // self.n) for size in self.sizes)

    def _rows(self, update: Floats) -> Floats:
        pieces = np.split(update, np.cumsum(self.sizes)[:-1])
        return np.concatenate([strided(piece, self.n) for piece in pieces])

    def _radii(self, at: Address, whose: bytes) -> Floats:
        draw, count = _generator(whose, at.derive().noise), sum(self._counts)
        if isinstance(self.law, Laplace):
            return self.law.scale * draw.standard_gamma(2.0, count)
        return self.law.scale * np.sqrt(draw.chisquare(self.n + 2, count))

    def _dither(self, at: Address, whose: bytes) -> Floats:
        """The same numbers for every tensor and every round of a client."""
        longest = _generator(whose, at.key.secret).uniform(-0.5, 0.5, (max(self._counts), self.n))
        return np.concatenate([longest[:count] for count in self._counts])


def _generator(purpose: bytes, material: bytes) -> np.random.Generator:
    words = np.frombuffer(hashlib.sha256(b"cepam published " + purpose + material).digest(), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words[:2]))
