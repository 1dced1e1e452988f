"""The end of the budget: no node trains for nothing, and no untrained model is taken for the result."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import cepam
from cepam import privacy
from cepam.flower import Accounting, Dropouts, Private

from ..flower import fakes
from ..flower.fakes import FakeGrid, Node, adding, start_arrays

DELTA = 1e-5
LAW, CLIP = cepam.Gaussian(2.0), cepam.L2(1.0)


@pytest.fixture(autouse=True)
def _run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, fakes.RUN, 1


def epsilon_of(rounds: int) -> float:
    return privacy.epsilon(privacy.Mechanism.uniform(4, LAW, CLIP, privacy.Sampling("all"), 1, rounds=rounds), DELTA)


def wrapped(folder, budget: float, **options) -> Private:
    accounting = Accounting(delta=DELTA, budget=budget, folder=folder)
    return Private(FedAvg(), noise=LAW, clip=CLIP, accounting=accounting, **options)


def four_nodes() -> FakeGrid:
    return FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in range(1, 5)])


def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new `flwr run`: another run id."""
    monkeypatch.setattr(fakes, "RUN", fakes.RUN + 1)
    TaskIdentity.run_id = fakes.RUN


@pytest.mark.parametrize("handling", ["compensate", "charge"])
def test_nobody_trains_a_round_whose_refusal_is_known_and_the_last_model_comes_back(tmp_path, handling) -> None:
    grid = four_nodes()
    strategy = wrapped(tmp_path, epsilon_of(2) * 1.01, dropouts=Dropouts(handling))
    result = strategy.start(grid, start_arrays(400), num_rounds=50)
    assert len(grid.seen) == 2 * 4
    assert strategy.budget_spent
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert result.train_metrics_clientapp[3]["cepam-budget-spent"] == 1
    assert len(result.arrays) == 1
    assert np.any(result.arrays["w"].numpy() != 0.0)


def test_a_restart_with_a_spent_budget_gives_the_published_model_back(tmp_path, monkeypatch) -> None:
    budget = epsilon_of(2) * 1.01
    model = wrapped(tmp_path, budget).start(four_nodes(), start_arrays(400), num_rounds=2).arrays
    restarted(monkeypatch)
    grid = four_nodes()
    strategy = wrapped(tmp_path, budget)
    again = strategy.start(grid, model, num_rounds=3)
    assert not grid.seen
    assert strategy.budget_spent
    np.testing.assert_array_equal(again.arrays["w"].numpy(), model["w"].numpy())


def test_the_natural_restart_with_a_spent_budget_publishes_nothing_and_returns_no_untrained_model(
    tmp_path, monkeypatch
) -> None:
    # The app would save what it is given over the model that it has trained.
    budget = epsilon_of(2) * 1.01
    wrapped(tmp_path, budget).start(four_nodes(), start_arrays(400), num_rounds=2)
    restarted(monkeypatch)
    grid = four_nodes()
    with pytest.raises(cepam.errors.BudgetSpent, match="no model that was published"):
        wrapped(tmp_path, budget).start(grid, start_arrays(400), num_rounds=2)
    assert not grid.seen


def test_the_natural_restart_goes_on_with_what_the_budget_has_left(tmp_path, monkeypatch) -> None:
    budget = epsilon_of(3) * 1.01
    wrapped(tmp_path, budget).start(four_nodes(), start_arrays(400), num_rounds=2)
    restarted(monkeypatch)
    grid = four_nodes()
    strategy = wrapped(tmp_path, budget)
    strategy.start(grid, start_arrays(400), num_rounds=2)
    assert len(grid.seen) == 4
    assert strategy.epsilon == pytest.approx(epsilon_of(3), rel=1e-3)


def test_a_budget_below_one_round_is_an_error_and_no_empty_model(tmp_path) -> None:
    grid = four_nodes()
    with pytest.raises(cepam.errors.BudgetSpent):
        wrapped(tmp_path, epsilon_of(1) * 0.5).start(grid, start_arrays(400), num_rounds=2)
    assert not grid.seen
