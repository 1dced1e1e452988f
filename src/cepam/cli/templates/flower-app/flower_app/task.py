"""The model and the data: replace both with your own."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from cepam import fl

load = cache(fl.load)


def network() -> nn.Module:
    """A small convolutional network, 6,422 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


def records_per_node(dataset: str, nodes: int) -> int:
    """How many records every node holds: a public number, the one of the account."""
    return len(load(dataset).train_labels) // nodes


@cache
def records_of(dataset: str, node: int, nodes: int) -> tuple[Tensor, Tensor]:
    """The inputs and labels of one node: an equal share of the training records."""
    data, many = load(dataset), records_per_node(dataset, nodes)
    mine = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(0))[node * many :][:many]
    return _images(data.train_inputs)[mine], torch.from_numpy(data.train_labels)[mine]


def test_accuracy(model: nn.Module, dataset: str) -> float:
    """The share of the test images whose label the model finds."""
    data = load(dataset)
    with torch.no_grad():
        found = model(_images(data.test_inputs)).argmax(1)
    return float((found == torch.from_numpy(data.test_labels)).double().mean())


def _images(pixels: object) -> Tensor:
    return torch.as_tensor(pixels).reshape(-1, 1, 28, 28).float() / 255.0
