"""The search coder's parts: its arithmetic against other methods, its family, its code, its bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import linalg, stats

import cepam
from cepam.errors import MalformedMessage
from cepam.kernels.format import search as f
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy import search_coder as coder
from cepam.kernels.numpy.range_coder import LaneReader, LaneWriter

PLAN = layered_plan(cepam.Gaussian(1.0), cepam.Integer(1))
KEYS = bytes(32), bytes(range(32))


def part(log_size: int = 6, number: int = 1, segment: int = 3) -> coder.Part:
    return coder.Part(PLAN, KEYS, segment, log_size, number)


def test_the_exponential_is_right_to_its_bound() -> None:
    mpmath = pytest.importorskip("mpmath")
    v = np.random.default_rng(1).uniform(-40.0, 40.0, size=400)
    with mpmath.workdps(30):
        exact = [mpmath.exp(mpmath.mpf(each)) for each in v.tolist()]
        worst = max(abs(float(mpmath.mpf(a) / b - 1)) for a, b in zip(coder.exponential(v).tolist(), exact))
    assert worst < 2.0**-46
    assert coder.exponential(np.array([-1e4, 1e4])).tolist() == coder.exponential(np.array([-700.0, 700.0])).tolist()


def test_steps_between_arrivals_are_logarithms_of_their_words() -> None:
    mpmath = pytest.importorskip("mpmath")
    words = np.random.default_rng(2).integers(1 << 48, 1 << 64, size=300, dtype=np.uint64)
    words = np.append(words, np.array([1 << 48, (1 << 64) - 1, 1 << 63, (1 << 63) - 1], dtype=np.uint64))
    for word in words.tolist():
        top, low = word >> 48, word & ((1 << 48) - 1)
        with mpmath.workdps(40):
            place = mpmath.ldexp(1 + (mpmath.mpf(low) + 0.5) / 2**48, -(17 - top.bit_length()))
            exact = float(-mpmath.log(place))
        found = float(coder.arrivals(np.array([word], dtype=np.uint64))[0])
        assert abs(found - exact) < 2.0**-50 * max(1.0, exact)


def test_a_word_without_a_one_among_its_upper_bits_goes_on_in_the_next() -> None:
    words = np.array([5, 1 << 63], dtype=np.uint64)
    times, alone = coder.arrivals(words), coder.arrivals(words[1:])
    assert len(times) == 1
    assert times[0] == pytest.approx(16.0 * math.log(2.0) + alone[0], abs=2.0**-48)


def test_arrivals_are_those_of_a_poisson_process() -> None:
    words = np.random.default_rng(3).integers(0, 1 << 64, size=20_000, dtype=np.uint64)
    assert stats.kstest(np.diff(coder.arrivals(words)), "expon").pvalue > 1e-4


def test_the_transform_is_the_walsh_hadamard_matrix() -> None:
    values = np.random.default_rng(4).integers(-1000, 1000, size=(3, 64)).astype(np.float64)
    assert (coder.transform(values) == values @ linalg.hadamard(64)).all()


def test_scores_are_the_inner_products_with_every_shift() -> None:
    own, rng = part(), np.random.default_rng(5)
    x = np.trunc(rng.normal(size=64) * 0.2 * PLAN.scale).astype(np.int64)
    g = own.vector(2)
    energy = float(((x / PLAN.scale) ** 2).sum())
    ratios, mean = coder.Scores(own, x, energy).of(g)
    assert len(ratios) == own.size
    for k in (0, 1, 32, 63):
        product = float((x / PLAN.scale) @ (own.apply(k, g) / PLAN.scale))
        assert ratios[k] == pytest.approx(math.exp(product - energy / 2.0), rel=1e-12)
    assert mean == pytest.approx(float(np.mean(ratios)), rel=1e-14)


@pytest.mark.parametrize("log_size", [5, 9, 12, 13])
def test_shifts_are_undone_and_keep_sizes(log_size: int) -> None:
    own = part(log_size)
    g = own.vector(0)
    for shift in (0, 7, own.size - 1):
        y = own.apply(shift, g)
        assert (own.undo(shift, y) == g).all()
        assert (np.sort(np.abs(y)) == np.sort(np.abs(g))).all()


def test_a_shared_vector_is_the_layered_quantizers_error_at_zero() -> None:
    g = np.concatenate([part(10, number).vector(candidate) for number in range(4) for candidate in range(4)])
    assert stats.kstest(g / PLAN.scale, "norm").pvalue > 1e-4


def test_no_two_streams_are_one() -> None:
    numbers = {
        f.stream_number(segment, log_size, number, candidate, kind)
        for segment in (0, 1, (1 << 22) - 1)
        for log_size in range(f.SMALLEST, f.LARGEST + 1)
        for number in (0, 1, 8191)
        for candidate in (0, 1, f.MOST_VECTORS - 1)
        for kind in range(4)
    }
    assert len(numbers) == 3 * 9 * 3 * 3 * 4
    assert max(numbers) < 1 << 63


@pytest.mark.parametrize("energy_class", [0, 6, f.CLASSES - 1])
def test_trees_are_read_as_they_were_written(energy_class: int) -> None:
    layout = f.layout_of(3000, 10, energy_class)
    most = (f.MOST_VECTORS, f.MOST_PROPOSALS)
    trees = [(1, 1), [[None, (3, 77)], [[most, [None, (1, 2)]], None]], None]
    writer = LaneWriter(1)
    out = coder.TreeCoder(writer, layout)
    for tree in trees:
        assert out.code(tree, 10) == tree
    reader = coder.TreeCoder(LaneReader([writer.finish(0)]), layout)
    assert [reader.code(None, 10) for _ in trees] == trees


@pytest.mark.parametrize("stream", [b"", b"\xff" * 40, b"\0" * 40, bytes(range(200))])
def test_any_stream_is_read_in_bounded_work(stream: bytes) -> None:
    layout = f.layout_of(600, 9, 5)
    reader = coder.TreeCoder(LaneReader([stream]), layout)

    def leaves(tree: object) -> list[object]:
        return [leaf for side in tree for leaf in leaves(side)] if isinstance(tree, list) else [tree]

    for leaf in [leaf for _ in range(layout.blocks) for leaf in leaves(reader.code(None, 9))]:
        assert leaf is None or (1 <= leaf[0] <= f.MOST_VECTORS and 1 <= leaf[1] <= f.MOST_PROPOSALS)  # type: ignore[index]


@pytest.mark.parametrize(
    ("data", "count"), [(b"", 600), (b"\xfd", 600), (b"\xff", 600), (bytes([2 * 8]), 600), (bytes([1]), 600)]
)
def test_segments_that_no_encoder_writes_are_refused(data: bytes, count: int) -> None:
    with pytest.raises(MalformedMessage):
        coder.decode_segment(PLAN, bytes(32), data, 0, count)


def test_every_coordinate_is_dealt_once() -> None:
    for count, log_size in ((600, 9), (513, 9), (512, 5), (8193, 13)):
        segment = coder.Segment(PLAN, bytes(32), 0, f.layout_of(count, log_size, 3))
        assert sorted(segment.coordinates[segment.real]) == list(range(count))
        ids = coder._numbers(segment)
        assert len(set(ids.tolist())) == len(ids)
