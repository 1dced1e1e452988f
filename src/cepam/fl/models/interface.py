"""What the engine asks of a network: a model lowered onto a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """How each row of weights does on a set of examples: mean loss, and the mean of every metric by name."""

    loss: npt.NDArray[np.float64]
    metrics: dict[str, npt.NDArray[np.float64]]

    @property
    def accuracy(self) -> npt.NDArray[np.float64]:
        """The share of right answers, where the model tells classes apart."""
        return self.metrics["accuracy"]


class Network(Protocol):
    """A model lowered onto a data set; one that runs in PyTorch takes and gives tensors too.

    `draws` says whether a training pass draws at random, as dropout does.
    """

    draws: bool

    def summed_gradients(
        self, weights: Any, of: Index, index: Index, count: Index, bounds: Floats | None = None,
        seeds: Index | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Row r: the sum of the gradients of training examples index[r, :count[r]] at weights[of[r]], and of losses.

        With `bounds` each example's gradient is first scaled down to the l2 norm bounds[r], and an example whose norm
        or loss is not a number adds nothing. Where the network draws, row r draws from the seed seeds[r].
        """

    def evaluate(self, weights: Any, index: Index | None = None) -> Scores:
        """The scores of each row of weights on the test examples, or on these training examples."""
