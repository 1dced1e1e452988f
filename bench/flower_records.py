"""Record-level privacy over Flower beside the simulation engine: the same model, data, rounds and epsilon.

    python bench/flower_records.py --epsilon 2 --rounds 60

`examples/flower-mnist` runs in this process, the grid and the nodes those of the tests. The engine runs first and finds
the noise for epsilon; the app takes that noise, and its own account must come to the same epsilon. Both use Adam on the
server with the same rate. Prints a line of JSON for each, accuracy on MNIST's test images.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
sys.path.append(str(Path(__file__).resolve().parents[1]))

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from tests.flower.fakes import RUN, FakeGrid, Node

APP = Path(__file__).resolve().parents[1] / "examples" / "flower-mnist"
sys.path.append(str(APP))
SHOWN = ("accuracy", "epsilon", "noise_scales", "seconds")


def engine(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The simulation engine at the target epsilon; its noise is what a client adds."""
    from mnist_app.task import network

    from cepam import fl

    settings = fl.Settings.of(
        {
            "clients.count": given.clients, "training.update": "examples", "training.record_sampling": "poisson",
            "training.rounds": given.rounds, "training.local_steps": 1, "privacy.clipping_norm": given.clip,
            "training.expected_batch_size": float(given.draws * given.clients),
            "training.server_learning_rate": given.rate, "training.server_optimizer": "adam",
            "training.server_momentum": 0.9, "privacy.epsilon": given.epsilon, "privacy.delta": 1e-5,
            "privacy.adjacency": "add-remove", "data.pixels": "unit", "run.evaluate_every": given.rounds,
            "run.simulate": True,
        }
    )  # fmt: skip
    begin = time.perf_counter()
    summary = fl.train(settings, folder / "engine", model=fl.Model(network), say=lambda text: None)
    return {**summary, "seconds": round(time.perf_counter() - begin, 1)}


def flower(folder: Path, given: argparse.Namespace, sigma: float) -> dict[str, Any]:
    """The example's ClientApp and ServerApp."""
    from mnist_app import client_app, server_app

    os.environ["FLWR_HOME"] = str(folder / "home")
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    settings = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    report = folder / "report.json"
    settings |= {"report": str(report), "sigma": sigma, "learning-rate": given.rate, "num-server-rounds": given.rounds}
    settings |= {"clients": given.clients, "draws": given.draws, "clip": given.clip, "least-replies": given.clients}
    nodes = []
    for k in range(given.clients):
        node = Node(2**62 + k, client_app.train)
        node.uplink = client_app.uplink  # type: ignore[assignment]
        config = {"partition-id": k, "num-partitions": given.clients}
        node.context = Context(RUN, node.node_id, config, RecordDict(), settings)
        nodes.append(node)
    begin = time.perf_counter()
    server_app.main(FakeGrid(nodes), Context(RUN, 1, {}, RecordDict(), settings))
    made = json.loads(report.read_text())
    last = str(given.rounds)
    return {
        "accuracy": made["accuracy"][last],
        "epsilon": made["rounds"][last]["cepam-epsilon"],
        "seconds": round(time.perf_counter() - begin, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--draws", type=int, default=256, help="expected records of a client's batch")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam on the server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flower-records-") as made:
        found = engine(Path(made), given)
        print(json.dumps({"engine": {name: found[name] for name in SHOWN}}), flush=True)
        print(json.dumps({"flower": flower(Path(made), given, found["noise_scales"][0])}), flush=True)


if __name__ == "__main__":
    main()
