"""Quantize and reconstruct on a GPU in one dimension, from tensor to tensor: what launches the kernels.

Every function takes updates as rows, one a client, with one key each, and runs them in one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from cepam.errors import MalformedMessage
from cepam.kernels.model.plan import Plan
from cepam.kernels.triton.plan import DevicePlan, Tile, device_keys, device_plan
from cepam.kernels.triton.scalar_quantizer import quantize_scalar, reconstruct_scalar

SCALAR_TILE = Tile(lanes=128, warps=4)


def quantize(
    plan: Plan, keys: Sequence[bytes], x: Any, first: int = 0, symbols: Any = torch.int64, tile: Tile = SCALAR_TILE
) -> Any:
    """The quotients M (clients, m) of updates (clients, m) in one dimension, their first coordinate number `first`.

    Raises `ValueError` if an input is not finite or beyond the plan's reach, or if a quotient exceeds `symbols`.
    """
    _check_scalar(plan)
    m, flags = torch.empty_like(x, dtype=symbols), torch.zeros(1, dtype=torch.int32, device=x.device)
    launch_quantize(device_plan(plan, str(x.device)), device_keys(keys, str(x.device)), x, first, m, flags, tile)
    if int(flags.item()):
        raise ValueError(f"the update holds NaN, infinities or values beyond {plan.reach:.3g}, the reach of this noise")
    return m


def reconstruct(
    plan: Plan, keys: Sequence[bytes], m: Any, first: int = 0, dtype: Any = torch.float32, tile: Tile = SCALAR_TILE
) -> Any:
    """The decoded values (clients, m) of quotients, on the public grid."""
    _check_scalar(plan)
    out, flags = torch.empty_like(m, dtype=dtype), torch.zeros(1, dtype=torch.int32, device=m.device)
    launch_reconstruct(device_plan(plan, str(m.device)), device_keys(keys, str(m.device)), m, first, out, flags, tile)
    if int(flags.item()):
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return out


def launch_quantize(
    on: DevicePlan, keys: Any, x: Any, first: int, m: Any, flags: Any, tile: Tile = SCALAR_TILE
) -> None:
    """Starts the kernel that fills m; `flags` must hold 0."""
    _check_rows(keys, x, first)
    if x.numel():
        quantize_scalar[_grid(x, tile)](
            x, keys, on.table, on.numbers, on.plan.step, m, flags, first, x.shape[1],
            layered=on.layered, lanes=tile.lanes, num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip


def launch_reconstruct(
    on: DevicePlan, keys: Any, m: Any, first: int, out: Any, flags: Any, tile: Tile = SCALAR_TILE
) -> None:
    """Starts the kernel that fills out; `flags` must hold 0."""
    _check_rows(keys, m, first)
    if m.numel():
        reconstruct_scalar[_grid(m, tile)](
            m, keys, on.table, on.numbers, on.plan.step, out, flags, first, m.shape[1],
            layered=on.layered, lanes=tile.lanes, num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip


def _grid(rows: Any, tile: Tile) -> tuple[int, int]:
    return triton.cdiv(rows.shape[1], 8 * tile.lanes), rows.shape[0]


def _check_rows(keys: Any, rows: Any, first: int) -> None:
    if rows.ndim != 2 or len(rows) != len(keys) or not rows.is_contiguous():
        raise ValueError(f"updates must be contiguous rows, one for each of {len(keys)} keys, got shape {rows.shape}")
    if first % 8:
        raise ValueError(f"first must be a multiple of 8, where a keystream block begins, got {first}")


def _check_scalar(plan: Plan) -> None:
    if plan.n != 1:
        raise ValueError(f"this is the quantizer in one dimension, got a plan in {plan.n}: see triton_rows")
