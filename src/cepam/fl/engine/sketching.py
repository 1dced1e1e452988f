"""Updates as public sketches: fewer numbers to mask and send, clipped after the map (docs/trust.md, "The sketch")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.fl.models.interface import LinearHead
from cepam.secure import Sketch, SumSettings

Floats = npt.NDArray[np.float64]


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

        An example's gradient is its residuals times (inputs, 1): its sketch has norm |residuals| |map of (inputs, 1)|.
        """
        assert self.head is not None
        one = np.ones((len(inputs), int(self.head.bias)), dtype=np.float32)
        return self.sketch.squares(np.concatenate([inputs, one], axis=1)) - float(self.head.bias)
