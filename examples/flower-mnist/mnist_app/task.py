"""The model, the data of a client, and its update: plain PyTorch, nothing of cepam's but the data loader."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cepam.fl.data.catalog import load

RECORDS = 60_000


def network() -> nn.Module:
    """The paper's CNN: two convolutions, two linear layers, 6,422 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


def _images(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.reshape(-1, 1, 28, 28).astype(np.float32) / 255.0)


def poisson_batch(client: int, clients: int, draws: int) -> tuple[Tensor, Tensor]:
    """A fresh batch of this client's records: each by itself with the same chance, `draws` in expectation.

    The choice of records is part of the guarantee, so it is drawn from the system's secret randomness.
    """
    data = load("mnist")
    order = np.random.default_rng(0).permutation(RECORDS)
    mine = order[client * (RECORDS // clients) : (client + 1) * (RECORDS // clients)]
    draw = np.random.default_rng(secrets.randbits(128))
    chosen = mine[draw.random(len(mine)) < draws / len(mine)]
    return _images(data.train_inputs[chosen]), torch.from_numpy(data.train_labels[chosen])


def clipped_gradient(model: nn.Module, images: Tensor, labels: Tensor, clip: float, draws: int) -> dict[str, Tensor]:
    """The sum of the records' gradients, each scaled down to norm `clip`, over the expected number of records."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    if len(images) == 0:
        return {name: torch.zeros_like(value) for name, value in weights.items()}

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, weights, image[None]), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, labels)
    norms = torch.sqrt(sum(g.reshape(len(images), -1).square().sum(1) for g in each.values()))
    scale = clip / norms.clamp(min=clip)
    return {name: torch.tensordot(scale, g, 1) / draws for name, g in each.items()}


def test_accuracy(model: nn.Module) -> float:
    """The share of the test images that the model names rightly."""
    data = load("mnist")
    with torch.no_grad():
        guesses = model(_images(data.test_inputs)).argmax(1)
    return float((guesses == torch.from_numpy(data.test_labels)).float().mean())
