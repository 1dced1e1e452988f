"""The account of a correlated run: by the density of what is published, by draws, by hand, and against figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from cepam import L2, Gaussian, Laplace
from cepam.privacy import (
    Accountant,
    Arrival,
    Client,
    CorrelatedNoise,
    Cyclic,
    MatrixMechanism,
    Mechanism,
    ObservedParticipation,
    Practice,
    Sampling,
    Separated,
    calibrate,
    calibrate_each,
    delta,
    epsilon,
    epsilon_by_round,
    privacy_warnings,
    report,
    slack,
    spent,
)

STEADY = MatrixMechanism(
    (Client(Gaussian(0.0109301), 2000, 1 / 30),) * 30,
    L2(0.1),
    link=CorrelatedNoise(0.9617, 31),
    rounds=496,
    adjacency="add-remove",
    clipped="example",
)
SMALL = MatrixMechanism((Client(Gaussian(3.0), 8),), L2(1.0), link=CorrelatedNoise(0.7, 2), rounds=6)


def test_the_figures_of_the_design() -> None:
    assert STEADY.sensitivity == pytest.approx(19.3718, abs=5e-5)
    assert calibrate(STEADY, 2.0, 1e-5).clients[0].law.scale == pytest.approx(0.0109301, abs=5e-8)
    found = report(STEADY, 1e-5)[0]
    assert (found.outsider, found.colluding) == (pytest.approx(2.0, abs=1e-4), pytest.approx(14.889, abs=1e-3))


def test_mu_by_hand_for_unequal_clients_and_colluders() -> None:
    clients = (Client(Gaussian(1.0), 40, 0.5), Client(Gaussian(3.0), 10, 0.2), Client(Gaussian(1.0), 10, 0.3))
    mechanism = MatrixMechanism(clients, L2(0.7), link=CorrelatedNoise(0.5, 2), rounds=4)
    sens = math.sqrt(1 + 0.5**2 + 1.25**2 + 0.625**2)
    assert mechanism.sensitivity == pytest.approx(sens)
    assert mechanism.mu(0) == pytest.approx(2 * 0.7 * 0.5 * sens / math.hypot(0.5, 0.6, 0.3))
    assert mechanism.mu(0, colluders=1) == pytest.approx(2 * 0.7 * 0.5 * sens / math.hypot(0.5, 0.3))
    assert replace(mechanism, colluders=2).mu(0) == pytest.approx(2 * 0.7 * sens)
    example = replace(mechanism, clipped="example")
    assert example.distance(0) == pytest.approx(2 * 0.7 / 20)
    assert replace(example, adjacency="add-remove").distance(1) == pytest.approx(0.7 / 5)
    other = replace(clients[0], draws=25.0)
    assert replace(example, clients=(other, *clients[1:])).distance(0) == pytest.approx(2 * 0.7 / 25)


def test_a_whole_client_takes_part_in_every_message() -> None:
    client = replace(SMALL, unit="client")
    moved = np.tril(0.7 ** np.abs(np.subtract.outer(np.arange(6), np.arange(6)))).sum(axis=1)
    assert client.sensitivity == pytest.approx(np.linalg.norm(moved))
    assert client.mu(0) == pytest.approx(2 * np.linalg.norm(moved) / 3)
    assert replace(client, adjacency="add-remove").mu(0) == pytest.approx(np.linalg.norm(moved) / 3)


@pytest.mark.parametrize(
    "link",
    [SMALL.link, CorrelatedNoise.from_matrix([0.5, 0.1, 0.9], 2), CorrelatedNoise(0.0, 2)],
    ids=["decay", "rising", "none"],
)
def test_delta_by_the_density_of_what_is_published(link: CorrelatedNoise) -> None:
    """An oracle that knows no sensitivity: draws of y = x + C^-1 z, and the two densities with a dense covariance.

    300,000 draws; the bound of 7 standard errors has a false-alarm rate under 1e-11, and the seed is fixed.
    """
    rng, mechanism, many = np.random.default_rng(8), replace(SMALL, link=link), 300_000
    covariance = 9.0 * np.linalg.inv(link.matrix(6)) @ np.linalg.inv(link.matrix(6)).T
    best = {0.5: (0.0, 0.0), 1.5: (0.0, 0.0)}
    for r in range(2):
        shift = 2.0 * (np.arange(6) % 2 == r)
        here = stats.multivariate_normal(shift, covariance)
        there = stats.multivariate_normal(np.zeros(6), covariance)
        draws = here.rvs(many, random_state=rng)
        loss = here.logpdf(draws) - there.logpdf(draws)
        for at in best:
            gain = np.maximum(0.0, -np.expm1(at - loss))
            best[at] = max(best[at], (float(gain.mean()), float(gain.std() / math.sqrt(many))))
    for at, (seen, error) in best.items():
        assert delta(mechanism, at) == pytest.approx(seen, abs=7 * error)


def test_adaptive_updates_gain_nothing() -> None:
    """A record whose vectors turn with everything published so far never costs more than the account says."""
    rng, many, link = np.random.default_rng(3), 200_000, CorrelatedNoise(0.7, 2)
    matrix, sigma = link.matrix(6), 3.0
    v, loss, moved = np.zeros((6, many, 2)), np.zeros(many), np.zeros((6, many, 2))
    for t in range(6):
        turned = np.arctan2(*np.moveaxis(v[:t].sum(axis=0) if t else np.ones((many, 2)), -1, 0))
        if t % 2 == 0:
            moved[t] = 2.0 * np.stack([np.cos(turned), np.sin(turned)], axis=-1)
        shift = np.einsum("s,smd->md", matrix[t, : t + 1], moved[: t + 1])
        v[t] = shift + sigma * rng.normal(size=(many, 2))
        loss += ((v[t] ** 2).sum(axis=1) - ((v[t] - shift) ** 2).sum(axis=1)) / (2 * sigma**2)
    for at in (0.5, 1.5):
        gain = np.maximum(0.0, -np.expm1(at - loss))
        assert gain.mean() <= delta(SMALL, at) + 7 * gain.std() / math.sqrt(many)


def test_both_places_of_a_replaced_record_are_covered() -> None:
    """Replace-one where the new record falls into another slice: two patterns, one bound each."""
    mechanism = replace(SMALL, clipped="example")
    matrix, c = mechanism.link.matrix(6), 1.0 / 4
    worst = 0.0
    for signs in np.array(np.meshgrid(*[[-1, 1]] * 6)).reshape(6, -1).T:
        worst = max(worst, float(np.linalg.norm(matrix @ (c * signs))))
    assert worst / 3.0 <= mechanism.mu(0) * (1 + 1e-12)


def test_a_carry_of_zero_is_a_run_of_independent_rounds() -> None:
    plain = Mechanism(SMALL.clients, L2(1.0), Sampling("all"), rounds=3)
    assert epsilon(replace(SMALL, link=CorrelatedNoise(0.0, 2)), 1e-5) == pytest.approx(epsilon(plain, 1e-5), rel=1e-9)


def test_prefixes_count_up_and_a_accountant_goes_on_with_a_stream() -> None:
    running = epsilon_by_round(STEADY, 1e-5, [1, 31, 248, 496])
    assert list(running) == sorted(running)
    assert running[-1] == pytest.approx(epsilon(STEADY, 1e-5), rel=1e-9)
    accountant, named = Accountant(), replace(SMALL, run="a")
    for rounds in range(1, 7):
        accountant = accountant.add(named.over(rounds))
    assert accountant.mechanisms == (named,)
    assert accountant.epsilon(1e-5) == pytest.approx(epsilon(SMALL, 1e-5), rel=1e-12)
    assert spent(SMALL, 1e-5, 4) < epsilon(SMALL, 1e-5)
    with pytest.raises(ValueError, match="holds 6 rounds of run 'a'"):
        accountant.add(named.over(2))
    with pytest.raises(ValueError, match="this release has others"):
        accountant.add(replace(named, observed_participation=ObservedParticipation.observed([[1, 1, 0, 1, 1, 1]])))


def test_two_runs_on_the_same_records_are_never_one_stream() -> None:
    """A pass that is cut short starts anew with its first slice: a stream of 2 would charge those records once."""
    begun = SMALL.over(1)
    whole = epsilon(begun.with_noise([3.0 / math.sqrt(2)]), 1e-5)
    assert epsilon(SMALL.over(2), 1e-5) < whole
    assert Accountant().add(begun).add(begun).epsilon(1e-5) == pytest.approx(whole, rel=1e-6)
    other = Accountant().add(replace(begun, run="a")).add(replace(begun, run="b"))
    assert other.epsilon(1e-5) == pytest.approx(whole, rel=1e-6)


def test_a_run_in_which_somebody_is_missing_goes_on_from_one_in_which_nobody_was() -> None:
    named = replace(SMALL, run="a", clients=SMALL.clients * 2)
    came = ObservedParticipation.observed([[1, 1, 1, 1], [1, 1, 0, 1]])
    accountant = Accountant().add(named.over(2)).add(replace(named, rounds=4, observed_participation=came))
    assert accountant.rounds == 4
    assert accountant.running(1e-5, 64) == pytest.approx(accountant.epsilon(1e-5), rel=1e-3)
    assert (
        accountant.add(
            replace(named, rounds=5, observed_participation=ObservedParticipation.observed([[1] * 5, [1, 1, 0, 1, 0]]))
        ).rounds
        == 5
    )


@pytest.mark.parametrize(
    "more",
    [
        {"link": CorrelatedNoise.from_matrix([1.0, 0.5], 2), "participation": Separated(2, 2)},
        {"link": CorrelatedNoise.from_matrix(np.tril(np.ones((6, 6))), 3), "participation": Cyclic(3)},
        {"observed_participation": ObservedParticipation(6, ((Arrival(0, 0), Arrival(2, 3, 1)),)), "run": "b"},
        {"unit": "client", "colluders": 0},
    ],
)
def test_a_accountant_with_streams_outlives_its_process(more) -> None:
    accountant = (
        Accountant(configuration="c")
        .add(replace(SMALL, **more))
        .add(replace(SMALL, run="a", unit=more.get("unit", "record")))
    )
    again = Accountant(configuration="c").load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again == accountant
    assert again.epsilon(1e-5) == accountant.epsilon(1e-5)


def test_the_rest_of_the_account_takes_it() -> None:
    long = replace(STEADY, coordinates=6422)
    assert 0 < slack(long).at(2.0) < 1e-7
    assert privacy_warnings(STEADY, 2.0, 1e-5) == ()
    codes = {
        one.code for one in privacy_warnings(STEADY, 2.0, 1e-5, Practice(state_persists=True, sampler_persists=True))
    }
    assert codes == {"state-persists"}
    separated = replace(STEADY, participation=Separated(31, 16))
    assert epsilon(separated, 1e-5) == pytest.approx(epsilon(STEADY, 1e-5), rel=1e-9)
    assert epsilon(replace(STEADY, adjacency="replace"), 1e-5) > 2 * epsilon(STEADY, 1e-5)
    each = calibrate_each(STEADY, [3.0, 2.0] * 15, [1e-5] * 30)
    assert report(each, 1e-5)[1].colluding == pytest.approx(2.0, rel=1e-5)
    assert each.clients[1].law.scale == pytest.approx(0.0109301 * math.sqrt(30), rel=1e-4)


def test_float64_is_charged_and_is_next_to_nothing() -> None:
    assert 0.0 < STEADY._rounding(0) < 1e-7
    long = MatrixMechanism(STEADY.clients, L2(0.1), link=CorrelatedNoise(1 - 1e-6, 31), rounds=496)
    assert long._rounding(0) > STEADY._rounding(0)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"clients": (Client(Laplace(1.0), 10),)}, "Laplace"),
        ({"absent": frozenset({0})}, "observed_participation"),
        ({"unit": "group"}, "unit"),
        ({"unit": "client", "clipped": "example"}, "unit"),
        ({"sampling": Sampling("replacement", 3)}, "sampling"),
        ({"sampling": Sampling("poisson", 2)}, "bands"),
        ({"link": CorrelatedNoise.from_matrix(np.eye(5))}, "rounds"),
    ],
)
def test_doors(more, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(SMALL, **more)
    with pytest.raises(ValueError, match="observed_participation"):
        SMALL.without([0])


@pytest.mark.parametrize("matrix", [0.8 ** np.arange(9), np.array([1.0, 0.2, 0.7, 0.1]), np.tril(np.ones((9, 9)))])
@pytest.mark.parametrize("slices", [1, 2, 4])
def test_what_one_round_alone_shows_by_enumeration(matrix: np.ndarray, slices: int) -> None:
    """The largest row of C G over every pattern of fixed slices; at least what the mean square of the rows is."""
    link, rounds = CorrelatedNoise.from_matrix(matrix, slices), 9
    mechanism = MatrixMechanism(SMALL.clients, L2(1.0), link=link, rounds=rounds)
    c = link.matrix(rounds)
    rows = [np.abs(c @ (np.arange(rounds) % slices == start)) for start in range(slices)]
    whole = max(float(np.linalg.norm(one)) for one in rows)
    assert mechanism.largest_round == pytest.approx(max(float(one.max()) for one in rows) / whole)
    assert 1 / math.sqrt(rounds) <= mechanism.largest_round <= 1.0
    assert replace(mechanism, participation=Separated(slices, 2)).largest_round == 1.0
