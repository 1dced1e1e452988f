"""Blocks of bytes from updates on a GPU, and back: what the codec asks of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton

from cepam.kernels.model.blocks import JoinedBlocks, joined
from cepam.kernels.model.task import CodingTask
from cepam.kernels.triton.waves import CodedBlocks, decode_blocks, encode_blocks

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
    """Nothing; raises `ValueError` where the device is no GPU."""
    if torch.device(device).type != "cuda" and not triton.knobs.runtime.interpret:
        raise ValueError(f"device must name a GPU such as 'cuda', got {device!r}: leave it out to decode on the CPU")


def ends_of(values: Any) -> tuple[float, float]:
    """The least and the largest value; NaN if there is one."""
    low, high = torch.stack(torch.aminmax(values)).tolist()
    return low, high


def ends_of_rows(rows: Any) -> list[tuple[float, float]]:
    """The least and the largest value of each row, NaN if there is one; zeros for rows without values."""
    if not rows.numel():
        return [(0.0, 0.0)] * len(rows)
    low, high = torch.aminmax(rows, dim=1)
    return [(least, most) for least, most in torch.stack([low, high], dim=1).tolist()]


@dataclass(frozen=True, eq=False)
class HostRuns:
    """An update on a GPU of which slices are read on the host: the choice of a lattice looks at a few."""

    values: Any

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Any:
        return self.values[part].cpu().numpy()


def encode_rows(jobs: Sequence[CodingTask], rows: Any) -> list[JoinedBlocks]:
    """Each client's blocks, from updates (clients, m) on a GPU; the jobs differ in their keys only."""
    return to_host(encode_blocks(jobs[0].plan, [task.key for task in jobs], rows, jobs[0].per_block))


def decode_rows(
    jobs: Sequence[CodingTask], blocks: Sequence[Sequence[bytes]], count: int, dtype: str, device: str
) -> Any:
    """The decoded values (clients, m) of messages of one size, on a GPU; jobs differ in their keys only.

    `dtype` float16 and bfloat16 are rounded from float32.
    """
    check_device(device)
    kept = torch.float64 if dtype == "float64" else torch.float32
    keys, wanted = [task.key for task in jobs], getattr(torch, dtype)
    return decode_blocks(jobs[0].plan, keys, to_device(blocks, device), count, kept, jobs[0].per_block).to(wanted)


def put(values: Any, dtype: str, device: str) -> Any:
    """An array of the host as a tensor on a GPU."""
    check_device(device)
    return torch.from_numpy(values).to(device).to(getattr(torch, dtype))


def to_host(blocks: CodedBlocks) -> list[JoinedBlocks]:
    """Each client's blocks on the host: one copy for all of them."""
    lengths, size = blocks.lengths.cpu().numpy().astype(np.int64), len(blocks.data)
    data = pinned(size)
    torch.from_numpy(data).copy_(blocks.data)
    ends = lengths.sum(axis=1).cumsum()
    return [JoinedBlocks(data[end - mine.sum() : end], mine) for end, mine in zip(ends.tolist(), lengths)]


def to_device(found: Sequence[Sequence[bytes]], device: Any) -> CodedBlocks:
    """Each client's blocks, moved to a device in one copy; all clients have the same number."""
    each = [joined(blocks) for blocks in found]
    lengths = np.stack([blocks.lengths for blocks in each]).astype(np.int32)
    parts = [np.frombuffer(blocks.data, dtype=np.uint8) for blocks in each]
    if len(parts) == 1 and len(parts[0]) and parts[0].flags.writeable:
        data = torch.from_numpy(parts[0])
    else:
        data = torch.from_numpy(pinned(max(sum(map(len, parts)), 1)))
        np.concatenate(parts, out=data.numpy()[: sum(map(len, parts))])
    return CodedBlocks(data.to(device, non_blocking=True), torch.from_numpy(lengths).to(device))


def pinned(size: int) -> Any:
    """Memory of the host that a GPU copies from and to directly; PyTorch keeps it for the next call."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()
