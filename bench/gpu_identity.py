"""The GPU's symbols and vectors beside those of NumPy and Numba, bit for bit."""

from __future__ import annotations

import numpy as np
import torch

import cepam
from cepam.kernels.model.keystream import key_words
from cepam.kernels.model.plan import Accept, Plan, cell_plan, layered_plan
from cepam.kernels.model.task import padded_rows
from cepam.kernels.numba.integers import numbers_of, scratch_for
from cepam.kernels.numba.scalar_quantizer import quantize_scalar, widths_and_dithers
from cepam.kernels.numba.vector_quantizer import quantize_rows, reconstruct_rows
from cepam.kernels.numpy import quantizer as reference
from cepam.kernels.numpy.backend import to_units
from cepam.kernels.numpy.keystream import chacha
from cepam.kernels.triton import scalar_launch as tq
from cepam.kernels.triton import vector_launch as tr
from cepam.kernels.triton.keystream import fill_blocks
from cepam.kernels.triton.plan import device_keys

KEYS = [bytes(range(i, i + 32)) for i in (1, 77)]
SIZES = [0, 1, 7, 8, 9, 1023, 1025, 6422, 1_000_000]


def scalar_plans() -> dict[str, Plan]:
    """The plans in one dimension that are compared."""
    return {
        "Gaussian(0.01)": layered_plan(cepam.Gaussian(0.01), cepam.Integer(1)),
        "Gaussian(3e-7)": layered_plan(cepam.Gaussian(3e-7), cepam.Integer(1)),
        "Laplace(0.3)": layered_plan(cepam.Laplace(0.3), cepam.Integer(1)),
        "cells(0.02)": cell_plan(cepam.Integer(1), 0.02),
    }


def vector_plans() -> dict[str, tuple[Plan, int]]:
    """The plans on vector lattices that are compared, each up to a size that the CPU quantizes in seconds."""
    plans: dict[str, tuple[Plan, int]] = {}
    for lattice in (cepam.E8, cepam.D4, cepam.A2, *(cepam.Integer(n) for n in (2, 3, 4))):
        plans[f"Gaussian(0.01) on {lattice.name}"] = layered_plan(cepam.Gaussian(0.01), lattice), 1_000_000
        plans[f"cells(0.02) on {lattice.name}"] = cell_plan(lattice, 0.02), 6422
    for lattice in (cepam.E8, cepam.D4, cepam.A2, cepam.Integer(3)):
        plans[f"Laplace(0.3) on {lattice.name}"] = layered_plan(cepam.Laplace(0.3), lattice), 6422
    return plans


def check(device: str, smoke: bool, compiling: bool = False) -> dict[str, str]:
    """What was compared and how it came out; raises if anything differs."""
    outcome = {"keystream": check_keystream(device)}
    sizes = [0, 1, 9, 300] if smoke else SIZES[:-1] if compiling else SIZES
    for name, plan in scalar_plans().items():
        outcome[name] = check_scalar(plan, device, sizes, compiling)
        print(f"  {name:24s} {outcome[name]}", flush=True)
    for name, (plan, most) in ({} if smoke else vector_plans()).items():
        few = [size for size in (0, 1, plan.n - 1, plan.n, plan.n + 1, 1025, 6422, 1_000_000) if size <= most]
        outcome[name] = check_vector(plan, device, few[:-1] if compiling else few, compiling)
        print(f"  {name:24s} {outcome[name]}", flush=True)
    wrong = [name for name, result in outcome.items() if not result.startswith("identical")]
    if wrong and not compiling:
        raise AssertionError(f"the GPU differs from the CPU: {wrong}")
    return outcome


def check_keystream(device: str) -> str:
    """RFC 8439's block, and the reference's words around 2^32 blocks."""
    key, out = bytes(range(32)), torch.zeros((32, 8), dtype=torch.int64, device=device)
    fill_blocks[(1,)](device_keys([key], device), out, 0x4A000000, 1 | 0x09000000 << 32, lanes=32, rounds=20)
    first = out.cpu().numpy().tobytes()[:64]
    same = first[:16].hex() == "10f1e7e4d13b5915500fdd1fa32071c4" and first[48:].hex().startswith("b5129cd1de164eb9")
    begin = 2**32 - 9
    fill_blocks[(1,)](device_keys([key], device), out, 3, begin, lanes=32, rounds=12)
    blocks = begin + np.arange(32)
    tail = np.stack([blocks & 0xFFFFFFFF, blocks >> 32, 0 * blocks + 3, 0 * blocks], axis=1).astype(np.uint32)
    same &= np.array_equal(out.cpu().numpy().view(np.uint32), chacha(key, tail))
    return "identical" if same else "DIFFERENT"


def inputs(plan: Plan, clients: int, size: int) -> np.ndarray:
    """Values over many scales, with zeros and the format's own ends among them."""
    made = np.random.default_rng(size)
    x = made.normal(0, plan.scale * plan.unit, (clients, size)) * np.exp(made.normal(0, 3, (clients, size)))
    x[:, ::17] = 0.0
    x[:, 5::101] = plan.reach
    x[:, 6::101] = -plan.reach
    return np.clip(x, -plan.reach, plan.reach).astype(np.float32)


def check_scalar(plan: Plan, device: str, sizes: list[int], compiling: bool = False) -> str:
    """Symbols and vectors in one dimension: two clients in a launch, against NumPy (small) and Numba (all)."""
    compared = 0
    for size in sizes:
        first = 8 * (2**32 - 3) if size == 9 else 0
        x = inputs(plan, len(KEYS), size)
        m = tq.quantize(plan, KEYS, torch.from_numpy(x).to(device), first)
        back = tq.reconstruct(plan, KEYS, m, first)
        if compiling:
            continue
        for client, key in enumerate(KEYS):
            units = to_units(plan, x[client])
            expected, decoded = by_numba(plan, key, units, first)
            if size <= 6422:
                h, slow = reference.quantize(plan, key, units[:, None], first)
                decoded_slow = reference.to_grid(reference.reconstruct(plan, key, h, slow, first))[:, 0]
                if not (np.array_equal(slow[:, 0], expected) and np.array_equal(decoded_slow, decoded)):
                    return f"DIFFERENT: NumPy and Numba at size {size}"
            if not np.array_equal(m[client].cpu().numpy(), expected):
                return f"DIFFERENT symbols at size {size}: {(m[client].cpu().numpy() != expected).sum()} of them"
            values = (decoded.astype(np.float64) * plan.grid).astype(np.float32)
            if not np.array_equal(back[client].cpu().numpy().view(np.int32), values.view(np.int32)):
                return f"DIFFERENT vectors at size {size}"
            compared += size
    return f"identical over {compared:,} coordinates, sizes {sizes}"


def check_vector(plan: Plan, device: str, sizes: list[int], compiling: bool) -> str:
    """Trials, symbols and vectors on a vector lattice, against NumPy (small) and Numba (all)."""
    compared, first = 0, 128
    for size in sizes:
        x = inputs(plan, len(KEYS), size)
        h, m = tr.quantize_rows(plan, KEYS, torch.from_numpy(x).to(device), first)
        back = tr.reconstruct_rows(plan, KEYS, h, m, size, first)
        if compiling:
            continue
        for client, key in enumerate(KEYS):
            rows = padded_rows(to_units(plan, x[client]), plan.n)
            trials, points, units = rows_by_numba(plan, key, rows, first)
            if size <= 1025 and plan.accept is not Accept.L1_BALL:
                slow = reference.quantize(plan, key, rows, first)
                if not (np.array_equal(slow[0], trials) and np.array_equal(slow[1], points)):
                    return f"DIFFERENT: NumPy and Numba at size {size}"
            wrong = (h[client].cpu().numpy() != trials) | (m[client].cpu().numpy() != points).any(axis=1)
            if wrong.any():
                return f"DIFFERENT symbols at size {size}: {wrong.sum()} of {len(wrong)} sub-vectors"
            values = (reference.to_grid(units).astype(np.float64) * plan.grid).astype(np.float32).reshape(-1)[:size]
            if not np.array_equal(back[client].cpu().numpy().view(np.int32), values.view(np.int32)):
                return f"DIFFERENT vectors at size {size}"
            compared += size
    return f"identical over {compared:,} coordinates, sizes {sizes}"


def rows_by_numba(plan: Plan, key: bytes, rows: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trials, lattice coordinates and positions in units by the compiled kernels."""
    h, m, units = np.empty(len(rows), dtype=np.int64), np.empty_like(rows), np.empty_like(rows)
    assert quantize_rows(numbers_of(plan), scratch_for(plan), key_words(key), rows, first, h, m)
    assert reconstruct_rows(numbers_of(plan), scratch_for(plan), key_words(key), h, m, first, units)
    return h, m, units


def by_numba(plan: Plan, key: bytes, units: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Symbols and multiples of the grid by the compiled kernels."""
    count = len(units)
    b, d, m = (np.empty(count, dtype=np.int64) for _ in range(3))
    words = np.empty(-(-count // 128) * 256, dtype=np.uint32)
    widths_and_dithers(numbers_of(plan), key_words(key), np.empty(256, dtype=np.uint32), first, count, words, b, d)
    quantize_scalar(units, b, d, m)
    return m, reference.to_grid(m * b + d)
