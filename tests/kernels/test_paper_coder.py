"""The paper's code: the Golomb parameter, real bits, and readers that never pass the end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cepam.errors import MalformedMessage
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy import paper_coder as paper_code
from tests.corpus import LATTICES, LAWS, SECRET


@pytest.mark.parametrize("acceptance", [0.9069, 0.7854, 0.6169, 0.5236, 0.2537, 0.1, 0.01, 0.001])
def test_golomb_parameter_is_the_best(acceptance: float) -> None:
    h = np.arange(1, int(60 / acceptance))
    weight = acceptance * (1 - acceptance) ** (h - 1)

    def mean_bits(run: int) -> float:
        ones, _, width = paper_code.golomb_fields(h, run)
        return float(((ones + 1 + width) * weight).sum())

    best = paper_code.golomb_parameter(acceptance)
    for other in {max(1, best - 1), best + 1, max(1, best // 2), 2 * best}:
        assert mean_bits(best) <= mean_bits(other) + 1e-9


def test_every_trial_accepted_needs_no_bits() -> None:
    assert paper_code.golomb_parameter(1.0) == 0


@pytest.mark.parametrize("acceptance", [0.9, 0.5, 0.2537, 0.01])
@pytest.mark.parametrize("lattice", ["Z2", "E8"])
def test_round_trip(lattice: str, acceptance: float) -> None:
    plan, rng = layered_plan(LAWS["gaussian"], LATTICES[lattice]), np.random.default_rng(7)
    h = np.minimum(rng.geometric(acceptance, size=50), 65536)
    h[:3] = [1, 2, 65536 if acceptance < 0.5 else 500]
    bound = 1 << 44
    _, b = paper_code.layers(plan, SECRET, 10 + np.arange(50))
    low, count = paper_code.coordinate_box(plan, b, bound)
    m = low + rng.integers(0, 2**62, size=count.shape) % count
    data = paper_code.encode(plan, SECRET, h, m, 10, bound, acceptance)
    found = paper_code.decode(plan, SECRET, data, 10, 50, bound, acceptance)
    assert np.array_equal(found[0], h)
    assert np.array_equal(found[1], m)
    for mangled in (data[:-1], data + b"\0", data + b"\xff", b""):
        with pytest.raises(MalformedMessage):
            paper_code.decode(plan, SECRET, mangled, 10, 50, bound, acceptance)


def test_bits_are_the_formulas() -> None:
    """On Z^1 the cost is ceil(log2 |M(U)|) a coordinate, as in the paper."""
    plan = layered_plan(LAWS["gaussian"], LATTICES["Z1"])
    rows, bound = 500, 1 << 43
    _, b = paper_code.layers(plan, SECRET, np.arange(rows))
    low, count = paper_code.coordinate_box(plan, b, bound)
    data = paper_code.encode(plan, SECRET, np.ones(rows, dtype=np.int64), low, 0, bound, 1.0)
    assert len(data) == math.ceil(sum(math.ceil(math.log2(int(c))) for c in count[:, 0]) / 8)


def test_points_outside_the_box_are_refused() -> None:
    plan = layered_plan(LAWS["gaussian"], LATTICES["Z1"])
    with pytest.raises(ValueError, match="bound"):
        paper_code.encode(plan, SECRET, np.array([1]), np.array([[10**9]]), 0, 1 << 40, 1.0)
