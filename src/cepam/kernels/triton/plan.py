"""A plan as Triton's kernels take it: its numbers as arrays on one device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from cepam.distributions.radius import COEFFICIENTS
from cepam.kernels.format.plan import Accept, Plan, key_words


def launching_on(device: Any) -> AbstractContextManager[Any]:
    """A context in which this GPU is the current one: Triton launches kernels there, wherever their tensors lie."""
    device = torch.device(device)
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Shape(NamedTuple):
    """What the kernels of a vector lattice are compiled for."""

    search: int
    accept: int
    n: int
    box: tuple[int, ...]
    basis: tuple[int, ...]
    order: tuple[int, ...]


class Draws(NamedTuple):
    """What noise is drawn with: rows of keys, the table of latent radii, the plan's numbers."""

    keys: Any
    table: Any
    numbers: Any


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """The arrays of a plan on a device, and the plan itself."""

    plan: Plan
    table: Any
    numbers: Any
    walk: Any

    @property
    def layered(self) -> bool:
        """Whether the lattice's scale is drawn from a latent, or is one fixed step."""
        return self.plan.accept is not Accept.CELL

    @cached_property
    def shape(self) -> Shape:
        """What the kernels of this plan's lattice are compiled for."""
        plan = self.plan
        lists = (plan.box, plan.basis.reshape(-1), plan.walk.order)
        box, basis, order = (tuple(int(value) for value in values) for values in lists)
        return Shape(int(plan.search), int(plan.accept), plan.n, box, basis, order)

    def draws(self, keys: Any) -> Draws:
        """What noise is drawn with under keys on the device."""
        return Draws(keys, self.table, self.numbers)


@lru_cache(maxsize=64)
def device_plan(plan: Plan, device: str) -> DevicePlan:
    """The plan's numbers on a device, copied once.

    A radius is a polynomial of t, a multiple of 2^-53 below 1. Coefficients are those of 2^58 t, of which the kernels
    need not take 2^-58: all products and sums are what they were, times a power of two, and rounded alike.
    """
    powers = np.ldexp(plan.table.reshape(-1, COEFFICIENTS), -58 * np.arange(COEFFICIENTS))
    table = np.ascontiguousarray(powers.reshape(-1, COEFFICIENTS // 2, 2).swapaxes(0, 1))
    numbers = np.array([plan.scale, plan.inverse_ball, 1.0 / plan.unit, plan.grid, plan.step, plan.trials, plan.unit])
    order, axes, shear, spacing = plan.walk.order, plan.walk.axes, plan.walk.shear, plan.walk.spacing
    walk = np.concatenate([axes[order], shear[order][:, order], spacing[order, None].astype(np.float64)], axis=1)
    return DevicePlan(plan, *(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (table, numbers, walk)))


@lru_cache(maxsize=4096)
def device_whole(numbers: tuple[int, ...], device: str) -> Any:
    """Whole numbers on a device, copied once, for `load_whole`.

    Triton would compile a kernel anew for each number in a tuple of arguments that is 1, or divisible by 16.
    """
    return torch.from_numpy(np.array(numbers, dtype=np.int64)).to(device)


def device_keys(keys: Sequence[bytes], device: str) -> Any:
    """Keys (32 bytes each) as rows of eight words."""
    rows = key_words(b"".join(keys)).view(np.int32).reshape(-1, 8)
    return torch.from_numpy(rows).to(device, non_blocking=True)
