"""A plan as Triton's kernels take it: its numbers as arrays on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cepam.kernels.model.keystream import key_words
from cepam.kernels.model.plan import Accept, Plan
from cepam.noise.radius import COEFFICIENTS


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

    @property
    def shape(self) -> dict[str, Any]:
        """What the kernels of a vector lattice are compiled for."""
        plan = self.plan
        lists = {"box": plan.box, "basis": plan.basis.reshape(-1), "order": plan.walk.order}
        return {"search": int(plan.search), "accept": int(plan.accept), "n": plan.n} | {
            name: tuple(int(value) for value in values) for name, values in lists.items()
        }


@lru_cache(maxsize=64)
def device_plan(plan: Plan, device: str) -> DevicePlan:
    """The plan's numbers on a device, copied once."""
    table = np.ascontiguousarray(plan.table.reshape(-1, COEFFICIENTS).T)
    numbers = np.array([plan.scale, plan.inverse_ball, 1.0 / plan.unit, plan.grid, plan.step, plan.trials, plan.unit])
    order, axes, shear, spacing = plan.walk.order, plan.walk.axes, plan.walk.shear, plan.walk.spacing
    walk = np.concatenate([axes[order], shear[order][:, order], spacing[order, None].astype(np.float64)], axis=1)
    return DevicePlan(plan, *(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (table, numbers, walk)))


def device_keys(keys: Sequence[bytes], device: str) -> Any:
    """Keys (32 bytes each) as rows of eight words."""
    rows = np.stack([key_words(key) for key in keys]).view(np.int32)
    return torch.from_numpy(rows).to(device, non_blocking=True)
