"""Modules that would break gradients example by example without a word: refused, or called as they are.

Each must either be refused, or give the clipped sum that plain autograd gives one example at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cepam.fl import Dataset, Model, from_arrays
from cepam.fl.models.layers import layers_of
from cepam.fl.models.network import TorchNetwork
from cepam.torch.mapped import Mapped

INS, CLASSES = 6, 4
OUTSIDE: list[Tensor] = []


def data() -> Dataset:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(30, INS)).astype(np.float32)
    return from_arrays((x, np.arange(30) % CLASSES), (x[:5], np.arange(5) % CLASSES))


class Keeping(nn.Module):
    """A linear layer that does something to itself in each pass."""

    def __init__(self, keep: Callable[[Keeping, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.keep, self.last, self.calls = nn.Linear(INS, CLASSES), keep, None, 0
        self.seen: list[float] = []
        self.known: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(self.keep(self, x))
        return made


def mean_of_all(self: Keeping, x: Tensor) -> Tensor:
    self.last = x.detach() if self.last is None else 0.5 * (self.last + x.detach())
    return x + self.last


def first_of_all(self: Keeping, x: Tensor) -> Tensor:
    self.known.setdefault("scale", x.detach().abs().mean())
    return x / self.known["scale"]


def counted(self: Keeping, x: Tensor) -> Tensor:
    self.calls += 1
    return x


def listed(self: Keeping, x: Tensor) -> Tensor:
    self.seen.append(float(x.detach().sum()) if x.dim() == 2 and not torch._C._functorch.is_batchedtensor(x) else 0.0)
    return x


def kept_outside(self: Keeping, x: Tensor) -> Tensor:
    OUTSIDE.append(x.detach().mean())
    return x + OUTSIDE[-2] if len(OUTSIDE) > 1 else x


def drawn_by_numpy(self: Keeping, x: Tensor) -> Tensor:
    return x * float(np.random.default_rng().random())


@pytest.mark.parametrize("keep", [mean_of_all, first_of_all, counted, listed, kept_outside, drawn_by_numpy])
def test_state_inside_a_module_is_refused(keep: Callable[[Keeping, Tensor], Tensor]) -> None:
    OUTSIDE.clear()
    with pytest.raises(ValueError, match="changes a"):
        Model(lambda: Keeping(keep)).on(data(), "cpu-torch")


def tabled(self: Keeping, x: Tensor) -> Tensor:
    """A table that the first pass makes from shapes alone, as of positions."""
    if "table" not in self.known:
        self.known["table"] = torch.linspace(0.0, 1.0, x.shape[-1])
    return x + self.known["table"]


def shared() -> nn.Module:
    layer = nn.Linear(INS, INS)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(INS, CLASSES))


def tied() -> nn.Module:
    first, second = nn.Linear(INS, INS), nn.Linear(INS, INS)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(INS, CLASSES))


def hooked() -> nn.Module:
    made = nn.Sequential(nn.Linear(INS, INS), nn.Tanh(), nn.Linear(INS, CLASSES))
    made[0].register_forward_hook(lambda layer, given, out: 3.0 * out)
    return made


def hooked_whole() -> nn.Module:
    made = nn.Sequential(nn.Linear(INS, CLASSES))
    made.register_forward_pre_hook(lambda layer, given: (2.0 * given[0],))
    return made


def own_forward() -> nn.Module:
    made = nn.Sequential(nn.Linear(INS, CLASSES))
    plain = made[0].forward
    made[0].forward = lambda x: 2.0 * plain(x)  # type: ignore[method-assign]
    return made


def turned() -> nn.Module:
    """The bias stands before the weight in the vector of all weights."""
    made = nn.Linear(INS, CLASSES)
    weight = made.weight
    del made.weight
    made.weight = weight
    return nn.Sequential(made)


def weight_normed() -> nn.Module:
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(INS, CLASSES)))


def clipped_sum(model: Model, weights: np.ndarray, given: Dataset, bound: float) -> np.ndarray:
    module = model.make()
    nn.utils.vector_to_parameters(torch.from_numpy(weights), list(module.parameters()))
    total = np.zeros(len(weights))
    for x, y in zip(given.train_inputs[:12], given.train_labels[:12]):
        answers = module(torch.from_numpy(x[None]).float())
        loss = nn.functional.cross_entropy(answers, torch.tensor([int(y)]))
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]).numpy()
        total += slope * min(1.0, bound / float(np.linalg.norm(slope)))
    return total


MADE = [shared, tied, hooked, hooked_whole, turned, lambda: Keeping(tabled)]


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_what_is_taken_has_the_sums_of_plain_autograd(make: Callable[[], nn.Module]) -> None:
    model, given = Model(make), data()
    network, weights = model.on(given, "cpu"), model.initial(0)
    assert isinstance(network, TorchNetwork)
    assert isinstance(network.passes, Mapped)
    sums, _ = network.summed_gradients(
        weights[None], np.zeros(1, np.int64), np.arange(12)[None], np.array([12]), np.full(1, 0.2, np.float32)
    )
    np.testing.assert_allclose(sums[0], clipped_sum(model, weights, given, 0.2), atol=1e-5)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_norm_is_refused(norm: Callable[[nn.Module], nn.Module]) -> None:
    """It follows the weights by a buffer that each pass moves on: what one batch leaves, the next one uses."""
    with pytest.raises(ValueError, match="changes as the model trains"):
        Model(lambda: nn.Sequential(norm(nn.Linear(INS, CLASSES)))).on(data(), "cpu")


@pytest.mark.parametrize("make", [own_forward, weight_normed], ids=lambda make: make.__name__)
def test_what_reaches_past_its_own_weights_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"plain autograd|weight_norm"):
        Model(make).on(data(), "cpu")


def test_ordinary_modules_keep_the_fast_path() -> None:
    relu = nn.ReLU()
    plain = nn.Sequential(nn.Linear(INS, INS), relu, nn.Linear(INS, INS), relu, nn.Linear(INS, CLASSES))
    assert layers_of(plain, (INS,)) is not None
    for make in (shared, tied, hooked, hooked_whole, own_forward, turned, weight_normed):
        assert layers_of(make(), (INS,)) is None
