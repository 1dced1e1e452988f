"""What a run of Flower is charged: the replies that were used, by a stated policy, also after a restart."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedMedian

import cepam
from cepam import privacy
from cepam.flower import Account, Private

from .fakes import FakeGrid, Node, adding, start_arrays

DELTA = 1e-5
LAW, CLIP = cepam.Gaussian(0.5), cepam.L2(1.0)


def uniform(count: int, rounds: int, **options) -> privacy.Release:
    return privacy.Release.uniform(count, LAW, CLIP, privacy.Sampling("all"), 1, rounds=rounds, **options)


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
