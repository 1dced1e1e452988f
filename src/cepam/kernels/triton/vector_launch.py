"""Quantize and reconstruct on a GPU on vector lattices, from tensor to tensor: what launches the kernels.

Updates are rows, one a client, with one key each. Long updates go in waves, so that the latent radii of only some
millions of sub-vectors are held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton

from cepam.errors import MalformedMessage
from cepam.kernels.model.plan import Plan
from cepam.kernels.triton.plan import DevicePlan, Tile, device_keys, device_plan
from cepam.kernels.triton.vector_quantizer import fill_radii, quantize_vector, reconstruct_vector
from cepam.noise.lattices import Search

ROWS_TILE = Tile(lanes=32, warps=1, share=16)
BACK_TILE = Tile(lanes=128, warps=4)
RADII_TILE = Tile(lanes=128, warps=4)
WAVE = 1 << 22


def quantize_rows(
    plan: Plan, keys: Sequence[bytes], x: Any, first: int = 0, symbols: Any = torch.int64, tile: Tile = ROWS_TILE
) -> tuple[Any, Any]:
    """(H, M) of updates (clients, m), shapes (clients, rows) and (clients, rows, n); zeros fill up the last row.

    Raises `ValueError` if an input is not finite or beyond the plan's reach, or if a coordinate exceeds `symbols`.
    """
    rows = -(-x.shape[1] // plan.n)
    h = torch.empty((len(x), rows), dtype=torch.int32, device=x.device)
    m = torch.empty((len(x), rows, plan.n), dtype=symbols, device=x.device)
    flags = torch.zeros(1, dtype=torch.int32, device=x.device)
    launch_quantize(device_plan(plan, str(x.device)), device_keys(keys, str(x.device)), x, first, h, m, flags, tile)
    if int(flags.item()):
        raise ValueError(f"the update holds NaN, infinities or values beyond {plan.reach:.3g}, the reach of this noise")
    return h, m


def reconstruct_rows(
    plan: Plan,
    keys: Sequence[bytes],
    h: Any,
    m: Any,
    count: int,
    first: int = 0,
    dtype: Any = torch.float32,
    tile: Tile = BACK_TILE,
) -> Any:
    """The decoded values (clients, count), on the public grid."""
    out = torch.empty((len(h), count), dtype=dtype, device=h.device)
    flags = torch.zeros(1, dtype=torch.int32, device=h.device)
    on, key_rows = device_plan(plan, str(h.device)), device_keys(keys, str(h.device))
    launch_reconstruct(on, key_rows, h, m, first, out, flags, tile)
    if int(flags.item()):
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return out


def launch_quantize(
    on: DevicePlan, keys: Any, x: Any, first: int, h: Any, m: Any, flags: Any, tile: Tile = ROWS_TILE
) -> None:
    """Starts the kernels that fill h and m; `flags` must hold 0."""
    n = _check(on.plan, keys, x, first)
    for start, rows, radii in _waves(on, keys, first, h):
        part, count = x[:, start * n :], min(rows * n, x.shape[1] - start * n)
        quantize_vector[triton.cdiv(rows, tile.lanes * tile.share), len(x)](
            part, keys, radii, on.numbers, on.plan.step, h[:, start:], m[:, start:], flags,
            first + start, rows, count, x.stride(0), h.stride(0),
            search=int(on.plan.search), accept=int(on.plan.accept), n=n, box=_ints(on.plan.box),
            first_half=int(on.plan.basis[0, -1]), second_half=int(on.plan.basis[-1, -1]),
            lanes=tile.lanes, share=tile.share, num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip


def launch_reconstruct(
    on: DevicePlan, keys: Any, h: Any, m: Any, first: int, out: Any, flags: Any, tile: Tile = BACK_TILE
) -> None:
    """Starts the kernels that fill out; `flags` must hold 0."""
    n = _check(on.plan, keys, out, first)
    for start, rows, radii in _waves(on, keys, first, h):
        part, count = out[:, start * n :], min(rows * n, out.shape[1] - start * n)
        reconstruct_vector[triton.cdiv(rows, tile.lanes), len(out)](
            h[:, start:], m[:, start:], keys, radii, on.numbers, on.plan.step, part, flags,
            first + start, rows, count, out.stride(0), h.stride(0),
            accept=int(on.plan.accept), n=n, box=_ints(on.plan.box), basis=_ints(on.plan.basis.reshape(-1)),
            lanes=tile.lanes, num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip


def _waves(on: DevicePlan, keys: Any, first: int, h: Any) -> Iterator[tuple[int, int, Any]]:
    """(first row, rows, latent radii) of parts small enough to hold."""
    clients, total = h.shape
    most = max(WAVE // max(clients, 1), 128) & ~127
    for start in range(0, total, most):
        rows = min(most, total - start)
        radii = torch.zeros((clients, rows), dtype=torch.float64, device=h.device)
        if on.layered:
            fill_radii[triton.cdiv(rows, 8 * RADII_TILE.lanes), clients](
                keys, on.table, on.numbers, radii, first + start, rows,
                lanes=RADII_TILE.lanes, num_warps=RADII_TILE.warps, enable_fp_fusion=False,
            )  # fmt: skip
        yield start, rows, radii


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _check(plan: Plan, keys: Any, values: Any, first: int) -> int:
    if plan.search is Search.GENERAL:
        raise NotImplementedError(
            "lattices from a generator of one's own are not on the GPU: move the update to the CPU (update.cpu())"
        )
    if values.ndim != 2 or len(values) != len(keys) or not values.is_contiguous():
        raise ValueError(f"updates must be contiguous rows, one for each of {len(keys)} keys, got {values.shape}")
    if first % 8:
        raise ValueError(f"first must be a multiple of 8, where a keystream block begins, got {first}")
    return plan.n
