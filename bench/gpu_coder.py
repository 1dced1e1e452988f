"""The entropy coder on a GPU: its bytes and vectors beside the compiled ones, its speed, its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import cepam
import gpu_identity
from cepam.codec.wire import BLOCK_COORDINATES
from cepam.kernels.model.plan import Plan, layered_plan
from cepam.kernels.model.row_period import SHARED_BLOCKS
from cepam.kernels.model.task import CodingTask
from cepam.kernels.numba.backend import NumbaBackend
from cepam.kernels.triton import backend as tb
from cepam.kernels.triton.plan import Tile

Note = Callable[..., None]
Timer = Callable[..., float]


def check(device: str, smoke: bool, compiling: bool) -> dict[str, str]:
    """What was compared and how it came out, over laws, sizes and kinds of data; raises if anything differs."""
    sizes = [9] if smoke else [6422] if compiling else [1, 6422, 1_000_000]
    outcome = {}
    for name, plan in gpu_identity.scalar_plans().items():
        for kind in ("wild", "rows", "smooth", "sparse"):
            if (smoke and (kind != "wild" or "0.01" not in name)) or (kind == "rows" and "cells" in name):
                continue
            results = [compare(plan, data_of(kind, plan, size), device, compiling) for size in sizes]
            outcome[f"{name}, {kind}"] = next((r for r in results if r != "identical"), f"identical, sizes {sizes}")
            print(f"  {name + ', ' + kind:24s} {outcome[f'{name}, {kind}']}", flush=True)
    wrong = [name for name, result in outcome.items() if not result.startswith("identical")]
    if wrong and not compiling:
        raise AssertionError(f"the GPU's bytes differ from the CPU's: {wrong}")
    return outcome


def data_of(kind: str, plan: Plan, size: int) -> np.ndarray:
    """Two clients' updates: over many scales, in rows of 300, neighbours alike, or mostly zeros under a large noise."""
    made = np.random.default_rng(size)
    if kind == "wild":
        return gpu_identity.inputs(plan, 2, size)
    x = made.normal(0, plan.scale * plan.unit, (2, size))
    if kind == "rows":
        return (x * np.exp(made.normal(0, 1.5, 300))[np.arange(size) % 300]).astype(np.float64)
    if kind == "smooth":
        return (x * np.exp(made.normal(0, 1.5, size // 700 + 1))[np.arange(size) // 700]).astype(np.float32)
    return (0.05 * x * (made.random((2, size)) < 0.02) * (np.arange(size) % 30_000 < 15_000)).astype(np.float32)


def compare(plan: Plan, x: np.ndarray, device: str, compiling: bool) -> str:
    """Both directions for two clients in one launch."""
    keys, length = gpu_identity.KEYS, BLOCK_COORDINATES
    tensor = torch.from_numpy(x).to(device)
    blocks = tb.encode_blocks(plan, keys, tensor, length)
    back = tb.decode_blocks(plan, keys, blocks, x.shape[1], tensor.dtype, length)
    if compiling:
        return "identical"
    for row, key, mine, found in zip(x, keys, blocks.to_lists(), back.cpu().numpy()):
        task, step, decoded = CodingTask(plan, "adaptive", key, length), length * SHARED_BLOCKS, np.empty_like(row)
        for i in range(0, len(row), step):
            part = NumbaBackend().encode_span(task, row[i : i + step], i)
            if part != mine[i // length :][: len(part)]:
                return f"DIFFERENT bytes at size {len(row)} from {i}"
            NumbaBackend().decode_span(task, part, i, decoded[i : i + step])
        if decoded.tobytes() != found.tobytes():
            return f"DIFFERENT vectors at size {len(row)}"
    return "identical"


def timed(name: str, x: torch.Tensor, timer: Timer, note: Note, tiles: list[Tile], compiling: bool) -> None:
    """Both directions of one update, whole calls from tensor to compact bytes and back, and their parts."""
    plan, keys, length = layered_plan(cepam.Gaussian(0.01), cepam.Integer(1)), [bytes(range(7, 39))], BLOCK_COORDINATES
    rows, size = x[None], x.numel()
    for tile in tiles:
        more = f"{tile.lanes} lanes, {tile.warps} warps"
        blocks = tb.encode_blocks(plan, keys, rows, length, tile)
        tb.decode_blocks(plan, keys, blocks, size, torch.float32, length, tile)
        if compiling:
            continue
        bits = 8 * int(blocks.lengths.sum()) / size
        seconds = timer(lambda tile=tile: tb.encode_blocks(plan, keys, rows, length, tile), 5)
        note(f"encode, n = 1, {name}, {tile.lanes} lanes", size, seconds, f"{bits:.3f} bits a coordinate, {more}")
        seconds = timer(
            lambda tile=tile, blocks=blocks: tb.decode_blocks(plan, keys, blocks, size, torch.float32, length, tile), 5
        )
        note(f"decode, n = 1, {name}, {tile.lanes} lanes", size, seconds, more)
    on = tb.device_plan(plan, str(x.device))
    if not compiling:
        note(f"scales and strides, {name}", size, timer(lambda: tb.measure_headers(on, rows, length), 5))


def seal_speed(count: int) -> str:
    """Seconds a gigabyte for the seal, where `cryptography` is installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
    except ImportError:
        return "not timed: cryptography is not installed here"
    cipher, data = AESGCMSIV(bytes(32)), bytes(count)
    begun = time.perf_counter()
    cipher.encrypt(bytes(12), data, b"")
    return f"{(time.perf_counter() - begun) / count * 1e9:.2f} s a gigabyte"


def memory(x: torch.Tensor) -> dict[str, Any]:
    """Bytes a coordinate at the peak, beyond input and message when encoding, beyond message and output decoding."""
    plan, keys, length = layered_plan(cepam.Gaussian(0.01), cepam.Integer(1)), [bytes(range(7, 39))], BLOCK_COORDINATES
    found: dict[str, Any] = {}
    before, size = torch.cuda.memory_allocated(), x.numel()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    blocks = tb.encode_blocks(plan, keys, x[None], length)
    torch.cuda.synchronize()
    found["encode seconds"] = time.perf_counter() - begun
    message = blocks.data.numel()
    found["encode bytes a coordinate"] = (torch.cuda.max_memory_allocated() - before - message) / size
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    back = tb.decode_blocks(plan, keys, blocks, size, torch.float32, length)
    torch.cuda.synchronize()
    found["decode seconds"] = time.perf_counter() - begun
    found["decode bytes a coordinate"] = (
        torch.cuda.max_memory_allocated() - before - back.numel() * back.element_size()
    ) / size
    found["message bytes a coordinate"] = message / size
    # The noise must be there and of the right spread: a check on sizes that the CPU does not reach.
    error = torch.stack([(back[0, i : i + (1 << 24)] - x[i : i + (1 << 24)]).std() for i in range(0, size, 1 << 28)])
    found["noise over sigma"] = [round(float(e) / 0.01, 4) for e in error]
    return found
