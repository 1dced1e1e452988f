"""Blocks of bytes from updates on a GPU, and back: what the codec asks of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton

from cepam.kernels.format.plan import CodingTask, JoinedBlocks, Plan, joined
from cepam.kernels.format.row_period import seem_flat
from cepam.kernels.triton import symbols
from cepam.kernels.triton.launch import CodedBlocks, Measured, compile_ahead, decode_blocks, encode_measured, measure
from cepam.kernels.triton.plan import launching_on
from cepam.kernels.triton.search_encode import MeasuredSegments, encode_segments, measure_updates
from cepam.kernels.triton.search_launch import decode_segments

_WIDENED = (torch.float16, torch.bfloat16)


def check_update(update: Any, dimensions: int = 1) -> Any:
    """The update itself, or rows of updates (two dimensions), contiguous; half precision is widened, which is exact."""
    if update.dtype not in (torch.float32, torch.float64, *_WIDENED):
        raise ValueError(f"the update must be float16, bfloat16, float32 or float64, got {update.dtype}")
    if update.ndim != dimensions:
        wanted = "the update must have one dimension" if dimensions == 1 else "updates must be rows (clients, m)"
        raise ValueError(f"{wanted}, got shape {tuple(update.shape)}")
    update = update.detach()
    return (update.float() if update.dtype in _WIDENED else update).contiguous()


def check_device(device: str) -> None:
    """Raise `ValueError` where the device is no GPU."""
    if torch.device(device).type != "cuda" and not triton.knobs.runtime.interpret:
        raise ValueError(f"device must name a GPU such as 'cuda', got {device!r}: leave it out to decode on the CPU")


def ends_of_rows(rows: Any) -> list[tuple[float, float]]:
    """The least and the largest value of each row, NaN if there is one; zeros for rows without values."""
    if not rows.numel():
        return [(0.0, 0.0)] * len(rows)
    low, high = torch.aminmax(rows, dim=1)
    return [(least, most) for least, most in torch.stack([low, high], dim=1).tolist()]


def expect_blocks(task: CodingTask, blocks: int, device: str) -> None:
    """Start compiling what codes and decodes so many blocks of such tasks."""
    with launching_on(device):
        compile_ahead(task.plan, task.per_block, blocks, device)


def measure_rows(jobs: Sequence[CodingTask], rows: Any) -> Measured | MeasuredSegments:
    """What must be known of updates (clients, m) on a GPU before they are coded; the jobs differ in their keys only."""
    keys = [task.key for task in jobs]
    with launching_on(rows.device):
        if jobs[0].coder == "search":
            return measure_updates(jobs[0].plan, keys, rows)
        return measure(jobs[0].plan, keys, rows, jobs[0].per_block)


def encode_rows(
    found: Measured | MeasuredSegments, meanwhile: Callable[[], None] | None = None
) -> Sequence[Sequence[bytes]]:
    """Each client's blocks, of updates that were measured; `meanwhile` is done while the GPU codes."""
    if isinstance(found, MeasuredSegments):
        with launching_on(found.x.device):
            return encode_segments(found, meanwhile)
    with launching_on(found.batch.x.device):
        return to_host(encode_measured(found, meanwhile=meanwhile))


def decode_rows(
    jobs: Sequence[CodingTask], blocks: Sequence[Sequence[bytes]], count: int, dtype: str, device: str
) -> Any:
    """The decoded values (clients, m) of messages of one size, on a GPU; jobs differ in their keys only.

    `dtype` float16 and bfloat16 are rounded from float32.
    """
    check_device(device)
    kept = torch.float64 if dtype == "float64" else torch.float32
    keys, wanted = [task.key for task in jobs], getattr(torch, dtype)
    with launching_on(device):
        if jobs[0].coder == "search":
            return decode_segments(jobs[0].plan, keys, blocks, count, kept, device).to(wanted)
        return decode_blocks(jobs[0].plan, keys, to_device(blocks, device), count, kept, jobs[0].per_block).to(wanted)


def quantize(plan: Plan, key: bytes, x: Any) -> tuple[Any, Any]:
    """(H, M) of a tensor on a GPU, in one dimension, of the types that updates have."""
    with launching_on(x.device):
        return symbols.quantize(plan, key, check_update(x))


def reconstruct(plan: Plan, key: bytes, h: Any, m: Any, released: bool) -> Any:
    """The quantized vector of (H, M) on a GPU, float64, on the public grid where it is released."""
    with launching_on(m.device):
        return symbols.reconstruct(plan, key, *symbols.check_symbols(plan, h, m), released)


def put(values: Any, dtype: str, device: str) -> Any:
    """An array of the host as a tensor on a GPU."""
    check_device(device)
    return torch.from_numpy(values).to(device).to(getattr(torch, dtype))


def to_host(blocks: CodedBlocks) -> list[JoinedBlocks]:
    """Each client's blocks on the host: one copy for all of them."""
    lengths, data = blocks.lengths, pinned(len(blocks.data))
    torch.from_numpy(data).copy_(blocks.data)
    sizes = lengths.sum(axis=1)
    ends = zip(sizes.cumsum().tolist(), sizes.tolist(), lengths)
    return [JoinedBlocks(data[end - size : end], mine) for end, size, mine in ends]


def to_device(found: Sequence[Sequence[bytes]], device: Any) -> CodedBlocks:
    """Each client's blocks, moved to a device in one copy; all clients have the same number."""
    each = [joined(blocks) for blocks in found]
    lengths = np.stack([blocks.lengths for blocks in each])
    parts = [np.frombuffer(blocks.data, dtype=np.uint8) for blocks in each]
    if len(parts) == 1 and len(parts[0]) and parts[0].flags.writeable:
        data = torch.from_numpy(parts[0])
    else:
        data = torch.from_numpy(pinned(max(sum(map(len, parts)), 1)))
        np.concatenate(parts, out=data.numpy()[: sum(map(len, parts))])
    return CodedBlocks(data.to(device, non_blocking=True), lengths, seem_flat(data.numpy(), lengths.reshape(-1)))


def pinned(size: int) -> Any:
    """Memory of the host that a GPU copies from and to directly; PyTorch keeps it for the next call."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()
