"""The GPU kernels beside the NumPy reference, through Triton's interpreter: the same words, symbols and vectors.

Skipped only where Triton or PyTorch is not installed; `bench/gpu.py` runs the same comparisons on a GPU.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import numpy as np
import pytest

import cepam
from cepam.kernels.model.plan import cell_plan, layered_plan
from cepam.kernels.model.task import padded_rows
from cepam.kernels.numpy import quantizer as reference
from cepam.kernels.numpy.backend import to_units
from cepam.kernels.numpy.keystream import chacha

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
pytest.importorskip("triton", reason="the GPU path needs Triton")

from cepam.kernels.triton import keystream as triton_chacha  # noqa: E402
from cepam.kernels.triton import scalar_launch as triton_quantize  # noqa: E402
from cepam.kernels.triton import vector_launch as triton_rows  # noqa: E402
from cepam.kernels.triton.plan import Tile, device_keys  # noqa: E402

KEYS = [bytes(range(i, i + 32)) for i in (1, 77)]
TILE = Tile(lanes=32, warps=1)
SCALAR_PLANS = {
    "gaussian": layered_plan(cepam.Gaussian(0.01), cepam.Integer(1)),
    "laplace": layered_plan(cepam.Laplace(0.3), cepam.Integer(1)),
    "cells": cell_plan(cepam.Integer(1), 0.02),
}

VECTOR_PLANS = {
    "E8": layered_plan(cepam.Gaussian(0.01), cepam.E8),
    "D4": layered_plan(cepam.Laplace(0.3), cepam.D4),
    "A2": layered_plan(cepam.Gaussian(2.0), cepam.A2),
    "Z3": layered_plan(cepam.Gaussian(0.01), cepam.Integer(3)),
    "cells of E8": cell_plan(cepam.E8, 0.02),
}


def keystream(key: bytes, stream: int, first: int, rounds: int) -> np.ndarray:
    out = torch.zeros((16, 8), dtype=torch.int64)
    triton_chacha.fill_blocks[(1,)](device_keys([key], "cpu"), out, stream, first, lanes=16, rounds=rounds)
    return out.numpy().view(np.uint32)


def test_keystream_is_the_published_one() -> None:
    """RFC 8439, 2.3.2: key 00..1f, counter 1, nonce 00:00:00:09:00:00:00:4a:00:00:00:00 (words 13-15 of the state)."""
    key = bytes(range(32))
    first, stream = 1 | 0x09000000 << 32, 0x4A000000
    block = keystream(key, stream, first, 20)[0].astype("<u4").tobytes()
    assert block[:16].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"
    assert block[48:].hex() == "b5129cd1de164eb9cbd083e8a2503c4e"


@pytest.mark.parametrize("first", [0, 2**32 - 5])
def test_keystream_is_the_reference(first: int) -> None:
    stream, blocks = 1 << 33 | 5, first + np.arange(16)
    tail = np.stack([blocks & 0xFFFFFFFF, blocks >> 32, 0 * blocks + 5, 0 * blocks + 2], axis=1).astype(np.uint32)
    assert np.array_equal(keystream(KEYS[0], stream, first, 12), chacha(KEYS[0], tail))


@pytest.mark.parametrize("name", SCALAR_PLANS)
@pytest.mark.parametrize("size", [1, 9, 401])
def test_scalar_symbols_and_vectors(name: str, size: int) -> None:
    plan, first = SCALAR_PLANS[name], 8 * 1000
    rng = np.random.default_rng(size)
    x = rng.normal(0, plan.scale * plan.unit, (2, size)) * np.exp(rng.normal(0, 4, (2, size)))
    x = x.astype(np.float32)
    m = triton_quantize.quantize(plan, KEYS, torch.from_numpy(x), first, tile=TILE)
    back = triton_quantize.reconstruct(plan, KEYS, m, first, torch.float64, tile=TILE)
    for client, key in enumerate(KEYS):
        h, expected = reference.quantize(plan, key, to_units(plan, x[client])[:, None], first)
        assert np.array_equal(m[client].numpy(), expected[:, 0])
        units = reference.reconstruct(plan, key, h, expected, first)
        assert np.array_equal(back[client].numpy(), reference.to_grid(units)[:, 0] * plan.grid)


def test_extreme_inputs_agree() -> None:
    plan = SCALAR_PLANS["gaussian"]
    edges = np.array([0.0, -0.0, plan.reach, -plan.reach, plan.unit, -plan.unit, 1e-300, plan.reach / 3])
    m = triton_quantize.quantize(plan, KEYS[:1], torch.from_numpy(edges[None]), tile=TILE)
    _, expected = reference.quantize(plan, KEYS[0], to_units(plan, edges)[:, None])
    assert np.array_equal(m[0].numpy(), expected[:, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_refuses_what_the_cpu_refuses(bad: float) -> None:
    x = torch.zeros((1, 9), dtype=torch.float32)
    x[0, 3] = bad
    with pytest.raises(ValueError, match="reach of this noise"):
        triton_quantize.quantize(SCALAR_PLANS["gaussian"], KEYS[:1], x, tile=TILE)


def test_symbols_that_do_not_fit_are_refused() -> None:
    plan = SCALAR_PLANS["gaussian"]
    x = torch.full((1, 9), plan.reach, dtype=torch.float64)
    with pytest.raises(ValueError, match="reach of this noise"):
        triton_quantize.quantize(plan, KEYS[:1], x, symbols=torch.int8, tile=TILE)


def test_nothing_to_quantize() -> None:
    empty = torch.zeros((2, 0), dtype=torch.float32)
    assert triton_quantize.quantize(SCALAR_PLANS["gaussian"], KEYS, empty).shape == (2, 0)


def test_points_outside_the_format_are_refused() -> None:
    m = torch.full((1, 3), 2**60, dtype=torch.int64)
    with pytest.raises(cepam.errors.MalformedMessage):
        triton_quantize.reconstruct(SCALAR_PLANS["gaussian"], KEYS[:1], m, tile=TILE)


@pytest.mark.parametrize("name", VECTOR_PLANS)
def test_vector_symbols_and_vectors(name: str) -> None:
    """A lane takes two sub-vectors here, so that it also takes up its second one while others are at their first."""
    plan, first = VECTOR_PLANS[name], 8 * 1000
    size = 5 * plan.n - 1
    rng = np.random.default_rng(3)
    x = rng.normal(0, plan.scale * plan.unit, (1, size)) * np.exp(rng.normal(0, 3, (1, size)))
    h, m = triton_rows.quantize_rows(plan, KEYS[:1], torch.from_numpy(x), first, tile=Tile(lanes=4, warps=1, share=2))
    back = triton_rows.reconstruct_rows(plan, KEYS[:1], h, m, size, first, torch.float64, Tile(lanes=8, warps=1))
    trials, points = reference.quantize(plan, KEYS[0], padded_rows(to_units(plan, x[0]), plan.n), first)
    assert np.array_equal(h[0].numpy(), trials)
    assert np.array_equal(m[0].numpy(), points)
    units = reference.reconstruct(plan, KEYS[0], trials, points, first)
    assert np.array_equal(back[0].numpy(), (reference.to_grid(units) * plan.grid).reshape(-1)[:size])


def test_user_lattices_name_the_cpu() -> None:
    plan = cell_plan(cepam.Lattice([[1.0, 0.3], [0.0, 1.1]]), 0.1)
    with pytest.raises(NotImplementedError, match="CPU"):
        triton_rows.quantize_rows(plan, KEYS[:1], torch.zeros((1, 4), dtype=torch.float32))
