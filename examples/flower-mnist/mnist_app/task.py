"""The model and the data of a client: plain PyTorch, nothing of cepam's but the data loader."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from cepam import fl

RECORDS = 60_000


def network() -> nn.Module:
    """The paper's CNN: two convolutions, two linear layers, 6,422 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


mnist = cache(lambda: fl.load("mnist"))


def _images(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.reshape(-1, 1, 28, 28).astype(np.float32) / 255.0)


@cache
def records_of(client: int, clients: int) -> tuple[Tensor, Tensor]:
    """This client's images and labels: an equal share of the training data."""
    data = mnist()
    mine = np.random.default_rng(0).permutation(RECORDS)[client * (RECORDS // clients) :][: RECORDS // clients]
    return _images(data.train_inputs[mine]), torch.from_numpy(data.train_labels[mine])


@cache
def test_records() -> tuple[Tensor, Tensor]:
    """The test images and their labels."""
    data = mnist()
    return _images(data.test_inputs), torch.from_numpy(data.test_labels)


def test_accuracy(model: nn.Module) -> float:
    """The share of the test images that the model names rightly."""
    images, labels = test_records()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).double().mean())
