"""Which grid point a server publishes: coordinates move late, and their lag is kept out of the directions that matter.

Rounding to the nearest point moves a coordinate back and forth as noise carries it over a boundary. With hysteresis it
stays where it is until it is farther off. Alone that harms: weights lag behind, all in the direction in which training
moves. The lag is therefore kept orthogonal to the leading directions of the aggregates so far, matrix by matrix: they
are where gradients lie, and so where an error changes what the model computes (docs/downlink.md).

Only the server computes here, in floats. Receivers hold whatever grid point was published. A resumed run must
choose the same points on any number of threads: else clients would send other updates under noise that they drew
before. So products are sums in a fixed order, where BLAS splits them by threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
DIRECTIONS = 16
"""Leading directions of each matrix from which the lag is kept."""
MOST_ROWS = 64
"""Matrices with more rows are folded to so many, with signs, before they are decomposed: the work stays small."""
PASSES = 4
NEAREST = 0.5
"""The hysteresis of rounding to the nearest point: half a step."""
ROOM = 0.5
"""By how many steps more than the zone a coordinate may be off, to keep the lag small along the leading directions."""


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
    return zone + ROOM


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
            over = np.abs(made - weights) > (self.zones + ROOM) * step
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
