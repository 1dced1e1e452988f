"""Nodes that fall silent at any stage, come back, restart or join: rounds with a quorum open right, others never."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cepam
from cepam import privacy
from tests.flower.fakes import adding, copied, outcome, start_arrays, vector_of

from .fakes import NAMES, SIZE, SumGrid, secagg_client, sum_fleet, summing

SIGMA = 0.001
# Nine deviations of the noise in the mean of five, rounding included: exceeded with chance below 1e-15.
BOUND = 9 * SIGMA * np.sqrt(5 * 13 / 12) / 5
silent = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["train", "repair", "unmask"]), max_size=4)


def opened(result: Result, rounds: int) -> list[int]:
    return [int(result.train_metrics_clientapp[r]["cepam-opened"]) for r in range(1, rounds + 1)]


def epochs(grid: SumGrid) -> int:
    """How often keys were agreed on."""
    stages = [stage for stage, *_ in grid.traffic]
    return sum(1 for stage, _ in itertools.groupby(stages) if stage == "hello")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(silent=silent, deaf=st.booleans(), quorum=st.sampled_from([3, 4]))
def test_any_pattern_of_silence(silent: dict[int, str], deaf: bool, quorum: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        grid, updates = sum_fleet(Path(folder))
        (grid.deaf if deaf else grid.mute).update((stage, node) for node, stage in silent.items())
        strategy = summing(sigma=SIGMA, quorum=quorum, folder=Path(folder))
        result = outcome(strategy, grid, start_arrays(SIZE))
        trained = {name for name in NAMES if silent.get(name) != "train"}
        # Who is silent in repair is missing only where there is something to repair.
        left = trained - {n for n in trained if silent.get(n) == "repair"} if len(trained) < 5 else trained
        if len(trained) < quorum:
            left = trained
        shares = left - {n for n in left if silent.get(n) == "unmask"}
        assert opened(result, 1) == [int(len(left) >= quorum and len(shares) >= quorum)]
        assert (strategy.epsilon > 0.0) == (len(left) >= quorum)
        if opened(result, 1) == [1]:
            expected = sum(updates[n - 100] for n in left) / 5
            np.testing.assert_allclose(vector_of(result.arrays), expected, atol=BOUND)
        grid.deaf, grid.mute = set(), set()
        again = strategy.start(grid, start_arrays(SIZE), num_rounds=1)
        assert opened(again, 1) == [1]
        np.testing.assert_allclose(vector_of(again.arrays), updates.mean(axis=0), atol=BOUND)


def test_a_round_is_charged_for_the_nodes_in_it_once_shares_are_asked_for(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    law, delta = cepam.Gaussian(2.0), 1e-5
    strategy = summing(noise=law, quorum=3, delta=delta)
    mechanism = privacy.Mechanism.uniform(5, law, cepam.L2(1.0), privacy.Sampling("all"), 1, coordinates=SIZE)
    grid.deaf = {("train", node) for node in NAMES[:3]}
    assert opened(outcome(strategy, grid, start_arrays(SIZE)), 1) == [0]
    assert strategy.epsilon == 0.0
    grid.deaf = {("train", 104)} | {("unmask", node) for node in NAMES[:3]}
    lost = outcome(strategy, grid, start_arrays(SIZE))
    assert opened(lost, 1) == [0]
    expected = privacy.epsilon(mechanism.without([4]), delta, client=0)
    assert strategy.epsilon == pytest.approx(expected, rel=2e-3)
    # A server that lies may have opened both rounds, over 2·3 - 5 nodes each.
    alone = privacy.epsilon(mechanism.over(2).without([1, 2, 3, 4]), delta, client=0)
    assert lost.train_metrics_clientapp[1]["cepam-epsilon-lying-server"] == pytest.approx(alone, rel=2e-3)


def test_a_node_that_restarts_misses_a_round_and_a_new_epoch_has_it_again(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    strategy = summing()
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    grid.nodes[102].restart()
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=3)
    assert [result.train_metrics_clientapp[r]["cepam-replies"] for r in (1, 2, 3)] == [4, 5, 5]
    assert result.train_metrics_clientapp[1]["cepam-dropped-refused"] == 1
    assert opened(result, 3) == [1, 1, 1]
    assert epochs(grid) == 2


def test_a_rolled_back_context_is_noticed_and_leads_to_a_new_epoch(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    strategy = summing()
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    node = grid.nodes[102]
    old = RecordDict({name: record.copy() for name, record in node.context.state.items()})
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    node.context.state = old
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=2)
    assert [result.train_metrics_clientapp[r]["cepam-replies"] for r in (1, 2)] == [4, 5]
    assert epochs(grid) == 2


def test_lost_answers_and_lost_rounds_keep_the_epoch(tmp_path) -> None:
    grid, updates = sum_fleet(tmp_path)
    strategy = summing(sigma=SIGMA)
    grid.mute = {("train", node) for node in NAMES}
    assert opened(outcome(strategy, grid, start_arrays(SIZE), 2), 2) == [0, 0]
    grid.mute = set()
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    assert opened(result, 1) == [1]
    assert epochs(grid) == 1
    np.testing.assert_allclose(vector_of(result.arrays), updates.mean(axis=0), atol=BOUND)


def test_newcomers_and_latecomers_are_let_in_by_a_new_epoch(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    strategy = summing()
    grid.deaf = {("hello", 104)}
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=2)
    assert [result.train_metrics_clientapp[r]["cepam-sampled"] for r in (1, 2)] == [4, 4]
    grid.deaf = set()
    grid.nodes[105] = secagg_client(tmp_path, 5, adding(np.zeros(SIZE)))
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    assert result.train_metrics_clientapp[1]["cepam-replies"] == 6
    assert epochs(grid) == 2


def test_a_node_that_never_answers_costs_an_epoch_ever_more_rarely(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    grid.deaf = {("hello", 104)}
    result = summing().start(grid, start_arrays(SIZE), num_rounds=20)
    assert opened(result, 20) == [1] * 20
    assert epochs(grid) == 3


def test_a_late_answer_and_a_repeated_one_are_not_taken(tmp_path) -> None:
    grid, updates = sum_fleet(tmp_path)
    kept: list[Message] = []

    def meddle(node: int, reply: Message) -> list[Message]:
        if node == 101:
            kept.append(copied(reply))
            return [reply, copied(reply)]
        return [reply, *kept[-3:-1]] if node == 103 else [reply]

    grid.meddle = meddle
    result = summing(sigma=SIGMA).start(grid, start_arrays(SIZE), num_rounds=2)
    assert opened(result, 2) == [1, 1]
    assert result.train_metrics_clientapp[2]["cepam-dropped-unsolicited"] >= 2
    np.testing.assert_allclose(vector_of(result.arrays), 2 * updates.mean(axis=0), atol=2 * BOUND)
