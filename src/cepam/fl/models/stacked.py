"""Networks stacked in PyTorch: every row has its own weights, all rows in one vectorised call, on CPU or CUDA.

Any module works that `torch.func` can map over; it is also the second opinion on the compiled loops.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from cepam.fl.data.dataset import Dataset
from cepam.fl.models.model import Floats, Index, Scores

EXAMPLES_AT_ONCE = 4096
ROWS_AT_ONCE = {"cpu": 256, "cuda": 1024}


def steady() -> AbstractContextManager[None]:
    """Convolutions in full float32, by algorithms that give the same bits every time: a resumed run repeats itself."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    return flags


class StackedNetwork:
    """A module over stacked weights."""

    def __init__(self, module: nn.Module, data: Dataset, device: str) -> None:
        self.module = module.to(device)
        self.data = data
        self.device = device
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.names = list(trained)
        self.shapes = [p.shape for p in trained.values()]
        self.sizes = [p.numel() for p in trained.values()]
        self.train = self._put(data.train_inputs), self._put(data.train_labels)
        self.test = self._put(data.test_inputs), self._put(data.test_labels)

    def _put(self, array: Any) -> Tensor:
        if isinstance(array, Tensor):
            return array
        # PyTorch warns of arrays that cannot be written to, such as mapped data sets: those are copied.
        return torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self.device)

    def _images(self, inputs: Tensor) -> Tensor:
        scaled = inputs.to(torch.float32) * self.data.scale + self.data.shift
        return scaled.reshape(*inputs.shape[:-1], *self.data.shape)

    def _logits(self, vector: Tensor, images: Tensor) -> Tensor:
        pieces = torch.split(vector, self.sizes)
        weights = {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes)}
        logits: Tensor = functional_call(self.module, weights, (images,))
        return logits

    def _loss(self, vector: Tensor, images: Tensor, labels: Tensor, keep: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(self._logits(vector, images), labels, reduction="none")
        return (losses * keep).sum()

    def summed_gradients(
        self, weights: Any, of: Index, index: Index, count: Index, bounds: Floats | None = None
    ) -> tuple[Any, Any]:
        """As `Network` says; rows come back as tensors of this device where the weights are tensors."""
        vectors, at_once, rows = self._put(weights), ROWS_AT_ONCE[self.device], []
        with torch.no_grad(), steady():
            for at in range(0, len(of), at_once):
                cut = slice(at, at + at_once)
                limits = None if bounds is None else self._put(bounds[cut])
                rows.append(self._rows(vectors[self._put(of[cut])], index[cut], count[cut], limits))
        sums, losses = (torch.cat(part) for part in zip(*rows))
        return (sums, losses) if isinstance(weights, Tensor) else (sums.cpu().numpy(), losses.cpu().numpy())

    def _rows(self, vectors: Tensor, index: Index, count: Index, bounds: Tensor | None) -> tuple[Tensor, Tensor]:
        which = self._put(index)
        keep = (torch.arange(index.shape[1], device=self.device) < self._put(count)[:, None]).to(torch.float32)
        images, labels = self._images(self.train[0][which]), self.train[1][which]
        if bounds is not None:
            return self._clipped(vectors, images, labels, keep, bounds)
        sums, losses = vmap(grad_and_value(self._loss))(vectors, images, labels, keep)
        return sums, losses

    def _clipped(
        self, vectors: Tensor, images: Tensor, labels: Tensor, keep: Tensor, bounds: Tensor
    ) -> tuple[Tensor, Tensor]:
        def one(vector: Tensor, bound: Tensor, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            slope, loss = grad_and_value(self._loss)(
                vector, image[None], label[None], torch.ones(1, device=self.device)
            )
            norm = slope.norm()
            return slope * torch.clamp(bound * (1.0 - 2.0**-20) / norm, max=1.0), loss

        sums, losses = torch.zeros_like(vectors), vectors.new_zeros(len(vectors))
        per = max(1, EXAMPLES_AT_ONCE // len(vectors))
        for at in range(0, keep.shape[1], per):
            cut = slice(at, at + per)
            slopes, values = vmap(vmap(one, in_dims=(None, None, 0, 0)))(
                vectors, bounds, images[:, cut], labels[:, cut]
            )
            sums += (slopes * keep[:, cut, None]).sum(1)
            losses += (values * keep[:, cut]).sum(1)
        return sums, losses

    def evaluate(self, weights: Any, index: Index | None = None) -> Scores:
        inputs, labels = (
            self.test if index is None else (self.train[0][self._put(index)], self.train[1][self._put(index)])
        )
        vectors = self._put(weights)
        right, total = vectors.new_zeros(len(vectors)), vectors.new_zeros(len(vectors), dtype=torch.float64)
        with torch.no_grad(), steady():
            for at in range(0, len(labels), EXAMPLES_AT_ONCE):
                images, answers = self._images(inputs[at : at + EXAMPLES_AT_ONCE]), labels[at : at + EXAMPLES_AT_ONCE]
                for row, vector in enumerate(vectors):
                    logits = self._logits(vector, images)
                    right[row] += (logits.argmax(1) == answers).sum()
                    total[row] += nn.functional.cross_entropy(logits, answers, reduction="sum").double()
        return Scores(right.double().cpu().numpy() / len(labels), total.cpu().numpy() / len(labels))
