"""What a model is trained for and judged by: a loss and metrics, one number an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

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
