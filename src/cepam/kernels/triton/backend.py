"""Blocks of bytes from updates on a GPU, and back: what the codec asks of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton

from cepam.kernels.format.blocks import JoinedBlocks, joined
from cepam.kernels.format.plan import Plan
from cepam.kernels.format.row_period import seem_flat
from cepam.kernels.format.task import CodingTask
from cepam.kernels.triton import gcm_siv, symbols
from cepam.kernels.triton.launch import CodedBlocks, Measured, compile_ahead, decode_blocks, encode_measured, measure
from cepam.kernels.triton.plan import launching_on

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


def ends_of_rows(rows: Any) -> list[tuple[float, float]]:
    """The least and the largest value of each row, NaN if there is one; zeros for rows without values."""
    if not rows.numel():
        return [(0.0, 0.0)] * len(rows)
    low, high = torch.aminmax(rows, dim=1)
    return [(least, most) for least, most in torch.stack([low, high], dim=1).tolist()]


def expect_blocks(task: CodingTask, blocks: int, device: str) -> None:
    """Nothing; what codes and decodes so many blocks of such tasks is compiled beside what is done next."""
    with launching_on(device):
        compile_ahead(task.plan, task.per_block, blocks, device)


def measure_one(task: CodingTask, values: Any, kept: int) -> Measured:
    """What must be known of an update on a GPU before it is coded."""
    if _long(values, kept):
        gcm_siv.compile_ahead(values.device)
    return measure_rows([task], values[None])


def encode_one(
    found: Measured, kept: int, prepare: Callable[[int, Any], gcm_siv.ChunkSchedules]
) -> tuple[JoinedBlocks, gcm_siv.ChunkSchedules | None]:
    """The blocks of an update that was measured; more than `kept` bytes stay on the GPU. Where that is likely, it is
    asked to prepare their seals while it codes: `prepare` takes a bound of the bytes, and the device."""
    x, ready = found.batch.x, []
    ask = (lambda most: ready.append(prepare(most, x.device))) if _long(x, kept) else None
    with launching_on(x.device):
        blocks = encode_measured(found, meanwhile=ask)
    there = to_host(blocks)[0] if len(blocks.data) <= kept else joined_on_gpu(blocks)
    return there, ready[0] if ready else None


def _long(x: Any, kept: int) -> bool:
    return bool(x.numel() > 8 * kept)  # about a bit a coordinate


def measure_rows(jobs: Sequence[CodingTask], rows: Any) -> Measured:
    """What must be known of updates (clients, m) on a GPU before they are coded; the jobs differ in their keys only."""
    with launching_on(rows.device):
        return measure(jobs[0].plan, [task.key for task in jobs], rows, jobs[0].per_block)


def encode_rows(found: Measured, meanwhile: Callable[[], None] | None = None) -> list[JoinedBlocks]:
    """Each client's blocks, of updates that were measured; `meanwhile` is done while the GPU codes."""
    ask = None if meanwhile is None else (lambda _: meanwhile())
    with launching_on(found.batch.x.device):
        return to_host(encode_measured(found, meanwhile=ask))


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


def joined_on_gpu(blocks: CodedBlocks) -> JoinedBlocks:
    """One client's blocks where they are."""
    return JoinedBlocks(blocks.data, blocks.lengths[0])


def to_device(found: Sequence[Sequence[bytes]], device: Any) -> CodedBlocks:
    """Each client's blocks, moved to a device in one copy; all clients have the same number."""
    each = [joined(blocks) for blocks in found]
    lengths = np.stack([blocks.lengths for blocks in each])
    if each[0].on_gpu:
        return CodedBlocks(each[0].data, lengths)
    parts = [np.frombuffer(blocks.data, dtype=np.uint8) for blocks in each]
    if len(parts) == 1 and len(parts[0]) and parts[0].flags.writeable:
        data = torch.from_numpy(parts[0])
    else:
        data = torch.from_numpy(pinned(max(sum(map(len, parts)), 1)))
        np.concatenate(parts, out=data.numpy()[: sum(map(len, parts))])
    return CodedBlocks(data.to(device, non_blocking=True), lengths, seem_flat(data.numpy(), lengths.reshape(-1)))


@dataclass(frozen=True, eq=False)
class SealedChunks:
    """Sealed chunks of a payload one after the other, their tags, and the clear bytes behind the chunks: on the host,
    tags and clear bytes once `wait_for_tags` has been called, the chunks once `wait` has."""

    chunks: Any
    tags: Any
    rest: Any
    wait_for_tags: Callable[[], None]
    wait: Callable[[], None]


def prepare_chunks(keys: Any, context: bytes, size: int, device: Any) -> gcm_siv.ChunkSchedules:
    """What chunks of `size` bytes are sealed and opened with on a GPU, under so many keys."""
    with launching_on(device):
        return gcm_siv.prepare(keys, context, size // 16, device)


def seal_chunks(buffers: Sequence[Any], schedules: gcm_siv.ChunkSchedules, count: int, size: int) -> SealedChunks:
    """So many chunks of `size` bytes of a payload in buffers, one of them on a GPU."""
    device = schedules.each.device
    parts = [each if torch.is_tensor(each) else _bytes_of(each) for each in buffers if len(each)]
    payload = torch.cat([each.to(device, non_blocking=True) for each in parts])
    whole, first = count * size, []

    def fetch_tags(found: Any) -> None:
        first.extend([_fetch(found), _fetch(payload[whole:]), _mark(payload)])

    clear = payload[:whole].view(torch.int32).reshape(count, -1)
    with launching_on(device):
        chunks = _fetch(gcm_siv.seal_chunks(clear, schedules, size // 16, fetch_tags))
    tags, rest, wait_for_tags = first
    return SealedChunks(chunks, tags, rest, wait_for_tags, _mark(payload))


def open_chunks(
    sealed: Any, schedules: gcm_siv.ChunkSchedules, size: int
) -> tuple[Any, Callable[[Any, int], Any | None]]:
    """A payload on a GPU that begins with the opened chunks of `size` bytes; and what puts the given bytes behind them
    and gives its first bytes, so many, on the host, or nothing unless all chunks' tags are right."""
    device, count = schedules.each.device, len(schedules.each)
    found = torch.from_numpy(sealed).to(device, non_blocking=True).view(torch.int32).reshape(count, -1)
    payload = torch.empty((count + 1) * size, dtype=torch.uint8, device=device)
    clear = payload.view(torch.int32).reshape(count + 1, -1)[:-1]
    with launching_on(device):
        wrong = gcm_siv.open_chunks(found, schedules, clear, size // 16).reshape(-1).view(torch.uint8)

    def finish(rest: bytes, wanted: int) -> Any | None:
        end = count * size + len(rest)
        payload[count * size : end].copy_(_bytes_of(rest), non_blocking=True)
        seen = torch.cat([wrong, payload[: min(wanted, end)]]).cpu().numpy()  # one wait for both
        return None if seen[: len(wrong)].any() else seen[len(wrong) :]

    return payload, finish


def _fetch(found: Any) -> Any:
    """Memory of the host that will hold a tensor's bytes once its device has done what it was asked."""
    found = found.contiguous().view(torch.uint8).reshape(-1)
    out = pinned(len(found))
    torch.from_numpy(out).copy_(found, non_blocking=True)
    return out


def _mark(on: Any) -> Callable[[], None]:
    """What waits, in any thread, until all is done that the tensor's device was asked for up to now."""
    if not on.is_cuda:
        return lambda: None
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(on.device))
    return event.synchronize


def _bytes_of(found: Any) -> Any:
    return torch.from_numpy(np.frombuffer(found, dtype=np.uint8).copy())


def pinned(size: int) -> Any:
    """Memory of the host that a GPU copies from and to directly; PyTorch keeps it for the next call."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()
