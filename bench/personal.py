"""Layers that stay on the client against one model for all, on clients with two labels each: accuracy on their own.

    python bench/personal.py --search            rates and clips, judged on held-out training records
    python bench/personal.py --seeds 3           the chosen ones, judged on test records
    python bench/personal.py --report            the table

MNIST dealt to 2,000 clients of 30 records in two shards of one label or two (`--partition label`), Poisson cohorts of
200, 100 rounds, ten local steps of five records, the paper's CNN; epsilon is for all data of a client. Every model is
judged on the first 300 clients, each by 100 records drawn with its own distribution of labels. Two rivals need no layer
that stays: each client alone, with as many local steps on all its records as it takes in a run, and the model for all,
tuned by each client with as many. The search looks at 10,000 held-out training records, the runs at test records;
neither is in epsilon. Simulations, written to bench/results/personal.json as they end.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cepam import fl
from cepam.fl.clients.personalization import Evaluation
from cepam.fl.runs.summary import interval
from stamp import save

RESULTS = Path(__file__).parent / "results" / "personal.json"
HELD_OUT = 10_000
BASE: dict[str, Any] = {
    "data.name": "mnist",
    "model.name": "cnn",
    "data.pixels": "unit",
    "model.activation": "tanh",
    "data.partition": "label",
    "data.shards_per_client": 2,
    "clients.count": 2000,
    "clients.sampling_rate": 0.1,
    "clients.sampling": "poisson",
    "privacy.unit": "client",
    "privacy.adjacency": "add-remove",
    "privacy.delta": 1e-5,
    "training.update": "difference",
    "training.batch_size": 5,
    "training.local_steps": 10,
    "training.local_schedule": "constant",
    "training.rounds": 100,
    "privacy.clipping_norm": 0.3,
    "training.server_optimizer": "momentum",
    "training.schedule": "linear",
    "run.evaluate_every": 100,
    "run.simulate": True,
}
GRID = tuple(product((0.1, 0.3), (0.1, 0.3)))
"""Local rates and rates of the server, of which `--search` takes the best."""
Row = dict[str, Any]


def trained(simulation: fl.Simulation, models: Any, clients: tuple[int, ...]) -> Any:
    """The clients' models after as many local steps as a client takes in a run, in expectation."""
    s, parts = simulation.settings, simulation.work.parts[0]
    held = [parts[k] for k in clients]
    count = np.array([len(one) for one in held], dtype=np.int64)
    index = np.stack([np.resize(one, int(count.max())) for one in held])
    for _ in range(round(s.training.local_steps * s.training.rounds * s.clients.sampling_rate)):
        sums, _ = simulation.network.summed_gradients(models, np.arange(len(clients)), index, count)
        models = models - np.float32(s.training.local_learning_rate or s.training.server_learning_rate) * sums / count[
            :, None
        ].astype(np.float32)
    return models


def measured(changes: Row) -> Row:
    """A run's accuracies on clients' own labels, on test records or, where some are held out, on those."""
    begun, settings = time.process_time(), fl.Settings.of({**BASE, **changes})
    simulation = fl.Simulation(settings, fl.prepared(settings))
    lines: list[Row] = []
    while not simulation.done:
        lines += simulation.step()
    held_out = simulation.validation[0] if settings.data.validation_records else None
    on = Evaluation.of(simulation.data, simulation.work.parts[0], settings.run.seed, held_out)
    found: Row = {"job": changes, "epsilon": lines[-1]["epsilon"], "weights_sent": simulation.size}
    if simulation.own is not None:
        found["accuracy"] = lines[-1]["validation_accuracy" if settings.data.validation_records else "accuracy"]
    else:
        starts = (simulation.state.weights, simulation.vector.initial(settings.run.seed)[None])
        shared, start = (np.repeat(one, len(on.clients), 0) for one in starts)
        named = {"accuracy": shared, "tuned": trained(simulation, shared, on.clients)}
        named["alone"] = trained(simulation, start, on.clients)
        found |= {name: float(on.scores(simulation.network, each).accuracy[0]) for name, each in named.items()}
    bits = [line["bits_per_coordinate"] for line in lines]
    return found | {"bits_up": float(np.mean(bits)), "processor_seconds": time.process_time() - begun}


def searched(rows: list[Row], epsilons: list[float]) -> None:
    """Fill the rows with every point of the grid, on held-out records."""
    for epsilon, (local, rate), personal in product(epsilons, GRID, (None, "last")):
        job = {
            "privacy.epsilon": epsilon,
            "training.local_learning_rate": local,
            "training.server_learning_rate": rate,
            "data.validation_records": HELD_OUT,
            "run.seed": 1001,
        }
        _add(rows, job | ({} if personal is None else {"model.personal_layers": personal}))


def _add(rows: list[Row], job: Row) -> None:
    if any(row["job"] == job for row in rows):
        return
    rows.append(measured(job))
    save(RESULTS, {"rows": rows})
    print(json.dumps(rows[-1]), flush=True)


def best(rows: list[Row], epsilon: float, personal: str | None, judged: str = "accuracy") -> Row:
    """The job of the search that did best on held-out records."""
    found = [
        row for row in rows if row["job"].get("data.validation_records") and row["job"]["privacy.epsilon"] == epsilon
    ]
    found = [row for row in found if row["job"].get("model.personal_layers") == personal]
    return {name: value for name, value in max(found, key=lambda row: row[judged])["job"].items()
            if name not in ("data.validation_records", "run.seed")}  # fmt: skip


def report(rows: list[Row], epsilons: list[float]) -> None:
    """Print the table."""
    print("| client-level epsilon | one model for all | the same, tuned by each client | last layer stays | alone |")
    print("|---|---|---|---|---|")
    for epsilon in epsilons:
        cells = []
        for personal, judged in ((None, "accuracy"), (None, "tuned"), ("last", "accuracy"), (None, "alone")):
            job = best(rows, epsilon, personal, judged)
            values = [row[judged] for row in rows if {**row["job"], "run.seed": 0} == {**job, "run.seed": 0}]
            mean, half = interval(values)
            cells.append(f"{100 * mean:.2f}{'' if half is None else f' ± {100 * half:.2f}'} % ({len(values)})")
        print(f"| {epsilon:g} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[4.0])
    chosen = parser.parse_args()
    rows: list[Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    if chosen.report:
        report(rows, chosen.epsilon)
    elif chosen.search:
        searched(rows, chosen.epsilon)
    else:
        for seed, epsilon in product(range(1, chosen.seeds + 1), chosen.epsilon):
            for personal, judged in ((None, "accuracy"), ("last", "accuracy"), (None, "tuned"), (None, "alone")):
                _add(rows, {**best(rows, epsilon, personal, judged), "run.seed": seed})


if __name__ == "__main__":
    main()
