"""PyTorch models: what trains travels, and comes back where it belongs."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import cepam  # noqa: E402
import cepam.torch  # noqa: E402


def model(kind: Any = None) -> Any:
    torch.manual_seed(1)
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    made[0].requires_grad_(False)
    return made.to(kind) if kind is not None else made


def test_only_what_trains_travels() -> None:
    mine = model()
    assert list(cepam.torch.trained_parameters(mine)) == ["2.weight", "2.bias"]
    start = cepam.torch.snapshot(mine)
    with torch.no_grad():
        mine[0].weight += 1.0
        mine[2].bias += 0.5
    update = cepam.torch.update_between(start, mine)
    assert set(update) == {"2.weight", "2.bias"}
    assert torch.allclose(update["2.bias"], torch.full((2,), 0.5))
    assert update["2.weight"].abs().sum() == 0
    with pytest.raises(ValueError, match="nothing trains"):
        cepam.torch.snapshot(model().requires_grad_(False))


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16"])
def test_an_update_applied_gives_the_trained_model(kind: str) -> None:
    dtype = getattr(torch, kind)
    before, after = model(dtype), model(dtype)
    with torch.no_grad():
        after[2].weight.mul_(1.5)
        after[2].bias.add_(0.25)
    update = cepam.torch.update_between(before, after)
    assert {each.dtype for each in update.values()} == {torch.float64 if kind == "float64" else torch.float32}
    cepam.torch.apply_update(before, update)
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters()))


def test_gradients_step_like_an_optimiser() -> None:
    mine, other = model(), model()
    x = torch.randn(5, 4)
    for each in (mine, other):
        each(x).square().sum().backward()
    torch.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=0.1).step()
    cepam.torch.apply_update(mine, cepam.torch.gradients(mine), scale=-0.1)
    assert all(torch.allclose(a, b) for a, b in zip(mine.parameters(), other.parameters()))
    fresh = cepam.torch.gradients(model())
    assert fresh["2.weight"].shape == (2, 3)
    assert not any(each.any() for each in fresh.values())


def test_wrong_names_and_shapes_are_refused() -> None:
    mine = model()
    with pytest.raises(ValueError, match=r"update must name the parameters that train: 2\.bias"):
        cepam.torch.apply_update(mine, {"2.weight": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"update: 2\.bias has shape \(3,\), the model's \(2,\)"):
        cepam.torch.apply_update(mine, {"2.weight": torch.zeros(2, 3), "2.bias": torch.zeros(3)})
    with pytest.raises(ValueError, match="before must name"):
        cepam.torch.update_between({}, mine)


def test_shared_tensors_are_named_once() -> None:
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert list(cepam.torch.snapshot(tied)) == ["0.weight", "0.bias", "1.bias"]
