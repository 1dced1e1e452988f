"""`SecureAggregation` and the mod together: what the strategy is handed, what is charged, what is refused."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx
from scipy import stats

import cepam
from cepam import privacy
from cepam.flower import Accounting, Gradient, Private, SecureAggregation
from cepam.flower.client_mod import SECURE_AGGREGATION, carried
from cepam.secure_aggregation import SecAggSettings, epsilons
from cepam.secure_aggregation.messages import TrainRequest
from tests.flower.fakes import outcome, start_arrays, vector_of

from .fakes import SIZE, SumGrid, secagg_client, sum_fleet, summing

DELTA = 1e-5


def test_the_strategy_is_handed_the_mean_with_the_noise_of_all(tmp_path) -> None:
    # Fresh keys. False alarm 1e-9 (rounding adds at most 8.3 % to the variance, uncharged: the least and the most noise
    # are both tested); the control, a scale wrong by 10 %, must fail, and misses with chance below 1e-13.
    size = 100_000
    grid, updates = sum_fleet(tmp_path, 5, size)
    strategy = summing(sigma=0.1)
    result = strategy.start(grid, start_arrays(size, value=0.25), num_rounds=1)
    noise = vector_of(result.arrays).astype(np.float64) - 0.25 - updates.mean(axis=0)
    codec = _settings_of(grid).codec
    scale = np.sqrt(0.1**2 + codec.cell**2 / 12) / np.sqrt(5)
    assert stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > 1e-9
    assert stats.kstest(noise, stats.norm(scale=1.1 * scale).cdf).pvalue < 1e-9
    assert result.train_metrics_clientapp[1]["cepam-opened"] == 1
    assert not isinstance(strategy, Private)


def _settings_of(grid: SumGrid) -> SecAggSettings:
    sent = next(message for stage, _, message, _ in grid.traffic if stage == "train")
    return TrainRequest.decode(carried(sent.content[SECURE_AGGREGATION])).settings


@pytest.mark.parametrize(
    "strategy", [FedAvg(), FedAvgM(server_momentum=0.5), FedAdam(), FedProx()], ids=lambda s: type(s).__name__
)
def test_averaging_strategies_train_around_it(strategy, tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    result = summing(strategy).start(grid, start_arrays(SIZE), num_rounds=3)
    assert np.isfinite(vector_of(result.arrays)).all()
    assert [result.train_metrics_clientapp[r]["cepam-replies"] for r in (1, 2, 3)] == [5, 5, 5]
    stages = [stage for stage, _, _, _ in grid.traffic]
    assert stages == ["hello"] * 5 + (["train"] * 5 + ["unmask"] * 5) * 3


def test_nodes_that_are_missing_count_as_zero_not_as_the_mean_of_the_others(tmp_path) -> None:
    grid, updates = sum_fleet(tmp_path)
    grid.deaf = {("train", 104)}
    arrays = summing(sigma=0.001).start(grid, start_arrays(SIZE), num_rounds=1).arrays
    # The noise has deviation 0.001 √(4 · 13/12) / 5 at most: a bound of 9 deviations fails with chance below 1e-15.
    bound = 9 * 0.001 * np.sqrt(4 * 13 / 12) / 5
    np.testing.assert_allclose(vector_of(arrays), updates[:4].sum(axis=0) / 5, atol=bound)
    assert np.abs(vector_of(arrays) - updates[:4].mean(axis=0)).max() > bound


def test_gradients_and_integer_arrays(tmp_path) -> None:
    gradient = np.linspace(-0.02, 0.02, SIZE).astype(np.float32)

    def train(message, context):
        arrays = ArrayRecord({"w": Array(gradient.reshape(-1, 4)), "n": Array(np.array([99]))})
        return Message(RecordDict({"g": arrays, "m": MetricRecord({"num-examples": 3})}), reply_to=message)

    grid = SumGrid([secagg_client(tmp_path, k, train) for k in range(4)])
    start = ArrayRecord({**start_arrays(SIZE, 1.0), "n": Array(np.array([7]))})
    strategy = summing(sigma=0.05, quorum=0.75, update=Gradient(0.5))
    arrays = strategy.start(grid, start, num_rounds=1).arrays
    np.testing.assert_allclose(vector_of(arrays), 1.0 - 0.5 * gradient, atol=0.5 * 9 * 0.05 / 2)
    assert arrays["n"].numpy() == 7


def test_each_observer_has_its_epsilon_and_the_account_that_of_the_server_with_colluders(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    law = cepam.Gaussian(2.0)
    strategy = summing(noise=law, quorum=4, delta=DELTA, colluders=1)
    metrics = strategy.start(grid, start_arrays(SIZE), num_rounds=2).train_metrics_clientapp[2]
    mechanism = privacy.Mechanism.uniform(5, law, cepam.L2(1.0), privacy.Sampling("all"), 1, rounds=2, coordinates=SIZE)
    expected = epsilons(mechanism, DELTA, quorum=4, colluders=1)
    assert len(expected) == 5
    for observer, epsilon in expected.items():
        assert metrics[f"cepam-epsilon-{observer.replace(' ', '-')}"] == pytest.approx(epsilon, rel=2e-3)
    assert metrics["cepam-epsilon"] == pytest.approx(expected["server with 1 colluders"], rel=2e-3)
    assert strategy.epsilon == metrics["cepam-epsilon"]


def test_the_noise_for_a_target_and_the_budget(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    strategy = summing(epsilon=4.0, delta=DELTA)
    strategy.start(grid, start_arrays(SIZE), num_rounds=3)
    assert 3.9 < strategy.epsilon <= 4.0
    grid, _ = sum_fleet(tmp_path / "more")
    grid.deaf = {("train", 104)}
    strategy = summing(epsilon=4.0, delta=DELTA, folder=tmp_path / "accounts")
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=3)
    assert strategy.epsilon <= 4.0
    assert [result.train_metrics_clientapp[r]["cepam-opened"] for r in (1, 2, 3)] == [1, 1, 0]
    assert sum(stage == "train" for stage, *_ in grid.traffic) == 2 * 4  # nobody trains the refused round


def test_the_quantized_downlink_is_bound_to_the_masks(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    result = summing(downlink="quantized").start(grid, start_arrays(SIZE), num_rounds=2)
    assert [result.train_metrics_clientapp[r]["cepam-opened"] for r in (1, 2)] == [1, 1]
    grid.nodes[102].restart()
    again = summing(downlink="quantized").start(grid, result.arrays, num_rounds=1)
    assert again.train_metrics_clientapp[1]["cepam-opened"] == 1


def test_what_does_not_go_with_sums_is_refused_with_a_reason() -> None:
    for options, reason in (
        ({"noise": cepam.Laplace(1.0)}, "no other adds up"),
        ({"strategy": FedMedian()}, "by the average"),
        ({"accounting": Accounting(released="vectors")}, "has no vectors"),
    ):
        with pytest.raises(ValueError, match=reason):
            summing(**options)
    law = cepam.Gaussian(1.0)
    with pytest.raises(ValueError, match=r"clip must be cepam\.L2"):
        SecureAggregation(FedAvg(), noise=law, clip=cepam.L1(1.0))
    for odd in ({"quorum": 0.5}, {"quorum": 2}, {"masked_bits": 0}, {"unmask_timeout": 0.0}):
        with pytest.raises(ValueError, match=next(iter(odd))):
            SecureAggregation(FedAvg(), noise=law, clip=cepam.L2(1.0), **odd)


def test_too_few_nodes_ask_for_no_sum(tmp_path, caplog) -> None:
    grid, _ = sum_fleet(tmp_path, 2)
    logging.getLogger("flwr").addHandler(caplog.handler)
    strategy = summing()
    result = outcome(strategy, grid, start_arrays(SIZE))
    assert result.train_metrics_clientapp[1]["cepam-sampled"] == 0
    assert strategy.epsilon == 0.0
    assert "cannot aggregate securely" in caplog.text
    assert "a sum of 2 nodes with quorum 2" in str(result.error)
    grid.deaf = {("hello", node) for node in grid.nodes}
    silent = outcome(summing(), grid, start_arrays(SIZE))
    assert "2 times no answer to the key agreement within 0.02 s (unmask_timeout)" in str(silent.error)
