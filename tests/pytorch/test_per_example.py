"""Per-example gradients of any module: clipped sums of one example at a time, bounds that hold after rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from cepam.torch.mapped import Mapped, Ways, near_by_parameter  # noqa: E402
from cepam.torch.uses import Block, Each, Outer, Rows, example_factors, squares  # noqa: E402

WORDS, LENGTH, EXAMPLES = 11, 6, 9


class Language(nn.Module):
    """An embedding, a body and an output layer, which may share its weight with the embedding."""

    def __init__(self, body: nn.Module, width: int, tied: bool = False, out: int | None = None) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(WORDS, width, padding_idx=2), body
        self.head = nn.Linear(out or width, WORDS, bias=not tied)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        made = self.body(self.table(x))
        return self.head(made[0] if isinstance(made, tuple) else made)


class Steps(nn.Module):
    """A recurrent layer whose inputs have the steps first."""

    def __init__(self, cells: nn.Module) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x.transpose(0, 1))[0].transpose(0, 1)


class Places(nn.Module):
    """Weights that no layer has: learned places, and a matrix product by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.mix = nn.Parameter(torch.randn(LENGTH, 8)), nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((x + self.places) @ self.mix)


class Crossed(nn.Module):
    """Attention of one sequence to another: the packed weight of the projections is used in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, 2.0 * x.flip(1))


class Twice(nn.Module):
    """One layer twice, at different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.layer(torch.tanh(self.layer(x)))) + self.layer(x.mean(1, keepdim=True))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def recurrent(kind: Any, **options: Any) -> Callable[[], nn.Module]:
    both = 2 if options.get("bidirectional") else 1
    cells: Callable[[], nn.Module] = lambda: kind(8, 7, **options)  # noqa: E731
    if options.get("batch_first"):
        return lambda: Language(cells(), 8, out=7 * both)
    return lambda: Language(Steps(cells()), 8, out=7 * both)


TEXT: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Language(encoder(), 8),
    "attention-tied": lambda: Language(encoder(), 8, tied=True),
    "attention-crossed": lambda: Language(Crossed(), 8),
    "places": lambda: Language(Places(), 8),
    "twice": lambda: Language(Twice(), 8),
    "norm": lambda: Language(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8, bias=False), nn.RMSNorm(8)), 8),
} | {
    f"{kind.__name__}-{number}": recurrent(kind, **options)
    for kind in (nn.GRU, nn.LSTM, nn.RNN)
    for number, options in enumerate(
        ({}, {"batch_first": True, "num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True})
    )
}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, (3, 2), stride=2, dilation=2, padding=2, bias=False), nn.ReLU(), nn.Flatten(),
        nn.LazyLinear(WORDS),
    ),
    "grouped": lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(WORDS)),
    "same": lambda: nn.Sequential(nn.Conv2d(3, 2, 3, padding="same"), nn.Flatten(), nn.LazyLinear(WORDS)),
    "lines": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 4, 5, stride=3), nn.Flatten(), nn.LazyLinear(WORDS)),
    "volumes": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 2, (2, 3, 3)), nn.Flatten(), nn.LazyLinear(WORDS)
    ),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 2, 2), nn.Flatten(), nn.LazyLinear(WORDS)),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 20), nn.ReLU(inplace=True), nn.Linear(20, WORDS)),
}  # fmt: skip


def next_token(answers: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(answers[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def built(name: str) -> tuple[nn.Module, Callable[..., Tensor], Tensor, Tensor]:
    torch.manual_seed(3)
    x = torch.randint(0, WORDS, (EXAMPLES, LENGTH)) if name in TEXT else torch.randn(EXAMPLES, 3, 12, 12)
    module = (TEXT | IMAGES)[name]()
    module(x)  # lazy layers
    return module, next_token if name in TEXT else F.cross_entropy, x, x if name in TEXT else torch.arange(EXAMPLES)


def one_by_one(module: nn.Module, loss: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Every example's gradient by plain autograd, a row each."""
    trained, rows = [p for p in module.parameters() if p.requires_grad], []
    for one, target in zip(x, y):
        slopes = torch.autograd.grad(
            loss(module(one[None]), target[None]), trained, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    return torch.stack(rows)


def passes(module: nn.Module, loss: Callable[..., Tensor], x: Tensor, y: Tensor) -> tuple[Mapped, Tensor]:
    made = Mapped(module, lambda answer, target: loss(answer[None], target[None]), x.device.type)
    made.probe(x[:2], y[:2])
    return made, torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])


@pytest.mark.parametrize("name", [*TEXT, *IMAGES])
def test_clipped_sums_are_those_of_one_example_at_a_time(name: str) -> None:
    module, loss, x, y = built(name)
    each = one_by_one(module, loss, x, y)
    made, weights = passes(module, loss, x, y)
    assert made.recorded
    bound = float(each.norm(dim=1).median())
    keep = torch.tensor([[True] * 3, [True, False, True], [True] * 3])
    sums, _ = made.summed(weights, x, y, keep, torch.full((3,), bound))
    clipped = each * (bound / each.norm(dim=1).clamp(min=bound))[:, None] * keep.flatten()[:, None]
    wanted = clipped.view(3, 3, -1).sum(1)
    assert torch.allclose(sums, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    free, _ = made.summed(weights, x, y, keep, None)
    wanted = (each * keep.flatten()[:, None]).view(3, 3, -1).sum(1)
    assert torch.allclose(free, wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", [*TEXT, *IMAGES])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_a_clipped_example_is_within_its_bound_after_rounding(name: str, half: bool) -> None:
    """Alone in its row, so that the sum is one example's clipped gradient; measured in float64."""
    module, loss, x, y = built(name)
    made, weights = passes(module, loss, x, y)
    longest = one_by_one(module, loss, x, y).norm(dim=1)
    for bound in (1e-7, 0.01, 0.7 * float(longest.min())):
        limits = torch.full((EXAMPLES,), bound)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            sums, _ = made.summed(weights, x, y, torch.ones((EXAMPLES, 1), dtype=torch.bool), limits)
        norms = sums.double().norm(dim=1)
        assert bool((norms <= limits.double()).all())
        assert bool((norms >= (0.9 if half else 0.999) * limits.double()).all())  # and not clipped for nothing


class Halved(nn.Module):
    """A module that computes in bfloat16 by itself, as a user's own `forward` does."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            made = self.body(x)
        return made.float()


def dense() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    layers = nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, WORDS)
    return nn.Sequential(*layers), torch.randn(EXAMPLES, 40), torch.arange(EXAMPLES)


@pytest.mark.parametrize("name", ["dense", "convolutions", "attention", "GRU-0"])
def test_autocast_inside_the_module_goes_at_once_and_within_its_bound(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    module, loss, x, y = built(name)
    made, weights = passes(Halved(module), loss, x, y)
    assert made.recorded
    assert not caplog.messages
    bound = 0.5 * float(one_by_one(module, loss, x, y).norm(dim=1).min())
    keep, limits = torch.ones((EXAMPLES, 1), dtype=torch.bool), torch.full((EXAMPLES,), bound)
    found, _ = made.summed(weights, x, y, keep, limits)
    wanted, _ = made._summed_alone(weights, x, y, keep, limits)
    assert float((found - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
    for sums in (found, wanted):
        norms = sums.double().norm(dim=1)
        assert bool(((norms <= bound) & (norms >= 0.9 * bound)).all())


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("way", ["recorded", "written", "alone"])
def test_the_clip_holds_with_autocast_whichever_way_is_taken(way: str, inside: bool) -> None:
    module, x, y = dense()
    made, weights = passes(Halved(module) if inside else module, F.cross_entropy, x, y)
    made.ways = Ways(recorded=way == "recorded", written=way == "written")
    keep, longest = torch.ones((EXAMPLES, 1), dtype=torch.bool), one_by_one(module, F.cross_entropy, x, y).norm(dim=1)
    for bound in (1e-7, 0.01, 0.7 * float(longest.min())):
        limits = torch.full((EXAMPLES,), bound)
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            norms = made.summed(weights, x, y, keep, limits)[0].double().norm(dim=1)
        assert bool(((norms <= limits.double()) & (norms >= 0.9 * bound)).all())


def test_a_few_kinks_are_no_reason_to_go_one_by_one_and_a_missing_parameter_is() -> None:
    """Rounding decides on which side of a ReLU some of millions of numbers are: single entries differ, norms hardly."""
    torch.manual_seed(4)
    sizes = [10_000, 50]
    wanted = torch.randn(2, 10_050)
    wanted[:, 10_000:] *= 1e-6
    kinked = wanted.clone()
    kinked[1, 77] += 0.5
    assert near_by_parameter(wanted, kinked, sizes)
    missing, rough = wanted.clone(), wanted.clone()
    missing[0, 10_000:] = 0.0
    rough[0, :10_000] *= 1.03
    assert not near_by_parameter(wanted, missing, sizes)
    assert not near_by_parameter(wanted, rough, sizes)
    assert not near_by_parameter(wanted, wanted * float("nan"), sizes)


def test_a_gradient_that_changes_a_little_with_the_batch_is_noticed() -> None:
    module, loss, x, y = built("dense")
    made, weights = passes(module, loss, x, y)

    def mixed(weights: Tensor, x: Tensor, labels: Tensor, alone: Tensor) -> Tensor:
        return made._maps(weights, x, labels, alone) * (1.0 + 1e-3 * x.abs().mean())

    for given in (x, y), (x[:1], y[:1]):
        assert made._meeting(weights, *given, made._maps) == ""
        assert "other examples" in made._meeting(weights, *given, mixed)


class Branching(nn.Module):
    """Asks for a number in the middle of its pass, which no map of examples can give."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) > 0 else 2.0 * self.layer(x)


def test_one_example_at_a_time_is_said_once_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        made, _ = passes(Branching(), F.cross_entropy, torch.randn(3, 4), torch.arange(3))
        assert not made.recorded
    (said,) = caplog.messages
    assert "Branching takes one example at a time, which is slow: " in said
    assert "vmap" in said


def hidden_norm(places: int) -> tuple[Outer, Tensor]:
    """Outer products that cancel to almost nothing: what remains is far below the rounding of Gram matrices."""
    torch.manual_seed(0)
    u, v = torch.randn(4, places, 60), torch.randn(4, places, 300)
    u[:, 1::2], v[:, 1::2] = -u[:, ::2], v[:, ::2] * (1.0 + 2.0**-18)
    return Outer(u, v), squares(Outer(u.double(), v.double()).u.transpose(1, 2) @ v.double())


def test_norms_are_never_too_small_where_terms_cancel() -> None:
    outer, exact = hidden_norm(8)
    block = Block([outer])
    assert bool((block.measure() >= squares(block.summed(torch.ones(4, 1), None))).all())
    assert bool((Block([outer]).measure() >= exact).all())
    # Without the allowance for rounding the same matrices say less than is there: the control.
    plain = (outer.u @ outer.u.transpose(1, 2)) * (outer.v @ outer.v.transpose(1, 2))
    assert bool((plain.sum((1, 2)) < exact).any())


def test_uses_of_all_kinds_together() -> None:
    torch.manual_seed(1)
    outer = Outer(torch.randn(5, 3, WORDS), torch.randn(5, 3, 4))
    rows, each = Rows(torch.randint(0, WORDS, (5, 7)), torch.randn(5, 7, 4), WORDS), Each(torch.randn(5, WORDS, 4))
    for uses in ([outer, rows], [outer, rows, each], [rows, rows], [outer, outer], [each, outer]):
        whole = sum(use.dense() for use in uses)
        block = Block(list(uses))
        assert torch.allclose(block.measure(), squares(whole), rtol=1e-4)
        factors = torch.rand(1, 5)
        assert torch.allclose(block.summed(factors, None)[0], factors[0] @ whole, atol=1e-5)


class Overwriting(nn.Module):
    """What the first layer took is written over before the backward pass, where plain autograd would not notice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        taken = x.clone()
        made = self.first(taken)
        taken.add_(1.0)
        return self.last(torch.tanh(made))


def test_inputs_that_are_written_over_are_noticed() -> None:
    """Plain autograd refuses this module; so do we, and no wrong gradient comes out."""
    module = Overwriting()
    with pytest.raises(ValueError, match="modified by an inplace operation"):
        passes(module, F.cross_entropy, torch.randn(3, 4), torch.arange(3))


def test_examples_that_are_not_numbers_add_nothing() -> None:
    module, loss, x, y = built("dense")
    made, weights = passes(module, loss, x, y)
    x[3], x[5, 0, 0, 0] = float("nan"), float("inf")
    keep, bounds = torch.ones((1, EXAMPLES), dtype=torch.bool), torch.full((1,), 0.1)
    good = torch.tensor([i not in (3, 5) for i in range(EXAMPLES)])
    found, lost = made.summed(weights, x, y, keep, bounds)
    wanted, _ = made.summed(weights, x[good], y[good], torch.ones((1, 7), dtype=torch.bool), bounds)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert bool(lost.isfinite().all())
    assert example_factors(torch.tensor([float("nan")]), torch.zeros(1), torch.ones(1)) == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", [*TEXT, *IMAGES])
def test_a_gpu_gives_the_same(name: str) -> None:
    module, loss, x, y = built(name)
    bound = float(one_by_one(module, loss, x, y).norm(dim=1).median())
    keep = torch.ones((3, 3), dtype=torch.bool)
    made, weights = passes(module, loss, x, y)
    wanted, _ = made.summed(weights, x, y, keep, torch.full((3,), bound))
    x, y = x.cuda(), y.cuda()
    made, weights = passes(module.cuda(), loss, x, y)
    assert made.recorded
    for half in (False, True):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            found, _ = made.summed(weights, x, y, keep.cuda(), torch.full((3,), bound, device="cuda"))
        assert torch.allclose(found.cpu(), wanted, rtol=0.3 if half else 1e-3, atol=(0.1 if half else 1e-3) * bound)
