"""Lattices: where a sub-vector may land, the nearest such point, and how much of a cell a ball fills.

A lattice is held as a small integer basis. The codec scales it by an integer B for each sub-vector, so every point,
dither and error is an integer vector and nothing is ever rounded (docs/proofs/finite-precision.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Norm
from cepam.lattices.geometry import (
    CoordinateOrder,
    is_reduced,
    orthogonal_walk,
    reduce_basis,
    relevant_vectors,
    triangular_box,
)

Ints = npt.NDArray[np.int64]
LARGEST_DIMENSION = 10
LARGEST_GENERAL_DIMENSION = 8
_DETERMINANT_BITS = 60
LARGEST_ENTRY = 2**24
LEAST_SHARE = 1e-4
"""Of a cell that its largest ball fills, in either norm: under a tenth of what a codec takes."""


class Search(IntEnum):
    """Which nearest-point routine the kernels run."""

    CUBIC = 0
    CHECKERBOARD = 1
    GOSSET = 2
    HEXAGONAL = 3
    GENERAL = 4


@dataclass(frozen=True, init=False, eq=False)
class Lattice:
    """The lattice spanned by the columns of a generator matrix, up to scale.

    Args:
        generator: A square matrix of size 1 to 8, finite and far from singular.

    Attributes:
        name: `"general"`, or the name of a built-in lattice.
        basis: The integer basis in use.

    Raises:
        ValueError: The generator has another shape, is singular, or its columns differ too much in length.

    Paper: Section II-B, G Z^n.

    Departs: The generator is replaced by an integer one: exactly, when a multiple of it is integer, else rounded to
    about 60/n bits per entry. The distribution of the noise does not depend on the lattice, so this changes the
    acceptance probability slightly and nothing else.
    """

    name: str
    basis: Ints = field(repr=False)
    search: Search = field(repr=False)

    def __init__(self, generator: npt.ArrayLike) -> None:
        matrix = np.asarray(generator, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not 1 <= len(matrix) <= LARGEST_GENERAL_DIMENSION:
            raise ValueError(f"generator must be a square matrix of size 1 to 8, got shape {matrix.shape}")
        if (
            not np.isfinite(matrix).all()
            or not matrix.any()
            or abs(np.linalg.det(matrix / np.abs(matrix).max())) < 1e-9
        ):
            raise ValueError("generator must be finite and far from singular")
        if len(matrix) == 1:
            self._fill("Z1", np.eye(1, dtype=np.int64), Search.CUBIC)
        else:
            self._fill("general", reduce_basis(_integer_matrix(matrix)), Search.GENERAL)

    @classmethod
    def from_basis(cls, basis: Sequence[Sequence[int]]) -> Lattice:
        """The lattice whose `basis`, as another party tells it, is this one, rows of integers.

        Args:
            basis: `Lattice.basis` of a lattice of 2 to 8 dimensions that was made from a generator.

        Returns:
            The same lattice, with the same fingerprint.

        Raises:
            ValueError: for anything else, before any work that grows with the numbers: another shape, entries that are
                no integers of at most 2^24, a singular basis, one that is not reduced, or a lattice so oblong that no
                codec takes it.
        """
        rows = _checked_rows(basis)
        made = _from_rows(rows)
        if isinstance(made, str):
            raise ValueError(f"a lattice's basis must be {made}, got {[list(row) for row in rows]!r}")
        return made

    def _fill(self, name: str, basis: Ints, search: Search) -> Lattice:
        basis.setflags(write=False)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "search", search)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lattice) and self.token == other.token

    def __hash__(self) -> int:
        return hash(self.token)

    @cached_property
    def token(self) -> bytes:
        """Bytes that identify the lattice in a codec's fingerprint."""
        return bytes([self.dimension, int(self.search)]) + self.basis.astype("<i8").tobytes()

    @property
    def dimension(self) -> int:
        """The number n of coordinates in a sub-vector."""
        return len(self.basis)

    @cached_property
    def determinant(self) -> int:
        """The volume of a cell of the integer basis."""
        return math.prod(int(h) for h in self.box)

    @cached_property
    def box(self) -> Ints:
        """Side lengths of a box of integer points that holds each coset of the lattice once; dithers lie in it."""
        return triangular_box(self.basis)

    @cached_property
    def relevant(self) -> Ints:
        """The lattice vectors (rows, in coordinates of `basis`) whose bisectors bound the Voronoi cell."""
        return relevant_vectors(self.basis)

    @cached_property
    def walk(self) -> CoordinateOrder:
        """The order in which the adaptive coder codes the coordinates of a point."""
        return orthogonal_walk(self.basis)

    def ball_radius(self, norm: Norm) -> float:
        """Return the radius of the largest ball of that norm inside the Voronoi cell of the integer basis.

        Args:
            norm: `l1` or `l2`.

        Returns:
            A radius in the lattice's units.
        """
        if self.search is Search.CUBIC:
            return 0.5
        vectors = (self.relevant if self.search is Search.GENERAL else _short_vectors(self)) @ self.basis.T
        squares = (vectors.astype(np.float64) ** 2).sum(axis=1)
        if norm == "l2":
            return float(np.sqrt(squares.min()) / 2)
        return float((squares / (2 * np.abs(vectors).max(axis=1))).min())

    def acceptance(self, norm: Norm) -> float:
        """The probability that a trial is accepted: the share of a cell that its largest ball fills. Remembered.

        Args:
            norm: `l1` or `l2`.

        Returns:
            A probability.
        """
        return _acceptance(self, norm)


def _checked_rows(basis: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    if not isinstance(basis, Sequence) or not 2 <= len(basis) <= LARGEST_GENERAL_DIMENSION:
        raise ValueError(f"a lattice's basis must have 2 to {LARGEST_GENERAL_DIMENSION} rows, got {basis!r:.60}")
    for row in basis:
        if not isinstance(row, Sequence) or len(row) != len(basis):
            raise ValueError(f"a lattice's basis must be square, {len(basis)} by {len(basis)}, got a row {row!r:.60}")
        for entry in row:
            if type(entry) is not int or abs(entry) > LARGEST_ENTRY:
                raise ValueError(f"a lattice's basis must hold integers of at most 2^24, got {entry!r:.60}")
    return tuple(tuple(row) for row in basis)


@lru_cache(maxsize=64)
def _from_rows(rows: tuple[tuple[int, ...], ...]) -> Lattice | str:
    """The lattice, remembered with its geometry, since a client is told it with every message; or what is amiss."""
    basis = np.array(rows, dtype=np.int64)
    try:
        volume = math.prod(int(side) for side in triangular_box(basis))
    except ValueError:
        return "of full rank"
    if volume >= 2**_DETERMINANT_BITS:
        return f"of a determinant under 2^{_DETERMINANT_BITS}"
    if not is_reduced(basis):
        return "reduced"
    n, shortest = len(rows), min(math.hypot(*column) for column in basis.T.tolist())
    if _ball_volume(n, shortest / 2.0) < LEAST_SHARE * volume:
        return "of a lattice that is not oblong: nearly no trial would be accepted"
    return _named("general", basis, Search.GENERAL)


def _ball_volume(n: int, radius: float) -> float:
    return float(math.pi ** (n / 2) / math.gamma(n / 2 + 1) * radius**n)


@lru_cache(maxsize=256)
def _acceptance(lattice: Lattice, norm: Norm) -> float:
    n = lattice.dimension
    radius = lattice.ball_radius(norm)
    if norm == "l2":
        volume = _ball_volume(n, radius)
    else:
        volume = (2 * radius) ** n / math.factorial(n)
    return float(volume / lattice.determinant)


def Integer(n: int) -> Lattice:
    """Return the cubic lattice Z^n.

    Returns:
        The lattice.

    Args:
        n: The dimension, from 1 to 10.

    Raises:
        ValueError: `n` is out of range.
    """
    if type(n) is not int or not 1 <= n <= LARGEST_DIMENSION:
        raise ValueError(f"n must be an integer from 1 to {LARGEST_DIMENSION}, got {n!r}")
    return _named(f"Z{n}", np.eye(n, dtype=np.int64), Search.CUBIC)


def _named(name: str, basis: Ints, search: Search) -> Lattice:
    return object.__new__(Lattice)._fill(name, basis, search)


def _integer_matrix(matrix: npt.NDArray[np.float64]) -> Ints:
    """Integers in proportion to the matrix: exactly if some small multiple is whole, else rounded."""
    smallest, largest = np.abs(matrix[matrix != 0]).min(), np.abs(matrix).max()
    for multiple in range(1, 65):
        scaled = matrix * (multiple / smallest)
        if np.abs(scaled - np.rint(scaled)).max() < 1e-9 and largest * multiple / smallest < 2**10:
            whole: Ints = np.rint(scaled).astype(np.int64)
            if _fits(whole):
                return whole
    for bits in range(20, 0, -1):
        rounded: Ints = np.rint(matrix / largest * 2.0**bits).astype(np.int64)
        if _fits(rounded):
            return rounded
    raise ValueError("generator is too far from a lattice of small integers: its columns differ too much in length")


def _fits(matrix: Ints) -> bool:
    """Whether the cosets of the lattice can be numbered in a word."""
    size = abs(np.linalg.det(matrix.astype(np.float64)))
    return bool(0.5 < size < 2.0**_DETERMINANT_BITS)


def _short_vectors(lattice: Lattice) -> Ints:
    """The minimal vectors of a named lattice, in coordinates of its basis: they bound its Voronoi cell."""
    n = lattice.dimension
    if lattice.search is Search.HEXAGONAL:
        return np.array([[1, 0], [0, 1], [-1, 1]], dtype=np.int64)
    steps = [v for v in itertools.product((-2, 0, 2), repeat=n) if sum(map(abs, v)) == 4]
    if lattice.search is Search.CHECKERBOARD:
        points = np.array(steps, dtype=np.int64) // 2
    else:
        odd = [v for v in itertools.product((-1, 1), repeat=n) if sum(v) % 4 == 0]
        points = np.array(steps + odd, dtype=np.int64)
    return np.rint(np.linalg.solve(lattice.basis.astype(np.float64), points.T).T).astype(np.int64)


def _hexagonal() -> Lattice:
    # 1351/780 is a convergent of sqrt(3) from above, so the shortest vector is (2 * 780, 0) and the cell is all but
    # hexagonal.
    return _named("A2", np.array([[1560, 780], [0, 1351]], dtype=np.int64), Search.HEXAGONAL)


def _checkerboard() -> Lattice:
    basis = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 2]], dtype=np.int64)
    return _named("D4", basis, Search.CHECKERBOARD)


def _e8() -> Lattice:
    """Twice E8: all coordinates even or all odd, their sum a multiple of four."""
    basis = np.zeros((8, 8), dtype=np.int64)
    basis[:, 0] = 1
    for i in range(1, 7):
        basis[i, i] = 2
        basis[7, i] = 2
    basis[7, 7] = 4
    return _named("E8", basis, Search.GOSSET)


A2 = _hexagonal()
"""The hexagonal lattice in two dimensions."""
D4 = _checkerboard()
"""The checkerboard lattice in four dimensions."""
E8 = _e8()
"""The Gosset lattice in eight dimensions, the densest there."""
NAMED: dict[str, Lattice] = {
    **{f"Z{n}": Integer(n) for n in range(1, LARGEST_DIMENSION + 1)}, "A2": A2, "D4": D4, "E8": E8,
}  # fmt: skip
"""Every lattice that has a name: the one table."""


def lattice_named(name: str) -> Lattice:
    """Return the built-in lattice of this name; raises ValueError for another name."""
    if name not in NAMED:
        raise ValueError(f"lattice must be A2, D4, E8 or Z1 to Z{LARGEST_DIMENSION}, got {name!r}")
    return NAMED[name]
