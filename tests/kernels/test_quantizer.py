"""The reference quantizer: cost of reconstruction, dithers, the public grid, the range of the format."""

from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam.kernels.format.plan import GRID_BITS, layered_plan
from cepam.kernels.numba.quantizer import fill_dithers, fill_widths
from cepam.kernels.numpy import quantizer as reference

AT = cepam.Address(bytes(range(32)), round=3, client=1)


@pytest.mark.parametrize("lattice", [cepam.Integer(1), cepam.A2, cepam.E8])
def test_reconstruction_costs_the_same_for_every_h(lattice: cepam.Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts keystream blocks and words, not seconds."""
    drawn: list[int] = []
    plain = reference.stream_words

    def counted(key: bytes, stream: int, index: np.ndarray) -> np.ndarray:
        drawn.append(index.size)
        return plain(key, stream, index)

    monkeypatch.setattr(reference, "stream_words", counted)
    plan = cepam.LRSUQ(cepam.Gaussian(1.0), lattice).plan
    m = np.zeros((50, lattice.dimension), dtype=np.int64)
    costs = []
    for h in (1, 2, 1000):
        drawn.clear()
        reference.reconstruct(plan, AT.derive().noise, np.full(50, h), m)
        costs.append((len(drawn), sum(drawn)))
    assert costs[0] == costs[1] == costs[2] == (2, 50 * (1 + lattice.dimension))


@pytest.mark.parametrize("lattice", [cepam.Integer(3), cepam.E8, cepam.Lattice([[2.0, 1.0], [0.0, 1.0]])])
def test_compiled_quantizers_are_the_reference(lattice: cepam.Lattice) -> None:
    quantizer, key = cepam.LRSUQ(cepam.Gaussian(1.0), lattice), AT.derive().noise
    x = np.random.default_rng(1).standard_t(2, 40 * lattice.dimension) * 3
    h, m = quantizer.quantize(x, AT)
    rows = np.trunc(x / quantizer.plan.unit).astype(np.int64).reshape(-1, lattice.dimension)
    wanted = reference.quantize(quantizer.plan, key, rows)
    assert np.array_equal(h, wanted[0])
    assert np.array_equal(m, wanted[1])
    units = reference.reconstruct(quantizer.plan, key, *wanted)
    assert np.array_equal(quantizer.reconstruct(h, m, AT, released=False), units.reshape(-1) * quantizer.plan.unit)
    for trials, points in ((h - h, m), (h[1:], m), (h, m[:, 1:])):
        with pytest.raises(ValueError, match="h must be trials"):
            quantizer.reconstruct(trials, points, AT)


@pytest.mark.parametrize("lattice", [cepam.Integer(1), cepam.A2, cepam.D4, cepam.E8])
def test_dithers_fill_the_box_and_nothing_else(lattice: cepam.Lattice) -> None:
    plan = cepam.LRSUQ(cepam.Gaussian(1.0), lattice).plan
    ids = np.arange(4000)
    _, b = reference.layers(plan, AT.derive().noise, ids)
    v = reference.dither(plan, AT.derive().noise, 0, ids, b)
    share = v / (b[:, None] * plan.box)
    assert share.min() >= 0
    assert share.max() < 1
    assert share.min() < 0.01
    assert share.max() > 0.99


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("law", [cepam.Gaussian(0.013), cepam.Laplace(3e-7), cepam.UniformBall(5e9)])
def test_decode_returns_multiples_of_the_public_grid(law: cepam.Law, dtype: type) -> None:
    rng = np.random.default_rng(0)
    codec = cepam.Codec(law, lattice=cepam.E8 if law.norm == "l2" else cepam.Integer(2))
    x = (rng.standard_t(2, 5000) * 100 * law.scale).astype(dtype)
    vector = codec.decode(codec.encode(x, AT), AT)
    steps = vector.astype(np.float64) / codec.grid
    assert np.array_equal(steps, np.rint(steps))
    assert law.scale * 2.0**-13 < codec.grid <= law.scale * 2.0**-12


def test_rounding_to_the_grid_is_to_the_nearest() -> None:
    step = 1 << GRID_BITS
    units = np.array([0, step // 2 - 1, step // 2, step, -step // 2, -step // 2 - 1])
    assert reference.to_grid(units).tolist() == [0, 0, 1, 1, 0, -1]


@pytest.mark.parametrize("sigma", [1.0, 1.9999, 0.013])
def test_a_million_noise_scales_are_carried_and_more_is_refused(sigma: float) -> None:
    codec = cepam.Codec(cepam.Gaussian(sigma), lattice=cepam.Integer(1))
    x = np.array([2.0**20, -(2.0**20)]) * sigma
    assert np.abs(codec.decode(codec.encode(x, AT), AT) - x).max() < 10 * sigma
    for bad in (2.0**21 * sigma * 1.001, np.inf, np.nan):
        with pytest.raises(ValueError, match=r"range|NaN"):
            codec.encode(np.array([bad]), AT)


@pytest.mark.parametrize("count", [1, 7, 8, 129])
def test_widths_and_dithers_eight_abreast_are_those_one_by_one(count: int) -> None:
    plan = layered_plan(cepam.Gaussian(0.01), cepam.Integer(1))
    rng = np.random.default_rng(count)
    words = rng.integers(0, 2**64, count, dtype=np.uint64) >> rng.integers(0, 64, count, dtype=np.uint64)
    words[: count // 3] = ~words[: count // 3]
    b, d = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    fill_widths(words, plan.table, plan.scale, b)
    assert (b == 2 * reference.radius_of_word(plan, words).astype(np.int64) + 1).all()
    widest = rng.integers(1, 2**49, count)
    widest[: count // 2] = 2**49 - 1
    for widths in (b, widest):
        fill_dithers(words, widths, d)
        assert d.tolist() == [int(word) * int(width) >> 64 for word, width in zip(words, widths)]


def test_multiply_high_against_python_integers() -> None:
    words = np.random.default_rng(1).integers(0, 2**64, (2, 500), dtype=np.uint64)
    wanted = [(int(a) * int(b)) >> 64 for a, b in zip(*words)]
    assert reference.multiply_high(words[0], words[1]).tolist() == wanted
