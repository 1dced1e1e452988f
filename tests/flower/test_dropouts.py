"""Dropout compensation in Flower: dropouts cost neither epsilon nor a second try, and the divisor is public."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian
from scipy import stats

import cepam
from cepam import privacy
from cepam.errors import NoUsableReplies
from cepam.flower import Accounting, Dropouts, Gradient, NodeSettings, Private
from cepam.protocol.settings import UplinkSettings
from tests.deployment import flat

from .fakes import FakeGrid, Node, adding, start_arrays, vector_of

DELTA = 1e-5
CLIP = cepam.L2(1.0)


def wrapped(strategy=None, sigma: float = 2.0, **options) -> Private:
    options = {"dropouts": Dropouts("compensate"), "delta": DELTA, **options}
    return Private(strategy or FedAvg(), noise=cepam.Gaussian(sigma), clip=CLIP, **flat(**options))


def silencing(grid: FakeGrid, silent: set[int]) -> FakeGrid:
    grid.meddle = lambda node, reply: [] if node in silent else [reply]
    return grid


def ten(size: int = 400, **metrics: float) -> FakeGrid:
    return FakeGrid([Node(k, adding(np.full(size, 0.3 / np.sqrt(size)), **metrics)) for k in range(1, 11)])


@pytest.mark.parametrize("unit", ["record", "client"])
def test_thirty_percent_dropouts_cost_exactly_nothing(unit: str, tmp_path) -> None:
    spent = []
    for silent in (set(), {2, 5, 9}):
        strategy = wrapped(unit=unit, folder=tmp_path / str(len(silent)))
        result = strategy.start(silencing(ten(), silent), start_arrays(400), num_rounds=3)
        assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [10 - len(silent)] * 3
        spent.append(strategy.epsilon)
    assert spent[0] == spent[1]
    mechanism = privacy.Mechanism.uniform(10, cepam.Gaussian(2.0), CLIP, privacy.Sampling("all"), 1, rounds=3)
    assert spent[0] == pytest.approx(privacy.epsilon(mechanism, DELTA), rel=1e-3)
    # Control: the other handling charges for what is missing.
    charged = wrapped(dropouts=Dropouts("charge"), folder=tmp_path / "charged")
    charged.start(silencing(ten(), {2, 5, 9}), start_arrays(400), num_rounds=3)
    assert charged.epsilon > 1.1 * spent[0]


@pytest.mark.parametrize("silent", [set(), {1, 2, 3}, {*range(2, 11)}])
def test_the_noise_of_the_aggregate_has_one_law_whoever_replies(silent: set[int]) -> None:
    # Fresh keys. False alarms 1e-9; the control, the noise of the replies alone, must fail.
    size, sigma = 100_000, 0.1
    grid = silencing(ten(size), silent)
    result = wrapped(sigma=sigma).start(grid, start_arrays(size), num_rounds=1)
    came = 10 - len(silent)
    noise = vector_of(result.arrays).astype(np.float64) - came * 0.3 / np.sqrt(size) / 10
    total = sigma * np.sqrt(10) / 10
    assert stats.kstest(noise, stats.norm(scale=total).cdf).pvalue > 1e-9
    if silent:
        bare = sigma * np.sqrt(came) / 10
        assert stats.kstest(noise, stats.norm(scale=bare).cdf).pvalue < 1e-9


def test_the_sum_is_divided_by_who_was_sampled_whatever_replies_claim() -> None:
    # One node of four replies, and claims 10^12 examples: FedAvg by itself would make its update the average.
    grid = FakeGrid([Node(k, adding(np.full(400, 0.04), examples=10**12)) for k in range(1, 5)])
    arrays = wrapped(sigma=1e-4).start(silencing(grid, {2, 3, 4}), start_arrays(400), num_rounds=1).arrays
    assert vector_of(arrays).mean() == pytest.approx(0.01, abs=1e-4)
    plain = (
        wrapped(sigma=1e-4, dropouts=Dropouts("charge")).start(silencing(grid, {2, 3, 4}), start_arrays(400), 1).arrays
    )
    assert vector_of(plain).mean() == pytest.approx(0.04, abs=1e-4)


def test_weights_of_nodes_are_in_the_sum_and_in_the_divisor() -> None:
    grid = FakeGrid([Node(k, adding(np.full(400, 0.04))) for k in (1, 2)])
    own = NodeSettings(weight=3.0)
    arrays = wrapped(sigma=1e-4, nodes={2: own}).start(silencing(grid, {1}), start_arrays(400), num_rounds=1).arrays
    assert vector_of(arrays).mean() == pytest.approx(0.03, abs=1e-4)


def test_gradients_take_a_step_down_and_metrics_are_those_of_all_replies() -> None:
    gradient = np.full(400, 0.02, np.float32)

    def train(loss):
        def reply(message, context):
            arrays = ArrayRecord({"w": Array(gradient.reshape(-1, 4))})
            record = MetricRecord({"num-examples": 3, "train_loss": loss})
            return Message(RecordDict({"g": arrays, "m": record}), reply_to=message)

        return reply

    grid = FakeGrid([Node(1, train(1.0)), Node(2, train(3.0))])
    strategy = wrapped(sigma=1e-4, update=Gradient(0.5))
    result = strategy.start(grid, start_arrays(400, 1.0), num_rounds=1)
    np.testing.assert_allclose(vector_of(result.arrays), 0.99, atol=5e-4)
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(2.0)


def test_a_strategy_with_an_optimiser_goes_on_from_the_compensated_average() -> None:
    result = wrapped(FedAdam(eta=0.01), sigma=1e-3).start(silencing(ten(), {4}), start_arrays(400), num_rounds=2)
    assert vector_of(result.arrays).mean() > 0.005


def test_a_round_without_any_reply_publishes_and_costs_nothing() -> None:
    strategy = wrapped()
    with pytest.raises(NoUsableReplies):
        strategy.start(silencing(ten(), {*range(1, 11)}), start_arrays(400), num_rounds=1)
    assert strategy.epsilon == 0.0


def test_a_server_app_that_starts_again_goes_on_with_the_account(tmp_path) -> None:
    model = wrapped().start(silencing(ten(), {1}), start_arrays(400), num_rounds=2).arrays
    again = wrapped()
    again.start(silencing(ten(), {2, 3}), model, num_rounds=1)
    whole = wrapped(folder=tmp_path)
    whole.start(ten(), start_arrays(400, 0.5), num_rounds=3)
    assert again.epsilon == pytest.approx(whole.epsilon, rel=1e-12)


def test_compensation_is_the_default_where_it_can_be() -> None:
    def kind(strategy, noise, clip=CLIP, **options) -> str:
        return str(Private(strategy, noise=noise, clip=clip, **options)._aggregator)

    assert "whoever replies" in kind(FedAvg(), cepam.Gaussian(1.0))
    assert "whoever replies" in kind(FedAvg(), None, epsilon=1.0)
    assert "whoever replies" not in kind(FedAvg(), cepam.Laplace(1.0), cepam.L1(1.0))
    assert "whoever replies" not in kind(FedMedian(), cepam.Gaussian(1.0))
    assert "whoever replies" not in kind(FedAvg(), cepam.Gaussian(1.0), nodes={})
    for strategy, law, clip in (
        (FedMedian(), cepam.Gaussian(1.0), CLIP),
        (FedAvg(), cepam.Laplace(1.0), cepam.L1(1.0)),
    ):
        with pytest.raises(ValueError, match="compensate"):
            Private(strategy, noise=law, clip=clip, dropouts=Dropouts("compensate"))
    with pytest.raises(ValueError, match="handling must be"):
        Dropouts("hope")


class OwnModels(FedAvg):
    """A strategy with a model of its own for each node."""

    def configure_train(self, server_round, arrays, config, grid):
        for k, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
            yield Message(
                RecordDict({"arrays": start_arrays(400, float(k)), "config": config}),
                message.metadata.dst_node_id,
                "train",
            )


def test_what_cannot_be_added_up_is_refused_before_anything_is_sent() -> None:
    grid = ten()
    with pytest.raises(ValueError, match="one model for all nodes"):
        wrapped(OwnModels(), released="average").start(grid, start_arrays(400), num_rounds=1)
    assert not grid.seen


def test_the_unit_is_told_to_nodes_and_counted() -> None:
    grid = ten()
    strategy = wrapped(
        unit="client",
        adjacency="add-remove",
        nodes={2: NodeSettings()},
    )
    strategy.start(grid, start_arrays(400), num_rounds=1)
    told = [UplinkSettings.from_json(message.content["cepam"]["settings"]).unit for message in grid.seen]
    assert told == ["client"] * 10
    # Removed is zeroed out: half of what a replaced record moves.
    mechanism = privacy.Mechanism.uniform(
        10, cepam.Gaussian(2.0), CLIP, privacy.Sampling("all"), 1, adjacency="add-remove", unit="client"
    )
    assert strategy.epsilon == pytest.approx(privacy.epsilon(mechanism, DELTA), rel=1e-3)
    with pytest.raises(ValueError, match="unit"):
        Accounting(unit="household")
    with pytest.raises(ValueError, match="do not hide a client"):
        Accounting(unit="client", record_sampling=privacy.Sampling("poisson", 3))
