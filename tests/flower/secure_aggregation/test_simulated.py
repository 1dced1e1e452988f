"""Nodes of a simulation in secure aggregation: the ClientApp brings the policy, a node's own file always wins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from cepam.flower import ClientPolicy, Uplink
from tests.flower.fakes import Node, adding, outcome, start_arrays, vector_of

from .fakes import SIZE, SumGrid, secagg_client, summing

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

POLICY = ClientPolicy(noise_scale=0.001, clipping_norm=1.0, rounds=3, honest=1)


def simulated(number: int, change: np.ndarray, policy: ClientPolicy | None = POLICY) -> Node:
    node = Node(100 + number, adding(change))
    node.uplink = Uplink(policy=policy)
    return node


def test_nodes_without_files_aggregate_securely_under_the_policy_of_the_app(caplog) -> None:
    updates = np.random.default_rng(5).normal(size=(4, SIZE))
    updates *= 0.5 / np.linalg.norm(updates, axis=1, keepdims=True)
    seen: list[list[str]] = []
    grid = SumGrid([simulated(k, updates[k]) for k in range(4)])
    plain = grid.nodes[100].train
    grid.nodes[100].train = lambda message, context: (seen.append(sorted(context.state)), plain(message, context))[1]
    result = summing(sigma=0.001, quorum=3).start(grid, start_arrays(SIZE), num_rounds=3)
    assert [m["cepam-opened"] for m in result.train_metrics_clientapp.values()] == [1, 1, 1]
    bound = 9 * 0.001 * np.sqrt(3 * 13 / 12 / 4)  # nine deviations
    np.testing.assert_allclose(vector_of(result.arrays), 3 * updates.mean(axis=0), atol=bound)
    assert seen == [[]] * 3  # user code sees neither key nor account
    assert sum("is not the key that it is registered with" in r.getMessage() for r in caplog.records) == 1
    # The policy is enforced: three rounds are all that a node answers in this run's state.
    again = outcome(summing(sigma=0.001, quorum=3), grid, result.arrays)
    assert "the node refuses: policy" in str(again.error)


def test_the_policy_of_the_app_is_a_floor_too() -> None:
    loud = ClientPolicy(noise_scale=1.0, clipping_norm=1.0, rounds=3, honest=1)
    grid = SumGrid([simulated(k, np.zeros(SIZE), loud) for k in range(4)])
    assert "the node refuses: policy" in str(outcome(summing(sigma=0.001), grid, start_arrays(SIZE), 3).error)


def test_a_file_of_the_node_wins_over_the_policy_of_the_app(tmp_path) -> None:
    for k in range(4):
        (tmp_path / f"{k}.toml").write_text("noise_scale = 1.0\nclipping_norm = 1.0\nrounds = 3\nhonest = 1\n")
    grid = SumGrid([secagg_client(tmp_path, k, adding(np.zeros(SIZE))) for k in range(4)])
    for node in grid.nodes.values():
        node.uplink = Uplink(policy=POLICY)
    assert "the node refuses: policy" in str(outcome(summing(sigma=0.001), grid, start_arrays(SIZE)).error)
    result = summing(sigma=1.0).start(grid, start_arrays(SIZE), num_rounds=1)  # control: what the files allow
    assert result.train_metrics_clientapp[1]["cepam-opened"] == 1
    Path(grid.nodes[100].config["cepam-policy"]).unlink()  # a file that is named and gone does not make room
    assert outcome(summing(sigma=1.0), grid, start_arrays(SIZE)).train_metrics_clientapp[1]["cepam-sampled"] == 3


def test_without_a_policy_the_error_says_what_a_simulation_needs(caplog) -> None:
    grid = SumGrid([simulated(k, np.zeros(SIZE), None) for k in range(4)])
    error = str(outcome(summing(), grid, start_arrays(SIZE), 5).error)
    assert "every node of the first round refused" in error
    assert "cepam: policy" in error
    assert any("Uplink(policy=ClientPolicy(…))" in record.getMessage() for record in caplog.records)
    with pytest.raises(ValueError, match="policy must be"):
        Uplink(policy={"noise": 1.0})


@pytest.mark.parametrize("stage", ["hello", "train", "unmask"])
def test_a_run_whose_replies_are_all_dropped_fails(stage: str) -> None:
    grid = SumGrid([simulated(k, np.zeros(SIZE)) for k in range(4)])
    grid.mute = {(stage, node) for node in grid.nodes}
    error = outcome(summing(sigma=0.001), grid, start_arrays(SIZE), 2).error
    assert "nothing was trained: no reply of any round could be used" in str(error)
    assert list(error.metrics) == [1, 2]
    heard = SumGrid([simulated(k, np.zeros(SIZE)) for k in range(4)])
    assert summing(sigma=0.001).start(heard, start_arrays(SIZE), 2).train_metrics_clientapp[2]["cepam-opened"] == 1


class Old(NumPyClient):
    def fit(self, parameters, config):
        return parameters, 1, {}


def test_legacy_apps_are_refused_instead_of_sending_zeros(tmp_path) -> None:
    nodes = [secagg_client(tmp_path, k, adding(np.zeros(SIZE))) for k in range(4)]
    for node in nodes:
        app = ClientApp(client_fn=lambda context: Old().to_client(), mods=[Uplink()])
        node.handle = lambda message, node=node, app=app: app(message, node.context)
    assert "cepam: legacy-app" in str(outcome(summing(), SumGrid(nodes), start_arrays(SIZE), 3).error)


@pytest.mark.flower
def test_in_the_simulation_engine(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    from loopback_simulation import simulate

    from .app.sumapp.client_app import known_update

    app, size = Path(__file__).parent / "app", 2000
    config = {"folder": str(tmp_path), "num-server-rounds": 2, "nodes": 4, "size": size}
    simulate(
        tmp_path / "simulation", app, 4, {**config, "timeout": 200.0, "unmask-timeout": 120.0, "pause-after": 99}, 280
    )
    metrics = json.loads((tmp_path / "report.json").read_text())
    assert [m["cepam-opened"] for m in metrics.values()] == [1, 1]
    # The app of partition 1 raises in the first round, and counts as zero.
    updates = [known_update(k, size) for k in range(4)]
    want = (2 * sum(updates) - updates[1]) / 4
    np.testing.assert_allclose(np.load(tmp_path / "models.npy")[-1], want, atol=9 * 0.001 * np.sqrt(2 * 13 / 12 / 4))
