"""Record-level privacy over Flower beside the simulation engine: the same model, data, rounds and epsilon.

    python bench/flower_records.py --save bench/results/flower_records.json
    python bench/flower_records.py --held-out

`examples/flower-mnist` runs in this process, the grid and the nodes those of the tests. The engine runs first and finds
the noise for epsilon; the app takes that noise, and its own account must come to the same epsilon. Both use Adam on the
server with the same rate, and start from the same weights, those of the seed. Batches and noise are drawn afresh on
both sides. Prints a line of JSON for each run, accuracy on MNIST's test images, and the mean difference of the pairs
in points with its 95 % interval (Student's t).

`--held-out` chooses the rate: the engine's accuracy on 10,000 held-out training records for several rates and epsilons.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
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
from scipy import stats
from tests.flower.fakes import RUN, FakeGrid, Node

from stamp import save

APP = Path(__file__).resolve().parents[1] / "examples" / "flower-mnist"
sys.path.append(str(APP))
SHOWN = ("accuracy", "epsilon", "noise_scales", "seconds")
RATES, EPSILONS, HELD_OUT = (0.01, 0.02, 0.04, 0.08), (0.5, 2.0, 8.0), 10_000


def engine(folder: Path, given: argparse.Namespace, seed: int, held_out: int = 0) -> dict[str, Any]:
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
            "run.simulate": True, "run.seed": seed, "data.validation_records": held_out,
        }
    )  # fmt: skip
    begin = time.perf_counter()
    summary = fl.train(
        settings, Path(tempfile.mkdtemp(dir=folder)) / "run", model=fl.Model(network), say=lambda text: None
    )
    return {**summary, "seconds": round(time.perf_counter() - begin, 1)}


def flower(folder: Path, given: argparse.Namespace, seed: int, sigma: float) -> dict[str, Any]:
    """The example's ClientApp and ServerApp."""
    from mnist_app import client_app, server_app, task

    os.environ["FLWR_HOME"] = str(folder / f"home-{seed}")
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    settings = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    report = folder / "report.json"
    settings |= {"report": str(report), "sigma": sigma, "learning-rate": given.rate, "num-server-rounds": given.rounds}
    settings |= {"clients": given.clients, "draws": given.draws, "clip": given.clip, "least-replies": given.clients}
    settings |= {"seed": seed}
    nodes = []
    for k in range(given.clients):
        node = Node(2**62 + k, client_app.train)
        node.uplink = client_app.uplink  # type: ignore[assignment]
        config = {"partition-id": k, "num-partitions": given.clients}
        node.context = Context(RUN, node.node_id, config, RecordDict(), settings)
        nodes.append(node)
    rounds = itertools.count()  # the app evaluates before the first round and after each: the last figure is wanted
    server_app.test_accuracy = lambda model: task.test_accuracy(model) if next(rounds) == given.rounds else 0.0
    begin = time.perf_counter()
    server_app.main(FakeGrid(nodes), Context(RUN, 1, {}, RecordDict(), settings))
    made = json.loads(report.read_text())
    last = str(given.rounds)
    return {
        "accuracy": made["accuracy"][last],
        "epsilon": made["rounds"][last]["cepam-epsilon"],
        "seconds": round(time.perf_counter() - begin, 1),
    }


def choose(folder: Path, given: argparse.Namespace) -> None:
    """The engine's accuracy on held-out training records, by epsilon and rate."""
    for epsilon, rate in itertools.product(EPSILONS, RATES):
        one = argparse.Namespace(**{**vars(given), "epsilon": epsilon, "rate": rate})
        found = [engine(folder, one, seed, HELD_OUT)["accuracy"] for seed in range(1, given.seeds + 1)]
        print(json.dumps({"epsilon": epsilon, "rate": rate, "held-out accuracy": found}), flush=True)


def compare(folder: Path, given: argparse.Namespace) -> None:
    """Both, seed by seed, and how far Flower is below the engine so far."""
    pairs: list[dict[str, Any]] = []
    for seed in range(1, given.seeds + 1):
        found = engine(folder, given, seed)
        run = flower(folder, given, seed, found["noise_scales"][0])
        pairs.append({"seed": seed, "engine": {name: found[name] for name in SHOWN}, "flower": run})
        print(json.dumps(pairs[-1]), flush=True)
        total = gap([100.0 * (pair["engine"]["accuracy"] - pair["flower"]["accuracy"]) for pair in pairs])
        if given.save:
            asked = {name: value for name, value in vars(given).items() if name not in ("held_out", "save", "seeds")}
            save(given.save, {"settings": asked, "runs": pairs, **total})
    print(json.dumps(total), flush=True)


def gap(points: list[float]) -> dict[str, Any]:
    """The mean of the pairs' differences, and its 95 % interval."""
    mean = statistics.mean(points)
    total = {"points below the engine": round(mean, 2), "of each seed": [round(each, 2) for each in points]}
    if len(points) > 1:
        half = stats.t.ppf(0.975, len(points) - 1) * statistics.stdev(points) / len(points) ** 0.5
        total["95 % interval"] = [round(mean - half, 2), round(mean + half, 2)]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--draws", type=int, default=256, help="expected records of a client's batch")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.02, help="of Adam on the server")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each, seeds 1, 2, …")
    parser.add_argument("--held-out", action="store_true", help="choose the rate, without test data and without Flower")
    parser.add_argument("--save", type=Path, help="a JSON file for the comparison")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flower-records-") as made:
        (choose if given.held_out else compare)(Path(made), given)


if __name__ == "__main__":
    main()
