"""What PyTorch models send and take: the parameters that train, by name (docs/models-and-tensors.md).

Every function looks at parameters with `requires_grad` alone. Where only adapters train (LoRA), only adapters travel.
Each update is a dict for `cepam.encode_tree`, in float32 (float64 for float64 parameters).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["apply_update", "gradients", "snapshot", "trained_parameters", "update_between"]

Update = dict[str, Tensor]


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters with `requires_grad`, by name; parameters that share one tensor are named once.

    Args:
        model: Any module.

    Returns:
        Parameters by name.

    Raises:
        ValueError: No parameter has `requires_grad`.
    """
    found = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not found:
        raise ValueError("no parameter of the model has requires_grad: nothing trains, nothing to send")
    return found


def snapshot(model: nn.Module) -> Update:
    """Copies of the parameters that train, as they are now: what a later `update_between` starts from.

    Args:
        model: Any module.

    Returns:
        Detached copies by name.
    """
    return {name: each.detach().clone() for name, each in trained_parameters(model).items()}


def update_between(before: nn.Module | Mapping[str, Tensor], after: nn.Module) -> Update:
    """Return what training added: each trained parameter of `after` less that of `before`.

    Half precision is widened first, which is exact.

    Args:
        before: the model before training, or its `snapshot`.
        after: the model after training.

    Returns:
        The update, by parameter name.
    """
    start = dict(before.named_parameters()) if isinstance(before, nn.Module) else before
    mine = trained_parameters(after)
    _check_names(mine, {name: start[name] for name in mine if name in start}, "before")
    return {name: _wide(each) - _wide(start[name]).to(each.device) for name, each in mine.items()}


def gradients(model: nn.Module) -> Update:
    """The `.grad` of each parameter that trains; zeros where a parameter has none, so that the structure stays.

    Args:
        model: After `backward`.

    Returns:
        Gradients by the names of `trained_parameters`.
    """
    found: Update = {}
    for name, each in trained_parameters(model).items():
        slope = each.grad
        found[name] = torch.zeros_like(_wide(each)) if slope is None else _wide(slope).to_dense()
    return found


def apply_update(model: nn.Module, update: Mapping[str, Tensor], scale: float = 1.0) -> None:
    """Add `scale` times its part of the update to each parameter that trains.

    Sums are taken in float32 (float64) and rounded once to the parameter's type.

    Args:
        model: the model to change.
        update: an update by parameter name, with the model's own names and shapes.
        scale: the factor; the negative learning rate for gradients.

    Raises:
        ValueError: names or shapes are not the model's.
    """
    mine = trained_parameters(model)
    _check_names(mine, update, "update")
    with torch.no_grad():
        for name, each in mine.items():
            each.copy_(_wide(each) + scale * _wide(update[name]).to(each.device))


def _check_names(mine: Mapping[str, Tensor], given: Mapping[str, Tensor], argument: str) -> None:
    odd = sorted(set(mine) ^ set(given))
    if odd:
        raise ValueError(f"{argument} must name the parameters that train: {', '.join(odd[:3])} on one side only")
    for name, each in mine.items():
        if given[name].shape != each.shape:
            raise ValueError(
                f"{argument}: {name} has shape {tuple(given[name].shape)}, the model's {tuple(each.shape)}"
            )


def _wide(value: Tensor) -> Tensor:
    return value.detach().to(torch.float64 if value.dtype == torch.float64 else torch.float32)
