"""Laws: variances, coordinate distributions, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

import cepam


def test_variances() -> None:
    assert cepam.Gaussian(0.3).variance(5) == pytest.approx(0.09)
    assert cepam.Laplace(0.3).variance(2) == pytest.approx(0.18)
    assert [cepam.UniformBall(2.0).variance(n) for n in (1, 2)] == pytest.approx([4 / 3, 1.0])


@pytest.mark.parametrize("law", [cepam.Gaussian(0.3), cepam.Laplace(0.7), cepam.UniformBall(2.0)])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_the_latent_radius_gives_the_variance(law: cepam.Law, n: int) -> None:
    """A point uniform in an l2 ball has E z_1^2 = r^2 / (n + 2), in an l1 ball 2 r^2 / ((n + 1)(n + 2))."""
    half = (np.arange(1 << 17) + 0.5) / (1 << 18)
    squares = np.concatenate([law.radius_below(half, n), law.radius_above(half, n)]) ** 2 * law.scale**2
    share = 1 / (n + 2) if law.norm == "l2" else 2 / ((n + 1) * (n + 2))
    assert squares.mean() * share == pytest.approx(law.variance(n), rel=2e-4)


@pytest.mark.parametrize("law", [cepam.Gaussian(0.3), cepam.Laplace(0.7), cepam.UniformBall(2.0)])
@pytest.mark.parametrize("n", [1, 3])
def test_coordinate_cdf_has_the_variance(law: cepam.Law, n: int) -> None:
    def tail(z: float) -> float:
        return 4 * z * float(1 - law.coordinate_cdf(np.array(z), n))

    assert law.coordinate_cdf(np.array(0.0), n) == pytest.approx(0.5)
    second = integrate.quad(tail, 0, 40 * law.scale, points=[law.scale], limit=200)[0]
    assert second == pytest.approx(law.variance(n), rel=1e-6)


def test_coordinate_cdfs_against_scipy() -> None:
    z = np.linspace(-3, 3, 101)
    np.testing.assert_allclose(cepam.Gaussian(0.4).coordinate_cdf(z), stats.norm.cdf(z, scale=0.4), rtol=1e-12)
    np.testing.assert_allclose(cepam.Laplace(0.4).coordinate_cdf(z), stats.laplace.cdf(z, scale=0.4), rtol=1e-12)
    np.testing.assert_allclose(cepam.UniformBall(2.0).coordinate_cdf(z), stats.uniform.cdf(z, -2, 4), atol=1e-12)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), 1e-40, "0.1", True, None])
def test_a_scale_that_makes_no_sense_is_refused(bad: object) -> None:
    for law in (cepam.Gaussian, cepam.Laplace, cepam.UniformBall):
        with pytest.raises(ValueError, match="must"):
            law(bad)  # type: ignore[arg-type]
