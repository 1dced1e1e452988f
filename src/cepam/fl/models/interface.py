"""What the engine asks of a network: a model lowered onto a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """How each row of weights does on a set of examples: mean loss, and the mean of every metric by name."""

    loss: npt.NDArray[np.float64]
    metrics: dict[str, npt.NDArray[np.float64]]

    @property
    def accuracy(self) -> npt.NDArray[np.float64]:
        """The share of right answers, where the model tells classes apart."""
        return self.metrics["accuracy"]


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

    def by_rows(self, update: npt.NDArray[np.floating]) -> Doubles:
        """The update with each row's bias behind the row: residuals times features and one."""
        cut = self.rows * self.inputs
        weights = update[:cut].reshape(self.rows, self.inputs).astype(np.float64)
        made = np.concatenate([weights, update[cut:, None].astype(np.float64)], axis=1) if self.bias else weights
        return made.reshape(-1)

    def as_given(self, rows: Doubles) -> Doubles:
        """What `by_rows` was made from."""
        made = rows.reshape(self.rows, self.columns)
        return np.concatenate([made[:, : self.inputs].reshape(-1), made[:, self.inputs :].reshape(-1)])


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

    def evaluate(self, weights: Any, index: Index | None = None, test: bool = False) -> Scores:
        """The scores of each row of weights on the test examples, or on these training (or `test`) examples."""
