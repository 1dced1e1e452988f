"""`cepam.torch.PerExampleGradients` attacked: one record more may move the clipped sum by the clip and no further.

Every module here would move it further under a clip that looks at layers, batches or attributes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import cepam  # noqa: E402
from cepam.torch import PerExampleGradients  # noqa: E402

INS, CLASSES, CLIP = 6, 4, 0.05


class Calling(nn.Module):
    """Two layers, and a forward that is given."""

    def __init__(self, call: Callable[[Calling, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.call = nn.Linear(INS, INS), nn.Linear(INS, CLASSES), call
        self.scale = nn.Parameter(torch.ones(INS))
        self.seen: list[Tensor] = []
        self.register_buffer("mean", torch.zeros(INS))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def shared(self: Calling, x: Tensor) -> Tensor:
    return self.second(self.first(torch.tanh(self.first(torch.tanh(self.first(x))))))


def conditional(self: Calling, x: Tensor) -> Tensor:
    """Which layers are used depends on the values of all that came in together."""
    return self.second(self.first(x)) if bool(x.mean() > 0) else self.second(x)


def centred(self: Calling, x: Tensor) -> Tensor:
    """What one example adds depends on all others of its batch."""
    return self.second(self.first(x - x.mean(0)))


def normalised(self: Calling, x: Tensor) -> Tensor:
    return self.second(F.layer_norm(torch.cat((x, x)), (INS,))[: len(x)] * self.scale)


def largest(self: Calling, x: Tensor) -> Tensor:
    return self.second(x / x.abs().max())


def by_hand(self: Calling, x: Tensor) -> Tensor:
    return x @ self.first.weight @ self.second.weight.T + self.second.bias


def nested(self: Calling, x: Tensor) -> Tensor:
    return torch.func.vmap(lambda one: self.second(self.first(one)))(x)


def checkpointed(self: Calling, x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return self.second(checkpoint(self.first, x, use_reentrant=False))


class Doubling(torch.autograd.Function):
    """A function of its own, whose backward is not that of its forward."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        return 100.0 * slope @ weight, 100.0 * slope.T @ x


def own_function(self: Calling, x: Tensor) -> Tensor:
    return self.second(Doubling.apply(x, self.first.weight))


def tied() -> nn.Module:
    made = nn.Sequential(nn.Linear(INS, INS), nn.Tanh(), nn.Linear(INS, INS), nn.Tanh(), nn.Linear(INS, CLASSES))
    made[2].weight = made[0].weight
    return made


def hooked() -> nn.Module:
    made = nn.Sequential(nn.Linear(INS, INS), nn.Linear(INS, CLASSES))
    made[0].register_forward_hook(lambda layer, given, out: 50.0 * out)
    return made


def parametrized() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(INS, INS)), nn.Linear(INS, CLASSES))


TAKEN: dict[str, Callable[[], nn.Module]] = {
    call.__name__: (lambda call=call: Calling(call))  # type: ignore[misc]
    for call in (shared, conditional, centred, normalised, largest, by_hand, nested, checkpointed, own_function)
} | {"tied": tied, "hooked": hooked, "parametrized": parametrized}


def records(count: int = 12) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, INS), torch.arange(count) % CLASSES


def flat(update: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in update.values()]).double()


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_one_record_moves_the_sum_by_the_clip_at_most(name: str, size: float) -> None:
    torch.manual_seed(2)
    private = PerExampleGradients(TAKEN[name](), F.cross_entropy, cepam.L2(CLIP), max_physical_batch_size=5)
    x, y = records()
    x[4] *= size
    everything = list(range(len(x)))
    whole = flat(private.summed((x, y), everything))
    for left in (0, 4, 11):
        moved = whole - flat(private.summed((x, y), [i for i in everything if i != left]))
        assert float(moved.norm()) <= CLIP * (1.0 + 1e-5)
    alone = flat(private.summed((x, y), [4]))
    assert size > 1.0 or float(alone.norm()) > 0.0
    assert float(alone.norm()) <= CLIP


def test_a_clip_by_batches_would_be_caught() -> None:
    """The control: the same attack on gradients that were clipped where examples meet."""
    module, (x, y) = Calling(centred), records()
    x[4] *= 1e4

    def summed(chosen: list[int]) -> Tensor:
        losses = F.cross_entropy(module(x[chosen]), y[chosen], reduction="none")
        total = 0.0
        for loss in losses:
            slopes = torch.autograd.grad(
                loss, list(module.parameters()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            one = torch.cat([slope.flatten() for slope in slopes]).double()
            total = total + one * min(1.0, CLIP / max(float(one.norm()), 1e-9))
        return total

    everything = list(range(len(x)))
    assert float((summed(everything) - summed([i for i in everything if i != 4])).norm()) > 2.0 * CLIP


def keeps(self: Calling, x: Tensor) -> Tensor:
    self.seen.append(x.detach())
    return self.second(x + self.seen[0].mean(0))


def writes(self: Calling, x: Tensor) -> Tensor:
    self.mean += x.detach().mean(0)
    return self.second(x + self.mean)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(INS, CLASSES), nn.BatchNorm1d(CLASSES)), "mixes a batch's examples"),
        (lambda: nn.Sequential(nn.Linear(INS, 4), nn.InstanceNorm1d(4, track_running_stats=True)), "running means"),
        (lambda: Calling(keeps), "changes as it is called|changes after another example"),
        (lambda: Calling(writes), "buffer mean changes"),
        (lambda: nn.Linear(INS, CLASSES).requires_grad_(False), "nothing trains"),
        (lambda: nn.Sequential(nn.Linear(INS, CLASSES), nn.Flatten(0)), "one number|does not take"),
    ],
)  # fmt: skip
def test_what_cannot_be_guaranteed_is_refused(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PerExampleGradients(make(), F.cross_entropy, cepam.L2(CLIP)).summed(records(), [0, 1, 2])


def test_batch_normalisation_that_is_frozen_is_taken_and_unfreezing_it_is_refused() -> None:
    model = nn.Sequential(nn.Linear(INS, INS), nn.BatchNorm1d(INS), nn.Linear(INS, CLASSES)).eval()
    private = PerExampleGradients(model, F.cross_entropy, cepam.L2(CLIP))
    before = model[1].running_mean.clone()
    assert 0.0 < float(flat(private.summed(records(), [3])).norm()) <= CLIP
    assert torch.equal(before, model[1].running_mean)
    model.train()
    with pytest.raises(ValueError, match="mixes a batch's examples"):
        private.summed(records(), [3])


def test_other_norms_and_losses_are_refused() -> None:
    model = nn.Linear(INS, CLASSES)
    with pytest.raises(ValueError, match="l2 norm"):
        PerExampleGradients(model, F.cross_entropy, cepam.L1(1.0))
    with pytest.raises(ValueError, match="loss must be a function"):
        PerExampleGradients(model, "cross-entropy", cepam.L2(1.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected_batch_size must lie in \(0, 12\]"):
        PerExampleGradients(model, F.cross_entropy, cepam.L2(1.0)).gradient(records(), 13)
