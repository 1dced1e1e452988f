"""The interface of a network on a data set, objectives, and engines that other distributions bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from cepam.fl.data.dataset import Dataset
from cepam.fl.models.layers import ordinary

Judge = Callable[[Tensor, Tensor], Tensor]
RESERVED = (
    "bits", "bits_per_coordinate", "bits_total", "delta", "epsilon", "loss", "replies", "round", "seed", "snr_db",
    "train_loss",
)  # fmt: skip
"""Names that a run's lines of metrics have already."""


@dataclass
class ByExample:
    """A function of (answers, targets) of a batch of one, for many examples: all at once where `vmap` can."""

    name: str
    function: Judge
    together: bool = True

    def one(self, answer: Tensor, target: Tensor) -> Tensor:
        """The number of a single example, which comes without a batch's axis."""
        made = torch.as_tensor(self.function(answer[None], target[None]))
        if made.numel() != 1:
            raise ValueError(f"{self.name} must give one number for a batch of one, got shape {tuple(made.shape)}")
        return made.reshape(())

    def each(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The number of every example."""
        if self.together:
            try:
                mapped: Tensor = vmap(self.one)(answers, targets)
                return mapped
            except RuntimeError:  # what a map cannot take, such as .item() or a branch on a value
                self.together = False
        return torch.stack([self.one(answer, target) for answer, target in zip(answers, targets)])


def _right(answers: Tensor, labels: Tensor) -> Tensor:
    return (answers.argmax(1) == labels).float()


@dataclass(frozen=True)
class Objective:
    """A loss and metrics; without a loss of one's own, cross-entropy on class numbers and accuracy."""

    loss: Judge | None = None
    metrics: Mapping[str, Judge] = field(default_factory=dict)
    _loss: ByExample = field(init=False, repr=False)
    _metrics: tuple[ByExample, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, function in {"loss": self.loss or F.cross_entropy, **self.metrics}.items():
            if not callable(function):
                raise ValueError(f"{name} must be a function of (answers, targets), got {function!r}")
        taken = ({*RESERVED} | ({"accuracy"} if self.loss is None else set())) & set(self.metrics)
        if taken:
            raise ValueError(f"metrics must have names of their own, got {', '.join(sorted(taken))}")
        object.__setattr__(self, "_loss", ByExample("loss", self.loss or F.cross_entropy))
        object.__setattr__(self, "_metrics", tuple(ByExample(name, f) for name, f in self.metrics.items()))

    @property
    def classifies(self) -> bool:
        """Whether this is cross-entropy on class numbers, so that there is an accuracy."""
        return self.loss is None

    @property
    def plain(self) -> bool:
        """Whether there is nothing of the user's own in it."""
        return self.loss is None and not self.metrics

    def loss_of_one(self, answer: Tensor, target: Tensor) -> Tensor:
        """The loss of one example."""
        return self._loss.one(answer, target)

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of every example."""
        if self.classifies:
            return F.cross_entropy(answers, targets, reduction="none")
        return self._loss.each(answers, targets)

    def scores(self, answers: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The sum over the examples of every metric, by name."""
        made = {each.name: each.each(answers, targets).double().sum() for each in self._metrics}
        return {"accuracy": _right(answers, targets).double().sum(), **made} if self.classifies else made


Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
AUC = "auc"
"""The metric that test examples of two classes are judged by besides accuracy: the area under the ROC curve."""


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


GROUP = "cepam.networks"
Engine = Callable[[nn.Module, Dataset], Network | None]
"""The network of a module on data that are numbers, its weights those that are trained, in order; None: not by me."""


def brought(module: nn.Module, data: Dataset) -> Network | None:
    """The network by the first installed engine, in the order of their names, that takes the module.

    None is asked where the kinds of layers do not say what the module computes (`layers.ordinary`).
    """
    if not ordinary(module):
        return None
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        try:
            engine: Engine = point.load()
        except Exception as broken:
            raise ValueError(
                f"the network engine {point.name!r} ({point.value}) is installed but cannot be loaded: "
                f"{type(broken).__name__}: {broken}; repair it, uninstall it, or ask for PyTorch (device cpu-torch)"
            ) from broken
        network = engine(module, data)
        if network is not None:
            return network
    return None


def engine_of(network: Network) -> str:
    """Whose arithmetic a network is, for the record of a run: its class, by its full name."""
    return f"{type(network).__module__}.{type(network).__qualname__}"
