"""What is charged: the noise that was really added, by a stated policy."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedMedian

import cepam
from cepam import privacy
from cepam.flower import Account, Private, Settings
from cepam.flower.bill import Bill

from .fakes import FakeGrid, Node, adding, start_arrays

DELTA = 1e-5
LAW, CLIP = cepam.Gaussian(0.5), cepam.L2(1.0)


def same(count: int) -> dict[int, Settings]:
    return {node: Settings(LAW, CLIP) for node in range(count)}


def uniform(count: int, rounds: int, **options) -> privacy.Release:
    return privacy.Release.uniform(count, LAW, CLIP, privacy.Sampling("all"), 1, rounds=rounds, **options)


def bill(average: bool = True, **options) -> Bill:
    return Bill(Account(delta=DELTA, **options), average)


def test_full_rounds_cost_what_the_accountant_says() -> None:
    made = bill()
    for _ in range(5):
        made.add(same(10))
    assert made.epsilon() == pytest.approx(privacy.epsilon(uniform(10, 5), DELTA), rel=1e-3)


def test_fewer_replies_cost_more() -> None:
    full, thin = bill(), bill()
    full.add(same(10))
    thin.add(same(5))
    assert thin.epsilon() > full.epsilon()
    assert thin.epsilon() == pytest.approx(privacy.epsilon(uniform(5, 1), DELTA), rel=1e-3)


def test_every_round_is_charged_as_its_worst_client_paid_it_unless_nodes_are_stable() -> None:
    by_worst, by_node = bill(), bill(stable_nodes=True)
    for first in (0, 5):
        for made in (by_worst, by_node):
            made.add({node: Settings(LAW, CLIP) for node in range(first, first + 5)})
    assert by_node.epsilon() == pytest.approx(privacy.epsilon(uniform(5, 1), DELTA), rel=1e-3)
    assert by_worst.epsilon() == pytest.approx(privacy.epsilon(uniform(5, 2), DELTA), rel=1e-3)


def test_only_the_own_noise_counts_where_more_than_the_average_is_published() -> None:
    made = bill(average=False)
    made.add(same(10))
    assert made.epsilon() == pytest.approx(privacy.epsilon(uniform(1, 1), DELTA), rel=1e-3)


def test_colluders_take_their_noise_away() -> None:
    made = bill(colluders=3)
    made.add(same(10))
    assert made.epsilon() == pytest.approx(privacy.epsilon(uniform(10, 1, colluders=3), DELTA), rel=1e-3)


def test_clients_may_differ_in_noise_and_clip() -> None:
    loud, tight = Settings(cepam.Gaussian(1.0), CLIP), Settings(LAW, cepam.L2(0.25))
    made = bill()
    made.add({1: Settings(LAW, CLIP), 2: loud, 3: tight})
    noise = np.sqrt(0.5**2 + 1.0 + 0.5**2)
    charge = privacy.Charge(privacy.GaussianShift(2.0 / noise))
    assert made.epsilon() == pytest.approx(charge.epsilon(DELTA), rel=1e-3)
    own = bill(stable_nodes=True)
    own.add({1: Settings(LAW, CLIP), 2: loud, 3: tight})
    assert own.epsilon() == pytest.approx(charge.epsilon(DELTA), rel=1e-3)


def test_laplace_noise_is_charged() -> None:
    l1 = Bill(Account(delta=DELTA), True)
    l1.add({1: Settings(cepam.Laplace(1.0), cepam.L1(0.5)), 2: Settings(cepam.Laplace(1.0), cepam.L1(0.5))})
    assert l1.epsilon() == pytest.approx(1.0, abs=1e-3)
    l2 = Bill(Account(delta=DELTA), True, coordinates=1000)
    l2.add({1: Settings(cepam.Laplace(1.0), cepam.L2(0.5)), 2: Settings(cepam.Laplace(1.0), cepam.L2(0.5))})
    assert l2.epsilon() > 1.0


def grid_with_silent(silent: dict[int, set[int]]) -> FakeGrid:
    grid = FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in range(1, 5)])
    state = {"round": 0, "calls": 0}

    def meddle(node, reply):
        state["calls"] += 1
        server_round = (state["calls"] + 3) // 4
        return [] if node in silent.get(server_round, set()) else [reply]

    grid.meddle = meddle
    return grid


def wrapped(strategy=None, **options) -> Private:
    account = options.pop("account", Account(delta=DELTA))
    return Private(strategy or FedAvg(), law=LAW, clip=CLIP, account=account, **options)


def test_a_run_charges_the_replies_that_came() -> None:
    strategy = wrapped()
    result = strategy.start(grid_with_silent({2: {1, 2}}), start_arrays(400), num_rounds=2)
    ledger = privacy.Ledger((uniform(4, 1),)).add(uniform(4, 1).without([2, 3]))
    assert strategy.epsilon == pytest.approx(ledger.epsilon(DELTA, client=0), rel=1e-3)
    assert result.train_metrics_clientapp[2]["cepam-epsilon"] == pytest.approx(strategy.epsilon)


def test_a_round_below_the_least_number_of_replies_waits_for_the_next() -> None:
    strategy = wrapped(least_replies=3)
    result = strategy.start(grid_with_silent({1: {1, 2}}), start_arrays(400), num_rounds=2)
    assert result.train_metrics_clientapp[1]["cepam-epsilon"] == 0.0
    assert strategy.epsilon == pytest.approx(privacy.epsilon(uniform(4, 1), DELTA), rel=1e-3)


def test_nothing_is_published_beyond_the_budget() -> None:
    budget = privacy.epsilon(uniform(4, 2), DELTA) * 1.01
    strategy = wrapped(budget=budget)
    result = strategy.start(grid_with_silent({}), start_arrays(400), num_rounds=5)
    assert strategy.epsilon <= budget
    assert [result.train_metrics_clientapp[r]["cepam-replies"] for r in range(1, 6)] == [4, 4, 4, 0, 0]


def test_a_strategy_that_publishes_more_than_the_average_is_charged_for_it() -> None:
    strategy = wrapped(FedMedian())
    strategy.start(grid_with_silent({}), start_arrays(400), num_rounds=1)
    assert strategy.epsilon == pytest.approx(privacy.epsilon(uniform(1, 1), DELTA), rel=1e-3)
