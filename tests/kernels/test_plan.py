"""Descriptions lowered to numbers: units, grid, reach, fingerprints, and pairs that are refused."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

import cepam
from cepam.distributions.laws import Floats, Gaussian
from cepam.kernels.format.plan import Accept, Plan, cell_plan, layered_plan
from cepam.lattices.lattice import Search
from tests.corpus import LATTICES, LAWS, SKEW


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 0.01, 0.5, 1.0, 1.5, 2.0, 3.0, 1e30])
def test_units_follow_the_scale(scale: float) -> None:
    plan = layered_plan(cepam.Gaussian(scale), cepam.Integer(1))
    assert math.frexp(plan.unit)[0] == 0.5
    assert plan.unit * plan.scale == scale
    assert 2.0**40 <= plan.scale < 2.0**41
    assert scale / 2**13 < plan.grid <= scale / 2**12
    assert plan.grid == plan.unit * 2**28
    assert plan.reach >= 1e6 * scale


@pytest.mark.parametrize("lattice", LATTICES)
@pytest.mark.parametrize("law", LAWS)
def test_numbers_of_a_plan(law: str, lattice: str) -> None:
    plan = layered_plan(LAWS[law], LATTICES[lattice])
    assert plan.n == LATTICES[lattice].dimension
    assert plan.accept is (Accept.L1_BALL if law == "laplace" else Accept.L2_BALL)
    assert math.prod(plan.box.tolist()) == plan.determinant == LATTICES[lattice].determinant
    assert abs(round(abs(np.linalg.det(plan.basis.astype(float)))) / plan.determinant - 1) < 1e-9
    assert np.allclose(plan.inverse @ plan.basis, np.eye(plan.n), atol=1e-9)
    assert plan.words == plan.n + 2 * (plan.search is Search.GENERAL)
    assert plan.table.size == 2 * 64 * 32 * 8


def test_plans_are_shared() -> None:
    assert layered_plan(cepam.Gaussian(0.5), cepam.E8) is layered_plan(cepam.Gaussian(0.5), cepam.E8)
    assert layered_plan(cepam.Gaussian(0.5), cepam.E8) is not layered_plan(cepam.Gaussian(0.25), cepam.E8)


def test_fingerprints_differ_exactly_where_plans_do() -> None:
    plans = [layered_plan(law, lattice) for law in LAWS.values() for lattice in LATTICES.values()]
    plans += [layered_plan(cepam.Gaussian(0.02), cepam.E8), cell_plan(cepam.E8, 0.01), cell_plan(cepam.E8, 0.02)]
    assert len({plan.fingerprint() for plan in plans}) == len(plans)
    again = replace(plans[0])
    assert again.fingerprint() == plans[0].fingerprint()


@pytest.mark.parametrize("name", ["unit", "scale", "inverse_ball", "step", "table", "basis", "box", "search", "accept"])
def test_fingerprint_reads(name: str) -> None:
    check_fingerprint_reads(name)


@pytest.mark.parametrize("name", ["inverse"])
def test_fingerprint_reads_the_inverse(name: str) -> None:
    check_fingerprint_reads(name)


def check_fingerprint_reads(name: str) -> None:
    """A last bit of this number changes the fingerprint."""
    plan = layered_plan(cepam.Gaussian(0.01), SKEW)
    assert name in {field.name for field in fields(Plan)}
    value = getattr(plan, name)
    if isinstance(value, np.ndarray):
        other = value.copy()
        other.flat[-1] = np.nextafter(other.flat[-1], np.inf) if other.dtype == np.float64 else other.flat[-1] + 1
    elif isinstance(value, Search | Accept):
        other = type(value)(0)
    elif isinstance(value, float):
        other = np.nextafter(value, np.inf)
    else:
        other = value + 1
    assert replace(plan, **{name: other}).fingerprint() != plan.fingerprint()


NUMBERS = """
import hashlib, numpy as np, cepam
from cepam.kernels.format.plan import layered_plan
generator = [[((7 * i + 3 * j * j + i * j) % 11 - 5) / 7.3 + 2.0 * (i == j) for j in range(5)] for i in range(5)]
print(hashlib.sha256(layered_plan(cepam.UniformBall(1.0), cepam.Integer(1)).table.tobytes()).hexdigest())
print(hashlib.sha256(np.linalg.inv(np.eye(1)).tobytes() + layered_plan(
    cepam.UniformBall(1.0), cepam.Lattice(generator)).inverse.tobytes()).hexdigest())
"""


def test_numbers_do_not_depend_on_the_processor() -> None:
    found = set()
    for core in ("", "Haswell", "Nehalem"):
        settings = {**os.environ, "OPENBLAS_CORETYPE": core}
        run = subprocess.run([sys.executable, "-c", NUMBERS], env=settings, capture_output=True, text=True, check=True)
        found.add(run.stdout)
    assert len(found) == 1


@pytest.mark.parametrize(("law", "n"), [(cepam.Laplace(1.0), 7), (cepam.Laplace(1.0), 10)])
def test_hopeless_pairs_are_refused(law: cepam.Law, n: int) -> None:
    with pytest.raises(ValueError, match="one trial in"):
        layered_plan(law, cepam.Integer(n))


@dataclass(frozen=True)
class Stretched(Gaussian):
    """A Gaussian whose radii are given in the wrong unit."""

    factor: float = 1.0

    def radius_below(self, p: Floats, n: int) -> Floats:
        return super().radius_below(p, n) * self.factor

    def radius_above(self, q: Floats, n: int) -> Floats:
        return super().radius_above(q, n) * self.factor


@pytest.mark.parametrize("factor", [1e-10, 1e9, np.nan, -1.0])
def test_laws_out_of_range_are_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="latent radi"):
        layered_plan(Stretched(1.0, factor), cepam.Integer(1))


def test_a_law_in_other_units_is_taken() -> None:
    layered_plan(Stretched(1.0, 0.5), cepam.Integer(1))


@pytest.mark.parametrize("lattice", LATTICES)
def test_cells_have_the_volume_asked_for(lattice: str) -> None:
    step = 0.3
    plan = cell_plan(LATTICES[lattice], step)
    volume = plan.determinant * (plan.step * plan.unit) ** plan.n
    assert abs(volume / step**plan.n - 1) < 1e-2
    assert plan.accept is Accept.CELL


@pytest.mark.parametrize("generator", [[[1.0, 2.0]], [[]], np.zeros((9, 9)), [[1.0, 1.0], [1.0, 1.0]], [[np.nan]], 5])
def test_generators_that_span_nothing_are_refused(generator: object) -> None:
    with pytest.raises(ValueError, match="generator"):
        cepam.Lattice(generator)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_zero_generator_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="generator"):
        cepam.Lattice(np.zeros((2, 2)))


@pytest.mark.parametrize("n", [0, 11, -1, 1.5, "3", None])
def test_dimensions_of_the_cubic_lattice(n: object) -> None:
    with pytest.raises(ValueError, match="n must be"):
        cepam.Integer(n)  # type: ignore[arg-type]
