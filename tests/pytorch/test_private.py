"""`PerExampleGradients` as a user has it: any data set, fresh secret draws, the public divisor, the model as it is."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import cepam  # noqa: E402
from cepam.torch import PerExampleGradients, snapshot  # noqa: E402
from cepam.torch.private import _drawn  # noqa: E402


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def records(count: int = 20) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 4), torch.arange(count) % 3


def test_all_records_over_the_public_number() -> None:
    """With a chance of one the result is known: the clipped sum over the expected batch."""
    mine, (x, y) = model(), records()
    private = PerExampleGradients(mine, F.cross_entropy, cepam.L2(0.3), max_physical_batch_size=7)
    total = {name: torch.zeros_like(p) for name, p in mine.named_parameters()}
    for one, target in zip(x, y):
        mine.zero_grad()
        F.cross_entropy(mine(one[None]), target[None]).backward()
        norm = torch.cat([p.grad.flatten() for p in mine.parameters()]).norm()
        for name, p in mine.named_parameters():
            total[name] += p.grad * min(1.0, 0.3 / float(norm))
    for dataset in ((x, y), TensorDataset(x, y), [(a, int(b)) for a, b in zip(x, y)]):
        found = private.gradient(dataset, expected_batch_size=20)
        assert list(found) == list(total)
        assert all(torch.allclose(found[name], total[name] / 20, atol=1e-6) for name in total)
    fewer = private.gradient((x[:10], y[:10]), expected_batch_size=20, records=20)
    assert float(fewer["0.bias"].abs().max()) > 0


def test_the_draw_is_poisson_and_fresh() -> None:
    """20,000 records with chance 0.1: 7 deviations from 2,000 have a chance below 1e-11; so has an equal draw."""
    draws = [_drawn(20_000, 0.1) for _ in range(3)]
    assert all(abs(len(draw) - 2000) < 7 * 42.5 for draw in draws)
    assert draws[0] != draws[1] != draws[2]
    assert len({len(draw) for draw in (_drawn(20_000, 0.5) for _ in range(12))}) > 1
    assert _drawn(5, 1.0) == [0, 1, 2, 3, 4]
    assert _drawn(0, 0.5) == []


def test_an_empty_batch_is_zero() -> None:
    private = PerExampleGradients(model(), F.cross_entropy, cepam.L2(1.0))
    assert not any(part.any() for part in private.summed(records(), []).values())
    assert not any(
        part.any() for part in private.gradient((torch.zeros(0, 4), torch.zeros(0)), 8, records=100).values()
    )


class Pair(nn.Module):
    """Two inputs by name, sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, tokens: Tensor, weight: Tensor) -> Tensor:
        return self.head((self.table(tokens) * weight[:, :, None]).mean(1))


def test_inputs_by_name_and_of_several_lengths() -> None:
    torch.manual_seed(0)
    items = [
        ({"tokens": torch.randint(0, 9, (length,)), "weight": torch.rand(length)}, length % 3)
        for length in (3, 5, 3, 4, 5, 3)
    ]
    private = PerExampleGradients(Pair(), F.cross_entropy, cepam.L2(100.0))
    together = private.summed(items, range(6))
    alone = [private.summed(items, [i]) for i in range(6)]
    for name, part in together.items():
        assert torch.allclose(part, sum(one[name] for one in alone), atol=1e-5)


def test_the_model_is_as_it_was_and_followed() -> None:
    mine = model()
    mine[0].requires_grad_(False)
    private, before = PerExampleGradients(mine, F.cross_entropy, cepam.L2(5.0)), mine[0].weight.clone()
    first = private.summed(records(), range(20))
    assert list(first) == list(snapshot(mine)) == ["2.weight", "2.bias"]
    assert torch.equal(before, mine[0].weight)
    assert mine[2].weight.grad is None
    with torch.no_grad():
        mine[0].weight.zero_()  # frozen, and changed by its owner: as when a new model is loaded
        mine[0].bias.zero_()
    second = private.summed(records(), range(20))
    assert not second["2.weight"].any()
    assert first["2.weight"].any()


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_models_of_other_types(kind: str) -> None:
    dtype, (x, y) = getattr(torch, kind), records()
    private = PerExampleGradients(model().to(dtype), F.cross_entropy, cepam.L2(0.1))
    wanted = PerExampleGradients(model(), F.cross_entropy, cepam.L2(0.1)).summed((x, y), range(20))
    found = private.summed((x.to(dtype), y), range(20))
    assert {part.dtype for part in found.values()} == {torch.float32}
    close = 1e-5 if kind == "float64" else 0.1
    assert all(torch.allclose(found[name], wanted[name], atol=close) for name in wanted)
    lone = torch.cat([part.flatten() for part in private.summed((x.to(dtype), y), [2]).values()])
    assert float(lone.double().norm()) <= 0.1
