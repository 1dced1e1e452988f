"""Batch normalisation through Flower: counters never travel, variances stay positive, and a caution is given."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

import cepam
from cepam.flower import Private

from .fakes import FakeGrid, Node

torch = pytest.importorskip("torch")
SIGMA = 0.5
COUNTER = "1.num_batches_tracked"


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(5, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    )


def train(message: Message, context) -> Message:
    """30 batches of local work: counters move by 30, against a clip of 5."""
    model, draw = network(), np.random.default_rng(context.node_id)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        features = torch.tensor(draw.normal(size=(16, 5)), dtype=torch.float32)
        loss = torch.nn.functional.cross_entropy(model(features), (features[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    record = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": record, "m": MetricRecord({"num-examples": 9})}), reply_to=message)


def run(strategy, rounds: int = 4, sigma: float = SIGMA, seen: list | None = None):
    grid = FakeGrid([Node(k, train) for k in (1, 2, 3)])
    private = Private(strategy, noise=cepam.Gaussian(sigma), clip=cepam.L2(5.0))
    published = private.aggregate_train

    def watched(server_round, replies):
        made = published(server_round, replies)
        if seen is not None:
            seen.append(made[0])
        return made

    private.aggregate_train = watched
    start = {name: value.clone() for name, value in network().state_dict().items()}
    return private.start(grid, ArrayRecord(start), num_rounds=rounds)


@pytest.mark.parametrize("strategy", [FedAvg(), FedAdam(eta=0.1)], ids=["FedAvg", "FedAdam"])
def test_counters_never_travel_whatever_type_they_come_back_as(strategy) -> None:
    seen: list[ArrayRecord] = []
    result = run(strategy, seen=seen)
    floats = sum(v.numel() for name, v in network().state_dict().items() if name != COUNTER)
    for r in range(1, 5):
        assert result.train_metrics_clientapp[r]["cepam-float32-bytes"] == 3 * 4 * floats
        assert result.train_metrics_clientapp[r]["cepam-replies"] == 3
    for arrays in seen:
        assert arrays[COUNTER].dtype == "int64"
        assert arrays[COUNTER].numpy() == 0


def test_the_counter_does_not_eat_the_clip() -> None:
    # Without noise to speak of, the clipped update keeps the direction of the trained weights.
    start = {name: value.clone() for name, value in network().state_dict().items()}
    grid = FakeGrid([Node(k, train) for k in (1, 2, 3)])
    private = Private(FedAvg(), noise=cepam.Gaussian(1e-4), clip=cepam.L2(5.0))
    moved = private.start(grid, ArrayRecord(start), num_rounds=2).arrays.to_torch_state_dict()
    assert (moved["0.weight"] - start["0.weight"]).norm() > 0.01


def test_variances_stay_positive_under_noise() -> None:
    seen: list[ArrayRecord] = []
    result = run(FedAvg(), rounds=6, sigma=5.0, seen=seen)
    variances = [arrays["1.running_var"].numpy() for arrays in seen]
    assert all((variance >= 1e-5).all() for variance in variances)
    # The control: noise of this size brings some of 64 below the floor, but for a chance of 0.62^64.
    assert np.isclose(variances[0], 0.1).any()
    model = network()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    model.eval()
    assert torch.isfinite(model(torch.ones(4, 5))).all()


def test_batch_normalisation_is_cautioned_about_with_the_remedy(caplog) -> None:
    run(FedAvg(), rounds=2)
    said = [record.getMessage() for record in caplog.records if "batch normalisation" in record.getMessage()]
    assert len(said) == 1
    assert "GroupNorm" in said[0]
