"""The vector coder: both loops write the same bytes, every point comes back, and any bytes end in bounded time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cepam
from cepam.codec.codec import DitheredCodec
from cepam.codec.wire import rows_per_block
from cepam.errors import MalformedMessage
from cepam.kernels.format import vector_contexts as contexts
from cepam.kernels.format.plan import CodingTask, cell_plan, layered_plan
from cepam.kernels.numba.backend import NumbaBackend
from cepam.kernels.numpy.backend import NumpyBackend
from cepam.lattices.geometry import orthogonal_walk
from tests.kernels import vector_coder_by_hand

SKEWED = cepam.Lattice([[1.0, 0.3, 0.2], [0.0, 0.9, 0.4], [0.1, 0.0, 1.1]])
LATTICES = [cepam.A2, cepam.D4, cepam.E8, cepam.Integer(2), cepam.Integer(3), SKEWED]
KEY = bytes(range(32))


def update(kind: str, size: int) -> np.ndarray:
    draw = np.random.default_rng(3)
    if kind == "sparse":
        return draw.normal(size=size) * (draw.random(size) < 0.05)
    if kind == "wild":
        return np.clip(draw.standard_t(2, size) * 10.0 ** draw.uniform(-4, 4, size), -5e3, 5e3)
    return draw.normal(size=size)


def kinds_and_scales() -> list[Any]:
    """Every kind of update with every scale on every lattice; any two of the three meet in the ordinary suite too."""
    numbered = (list(enumerate(each)) for each in (LATTICES, ("plain", "sparse", "wild"), (30.0, 1.0, 0.01)))
    return [
        pytest.param(lattice, kind, sigma, id=f"{lattice.name}-{kind}-{sigma}", marks=marks)
        for (i, lattice), (j, kind), (k, sigma) in itertools.product(*numbered)
        for marks in [() if (i + j + k) % 3 == 0 else pytest.mark.slow]
    ]


@pytest.mark.parametrize(("lattice", "kind", "sigma"), kinds_and_scales())
def test_both_loops_write_the_same_bytes(lattice: cepam.Lattice, kind: str, sigma: float) -> None:
    x = update(kind, 900)
    at = cepam.Address(cepam.Key(KEY), round=1, client=2)
    compiled = cepam.Codec(cepam.Gaussian(sigma), lattice, backend="numba")
    plain = replace(compiled, backend="numpy")
    message = compiled.encode(x, at)
    assert plain.encode(x, at) == message
    assert (compiled.decode(message, at) == plain.decode(message, at)).all()
    assert np.abs(compiled.decode(message, at) - x).max() < 7 * sigma


@pytest.mark.parametrize("lattice", [cepam.A2, cepam.Integer(3), cepam.D4], ids=lambda lattice: lattice.name)
def test_laplace_noise_and_plain_dithering(lattice: cepam.Lattice) -> None:
    x = update("plain", 700)
    at = cepam.Address(cepam.Key(KEY), round=1, client=2)
    for codec in (cepam.Codec(cepam.Laplace(0.2), lattice), DitheredCodec(0.2, lattice), DitheredCodec(9.0, lattice)):
        message = codec.encode(x, at)
        plain = replace(codec, backend="numpy")
        assert plain.encode(x, at) == message
        assert (codec.decode(message, at) == plain.decode(message, at)).all()


@pytest.mark.parametrize("lattice", LATTICES, ids=lambda lattice: lattice.name)
def test_an_update_without_consequence_costs_nothing(lattice: cepam.Lattice) -> None:
    at = cepam.Address(cepam.Key(KEY), round=1, client=2)
    codec = cepam.Codec(cepam.Gaussian(1.0), lattice)
    assert len(codec.encode(np.full(5000, 1e-12), at)) < 26


@pytest.mark.parametrize("lattice", [cepam.A2, cepam.E8, SKEWED], ids=lambda lattice: lattice.name)
def test_any_bytes_decode_alike_or_are_refused(lattice: cepam.Lattice) -> None:
    draw = np.random.default_rng(5)
    task = CodingTask(layered_plan(cepam.Gaussian(1.0), lattice), "adaptive", KEY, rows_per_block(lattice.dimension))
    for size in (1, 2, 7, 60, 600):
        block = draw.integers(0, 256, size, dtype=np.uint8).tobytes()
        ends = []
        for backend in (NumbaBackend(), NumpyBackend()):
            out = np.zeros(400)
            try:
                backend.decode_span(task, [block], 0, out)
            except MalformedMessage:
                out[:] = np.nan
            ends.append(out)
        assert np.array_equal(ends[0], ends[1], equal_nan=True)


@pytest.mark.parametrize("lattice", LATTICES, ids=lambda lattice: lattice.name)
def test_the_walk_tells_every_vector_along_orthogonal_axes(lattice: cepam.Lattice) -> None:
    """Coordinate i alone decides where a vector lies along axis i, once those told before it are known."""
    walk = orthogonal_walk(lattice.basis)
    draw = np.random.default_rng(1)
    for _ in range(20):
        j = draw.integers(-50, 51, lattice.dimension)
        vector = lattice.basis @ j
        along = walk.axes @ vector
        assert np.allclose(along, j + walk.shear @ j, atol=1e-6)
    lengths = 1.0 / np.linalg.norm(walk.axes, axis=1)
    assert np.allclose(2.0 ** (walk.spacing / 256), lengths, rtol=0.07)
    assert np.isclose(np.prod(lengths), lattice.determinant)
    assert sorted(walk.order) == list(range(lattice.dimension))


@pytest.mark.parametrize("lattice", LATTICES, ids=lambda lattice: lattice.name)
@pytest.mark.parametrize("kind", ["plain", "wild"])
@pytest.mark.parametrize("law", [cepam.Gaussian(1.0), cepam.Laplace(0.05), None], ids=["gaussian", "laplace", "cell"])
def test_bytes_equal_those_made_by_hand(lattice: cepam.Lattice, kind: str, law: cepam.Law | None) -> None:
    if law is not None and lattice.acceptance(law.norm) < 0.1:
        pytest.skip("hundreds of trials a row: nothing new, and slow")
    plan = cell_plan(lattice, 0.5) if law is None else layered_plan(law, lattice)
    values = update(kind, 60 * lattice.dimension)
    x = np.trunc(values / plan.unit).astype(np.int64).reshape(-1, lattice.dimension)
    task = CodingTask(plan, "adaptive", KEY, rows_per_block(lattice.dimension))
    tables = (table.tolist() for table in contexts.load_tables(int(plan.accept), plan.n))
    by_hand = vector_coder_by_hand.encode(plan, KEY, x, *tables)
    assert NumbaBackend().encode_span(task, values, 0) == [by_hand]
