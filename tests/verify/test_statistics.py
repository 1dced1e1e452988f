"""The statistics: closed forms of the norm's distribution, and p-values uniform when the law holds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import cepam
from cepam.verify import statistics as goodness


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_norm_cdf_against_closed_forms(n: int) -> None:
    t = np.linspace(0.01, 12, 300)
    gaussian = goodness.norm_cdf(cepam.Gaussian(0.5), 0.5 * t, n)
    np.testing.assert_allclose(gaussian, stats.chi.cdf(t, n), atol=1e-5)
    laplace = goodness.norm_cdf(cepam.Laplace(0.5), 0.5 * t, n)
    np.testing.assert_allclose(laplace, stats.gamma.cdf(t, n), atol=1e-5)
    ball = goodness.norm_cdf(cepam.UniformBall(12.0), t, n)
    np.testing.assert_allclose(ball, (t / 12) ** n, atol=1e-5)


def test_p_values_are_uniform_under_the_law() -> None:
    """Each statistic on 200 samples of the law itself: its p-values pass KS at 1e-4 (keys fixed)."""
    rng, law, n = np.random.default_rng(5), cepam.Gaussian(2.0), 3
    found: dict[str, list[float]] = {}
    for _ in range(200):
        e = rng.normal(0, 2.0, (4000, n))
        uniform = law.coordinate_cdf(e, n)
        labels = [goodness.probability_labels(uniform[:, i]) for i in range(2)]
        results = {
            "ks": goodness.kolmogorov_smirnov(uniform[:, 0]),
            "radius": goodness.uniformity(goodness.norm_cdf(law, goodness.norms(law, e), n)),
            "signs": goodness.orthants(e),
            "share": goodness.direction_shares(law, e)[1],
            "mean": goodness.mean(e, law.variance(n)),
            "variances": goodness.variances(e, law.variance(n)),
            "covariances": goodness.covariances(e),
            "independence": goodness.independence(*labels),
        }
        for name, statistic in results.items():
            found.setdefault(name, []).append(statistic.p_value)
    for name, values in found.items():
        assert stats.kstest(values, "uniform").pvalue > 1e-4, name


def test_l1_shares_are_beta() -> None:
    e = np.random.default_rng(6).laplace(0, 1, (20_000, 4))
    found = goodness.direction_shares(cepam.Laplace(1.0), e)
    assert min(statistic.p_value for statistic in found) > 1e-4


def test_value_labels_keep_zero_apart() -> None:
    labels = goodness.value_labels(np.array([0.0, -1.0, 2.0, 0.0, 3.0]))
    assert labels[0] == labels[3] == 0
    assert (labels[[1, 2, 4]] > 0).all()


def test_errors_without_any_noise_are_refuted_and_do_not_raise() -> None:
    for law in (cepam.Gaussian(1.0), cepam.Laplace(1.0)):
        silent = np.zeros((1000, 2))
        assert goodness.variances(silent, 1.0).p_value == 0.0
        assert all(one.p_value < 1e-9 for one in goodness.direction_shares(law, silent))
        assert goodness.covariances(silent).p_value == 1.0
