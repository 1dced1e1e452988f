"""What a run of Flower is charged: the replies that were used, by a stated policy, also after a restart."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian
from flwr.supercore.task_identity import TaskIdentity

import cepam
from cepam import privacy
from cepam.flower import Accounting, Dropouts, Private, Target
from cepam.protocol.account import AccountLost
from tests.deployment import flat

from . import fakes
from .fakes import FakeGrid, Node, adding, start_arrays

DELTA = 1e-5
LAW, CLIP = cepam.Gaussian(2.0), cepam.L2(1.0)


def uniform(count: int, rounds: int, **options) -> privacy.Mechanism:
    return privacy.Mechanism.uniform(count, LAW, CLIP, privacy.Sampling("all"), 1, rounds=rounds, **options)


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
    return Private(strategy or FedAvg(), noise=LAW, clip=CLIP, **flat(**{"delta": DELTA, **options}))


def test_a_run_charges_the_replies_that_came() -> None:
    strategy = wrapped(dropouts=Dropouts("charge"))
    result = strategy.start(grid_with_silent({2: {1, 2}}), start_arrays(400), num_rounds=2)
    accountant = privacy.Accountant((uniform(4, 1),)).add(uniform(4, 1).without([2, 3]))
    assert strategy.epsilon == pytest.approx(accountant.epsilon(DELTA, client=0), rel=1e-3)
    assert result.train_metrics_clientapp[2]["cepam-epsilon"] == pytest.approx(strategy.epsilon)


def test_a_round_below_the_least_number_of_replies_waits_for_the_next() -> None:
    strategy = wrapped(dropouts=Dropouts(least_replies=3))
    result = strategy.start(grid_with_silent({1: {1, 2}}), start_arrays(400), num_rounds=2)
    assert result.train_metrics_clientapp[1]["cepam-epsilon"] == 0.0
    assert strategy.epsilon == pytest.approx(privacy.epsilon(uniform(4, 1), DELTA), rel=1e-3)


def test_nothing_is_published_beyond_the_budget() -> None:
    budget = privacy.epsilon(uniform(4, 2), DELTA) * 1.01
    strategy = wrapped(budget=budget)
    result = strategy.start(grid_with_silent({}), start_arrays(400), num_rounds=5)
    assert strategy.epsilon <= budget
    assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [4, 4, 0]
    assert strategy.budget_spent


def test_a_round_that_the_missing_replies_make_too_dear_is_refused_and_ends_the_run() -> None:
    budget = privacy.epsilon(uniform(4, 2), DELTA) * 1.01
    strategy = wrapped(budget=budget, dropouts=Dropouts("charge"))
    shown: list[int] = []
    result = strategy.start(
        grid_with_silent({2: {1, 2, 3}}),
        start_arrays(400),
        num_rounds=4,
        evaluate_fn=lambda server_round, arrays: shown.append(server_round) or MetricRecord({"seen": server_round}),
    )
    assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [4, 1, 0]
    assert "cepam-budget-spent" not in result.train_metrics_clientapp[1]
    assert [result.train_metrics_clientapp[r]["cepam-budget-spent"] for r in (2, 3)] == [1, 1]
    assert shown == list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert strategy.epsilon == pytest.approx(privacy.epsilon(uniform(4, 1), DELTA), rel=1e-3)


def test_a_node_that_may_stay_away_leaves_the_round_open_where_nodes_pay_for_their_own_rounds() -> None:
    budget = privacy.epsilon(uniform(4, 1), DELTA) * 1.01
    strategy = wrapped(budget=budget, dropouts=Dropouts("charge"), stable_nodes=True)
    result = strategy.start(grid_with_silent({}), start_arrays(400), num_rounds=3)
    assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [4, 4, 0]
    assert strategy.epsilon <= budget


def test_a_strategy_that_publishes_more_than_the_average_is_charged_for_it() -> None:
    strategy = wrapped(FedMedian())
    strategy.start(grid_with_silent({}), start_arrays(400), num_rounds=1)
    assert strategy.epsilon == pytest.approx(privacy.epsilon(uniform(1, 1), DELTA), rel=1e-3)


def arrays_after(strategy: Private, rounds: int, start=None):
    return strategy.start(grid_with_silent({}), start or start_arrays(400), num_rounds=rounds).arrays


def reloaded(arrays: ArrayRecord) -> ArrayRecord:
    """The model as a user saves and loads it: other names, another number format."""
    return ArrayRecord({"model.w": Array(arrays["w"].numpy().astype(np.float64))})


def test_a_server_app_that_starts_again_from_its_model_goes_on_with_the_account(monkeypatch) -> None:
    # A new run, a new process: all that is left is the model. Reported before: the second half alone.
    model = reloaded(arrays_after(wrapped(), 3))
    monkeypatch.setattr(fakes, "RUN", 78)
    TaskIdentity.run_id = 78
    again = wrapped()
    grid = FakeGrid([Node(k, renamed_adding) for k in range(1, 5)])
    result = again.start(grid, model, num_rounds=2)
    assert again.epsilon == pytest.approx(privacy.epsilon(uniform(4, 5), DELTA), rel=1e-3)
    assert result.train_metrics_clientapp[1]["cepam-epsilon"] > privacy.epsilon(uniform(4, 3), DELTA)


def renamed_adding(message, context):
    weights = message.content["arrays"]["model.w"].numpy()
    arrays = ArrayRecord({"model.w": Array(weights + 0.01)})
    return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)


def test_a_budget_holds_across_a_restart() -> None:
    budget = privacy.epsilon(uniform(4, 3), DELTA) * 1.01
    model = arrays_after(wrapped(budget=budget), 2)
    again = wrapped(budget=budget)
    result = again.start(grid_with_silent({}), model, num_rounds=4)
    assert again.epsilon <= budget
    assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [4, 0]
    third = wrapped(budget=again.epsilon)
    assert third.start(grid_with_silent({}), result.arrays, 1).train_metrics_clientapp[1]["cepam-sampled"] == 0


def test_a_model_whose_account_is_gone_ends_the_run_under_a_budget_and_is_warned_about_otherwise(
    tmp_path, caplog
) -> None:
    model = arrays_after(wrapped(folder=tmp_path), 1)
    next(tmp_path.glob("run-*.json")).unlink()
    with pytest.raises(AccountLost):
        wrapped(folder=tmp_path, budget=1e3).start(grid_with_silent({}), model, num_rounds=1)
    wrapped(folder=tmp_path).start(grid_with_silent({}), model, num_rounds=1)
    assert any("counted from here only" in record.getMessage() for record in caplog.records)


def test_nothing_is_published_where_the_account_cannot_be_saved(tmp_path, monkeypatch) -> None:
    strategy = wrapped(folder=tmp_path)
    arrays_after(strategy, 1)
    monkeypatch.setattr("cepam.protocol.account.write_atomically", lambda *_: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):  # noqa: PT011 - a full disk has no text of ours
        arrays_after(strategy, 1)


class Twice(FedAvg):
    """Asks the first node two times a round."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        first = messages[0]
        more = Message(first.content, dst_node_id=first.metadata.dst_node_id, message_type="train")
        return [*messages, more]


def test_a_node_that_answers_two_messages_of_one_round_is_charged_for_both() -> None:
    strategy = wrapped(Twice(), released="average")
    counts = strategy.start(grid_with_silent({}), start_arrays(400), num_rounds=1).train_metrics_clientapp[1]
    assert counts["cepam-replies"] == 5
    charge = privacy.SubsampledMechanism(privacy.GaussianShift(2 * 2.0 / (2.0 * np.sqrt(5))))
    assert strategy.epsilon == pytest.approx(charge.epsilon(DELTA), rel=1e-3)


def test_an_epsilon_that_is_no_guarantee_is_cautioned_about(caplog) -> None:
    strategy = Private(FedAvg(), noise=cepam.Gaussian(0.001), clip=CLIP)
    strategy.start(grid_with_silent({}), start_arrays(400), num_rounds=2)
    assert strategy.epsilon == np.inf
    assert sum("no-guarantee" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("strategy", "rate"), [(FedAvg(), "FedAvg, rate 1,"), (FedAdam(eta=0.02), "FedAdam, rate 0.02,")]
)
def test_the_log_says_which_server_step_is_taken(caplog, strategy, rate: str) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        Private(strategy, clip=CLIP, noise=cepam.Gaussian(1.0), accounting=Accounting(delta=1e-6)).summary()
    assert sum(f"server step: {rate}" in record.getMessage() for record in caplog.records) == 1


def test_epsilon_finds_the_noise_and_is_the_budget(caplog) -> None:
    grid = FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in range(1, 5)])
    strategy = Private(FedAvg(), clip=CLIP, epsilon=3.0, accounting=Accounting(delta=1e-6))
    with pytest.raises(ValueError, match="first round"):
        _ = strategy.settings
    with caplog.at_level("INFO", logger="flwr"):
        result = strategy.start(grid, start_arrays(400), num_rounds=5)
    assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [4] * 5
    assert 2.99 < strategy.epsilon <= 3.0 == strategy.budget
    assert strategy.accounting.delta == 1e-6
    said = [r.getMessage() for r in caplog.records if "meets epsilon" in r.getMessage()]
    assert len(said) == 1
    assert "5 rounds of 4 replies" in said[0]
    # A sixth round would be too much.
    more = strategy.start(grid, result.arrays, num_rounds=2)
    np.testing.assert_array_equal(more.arrays["w"].numpy(), result.arrays["w"].numpy())
    assert strategy.epsilon <= 3.0


def test_fewer_nodes_than_expected_end_within_epsilon() -> None:
    grid = FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in range(1, 3)])
    strategy = Private(FedAvg(), clip=CLIP, epsilon=Target(3.0, rounds=5, nodes=8))
    strategy.start(grid, start_arrays(400), num_rounds=5)
    assert 0.0 < strategy.epsilon <= 3.0
    with pytest.raises(ValueError, match="nodes must not"):
        Private(FedAvg(), clip=CLIP, epsilon=3.0, nodes={})
