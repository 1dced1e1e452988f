"""Noise found for a target: the account of the whole run ends at it, and a line says what the noise means."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cepam
from cepam.privacy import Accountant, Sampling
from cepam.protocol.account import Accounting, Target, noise_of
from cepam.protocol.settings import UplinkSettings

CLIP = cepam.L2(1.0)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(
    "account", [Accounting(1e-6), Accounting(1e-6, record_sampling=Sampling("poisson", 10), adjacency="add-remove")]
)
def test_the_account_of_such_a_run_ends_at_the_target(account: Accounting, average: bool) -> None:
    target = Target(3.0, 20, 4)
    asked = UplinkSettings(cepam.Gaussian(1.0), CLIP, records=100)
    one = account.mechanism([(node, asked) for node in range(4)], average, 1000)
    met = target.meet(asked, one, account.delta)

    def spent(settings: UplinkSettings) -> float:
        accountant = Accountant()
        for _ in range(20):
            accountant = accountant.add(account.mechanism([(node, settings) for node in range(4)], average, 1000))
        return accountant.epsilon(account.delta)

    assert 2.99 < spent(met) <= 3.0
    # Control: a hundredth less noise is too little.
    assert spent(replace(met, law=cepam.Gaussian(0.99 * met.law.scale))) > 3.0
    # The scale does not depend on where the search starts.
    louder = replace(asked, law=cepam.Gaussian(30.0))
    one = account.mechanism([(node, louder) for node in range(4)], average, 1000)
    again = target.meet(louder, one, account.delta)
    assert again.law.scale == pytest.approx(met.law.scale, rel=1e-4)


def met(asked: UplinkSettings, nodes: int) -> UplinkSettings:
    one = Accounting().mechanism([(node, asked) for node in range(nodes)], True, 100)
    return Target(2.0, 5, nodes).meet(asked, one, 1e-5)


def test_fewer_replies_need_more_noise_and_the_family_stays() -> None:
    asked = UplinkSettings(cepam.Gaussian(1.0), CLIP)
    two, eight = (met(asked, nodes).law.scale for nodes in (2, 8))
    assert two == pytest.approx(2 * eight, rel=1e-3)
    spread = met(UplinkSettings(cepam.Laplace(1.0), cepam.L1(1.0)), 2).law
    assert isinstance(spread, cepam.Laplace)


def test_the_line_names_noise_ratio_and_advice() -> None:
    asked = UplinkSettings(cepam.Gaussian(0.5), CLIP)
    line = Target(3.0, 20, 4).describe(Accounting().mechanism([(node, asked) for node in range(4)], True, 400))
    assert line.startswith("Gaussian(sigma=0.5) meets epsilon 3 over 20 rounds of 4 replies; a round's average has")
    assert "0.25 clipping norms per coordinate, as a whole 5 times the largest update: more noise than the" in line


def test_what_makes_no_sense_is_refused() -> None:
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="epsilon must be"):
            Target(bad)
    with pytest.raises(ValueError, match="rounds must be"):
        Target(1.0, 0)
    with pytest.raises(ValueError, match="nodes must be"):
        Target(1.0, 3, True)
    asked = UplinkSettings(cepam.Gaussian(1.0), CLIP)
    one = Accounting().mechanism([(0, asked)], True, 10)
    with pytest.raises(ValueError, match="rounds must be given"):
        Target(1.0).meet(asked, one, 1e-5)
    with pytest.raises(ValueError, match="noise of a target"):
        Target(1.0, noise=cepam.UniformBall)
    for noise, epsilon in ((None, None), (cepam.Gaussian(1.0), 1.0)):
        with pytest.raises(ValueError, match="exactly one"):
            noise_of(noise, epsilon, CLIP)
    with pytest.raises(ValueError, match="must have a scale"):
        noise_of(cepam.Gaussian, None, CLIP)
    assert noise_of(cepam.Gaussian(0.3), None, CLIP) == (cepam.Gaussian(0.3), None)
    law, target = noise_of(None, Target(1.0, noise=cepam.Laplace), cepam.L1(2.0))
    assert isinstance(law, cepam.Laplace)
    assert target.epsilon == 1.0
    assert noise_of(None, 2.0, CLIP) == (cepam.Gaussian(1.0), Target(2.0))


def test_the_account_of_clipped_examples_sets_what_belongs_together() -> None:
    made = Accounting.per_example(100, 10, delta=1e-6, colluders=2)
    drawn = Sampling("poisson", 10)
    assert made == Accounting(
        1e-6, records=100, record_sampling=drawn, clipped="example", adjacency="add-remove", colluders=2
    )
    for batch in (0, 101):
        with pytest.raises(ValueError, match=r"batch must lie in \(0, 100\]"):
            Accounting.per_example(100, batch)
