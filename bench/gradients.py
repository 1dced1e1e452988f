"""Bench vectors: clipped gradients of the paper's CNN on MNIST, and synthetic controls.

`python bench/gradients.py` fills `bench/data/` (git-ignored); `--if-missing` leaves what is there.

Train and test are apart in everything: other weights (seed), other images, other rounds' draws.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from cepam import fl

DATA = Path(__file__).parent / "data"
CLIP = 1.0
EARLY = (0, 5, 10, 20)
LATE = (80, 110, 130)


class PaperCNN(nn.Module):
    """The paper's network: 6,422 parameters (156 + 906 + 4,850 + 510)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 6, 5)
        self.fc1 = nn.Linear(96, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(torch.max_pool2d(self.conv1(images), 2))
        hidden = torch.relu(torch.max_pool2d(self.conv2(hidden), 2))
        hidden = torch.relu(self.fc1(hidden.flatten(1)))
        return self.fc2(hidden)


class MLP(nn.Module):
    """A 784-640-640-10 perceptron: 919,050 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


class ConvNet(nn.Module):
    """Six 3x3 convolutions with group norm and shortcuts, as in a ResNet: about 1.1 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.stem = nn.Conv2d(1, widths[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(widths))
        self.same = nn.ModuleList(nn.Conv2d(b, b, 3, 1, 1) for b in widths[1:])
        self.norm = nn.ModuleList(nn.GroupNorm(8, b) for b in widths[1:])
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.stem(images))
        for down, same, norm in zip(self.down, self.same, self.norm):
            hidden = torch.relu(down(hidden))
            hidden = torch.relu(hidden + norm(same(hidden)))
        return self.head(hidden.mean((2, 3)))


def read_mnist(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (normalised as usual, shape n x 1 x 28 x 28) and labels of `train` or `t10k`; fetched if need be."""
    data = fl.load("mnist")
    images, labels = (data.train_inputs, data.train_labels) if part == "train" else (data.test_inputs, data.test_labels)
    pixels = images.reshape(-1, 1, 28, 28) / 255.0
    return torch.from_numpy((pixels - 0.1307) / 0.3081).float(), torch.from_numpy(labels).long()


def per_sample_gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """One flat gradient a sample, in the order of `model.parameters()`."""
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(at: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, at, image[None]), label[None])

    pieces = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, labels)
    return torch.cat([piece.flatten(1) for piece in pieces.values()], 1)


def clip(vectors: np.ndarray) -> np.ndarray:
    """Rows scaled down to l2 norm `CLIP` where they are longer."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors * np.minimum(1.0, CLIP / np.maximum(norms, 1e-30))).astype(np.float32)


def cnn_rows(seed: int, fit: tuple, draw: tuple, rounds: tuple[int, ...], count: int) -> dict[str, np.ndarray]:
    """Per-sample gradients and averages over 15 samples, `count` of each at every listed round."""
    torch.manual_seed(seed)
    model = PaperCNN()
    step = torch.optim.SGD(model.parameters(), lr=0.3)
    order = np.random.default_rng(seed)
    single, averaged = [], []
    for at in range(max(rounds) + 1):
        if at in rounds:
            pick = order.integers(0, len(draw[1]), count)
            single.append(per_sample_gradients(model, draw[0][pick], draw[1][pick]).numpy())
            pick = order.integers(0, len(draw[1]), 15 * count)
            rows = per_sample_gradients(model, draw[0][pick], draw[1][pick]).numpy()
            averaged.append(rows.reshape(count, 15, -1).mean(1))
        pick = order.integers(0, len(fit[1]), 450)
        step.zero_grad()
        nn.functional.cross_entropy(model(fit[0][pick]), fit[1][pick]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        step.step()
    return {"single": clip(np.concatenate(single)), "averaged": clip(np.concatenate(averaged))}


def large_update(model: nn.Module, seed: int, fit: tuple, steps: int = 5, batch: int = 15) -> np.ndarray:
    """The change that `steps` local steps make to a large network after a short training, clipped."""
    step = torch.optim.SGD(model.parameters(), lr=0.05)
    order = np.random.default_rng(seed)
    for at in range(20 + steps):
        if at == 20:
            before = torch.cat([w.detach().flatten() for w in model.parameters()])
        pick = order.integers(0, len(fit[1]), batch)
        step.zero_grad()
        nn.functional.cross_entropy(model(fit[0][pick]), fit[1][pick]).backward()
        step.step()
    after = torch.cat([w.detach().flatten() for w in model.parameters()])
    return clip((after - before).numpy()[None])


def synthetic(seed: int, count: int, size: int = 6422) -> dict[str, np.ndarray]:
    """Rows of norm 1 with i.i.d. Gaussian, Laplace and 95 %-sparse Gaussian entries."""
    draw = np.random.default_rng(seed)
    gaussian = draw.normal(size=(count, size))
    laplace = draw.laplace(size=(count, size))
    sparse = draw.normal(size=(count, size)) * (draw.random((count, size)) < 0.05)
    rows = {"gaussian": gaussian, "laplace": laplace, "sparse": sparse}
    return {name: clip(1e6 * value) for name, value in rows.items()}


def make(part: str, count: int = 32) -> None:
    """Writes `bench/data/{part}.npz` for `train` or `test`."""
    torch.set_num_threads(1)
    images, labels = read_mnist("train")
    half = (images[:50000], labels[:50000])
    draw = half if part == "train" else read_mnist("t10k")
    seeds = (11, 12, 13) if part == "train" else (21, 22)
    rows: dict[str, list[np.ndarray]] = {}
    for seed in seeds:
        for stage, rounds in (("early", EARLY), ("late", LATE)):
            for kind, value in cnn_rows(seed, half, draw, rounds, count).items():
                rows.setdefault(f"{stage}_{kind}", []).append(value)
    arrays = {name: np.concatenate(value) for name, value in rows.items()}
    arrays |= synthetic(seeds[0], count)
    torch.manual_seed(seeds[0])
    arrays["mlp"] = large_update(MLP(), seeds[0], half)
    arrays["convnet"] = large_update(ConvNet(), seeds[0], half, batch=8)
    np.savez(DATA / f"{part}.npz", **arrays)
    for name, value in arrays.items():
        rms = np.sqrt((value.astype(np.float64) ** 2).mean())
        print(f"{part:6s} {name:16s} {value.shape!s:15s} rms {rms:.5f} zeros {np.mean(value == 0):.3f}")


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for part in ("train", "test"):
        if "--if-missing" not in sys.argv or not (DATA / f"{part}.npz").exists():
            make(part)
