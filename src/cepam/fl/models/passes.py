"""Per-example gradients, clipped and summed, through known layers; `cepam.torch.mapped` takes every other module."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from cepam.fl.models.layers import Convolution, Dense, Layer
from cepam.fl.models.objective import Objective
from cepam.torch.uses import example_factors, whole

Taken = tuple[Dense | Convolution, Tensor, Tensor]


class Passes(Protocol):
    """The gradients of a model."""

    @property
    def draws(self) -> bool:
        """Whether a training pass draws at random."""

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """The answers to all examples at one vector of weights."""

    def each(self, weights: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Every example's gradient at the weights of its own row, and its loss."""

    def summed(
        self, weights: Tensor, x: Tensor, labels: Tensor, keep: Tensor, bounds: Tensor | None, known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Rows of sums of gradients and of losses at one vector of weights.

        `keep` (rows, examples a row) says which examples count; x and labels hold them row behind row. With `bounds`
        each gradient is first scaled down to its row's. `known`: squared norms of x, or None.
        """


class Layered:
    """Known layers: norms from what goes in and the slopes of what comes out, in one pass forward and one back."""

    draws = False

    def __init__(self, layers: list[Layer], objective: Objective) -> None:
        self.layers, self.objective = layers, objective
        flat = isinstance(layers[-1], Dense) and all(isinstance(each, nn.Flatten) for each in layers[:-1])
        self.linear = flat and objective.classifies

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if isinstance(layer, nn.Module) else layer.after(layer.shared(x, weights))
        return x

    def _slopes(self, weights: Tensor, x: Tensor, labels: Tensor, own: bool) -> tuple[list[Taken], Tensor]:
        """For each layer with weights: itself, what went in, the slope of what came out; and the losses."""
        if self.linear:
            return self._linear_slope(weights, x.flatten(1), labels, own)
        taken: list[tuple[Dense | Convolution, Tensor]] = []
        outs: list[Tensor] = []
        with torch.enable_grad():
            for layer in self.layers:
                if isinstance(layer, nn.Module):
                    x = layer(x)
                    continue
                out = layer.own(x, weights) if own else layer.shared(x, weights)
                taken.append((layer, x.detach()))
                outs.append(out if out.requires_grad else out.requires_grad_())
                x = layer.after(out)
            losses = self.objective.losses(x, labels)
            slopes = torch.autograd.grad(losses.sum(), outs)
        return [(layer, entered, slope) for (layer, entered), slope in zip(taken, slopes)], losses.detach()

    def _linear_slope(self, weights: Tensor, x: Tensor, labels: Tensor, own: bool) -> tuple[list[Taken], Tensor]:
        """What `_slopes` gives for one dense layer: probabilities less the right answer, without a graph to walk
        back."""
        layer = self.layers[-1]
        assert isinstance(layer, Dense)
        logs = (layer.own if own else layer.shared)(x, weights).log_softmax(1)
        right = labels[:, None]
        losses = -logs.gather(1, right)[:, 0]
        slope = logs.exp_()
        slope.scatter_add_(1, right, torch.full_like(right, -1.0, dtype=slope.dtype))
        return [(layer, x, slope)], losses

    def each(self, weights: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        taken, losses = self._slopes(weights, x, labels, own=True)
        return torch.cat([layer.each(entered, slope) for layer, entered, slope in taken], 1), losses

    def summed(
        self, weights: Tensor, x: Tensor, labels: Tensor, keep: Tensor, bounds: Tensor | None, known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        taken, losses = self._slopes(weights, x, labels, own=False)
        held: list[Taken] = []
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for layer, entered, slope in taken:
            norms, first, second = layer.measured(entered, slope, known)
            held.append((layer, first, second))
            total, known = total + norms, None
        factors = keep.float()
        if bounds is not None:
            factors = factors * example_factors(total, losses, bounds.repeat_interleave(keep.shape[1])).view_as(keep)
        good = (factors > 0).flatten()
        if not bool(good.all()):
            held = [(layer, whole(x, good), whole(slope, good)) for layer, x, slope in held]
            losses = whole(losses, good)
        sums = [layer.summed(x, slope, factors) for layer, x, slope in held]
        return torch.cat(sums, 1), losses.view_as(keep).sum(1)
