"""The quantizers on a GPU beside the CPU's, through Triton's interpreter: the same integers and vectors.

`bench/gpu.py --only identity` compares many more on a GPU, for every law on every lattice.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import numpy as np
import pytest

import cepam
from cepam.codec import quantizers
from cepam.errors import MalformedMessage
from cepam.kernels import dispatch
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy import quantizer as reference
from cepam.kernels.numpy.quantizer import nearest
from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
triton = pytest.importorskip("triton", reason="the GPU path needs Triton")
tl = pytest.importorskip("triton.language")

from cepam.kernels.triton import layers, symbols, vector_quantizer  # noqa: E402
from cepam.kernels.triton.layers import invert_below  # noqa: E402
from cepam.kernels.triton.plan import device_keys, device_plan  # noqa: E402
from cepam.kernels.triton.symbols import round_near_quotient  # noqa: E402

AT = cepam.Address(bytes(range(32)), round=3, client=1)
LAWS = {"Gaussian": cepam.Gaussian(0.01), "Laplace": cepam.Laplace(0.3), "ball": cepam.UniformBall(2.0)}
LATTICES = {"Z1": cepam.Integer(1), "A2": cepam.A2, "D4": cepam.D4, "E8": cepam.E8}


@pytest.fixture(autouse=True)
def tensors_are_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    # The interpreter runs programs one after another: few and small ones.
    for name, value in {"LANES": 8, "WARPS": 1, "TRIAL_LANES": 16, "SHARE": 2, "PROGRAMS": 1}.items():
        monkeypatch.setattr(symbols, name, value)


def update(size: int, scale: float) -> np.ndarray:
    draw = np.random.default_rng(size)
    return (draw.normal(0, scale, size) * np.exp(draw.normal(0, 1.5, size))).astype(np.float32)


def by_reference(of: cepam.LRSUQ | cepam.SDQ, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(H, M, the vector in units) of the reference kernels."""
    h, m = reference.quantize(of.plan, AT.derive().noise, quantizers._rows(of.plan, x))
    return h, m, reference.reconstruct(of.plan, AT.derive().noise, h, m).reshape(-1)[: len(x)]


def check_alike(of: cepam.LRSUQ, x: np.ndarray) -> tuple[object, object]:
    """(H, M) on the GPU, after a comparison of integers and vectors with the reference, bit for bit."""
    h, m = of.quantize(torch.from_numpy(x), AT)
    trials, points, units = by_reference(of, x)
    assert h.dtype == torch.int32
    assert np.array_equal(h.numpy(), trials)
    assert np.array_equal(m.numpy(), points)
    grid = reference.to_grid(units) * of.plan.grid
    assert of.reconstruct(h, m, AT, len(x)).numpy().tobytes() == grid.tobytes()
    assert of.reconstruct(h, m, AT, len(x), released=False).numpy().tobytes() == (units * of.plan.unit).tobytes()
    return h, m


PAIRS = [
    pytest.param(law, lattice, marks=pytest.mark.slow if (law, lattice) == ("Laplace", "E8") else ())
    for law in LAWS
    for lattice in LATTICES
]
"""Laplace on E8 accepts one trial in 157."""


@pytest.mark.parametrize(("law", "lattice"), PAIRS)
def test_symbols_and_vectors_are_the_cpus(law: str, lattice: str) -> None:
    """Not a whole number of sub-vectors."""
    of = cepam.LRSUQ(LAWS[law], LATTICES[lattice])
    check_alike(of, update(3 * of.lattice.dimension + 1, of.law.scale))


def test_nothing_and_one() -> None:
    of = cepam.LRSUQ(LAWS["Gaussian"], cepam.A2)
    h, m = of.quantize(torch.zeros(0), AT)
    assert (h.shape, m.shape, of.reconstruct(h, m, AT).shape) == ((0,), (0, 2), (0,))
    check_alike(of, update(1, 0.01))


def test_programs_of_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tiles in two programs of four, the last of them short, and coordinates that are no whole group."""
    for name, value in {"LANES": 2, "PROGRAMS": 1}.items():
        monkeypatch.setattr(symbols, name, value)
    check_alike(cepam.LRSUQ(LAWS["Gaussian"]), update(8 * 2 * 5 + 8 + 3, 0.01))


def test_words_that_run_over_a_block() -> None:
    """Three coordinates a sub-vector, more than fit one keystream block."""
    check_alike(cepam.LRSUQ(LAWS["Gaussian"], cepam.Integer(3)), update(3 * 11, 0.01))


def test_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LANES": 2, "SHARE": 1, "WAVE": 16}.items():
        monkeypatch.setattr(symbols, name, value)
    check_alike(cepam.LRSUQ(LAWS["Gaussian"], cepam.E8), update(8 * 20, 0.01))


def test_plain_dithering_is_the_cpus() -> None:
    for lattice in (cepam.Integer(1), cepam.E8):
        of, x = cepam.SDQ(0.02, lattice), update(21, 0.1)
        m = of.quantize(torch.from_numpy(x), AT)
        _, points, units = by_reference(of, x)
        assert np.array_equal(m.numpy(), points)
        assert of.reconstruct(m, AT, 21).numpy().tobytes() == (units * of.plan.unit).tobytes()


def test_one_dimension_takes_little_memory_and_int64_where_it_must() -> None:
    of, x = cepam.LRSUQ(LAWS["Gaussian"]), update(40, 0.01)
    h, m = check_alike(of, x)
    assert (h.stride(), m.dtype) == ((0,), torch.int32)
    x[7], x[9] = of.plan.reach, -1e4
    assert check_alike(of, x.astype(np.float64))[1].dtype == torch.int64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_widened(dtype: str) -> None:
    of, x = cepam.LRSUQ(LAWS["Gaussian"]), torch.from_numpy(update(17, 0.01)).to(getattr(torch, dtype))
    assert np.array_equal(of.quantize(x, AT)[1].numpy(), by_reference(of, x.float().numpy())[1])


def test_another_key_gives_other_symbols() -> None:
    of, x = cepam.LRSUQ(LAWS["Gaussian"]), torch.from_numpy(update(60, 0.01))
    other = cepam.Address(bytes(32), round=3, client=1)
    assert not torch.equal(of.quantize(x, AT)[1], of.quantize(x, other)[1])


@pytest.mark.parametrize("lattice", ["Z1", "A2"])
def test_what_is_no_vector_is_refused(lattice: str) -> None:
    of = cepam.LRSUQ(LAWS["Gaussian"], LATTICES[lattice])
    for bad in (np.nan, np.inf, -np.inf, 1.001 * of.plan.reach):
        x = torch.zeros(19, dtype=torch.float64)
        x[18] = bad
        with pytest.raises(ValueError, match="finite vector"):
            of.quantize(x, AT)
    for wrong in (torch.zeros(2, 2), torch.zeros(3, dtype=torch.int64)):
        with pytest.raises(ValueError, match="must"):
            of.quantize(wrong, AT)


def test_what_quantize_never_returns_is_refused() -> None:
    of = cepam.LRSUQ(LAWS["Gaussian"], cepam.A2)
    h, m = torch.ones(3, dtype=torch.int32), torch.zeros((3, 2), dtype=torch.int32)
    for trials, points in (
        (h[:2], m),
        (h - 1, m),
        (h + of.plan.trials, m),
        (h.float(), m),
        (h, m[:, :1]),
        (h, m.float()),
    ):
        with pytest.raises(ValueError, match=r"[hm] must"):
            of.reconstruct(trials, points, AT)
    for each in (of, cepam.LRSUQ(LAWS["Gaussian"])):
        far = torch.full((3, each.lattice.dimension), 2**60)
        with pytest.raises(MalformedMessage):
            each.reconstruct(h, far, AT)


def test_what_has_no_kernels_is_refused() -> None:
    x = torch.zeros(4)
    with pytest.raises(ValueError, match=r"x\.cpu\(\)"):
        cepam.LRSUQ(LAWS["Gaussian"], cepam.Lattice([[2.0, 1.0], [0.0, 1.0]])).quantize(x, AT)
    rsuq = cepam.RSUQ(0.1, lambda errors: np.abs(errors).max(axis=1) < 0.04)
    with pytest.raises(ValueError, match=r"x\.cpu\(\)"):
        rsuq.quantize(x, AT)
    with pytest.raises(ValueError, match=r"m\.cpu\(\)"):
        rsuq.reconstruct(*(torch.from_numpy(each) for each in rsuq.quantize(x.numpy(), AT)), AT)


@triton.jit
def fill_radii_of_words(words, zeros, radii, widths, draws, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, lanes)
    word, scale = tl.load(words + at).to(tl.uint64, bitcast=True), tl.load(draws.numbers + layers.SCALE)
    tl.store(zeros + at, layers.leading_zeros((word << 1) | 1))
    tl.store(radii + at, layers.radius_of_word(word, draws.table, scale))
    tl.store(widths + at, layers.width_of_word(word, draws.table, scale))


@pytest.mark.parametrize("law", LAWS)
def test_radii_of_awkward_words_are_the_cpus(law: str) -> None:
    """Next to every power of two, where a rounding that carries would take the wrong octave, and at random."""
    near = [s << 63 | (1 << k) + j & (1 << 63) - 1 for s in (0, 1) for k in range(64) for j in range(-4, 5)]
    drawn = np.random.default_rng(5).integers(0, 2**64, 2048 - len(near), dtype=np.uint64)
    words = np.concatenate([np.array(near, dtype=np.uint64), drawn])
    plan = layered_plan(LAWS[law], cepam.Integer(1))
    zeros, radii, widths = (torch.zeros(2048, dtype=kind) for kind in (torch.int32, torch.float64, torch.int64))
    draws = device_plan(plan, "cpu").draws(device_keys([bytes(32)], "cpu"))
    fill_radii_of_words[(1,)](torch.from_numpy(words.view(np.int64)), zeros, radii, widths, draws, lanes=2048)
    assert zeros.tolist() == [64 - (2 * int(word) % 2**64 + 1).bit_length() for word in words]
    expected = reference.radius_of_word(plan, words)
    assert radii.numpy().tobytes() == expected.tobytes()
    assert np.array_equal(widths.numpy(), reference.scale_of_radius(plan, expected))


@triton.jit
def fill_quotients(t, b, near, wide, fits, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, lanes)
    symbol, right = round_near_quotient(tl.load(t + at), tl.load(b + at))
    tl.store(near + at, symbol)
    tl.store(fits + at, right.to(tl.int32))
    tl.store(wide + at, layers.round_quotient(tl.load(t + at), tl.load(b + at)))


@triton.jit
def invert_badly(b):  # type: ignore[no-untyped-def]
    return invert_below(b) * 1.0000000000001137  # 1 + 2^-43


@triton.jit
def invert_badly_below(b):  # type: ignore[no-untyped-def]
    return invert_below(b) * 0.9999999999998863


@triton.jit
def invert_too_badly(b):  # type: ignore[no-untyped-def]
    return invert_below(b) * 1.0001


def quotients(t: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """In 32 bits, whether they fit, in 64 bits, and Python's."""
    near, fits = torch.zeros(len(t), dtype=torch.int32), torch.zeros(len(t), dtype=torch.int32)
    wide = torch.zeros(len(t), dtype=torch.int64)
    fill_quotients[(1,)](torch.from_numpy(t), torch.from_numpy(b), near, wide, fits, lanes=len(t))
    wanted = np.array([(int(x) + int(w) // 2) // int(w) for x, w in zip(t, b)])
    return near.numpy(), fits.numpy() == 1, wide.numpy(), wanted


def awkward(most: float, largest: float, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Values under 2^most next to halves and wholes of widths from 2^11 to 2^50, odd and even; quotients too large for
    2^largest are left out."""
    b = (2.0 ** draw.uniform(11, 49.9, 4096)).astype(np.int64)
    large = 2.0 ** draw.uniform(0, np.minimum(largest, most - 0.1 - np.log2(b)))
    q = (draw.choice([-1, 1], 4096) * large).astype(np.int64)
    return q * b + draw.choice([0, 1], 4096) * (b // 2) + draw.integers(-2, 3, 4096), b


@pytest.mark.parametrize("guess", [invert_below, invert_badly, invert_badly_below])
def test_quotients_are_exact_or_say_that_they_may_not_be(guess: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside Python's whole numbers, with guesses as bad as a GPU's may be."""
    monkeypatch.setattr(symbols, "invert_below", guess)
    monkeypatch.setattr(layers, "invert_below", guess)
    near, right, wide, wanted = quotients(*awkward(52, 33, np.random.default_rng(2)))
    assert np.array_equal(near[right], wanted[right])
    assert np.array_equal(right, np.abs(wanted) < 2**31 - 2**10)
    assert (~right).sum() > 50
    assert np.array_equal(wide, wanted)
    _, _, wide, wanted = quotients(*awkward(62, 50, np.random.default_rng(3)))
    assert np.array_equal(wide, wanted)
    assert (np.abs(wanted) > 2**43).sum() > 50


def test_quotients_from_guesses_that_are_too_bad_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "invert_below", invert_too_badly)
    _, _, wide, wanted = quotients(*awkward(62, 50, np.random.default_rng(3)))
    assert not np.array_equal(wide, wanted)


@triton.jit
def fill_squares(fractions, words, out, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    at, mine, high = tl.arange(0, lanes), (), ()
    for i in tl.static_range(8):
        mine += (tl.load(fractions + at * 8 + i),)
        word = tl.load(words + at * 8 + i).to(tl.uint32, bitcast=True)
        high += (word, word)
    tl.store(out + at, vector_quantizer.square_distance(mine, high))


def test_squares_in_32_bits_are_close_to_the_exact_ones() -> None:
    """Within the 2^-15 that `refusals` proves, for the least and larger scales; the margin is four times that."""
    draw, lanes = np.random.default_rng(4), 4096
    plan = layered_plan(LAWS["Gaussian"], cepam.E8)
    b = np.where(np.arange(lanes) % 2, 1 << 26, draw.integers(1 << 26, 1 << 42, lanes))
    x = (draw.normal(0, 4.0, (lanes, 8)) * b[:, None]).astype(np.int64)
    words = draw.integers(0, 2**64, (lanes, 8), dtype=np.uint64)
    x[:99], words[:99] = 0, 0  # on a point
    dither = reference.multiply_high(words, (b[:, None] * plan.box).astype(np.uint64)).astype(np.int64)
    exact = reference.square_length(nearest(plan, x - dither, b)[1]) / b.astype(np.float64) ** 2
    fractions = torch.from_numpy(((x % (4 * b[:, None])) * 2.0**30 / b[:, None]).astype(np.int64).astype(np.int32))
    high = torch.from_numpy((words >> np.uint64(32)).astype(np.uint32).view(np.int32))
    out = torch.zeros(lanes)
    fill_squares[(1,)](fractions, high, out, lanes=lanes)
    assert np.abs(out.numpy() - exact).max() < 2.0**-15
    assert vector_quantizer.MARGIN.value >= 4 * 2.0**-15


def skipped_to(x: np.ndarray) -> np.ndarray:
    """The trial that each sub-vector on E8 begins its exact trials with."""
    plan = layered_plan(LAWS["Gaussian"], cepam.E8)
    on, keys = device_plan(plan, "cpu"), device_keys([AT.derive().noise], "cpu")
    h = torch.zeros(-(-len(x) // 8), dtype=torch.int32)
    for first, rows, radii in symbols._waves(on, keys, len(h)):
        symbols._skip_refused(on, keys, torch.from_numpy(x), h, first, rows, radii)
    return h.numpy()


def test_skipped_trials_are_refused_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial that is accepted is kept, and next to no other; a margin below zero skips accepted ones."""
    x = update(8 * 32, 0.01)
    accepted = by_reference(cepam.LRSUQ(LAWS["Gaussian"], cepam.E8), x)[0]
    assert np.array_equal(skipped_to(x), accepted)
    monkeypatch.setattr(vector_quantizer, "MARGIN", tl.constexpr(-0.25))
    assert (skipped_to(x) > accepted).any()
