"""Whole clients in cohorts: enumeration of every draw of tiny populations, two oracles, and the real encoder."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cepam import L2, Gaussian
from cepam.privacy import (
    Accountant,
    Cohort,
    CohortMechanism,
    Mechanism,
    RoundTrip,
    Sampling,
    audit,
    calibrate,
    delta,
    epsilon,
    report,
)
from cepam.privacy.cohorts.cohort import _binomial, delta_seen, epsilon_seen
from cepam.privacy.composition.accountant import SEES_PARTICIPATION

from . import oracle

Y = np.linspace(-12, 12, 4801)
SIGMA = 1.3
WORLDS = {"replace": (1.0, -1.0), "add-remove": (1.0, 0.0)}
AT = (0.0, 0.3, 1.0, 2.0)


def asked(cohort: Cohort) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every set of clients that may be asked, with its chance."""
    everyone, rate = range(cohort.population), cohort.size / cohort.population
    if cohort.kind == "without":
        sets = list(itertools.combinations(everyone, int(cohort.size)))
        yield from ((one, 1.0 / len(sets)) for one in sets)
        return
    for many in range(cohort.population + 1):
        for drawn in itertools.combinations(everyone, many):
            kept = list(itertools.combinations(drawn, min(many, cohort.cap)))
            for one in kept:
                yield one, rate**many * (1 - rate) ** (cohort.population - many) / len(kept)


def law(values: tuple[float, ...], cohort: Cohort, dropout: float = 0.0, shares: bool = False) -> np.ndarray:
    """The exact density of a published sum, with clients that drop out; `shares`: without the server's part."""
    total = np.zeros_like(Y)
    for who, chance in asked(cohort):
        for stay in itertools.product((True, False), repeat=len(who)) if dropout else [(True,) * len(who)]:
            came = [j for j, here in zip(who, stay) if here]
            odds = chance * (1 - dropout) ** len(came) * dropout ** (len(who) - len(came))
            sigma = SIGMA * math.sqrt(len(came) / cohort.cap) if shares else SIGMA
            centre = sum(values[j] for j in came)
            total += odds * (stats.norm.pdf(Y, centre, sigma) if sigma else 0.0)
    return total


def stick(p: np.ndarray, q: np.ndarray, at: float) -> float:
    return float(np.maximum(0.0, p - math.exp(at) * q).sum() * (Y[1] - Y[0]))


def worst(cohort: Cohort, adjacency: str, at: float, **more) -> float:
    """The largest divergence over the others' vectors, in both directions."""
    with_client, other = WORLDS[adjacency]
    found = 0.0
    for others in itertools.product((-1.0, 0.0, 1.0), repeat=cohort.population - 1):
        p, q = law((with_client, *others), cohort, **more), law((other, *others), cohort, **more)
        found = max(found, stick(p, q, at), stick(q, p, at))
    return found


def released(cohort: Cohort, adjacency: str = "add-remove", z: float = SIGMA, **more) -> CohortMechanism:
    return CohortMechanism.of(cohort, L2(1.0), z, adjacency=adjacency, **more)  # type: ignore[arg-type]


TINY = [Cohort(2, 1.0), Cohort(3, 1.0), Cohort(3, 1.2, cap=2), Cohort(3, 2, "without"), Cohort(4, 2, "without")]


@pytest.mark.parametrize("adjacency", list(WORLDS))
@pytest.mark.parametrize("cohort", TINY, ids=str)
def test_no_draw_of_a_tiny_population_costs_more_than_the_account(cohort: Cohort, adjacency: str) -> None:
    mechanism = released(cohort, adjacency)
    for at in AT:
        assert worst(cohort, adjacency, at) <= delta(mechanism, at) + 2e-6  # the grid of Y
        assert worst(cohort, adjacency, at, dropout=0.3) <= delta(mechanism, at) + 2e-6  # the grid of Y


def test_the_account_is_attained_and_misreadings_are_violated() -> None:
    cohort = Cohort(3, 1.0)
    exact, mechanism = worst(cohort, "add-remove", 0.3), released(cohort)
    assert exact == pytest.approx(delta(mechanism, 0.3), rel=1e-5)
    assert exact > 1.1 * delta(replace(mechanism, cohort=Cohort(3, 0.8)), 0.3)  # a smaller chance than the real one
    # a cap that is often exceeded: whoever is drawn beyond it shows in who is not asked, and that has a term of its own
    tight = Cohort(3, 1.2, cap=1)
    assert worst(tight, "add-remove", 1.0) > 1.05 * delta(released(replace(tight, cap=3)), 1.0)
    assert worst(tight, "add-remove", 1.0) <= delta(released(tight), 1.0)
    # shares alone, without the server's part: who replied sets the noise, and the account does not hold
    assert worst(cohort, "add-remove", 1.0, dropout=0.3, shares=True) > 1.5 * delta(mechanism, 1.0)


def test_a_limit_on_participations_by_enumeration() -> None:
    """Two rounds of one client; asked at most once: both the amplified run and one round in full bound it."""
    y = Y[::24]
    for rate in (0.3, 0.9):
        none, once = stats.norm.pdf(y, 0, SIGMA), stats.norm.pdf(y, 1, SIGMA)
        p = rate * np.outer(once, none) + (1 - rate) * (rate * np.outer(none, once) + (1 - rate) * np.outer(none, none))
        q, area = np.outer(none, none), (y[1] - y[0]) ** 2
        mechanism = released(Cohort(10, 10 * rate, participations=1), rounds=2)
        for at in AT:
            odds = math.exp(at)
            got = max(np.maximum(0, p - odds * q).sum() * area, np.maximum(0, q - odds * p).sum() * area)
            assert got <= delta(mechanism, at) + 1e-4
    free = released(Cohort(10, 9.0), rounds=2)
    assert epsilon(replace(free, cohort=Cohort(10, 9.0, participations=1)), 1e-5) < epsilon(free, 1e-5)


def test_whoever_sees_who_uploads_by_enumeration() -> None:
    y, rate = Y[::24], 0.4
    mechanism, area = released(Cohort(10, 4.0), rounds=2), (y[1] - y[0]) ** 2
    for at in (0.1, 0.5, 1.0):
        got = 0.0
        for first, second in itertools.product((0, 1), repeat=2):
            chance = rate ** (first + second) * (1 - rate) ** (2 - first - second)
            p = np.outer(stats.norm.pdf(y, first, SIGMA), stats.norm.pdf(y, second, SIGMA))
            q = np.outer(stats.norm.pdf(y, 0, SIGMA), stats.norm.pdf(y, 0, SIGMA))
            got += chance * np.maximum(0, p - math.exp(at) * q).sum() * area
        assert delta_seen([mechanism], at) == pytest.approx(got, rel=2e-3)
    for rounds, chance in ((40, 0.3), (100_000, 0.01), (7, 1.0)):
        counts = np.arange(int(rounds * chance / 2), min(rounds, int(rounds * chance * 1.3)) + 1)
        np.testing.assert_allclose(
            _binomial(counts, rounds, chance), stats.binom.pmf(counts, rounds, chance), rtol=1e-9, atol=1e-30
        )
    assert delta_seen([mechanism], epsilon_seen([mechanism], 1e-5)) == pytest.approx(1e-5, rel=1e-6)
    assert epsilon_seen([mechanism], 1e-5) > epsilon(mechanism, 1e-5)


@pytest.mark.parametrize("adjacency", list(WORLDS))
@pytest.mark.parametrize(("z", "rate", "rounds"), [(1.0, 0.01, 1000), (0.6, 0.002, 300), (3.0, 0.2, 50)])
def test_the_contour_integral_agrees(adjacency: str, z: float, rate: float, rounds: int) -> None:
    mechanism = released(Cohort(100_000, 100_000 * rate), adjacency, z, rounds=rounds)
    mu = (2.0 if adjacency == "replace" else 1.0) / z
    at = epsilon(mechanism, 1e-6)
    truth = oracle.worst_delta([(mu, rate, rounds)], adjacency, at)
    assert 0.998e-6 <= truth <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize(("z", "rate", "rounds"), [(1.0, 0.01, 1000), (0.8, 0.05, 100)])
def test_dp_accounting_agrees(z: float, rate: float, rounds: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    book = pld.PLDAccountant()
    book.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), rounds)
    mechanism = released(Cohort(100_000, 100_000 * rate), z=z, rounds=rounds)
    assert epsilon(mechanism, 1e-5) == pytest.approx(book.get_epsilon(1e-5), rel=1e-3)


def test_the_real_encoder_at_client_level() -> None:
    mechanism = released(Cohort(4, 2.0, cap=4), z=1.0)
    found = audit(RoundTrip.of_mechanism(mechanism), mechanism, 1e-2, 40_000, 1 - 1e-9, seed=1)
    assert not found.refuted
    assert found.lower > 0.3 * found.claim
    assert audit(RoundTrip.of_mechanism(mechanism, 0.4), mechanism, 1e-2, 40_000, 1 - 1e-9, seed=1).refuted


@settings(max_examples=15, deadline=None)
@given(
    size=st.integers(2, 60), more=st.integers(2, 50), z=st.floats(0.7, 5), kind=st.sampled_from(["poisson", "without"])
)
def test_more_clients_less_epsilon(size: int, more: int, z: float, kind: str) -> None:
    few, many = (released(Cohort(size * k, size, kind), z=z, rounds=5) for k in (more, more + 3))  # type: ignore[arg-type]
    assert epsilon(many, 1e-6) <= epsilon(few, 1e-6) * (1 + 1e-6)
    assert epsilon(replace(few, colluders=1), 1e-6) >= epsilon(few, 1e-6)
    assert epsilon(few.over(6), 1e-6) >= epsilon(few, 1e-6)


@given(absent=st.frozensets(st.integers(0, 9999), max_size=40))
def test_dropouts_change_exactly_nothing(absent: frozenset[int]) -> None:
    mechanism = released(Cohort(10_000, 100.0), rounds=3)
    assert mechanism.without(absent) == mechanism


def test_a_cap_that_is_often_exceeded_gives_no_figure() -> None:
    mechanism = released(Cohort(1000, 100.0, cap=120))
    assert epsilon(mechanism, 1e-5) == math.inf
    assert "cap" in Accountant((mechanism,)).slack().excess(1.0, 1e-5)[0]  # type: ignore[union-attr,index]
    for cohort in (Cohort(50, 5.0, cap=12), Cohort(7, 3.0, cap=4), Cohort(5, 2.0, cap=5)):
        others = cohort.population - 1
        assert (
            cohort.rate * stats.binom.sf(cohort.cap - 1, others, cohort.rate) <= cohort.exceeded or others < cohort.cap
        )


def test_observers_limits_and_a_saved_accountant() -> None:
    limited = released(Cohort(1_000_000, 1000.0, participations=3), rounds=500, coordinates=100, bit=20.0).layered()
    accountant = Accountant((limited,))
    seen = accountant.observers(1e-6)
    assert seen["outsider"] < seen["one curious client"] < seen[SEES_PARTICIPATION] < math.inf
    assert Accountant().load_state_dict(json.loads(json.dumps(accountant.state_dict()))) == accountant
    assert report(limited, 1e-6)[0].outsider == seen["outsider"]
    assert replace(limited, bit=None).mu(0) < limited.mu(0) == pytest.approx(math.hypot(1 / SIGMA, 1 / 20))
    fixed = released(Cohort(100, 10, "without"))
    assert replace(fixed, colluders=50).sampling_rate(0) == 0.2
    assert fixed.charge(0, 50).sampling_rate == 0.2
    retiring = released(Cohort(100, 10, "without", participations=2), rounds=9)
    assert retiring.sampling_rate(0) == 1.0  # who has retired makes the others likelier
    assert epsilon(retiring, 1e-5) == pytest.approx(epsilon(replace(retiring, rounds=2), 1e-5), rel=1e-12)
    assert report(limited, 1e-6)[0].sees_uploads == seen[SEES_PARTICIPATION]


@pytest.mark.parametrize("limit", [None, 2])
def test_calibration_meets_its_target(limit: int | None) -> None:
    start = released(Cohort(1000, 300.0, participations=limit), rounds=40, bit=30.0)
    found = calibrate(start, 2.0, 1e-6)
    assert 2.0 * (1 - 1e-4) <= epsilon(found, 1e-6) <= 2.0


def test_a_plain_mechanism_protects_whole_clients_too() -> None:
    plain = Mechanism.uniform(10, Gaussian(2.0), L2(1.0), Sampling("all"), 50, unit="client", adjacency="add-remove")
    assert plain.mu(0) == pytest.approx(1 / (2.0 * math.sqrt(10)))
    assert replace(plain, adjacency="replace").mu(0) == pytest.approx(2 * plain.mu(0))
    together = released(Cohort(10, 10, "without"), z=2.0 * math.sqrt(10))
    assert epsilon(together, 1e-5) == pytest.approx(epsilon(plain, 1e-5), rel=1e-9)
    with pytest.raises(ValueError, match="clipped"):
        replace(plain, clipped="example")
    with pytest.raises(ValueError, match="sampling 'all'"):
        replace(plain, sampling=Sampling("poisson", 5))


def test_bad_arguments_are_refused() -> None:
    for arguments, says in (((0, 1.0), "population"), ((5, 6.0), "size"), ((5, 2.5, "without"), "whole"),
                            ((5, 2.0, "all"), "kind"), ((5, 2.0, "poisson", -1), "cap"),
                            ((5, 2.0, "poisson", 0, 0), "participations")):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            Cohort(*arguments)  # type: ignore[arg-type]
    mechanism = released(Cohort(5, 2.0))
    for more, says in (({"unit": "record"}, "whole clients"), ({"absent": frozenset({0})}, "absent"),
                       ({"bit": 0.0}, "bit"), ({"colluders": 5}, "colluders")):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            replace(mechanism, **more)
