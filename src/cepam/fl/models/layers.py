"""Layers whose per-example gradients follow from their inputs and the gradients of their outputs.

A fully connected layer's gradient for one example is slope times input: its norm is a product of two norms, and a
clipped sum over examples is one matrix product, so no example's gradient is ever written down. A convolution's is the
slopes times the patches under them. Weights are shared by all examples, or each example has its own (`own`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cepam.torch.uses import squares

PLAIN = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU, nn.Flatten, nn.Identity)
"""Layers without weights that treat every example by itself."""


@dataclass(frozen=True)
class Dense:
    """A fully connected layer; its weights stand at `at` in the model's vector."""

    at: int
    ins: int
    outs: int
    bias: bool

    @property
    def size(self) -> int:
        """How many weights it has."""
        return self.outs * (self.ins + self.bias)

    def _parts(self, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        cut = weights[..., self.at : self.at + self.size]
        matrix = torch.unflatten(cut[..., : self.outs * self.ins], -1, (self.outs, self.ins))
        return matrix, cut[..., self.outs * self.ins :] if self.bias else None

    def shared(self, x: Tensor, weights: Tensor) -> Tensor:
        """What comes out where all examples share one vector of weights."""
        matrix, bias = self._parts(weights)
        out = (matrix @ x.T).T  # twice as fast as x @ matrix.T where outputs are few
        return out if bias is None else out + bias

    def own(self, x: Tensor, weights: Tensor) -> Tensor:
        """What comes out where example e has the weights of row e."""
        matrix, bias = self._parts(weights)
        out = (matrix @ x[:, :, None])[:, :, 0]
        return out if bias is None else out + bias

    def after(self, out: Tensor) -> Tensor:
        """What the next layer sees."""
        return out

    def each(self, x: Tensor, slope: Tensor) -> Tensor:
        """Each example's gradient, a row each."""
        made = (slope[:, :, None] * x[:, None, :]).flatten(1)
        return torch.cat((made, slope), 1) if self.bias else made

    def measured(self, x: Tensor, slope: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Each example's squared gradient norm in float64, and what `summed` takes.

        `known` are the squared norms of x, where they are known already.
        """
        inside = squares(x) if known is None else known
        return squares(slope) * (inside + float(self.bias)), x, slope

    def summed(self, x: Tensor, slope: Tensor, factors: Tensor) -> Tensor:
        """Row r of `factors` (rows, examples a row): the sum of gradients times factors over that row's examples."""
        rows = factors.shape[0]
        scaled = (torch.unflatten(slope, 0, (rows, -1)) * factors[:, :, None]).transpose(1, 2)
        made = (scaled @ torch.unflatten(x, 0, (rows, -1))).flatten(1)
        return torch.cat((made, scaled.sum(2)), 1) if self.bias else made


@dataclass(frozen=True)
class Convolution:
    """A convolution and the maximum over `pool` by `pool` places behind it.

    The maximum is over phases: a kernel shifted by 0 to pool - 1 places each way, at pool times the stride, gives what
    the pooling would look at, as channels. That is several times faster than pooling in PyTorch.
    """

    at: int
    ins: int
    outs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    pool: int
    bias: bool

    @property
    def size(self) -> int:
        """How many weights it has."""
        return self.outs * (self.ins * self.kernel[0] * self.kernel[1] + self.bias)

    @property
    def _window(self) -> tuple[int, int]:
        return self.kernel[0] + self.pool - 1, self.kernel[1] + self.pool - 1

    @property
    def _hop(self) -> tuple[int, int]:
        return self.stride[0] * self.pool, self.stride[1] * self.pool

    @property
    def _shifts(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.pool) for j in range(self.pool)]

    def _parts(self, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Kernels [..., phases · outs, ins, rows, columns] and biases."""
        cut, last = weights[..., self.at : self.at + self.size], self.pool - 1
        inner = self.size - self.outs * self.bias
        kernels = torch.unflatten(cut[..., :inner], -1, (self.outs, self.ins, *self.kernel))
        shifted = [F.pad(kernels, (j, last - j, i, last - i)) for i, j in self._shifts] if last else [kernels]
        return torch.cat(shifted, -4), torch.cat([cut[..., inner:]] * len(shifted), -1) if self.bias else None

    def _patches(self, x: Tensor, window: tuple[int, int], hop: tuple[int, int], high: int, wide: int) -> Tensor:
        """[examples, high · wide places, ins · window]; a strided copy, ten times faster than PyTorch's unfold."""
        x = F.pad(x, (self.padding[1], self.padding[1], self.padding[0], self.padding[0])) if any(self.padding) else x
        views = x.unfold(2, window[0], hop[0]).unfold(3, window[1], hop[1])[:, :, :high, :wide]
        return views.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)

    def shared(self, x: Tensor, weights: Tensor) -> Tensor:
        """As `Dense.shared`."""
        kernels, bias = self._parts(weights)
        return F.conv2d(x, kernels, bias, self._hop, self.padding)

    def own(self, x: Tensor, weights: Tensor) -> Tensor:
        """As `Dense.own`."""
        kernels, bias = self._parts(weights)
        high, wide = ((x.shape[d + 2] + 2 * self.padding[d] - self._window[d]) // self._hop[d] + 1 for d in (0, 1))
        made = kernels.flatten(2) @ self._patches(x, self._window, self._hop, high, wide).transpose(1, 2)
        made = made if bias is None else made + bias[:, :, None]
        return torch.unflatten(made, 2, (high, wide))

    def after(self, out: Tensor) -> Tensor:
        """As `Dense.after`: the maximum over phases."""
        return out if self.pool == 1 else torch.unflatten(out, 1, (-1, self.outs)).amax(1)

    def each(self, x: Tensor, slope: Tensor) -> Tensor:
        """As `Dense.each`."""
        if self.pool > 1:
            phases = torch.unflatten(slope, 1, (self.pool, self.pool, self.outs))
            slope = phases.permute(0, 3, 4, 1, 5, 2).flatten(4).flatten(2, 3)
        slopes = slope.flatten(2)
        made = (slopes @ self._patches(x, self.kernel, self.stride, slope.shape[2], slope.shape[3])).flatten(1)
        return torch.cat((made, slopes.sum(2)), 1) if self.bias else made

    def measured(self, x: Tensor, slope: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """As `Dense.measured`, from the gradients themselves: patches overlap, so there is no product of norms."""
        each = self.each(x, slope)
        return squares(each), each, slope

    def summed(self, x: Tensor, slope: Tensor, factors: Tensor) -> Tensor:
        """As `Dense.summed`, of the gradients in x."""
        return (factors[:, None, :] @ torch.unflatten(x, 0, (factors.shape[0], -1)))[:, 0]


Layer = Dense | Convolution | nn.Module


def layers_of(module: nn.Module, shape: tuple[int, ...]) -> list[Layer] | None:
    """The layers of a sequential module for examples of this shape, or None where one is not known here or frozen.

    None too where what a layer computes is not told by its kind (`ordinary`): hooks, a forward of its own, shared
    weights. Such modules are called as they are, example by example.

    Only layers that treat every example by itself are known: a clip by the norms of a whole batch's activations would
    be wrong where examples meet, as in batch normalisation.
    """
    if any(not p.requires_grad for p in module.parameters()) or not ordinary(module):
        return None
    flat = [module] if isinstance(module, nn.Linear) else list(module) if type(module) is nn.Sequential else []
    made: list[Layer] = []
    at, place, dims = 0, 0, len(shape) + 1
    while place < len(flat):
        layer, place = flat[place], place + 1
        behind = flat[place] if place < len(flat) else None
        if type(layer) is nn.Linear and dims == 2:
            made.append(Dense(at, layer.in_features, layer.out_features, layer.bias is not None))
        elif type(layer) is nn.Conv2d and dims == 4 and _ordinary(layer):
            pool = _pooling(layer, behind)
            place += pool > 1
            made.append(_convolution(layer, at, pool))
        elif _by_example(layer, dims):
            made.append(layer)
            dims = 2 if isinstance(layer, nn.Flatten) else dims
        else:
            return None
        at += sum(p.numel() for p in layer.parameters())
    return made if at else None


HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


def ordinary(module: nn.Module) -> bool:
    """Whether the kinds of a module's layers say what it computes, and each of its weights has one place.

    Not where anything hooks into a call (as `nn.utils.spectral_norm` and `weight_norm` do), where an object has a
    `forward` of its own, where a weight is used in two places, or where a fully connected layer or a convolution has
    other parameters than its weight and its bias, in this order.
    """
    if any(getattr(nn.modules.module, f"_global{name}", None) for name in HOOKS):
        return False
    for each in module.modules():
        if "forward" in vars(each) or any(getattr(each, name, None) for name in HOOKS):
            return False
        names = [name for name, _ in each.named_parameters()]
        if isinstance(each, nn.Linear | nn.Conv2d) and names not in (["weight"], ["weight", "bias"]):
            return False
    used = [id(p) for layer in _walk(module) for p in layer.parameters(recurse=False)]
    return len(used) == len(set(used))


def _walk(module: nn.Module) -> list[nn.Module]:
    """The module and all below it, a layer that stands in two places twice."""
    return [module, *(each for child in module._modules.values() if child is not None for each in _walk(child))]


def _by_example(layer: nn.Module, dims: int) -> bool:
    """Whether a layer without weights treats every example by itself and leaves its input as it was."""
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    pooling = type(layer) in (nn.MaxPool2d, nn.AvgPool2d) and dims == 4 and not getattr(layer, "return_indices", False)
    return pooling or (type(layer) in PLAIN and not getattr(layer, "inplace", False))


def _ordinary(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _pooling(layer: nn.Conv2d, behind: nn.Module | None) -> int:
    """The side of the pooling that can be taken together with this convolution; 1 where there is none."""
    if type(behind) is not nn.MaxPool2d or layer.stride != (1, 1) or behind.return_indices:
        return 1
    plain = behind.kernel_size == behind.stride and behind.padding == 0 and behind.dilation == 1
    return behind.kernel_size if plain and isinstance(behind.kernel_size, int) and not behind.ceil_mode else 1


def _convolution(layer: nn.Conv2d, at: int, pool: int) -> Convolution:
    (high, wide), (down, right), padding = layer.kernel_size, layer.stride, layer.padding
    assert not isinstance(padding, str)
    return Convolution(
        at, layer.in_channels, layer.out_channels, (high, wide), (down, right), (padding[0], padding[1]), pool,
        layer.bias is not None,
    )  # fmt: skip
