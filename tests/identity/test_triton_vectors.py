"""The coder of vector lattices on a GPU beside the compiled one, through Triton's interpreter: same bytes and vectors.

A lane is slow here, so blocks have eight sub-vectors. `bench/gpu.py --only identity` compares whole blocks on a GPU,
for every law on every lattice.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import numpy as np
import pytest

import cepam
from cepam.errors import MalformedMessage
from cepam.kernels.format.plan import CodingTask, Plan, cell_plan, layered_plan
from cepam.kernels.numba.backend import NumbaBackend
from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
pytest.importorskip("triton", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend as triton_backend  # noqa: E402
from cepam.kernels.triton import launch as waves  # noqa: E402

KEYS = [bytes(range(i, i + 32)) for i in (1, 77)]
ROWS = 8
PLANS = {
    "E8": layered_plan(cepam.Gaussian(0.01), cepam.E8),
    "A2": layered_plan(cepam.Laplace(0.3), cepam.A2),
    "D4": layered_plan(cepam.Gaussian(2.0), cepam.D4),
    "Z3": layered_plan(cepam.UniformBall(0.01), cepam.Integer(3)),
    "cells of A2": cell_plan(cepam.A2, 0.02),
}
SLOW = ("D4", "E8")


def compiled(plan: Plan, key: bytes, x: np.ndarray) -> list[bytes]:
    return NumbaBackend().encode_span(CodingTask(plan, "adaptive", key, ROWS), x, 0)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in PLANS])
def test_bytes_and_vectors_are_the_cpus(name: str) -> None:
    """Two clients, the second with two blocks of zeros; the last block is short; sizes from little to far outside."""
    plan = PLANS[name]
    size, draw = plan.n * ROWS + 3, np.random.default_rng(1)
    x = draw.normal(0, plan.scale * plan.unit, (2, size)) * np.exp(draw.normal(0, 1.5, (2, size)))
    x[1, :] = 0.0
    x[0, 5] = -plan.reach
    x = x.astype(np.float64 if plan.n % 2 else np.float32)
    coded = waves.encode_measured(waves.measure(plan, KEYS, torch.from_numpy(x), ROWS))
    for key, row, blocks in zip(KEYS, x, triton_backend.to_host(coded)):
        assert list(blocks) == compiled(plan, key, row)
    back = waves.decode_blocks(plan, KEYS, coded, size, torch.from_numpy(x).dtype, ROWS).numpy()
    for key, found, row in zip(KEYS, back, x):
        out = np.empty_like(row)
        NumbaBackend().decode_span(CodingTask(plan, "adaptive", key, ROWS), compiled(plan, key, row), 0, out)
        assert found.tobytes() == out.tobytes()


def test_hostile_bytes() -> None:
    """Any bytes decode to what the CPU makes of them, or are refused by both; every block is a client of its own."""
    plan, draw = PLANS["A2"], np.random.default_rng(5)
    made = [b"", b"\0" * 9, b"\xfd", draw.bytes(3), draw.bytes(30), b"\xff" * 40]
    task, found = CodingTask(plan, "adaptive", KEYS[0], ROWS), {}
    for block in made:
        out = np.empty(2 * ROWS)
        try:
            NumbaBackend().decode_span(task, [block], 0, out)
            found[block] = out.tobytes()
        except MalformedMessage:
            found[block] = b""
    good = [block for block in made if found[block]]
    on = triton_backend.to_device([[block] for block in good], "cpu")
    values = waves.decode_blocks(plan, [KEYS[0]] * len(good), on, 2 * ROWS, torch.float64, ROWS).numpy()
    assert [row.tobytes() for row in values] == [found[block] for block in good]
    bad = [block for block in made if not found[block]]
    assert bad
    on = triton_backend.to_device([bad[:1]], "cpu")
    with pytest.raises(MalformedMessage):
        waves.decode_blocks(plan, KEYS[:1], on, 2 * ROWS, torch.float64, ROWS)
