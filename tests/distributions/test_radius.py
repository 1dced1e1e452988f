"""Latent tables against the gamma distribution at 40 digits: what a word of the keystream turns into."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import cepam
from cepam.distributions.radius import SMALLEST
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy.quantizer import radius_of_word
from tests.statistical.student import StudentT


def tail_of(word: int) -> tuple[bool, mpmath.mpf]:
    """(upper, p): the tail and the probability that a word stands for."""
    odd = ((word << 1) | 1) & (2**64 - 1)
    return bool(word >> 63), mpmath.mpf(odd) / mpmath.mpf(2) ** 65


def words(count: int) -> np.ndarray:
    """Random words; half of them from far out in the tails."""
    rng = np.random.default_rng(7)
    plain = rng.integers(0, 2**64, count, dtype=np.uint64)
    deep = (plain >> np.uint64(1)) >> rng.integers(0, 62, count).astype(np.uint64)
    return np.concatenate([plain, deep | (plain & np.uint64(1 << 63))])


def relative_miss(radius: float, shape: mpmath.mpf, gaussian: bool, upper: bool, p: mpmath.mpf) -> float:
    """How far the radius is from the quantile, relative to it: one Newton step of the distribution."""
    r = mpmath.mpf(radius)
    x = r * r / 2 if gaussian else r
    reached = mpmath.gammainc(shape, x, mpmath.inf) if upper else mpmath.gammainc(shape, 0, x)
    slope = x ** (shape - 1) * mpmath.exp(-x) * (r if gaussian else 1)
    return abs(float((reached - p * mpmath.gamma(shape)) / slope / r))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("law", [cepam.Gaussian(1.0), cepam.Laplace(1.0)], ids=["gaussian", "laplace"])
def test_built_in_tables_are_accurate_to_fifty_bits(law: cepam.Law, n: int) -> None:
    plan = layered_plan(law, cepam.Integer(n) if n < 8 or law.norm == "l2" else cepam.E8)
    drawn = words(60)
    radii = radius_of_word(plan, drawn) / plan.scale
    drawn, radii = drawn[radii > SMALLEST], radii[radii > SMALLEST]
    gaussian = law.name == "gaussian"
    with mpmath.workdps(40):
        shape = mpmath.mpf(n) / 2 + 1 if gaussian else mpmath.mpf(n) + 1
        misses = [relative_miss(r, shape, gaussian, *tail_of(int(w))) for r, w in zip(radii, drawn)]
    assert max(misses) < 2.0**-50


def test_the_table_of_a_users_law_is_accurate_to_46_bits() -> None:
    law = StudentT(1.0)
    plan = layered_plan(law, cepam.Integer(1))
    drawn = words(200)
    radii = radius_of_word(plan, drawn) / plan.scale
    tails = [tail_of(int(w)) for w in drawn]
    wanted = [(law.radius_above if up else law.radius_below)(np.array(float(p)), 1) for up, p in tails]
    np.testing.assert_allclose(radii, wanted, rtol=2.0**-46)


def test_radii_rise_with_the_probability() -> None:
    plan = layered_plan(cepam.Gaussian(1.0), cepam.Integer(1))
    below = radius_of_word(plan, np.sort(np.random.default_rng(1).integers(0, 2**63, 20_000, dtype=np.uint64)))
    assert (np.diff(below) >= 0).all()


def test_a_law_with_impossible_radii_is_refused() -> None:
    with pytest.raises(ValueError, match="latent radii"):
        cepam.Codec(StudentT(1.0, dof=5.0), lattice=cepam.Integer(1))
