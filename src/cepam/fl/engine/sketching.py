"""Updates as public sketches: fewer numbers to mask and send, clipped after the map (docs/trust.md, "The sketch")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.secure import Sketch, SumSettings

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LinearHead:
    """A linear layer, all that a model trains: its weights row by row, then its bias where it has one."""

    rows: int
    inputs: int
    bias: bool

    @property
    def columns(self) -> int:
        """The length of a row with its bias at the end."""
        return self.inputs + self.bias

    def by_rows(self, update: npt.NDArray[np.floating]) -> Floats:
        """The update with each row's bias behind the row: residuals times features and one."""
        cut = self.rows * self.inputs
        weights = update[:cut].reshape(self.rows, self.inputs).astype(np.float64)
        made = np.concatenate([weights, update[cut:, None].astype(np.float64)], axis=1) if self.bias else weights
        return made.reshape(-1)

    def as_given(self, rows: Floats) -> Floats:
        """What `by_rows` was made from."""
        made = rows.reshape(self.rows, self.columns)
        return np.concatenate([made[:, : self.inputs].reshape(-1), made[:, self.inputs :].reshape(-1)])


@dataclass(frozen=True)
class RoundSketch:
    """One round's map of updates; of a linear head row by row, so that examples can be clipped after it."""

    sketch: Sketch
    head: LinearHead | None = None

    @classmethod
    def of(cls, offer: SumSettings, coordinates: int, head: LinearHead | None) -> RoundSketch:
        """The map of this round, fixed by what every node was told."""
        return cls(Sketch.of(offer, coordinates, 1 if head is None else head.rows), head)

    def apply(self, update: npt.NDArray[np.floating]) -> Floats:
        """The numbers that are sent instead of the update, not yet clipped."""
        return self.sketch.apply(update if self.head is None else self.head.by_rows(update))

    def restore(self, total: Floats) -> Floats:
        """The estimate of the sum of updates: unbiased where nothing was clipped."""
        found = self.sketch.restore(total)
        return found if self.head is None else self.head.as_given(found)

    def squares(self, inputs: npt.NDArray[np.float32]) -> Floats:
        """What stands for the squared norms of examples' inputs in the clip: those of their maps, bias left out.

        An example's gradient is its residuals times (inputs, 1), so its sketch has norm |residuals| |map of (inputs, 1)|.
        """
        assert self.head is not None
        one = np.ones((len(inputs), int(self.head.bias)), dtype=np.float32)
        return self.sketch.squares(np.concatenate([inputs, one], axis=1)) - float(self.head.bias)
