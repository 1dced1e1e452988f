"""The account: the truth table, an oracle by another method, properties and limits."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam import L1, L2, Gaussian, Laplace
from cepam.privacy import (
    Accountant,
    Client,
    Mechanism,
    Sampling,
    delta,
    delta_without_noise,
    epsilon,
    epsilon_by_round,
    spent,
)
from tests.privacy import oracle

TABLE = [  # K, gamma, sigma, tau, n, R, delta, epsilon under replace-one, under add-or-remove
    (30, 1.0, 0.01, 15, 1666, 1, 9.69e-3, 0.0, 0.0),
    (30, 1.0, 0.1, 15, 2000, 1, 1e-5, 12.00939, 12.00939),
    (30, 1.0, 0.25, 15, 2000, 1, 1e-5, 0.698583, 0.698583),
    (30, 1.0, 0.5, 15, 2000, 1, 1e-5, 0.050233, 0.050233),
    (30, 1.0, 0.25, 15, 2000, 80, 1e-5, 2.05172, 2.01232),
    (30, 1.0, 0.5, 15, 2000, 1000, 1e-5, 0.91407, 0.76380),
    (10, 0.5, 0.3, 5, 500, 200, 500**-1.1, 0.64418, 0.54234),
]
MORE = [  # checked against the oracle only
    (30, 1.0, 0.15, 15, 2000, 80, 1e-5),
    (5, 1.0, 1.0, 20, 1000, 300, 1e-6),
    (100, 2.0, 0.4, 3, 400, 50, 1e-8),
    (1, 1.0, 2.0, 64, 60_000, 2000, 1e-7),
    (8, 0.1, 0.05, 10, 25, 12, 1e-3),
]


def mechanism_of(row: tuple, adjacency: str) -> Mechanism:
    clients, gamma, sigma, draws, records, rounds = row[:6]
    return Mechanism.uniform(
        clients,
        Gaussian(sigma),
        L2(gamma),
        Sampling("replacement", draws),
        records,
        rounds=rounds,
        adjacency=adjacency,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("adjacency", ["replace", "add-remove"])
def test_truth_table(row: tuple, adjacency: str) -> None:
    want = row[7] if adjacency == "replace" else row[8]
    assert epsilon(mechanism_of(row, adjacency), row[6]) == pytest.approx(want, rel=1e-5, abs=6e-6)


def test_the_papers_own_run_has_no_guarantee() -> None:
    row = (30, 1.0, 0.01, 15, 1666, 80)
    for adjacency in ("replace", "add-remove"):
        assert epsilon(mechanism_of(row, adjacency), 1e-5) == pytest.approx(4150, rel=2e-3)


@pytest.mark.parametrize("row", [*TABLE[4:], *MORE], ids=str)
@pytest.mark.parametrize("adjacency", ["replace", "add-remove"])
def test_oracle_by_contour_integral(row: tuple, adjacency: str) -> None:
    mechanism = mechanism_of(row, adjacency)
    rounds = [(mechanism.mu(0), mechanism.sampling_rate(0), mechanism.rounds)]
    got = epsilon(mechanism, row[6])
    assert oracle.worst_delta(rounds, adjacency, got) <= row[6] * (1 + 1e-5)  # never below the truth
    assert oracle.worst_delta(rounds, adjacency, got * (1 - 2e-5)) >= row[6] * (1 - 1e-5)  # nor far above it
    assert got * (1 - 1e-9) <= spent(mechanism, row[6]) <= got * (1 + 2e-4)


def test_oracle_for_unequal_rounds() -> None:
    mechanism = mechanism_of((30, 1.0, 0.25, 15, 2000, 1), "replace")
    accountant = Accountant()
    for silent, many in (((), 50), ((1, 2, 3), 20), (range(5, 15), 10)):
        for _ in range(many):
            accountant = accountant.add(mechanism.without(silent))
    assert accountant.rounds == 80
    assert len(accountant.mechanisms) == 3
    rounds = [
        (2 / (0.25 * math.sqrt(present)), mechanism.sampling_rate(0), many)
        for present, many in ((30, 50), (27, 20), (20, 10))
    ]
    got = accountant.epsilon(1e-5)
    assert oracle.worst_delta(rounds, "replace", got) == pytest.approx(1e-5, rel=1e-4)
    assert accountant.epsilon(1e-5, client=6) < got  # it kept silent in the last rounds
    assert got <= spent(accountant, 1e-5) <= got * (1 + 2e-4)


PRESETS = [(960, 1.1, 600, 60_000, 1.967), (1920, 1.8, 1000, 60_000, 2.575), (480, 0.8, 600, 60_000, 2.079)]


def examples(batch: float, multiplier: float, rounds: int, records: int, colluders: int = 0) -> Mechanism:
    law = Gaussian(multiplier * math.sqrt(30) / batch)
    return Mechanism.uniform(
        30,
        law,
        L2(1.0),
        Sampling("poisson", batch / 30),
        records // 30,
        rounds=rounds,
        colluders=colluders,
        adjacency="add-remove",
        clipped="example",
    )


@pytest.mark.parametrize("row", PRESETS, ids=str)
def test_private_presets(row: tuple) -> None:
    got = epsilon(examples(*row[:4]), 1e-5)
    assert got == pytest.approx(row[4], rel=5e-4)
    rounds = [(1 / row[1], row[0] / row[3], row[2])]
    assert oracle.worst_delta(rounds, "add-remove", got) == pytest.approx(1e-5, rel=1e-4)


def test_private_preset_against_other_clients() -> None:
    assert epsilon(examples(960, 1.1, 600, 60_000, 1), 1e-5) == pytest.approx(2.03, abs=5e-3)
    assert epsilon(examples(960, 1.1, 600, 60_000, 29), 1e-5) == pytest.approx(230, rel=5e-3)
    fewer = Mechanism.uniform(
        25, Gaussian(1.1 * 5 / 960), L2(1.0), Sampling("poisson", 38.4), 2000, rounds=600, adjacency="add-remove",
        clipped="example",
    )  # fmt: skip
    assert epsilon(fewer, 1e-5) == pytest.approx(2.40, abs=5e-3)


@settings(max_examples=12, deadline=None)
@given(
    sigma=st.floats(0.15, 2.0),
    draws=st.integers(1, 30),
    rounds=st.integers(2, 200),
    target=st.sampled_from([1e-4, 1e-5, 1e-7]),
    adjacency=st.sampled_from(["replace", "add-remove"]),
)
def test_monotone_in_everything(sigma: float, draws: int, rounds: int, target: float, adjacency: str) -> None:
    def spend(
        s: float = sigma, d: int = draws, r: int = rounds, n: int = 2000, to: float = target, c: int = 0
    ) -> float:
        mechanism = Mechanism.uniform(
            10,
            Gaussian(s),
            L2(1.0),
            Sampling("replacement", d),
            n,
            rounds=r,
            colluders=c,
            adjacency=adjacency,  # type: ignore[arg-type]
        )
        return spent(mechanism, to)

    here, slack = spend(), 1 + 3e-4
    assert spend(s=1.2 * sigma) <= here * slack
    assert spend(d=draws + 2) * slack >= here
    assert spend(r=rounds + 5) * slack >= here
    assert spend(n=3000) <= here * slack
    assert spend(to=2 * target) <= here * slack
    assert spend(c=3) * slack >= here


@settings(max_examples=8, deadline=None)
@given(sigma=st.floats(0.2, 1.0), rounds=st.integers(2, 120), target=st.floats(1e-8, 1e-3))
def test_delta_inverts_epsilon_and_adjacencies_are_ordered(sigma: float, rounds: int, target: float) -> None:
    row = (10, 1.0, sigma, 10, 1000, rounds)
    one, two = mechanism_of(row, "replace"), mechanism_of(row, "add-remove")
    at = epsilon(one, target)
    if at > 0:
        assert delta(one, at) == pytest.approx(target, rel=1e-4)
    assert epsilon(two, target) <= at * (1 + 1e-5)


def test_limits() -> None:
    quiet = mechanism_of((30, 1.0, 1e-4, 15, 2000, 80), "replace")
    assert delta_without_noise(quiet) == pytest.approx(1 - (1 - quiet.sampling_rate(0)) ** 80)
    assert delta(quiet, 5.0) == pytest.approx(delta_without_noise(quiet), rel=1e-6)
    loud = mechanism_of((30, 1.0, 1e4, 15, 2000, 80), "replace")
    assert epsilon(loud, 1e-5) == 0.0
    assert epsilon(mechanism_of((30, 1.0, 0.01, 15, 1666, 80), "replace"), 0.6) == 0.0  # delta is free


def test_without_noise_the_papers_run_is_half_broken() -> None:
    assert delta_without_noise(mechanism_of((30, 1.0, 0.01, 15, 1666, 80), "replace")) == pytest.approx(0.513, abs=1e-3)


def test_small_delta_against_the_oracle() -> None:
    mechanism = mechanism_of((30, 1.0, 0.25, 15, 2000, 80), "replace")
    got = epsilon(mechanism, 1e-10)
    assert oracle.worst_delta([(mechanism.mu(0), mechanism.sampling_rate(0), 80)], "replace", got) == pytest.approx(
        1e-10, rel=1e-3
    )


def test_schedule_is_increasing_and_ends_at_the_whole_run() -> None:
    mechanism = mechanism_of((30, 1.0, 0.25, 15, 2000, 80), "replace")
    rounds = [1, 5, 20, 80]
    schedule = epsilon_by_round(mechanism, 1e-5, rounds)
    assert list(schedule) == sorted(schedule)
    assert schedule[0] == pytest.approx(0.698583, rel=1e-5)
    assert schedule[-1] == pytest.approx(2.05172, rel=2e-4)
    assert spent(mechanism, 1e-5, rounds=0) == 0.0


def test_worst_client_is_the_worst_of_the_clients() -> None:
    clients = tuple(Client(Gaussian(0.3 + 0.1 * k), 1000 + 500 * k, 0.1 * (3 - k)) for k in range(3))
    mechanism = Mechanism(clients, L2(1.0), Sampling("replacement", 10), 20)
    each = [epsilon(mechanism, 1e-5, k) for k in range(3)]
    assert epsilon(mechanism, 1e-5) == max(each)
    many = tuple(Client(Gaussian(0.3 + 0.01 * k), 1000, 0.1) for k in range(12))
    crowd = Mechanism(many, L2(1.0), Sampling("replacement", 10), 20)
    assert epsilon(crowd, 1e-5) >= max(epsilon(crowd, 1e-5, k) for k in (0, 5, 11))  # the envelope covers all


def test_laplace_under_l1_clipping() -> None:
    mechanism = Mechanism.uniform(30, Laplace(4.0), L1(1.0), Sampling("replacement", 15), 1666, rounds=80)
    per_round = math.log1p(mechanism.sampling_rate(0) * math.expm1(0.5))
    assert epsilon(mechanism, 0.0) == pytest.approx(80 * per_round)
    assert epsilon(mechanism, 1e-5) < epsilon(mechanism, 0.0)
    assert epsilon(mechanism.over(1), 0.0) == pytest.approx(per_round)


def test_a_accountant_must_be_of_one_run() -> None:
    a = mechanism_of((30, 1.0, 0.25, 15, 2000, 1), "replace")
    with pytest.raises(ValueError, match="agree"):
        Accountant((a, mechanism_of((10, 1.0, 0.25, 15, 2000, 1), "replace")))
    assert Accountant().epsilon(1e-5) == 0.0
    assert Accountant().delta(0.1) == 0.0
    with pytest.raises(ValueError, match="rounds"):
        spent(Accountant((a,)), 1e-5, rounds=3)


@pytest.mark.parametrize("bad", [-1e-9, 1.0, math.nan])
def test_bad_delta_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon(mechanism_of(TABLE[4], "replace"), bad)


def test_a_many_round_answer_takes_under_five_seconds() -> None:
    mechanism = mechanism_of((30, 1.0, 0.2468, 15, 2000, 640), "add-remove")
    start = time.process_time()
    epsilon(mechanism, 1e-5)
    assert time.process_time() - start < 5.0
