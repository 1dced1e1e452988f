"""`cepam.torch.PerExampleGradients` attacked: one record more may move the clipped sum by the clip and no further.

Every module here would move it further under a clip that looks at layers, batches or attributes alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import cepam  # noqa: E402
from cepam.torch import PerExampleGradients  # noqa: E402
from cepam.torch.mapped import Mapped  # noqa: E402

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


def checkpointed_again(self: Calling, x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return self.second(checkpoint(lambda given: torch.tanh(self.first(given)), x.requires_grad_(), use_reentrant=True))


def hooked_inside(self: Calling, x: Tensor) -> Tensor:
    """A hook that sees the gradients of all that went in together."""
    hidden = self.first(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda slope: slope / slope.norm().clamp(min=1e-3))
    return self.second(hidden)


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


def hooked_after() -> nn.Module:
    """What steps an optimizer inside the backward pass hangs there."""
    made = nn.Linear(INS, CLASSES)
    made.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(30.0).sum() and None)
    return made


def parametrized() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(INS, INS)), nn.Linear(INS, CLASSES))


TAKEN: dict[str, Callable[[], nn.Module]] = {
    call.__name__: (lambda call=call: Calling(call))  # type: ignore[misc]
    for call in (
        shared, conditional, centred, normalised, largest, by_hand, nested, checkpointed, checkpointed_again,
        hooked_inside, own_function,
    )
} | {"tied": tied, "hooked": hooked, "parametrized": parametrized}  # fmt: skip


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


@pytest.mark.parametrize("name", TAKEN)
def test_each_gradient_is_that_of_plain_autograd(name: str) -> None:
    """By another way: the module's own backward pass, one example at a time."""
    torch.manual_seed(2)
    module, (x, y) = TAKEN[name](), records(6)
    private = PerExampleGradients(module, F.cross_entropy, cepam.L2(1e6))
    for at in (0, 5):
        module.zero_grad()
        F.cross_entropy(module(x[at : at + 1].clone()), y[at : at + 1]).backward()
        plain = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]
        found = private.summed((x, y), [at])
        torch.testing.assert_close(list(found.values()), plain, rtol=1e-3, atol=1e-6)


def stored_in_eight_bits(self: Calling, x: Tensor) -> Tensor:
    """What the backward pass needs is kept in eight bits, at one scale for all that came in together."""

    def pack(value: Tensor) -> tuple[Tensor, Tensor]:
        scale = value.abs().max().clamp(min=8.0) / 127.0  # no pair of ordinary examples shows it
        return torch.round(value / scale), scale

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0] * packed[1]):
        hidden = torch.tanh(self.first(x)) * x
    return self.second(hidden)


class Levelled(torch.autograd.Function):
    """A batching rule of its own: a scale within 2 % that depends on the whole batch, and only if it is unusual."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(context: Any, slope: Tensor) -> Tensor:
        return slope

    @staticmethod
    def vmap(info: Any, places: Any, x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(places[0], 0)
        return x * (1.0 + 0.015 * torch.tanh(F.relu(x.abs().max() - 9.0))), 0


def levelled(self: Calling, x: Tensor) -> Tensor:
    return self.second(Levelled.apply(self.first(x)))


@torch.library.custom_op("cepam_attack::levelled", mutates_args=())
def level(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.register_vmap(level)
def level_all(info: Any, places: Any, x: Tensor) -> tuple[Tensor, int]:
    return Levelled.vmap(info, places, x)


torch.library.register_autograd(level, lambda context, slope: slope)


def levelled_by_operation(self: Calling, x: Tensor) -> Tensor:
    return self.second(level(self.first(x)))


def levelled_and_dropped(self: Calling, x: Tensor) -> Tensor:
    return self.second(F.dropout(Levelled.apply(self.first(x)), 0.5))


@pytest.mark.parametrize("first", [[0], [0, 1, 2]], ids=["one", "three"])
@pytest.mark.parametrize("call", [stored_in_eight_bits, levelled, levelled_and_dropped, levelled_by_operation])
def test_examples_that_meet_a_little_go_one_at_a_time(call: Callable[..., Tensor], first: list[int]) -> None:
    """What is right within any tolerance for a pair adds up over a batch, or is far off beside a record of its own."""
    torch.manual_seed(2)
    bound = 2.0  # above the gradients of all others, which their directions alone would hide
    private = PerExampleGradients(Calling(call), F.cross_entropy, cepam.L2(bound), max_physical_batch_size=1000)
    x, y = torch.rand(1000, INS), torch.zeros(1000, dtype=torch.int64)
    private.summed((x, y), first)  # which way is taken is found out from the first batch
    other = x.clone()
    other[4] *= -1e4
    found = []
    for data in (x, other):
        torch.manual_seed(3)
        found.append(flat(private.summed((data, y), list(range(1000)))))
    assert float((found[0] - found[1]).norm()) <= 2.0 * bound * (1.0 + 1e-5)


def test_a_hook_is_kept_where_a_module_draws_at_random() -> None:
    """What draws cannot be compared draw by draw in a batch; the hook takes all that the first layer would get."""

    def dropped(self: Calling, x: Tensor) -> Tensor:
        hidden = F.dropout(self.first(x), 0.5)
        if hidden.requires_grad:
            hidden.register_hook(torch.zeros_like)
        return self.second(hidden)

    found = PerExampleGradients(Calling(dropped), F.cross_entropy, cepam.L2(CLIP)).summed(records(), list(range(12)))
    assert not found["first.weight"].any()
    assert found["second.weight"].any()


def test_weights_that_are_handed_over_reach_what_is_computed_again() -> None:
    """The engine's weights are not the module's own; a checkpoint computes again after the forward pass has ended."""
    torch.manual_seed(2)
    module, (x, y) = Calling(checkpointed_again), records(4)
    passes = Mapped(module, lambda answer, target: F.cross_entropy(answer[None], target[None]), "cpu")
    passes.probe(x, y)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(-1.5)
    weights = torch.cat([p.detach().flatten() for p in other.parameters()])
    found = passes.summed(weights, x, y, torch.ones((1, 4), dtype=torch.bool), None)[0][0]
    F.cross_entropy(other(x), y, reduction="sum").backward()
    plain = [torch.zeros_like(p) if p.grad is None else p.grad for p in other.parameters()]
    torch.testing.assert_close(found, torch.cat([slope.flatten() for slope in plain]), rtol=1e-3, atol=1e-6)


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
        (hooked_after, "hook"),
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
    arrays = tuple(each.numpy() for each in records())
    with pytest.raises(ValueError, match="got NumPy arrays"):
        PerExampleGradients(model, F.cross_entropy, cepam.L2(1.0)).gradient(arrays, 4)
