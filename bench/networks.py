"""What the study's compiled networks buy over PyTorch, side by side, and what a round of the linear head costs.

    python bench/networks.py            calls of both engines in turn, the better of several times
    python bench/networks.py --runs     whole runs of `algorithm1` and of a private CNN on both engines as well

`make setup`, or `pip install ./studies/paper`, brings them. Wall time depends on what else the machine does; processor
time (both threads together) much less. Writes bench/results/networks.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cepam import fl
from cepam.fl.models.interface import engine_of
from stamp import save

RESULTS = Path(__file__).parent / "results" / "networks.json"
ENGINES = {"compiled": "cpu", "torch": "cpu-torch"}


def timed(calls: dict[str, Callable[[], Any]], times: int) -> dict[str, dict[str, float]]:
    """The least wall and processor milliseconds of each call, all called in turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(times):
        for name, call in calls.items():
            wall, processor = time.perf_counter(), time.process_time()
            call()
            found[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {
        name: {"wall_ms": 1e3 * min(w for w, _ in each), "processor_ms": 1e3 * min(p for _, p in each)}
        for name, each in found.items()
    }


def networks(model: fl.Model, data: fl.Dataset) -> dict[str, Any]:
    """The model's network by engine; both must be there."""
    made = {name: model.on(data, device) for name, device in ENGINES.items()}
    if len({engine_of(network) for network in made.values()}) < len(made):
        raise SystemExit("only PyTorch is installed: pip install ./studies/paper")
    return made


def jobs(data: fl.Dataset) -> dict[str, dict[str, Callable[[], Any]]]:
    """What a round asks of a network, by name and engine."""
    draw, made = np.random.default_rng(0), {}
    model = fl.build("cnn", data)
    engines = networks(model, data)
    for rows in (30, 300):
        weights, own = np.stack([model.initial(r % 3) for r in range(rows)]), np.arange(rows)
        index, one = draw.integers(0, data.records, (rows, 1)), np.ones(rows, np.int64)
        made[f"algorithm1: a local step of {rows} rows"] = {
            name: lambda net=net, w=weights, of=own, i=index, n=one: net.summed_gradients(w, of, i, n)
            for name, net in engines.items()
        }
    made["cnn: 10,000 examples scored"] = {
        name: lambda net=net: net.evaluate(weights[:1]) for name, net in engines.items()
    }
    private = fl.build("cnn-private", data, "tanh")
    count = draw.poisson(64, 30)
    index, bounds = draw.integers(0, data.records, (30, count.max())), np.full(30, 0.1, np.float32)
    start, same = private.initial(0)[None], np.zeros(30, np.int64)
    engines = networks(private, data)
    made["private CNN: a round of 1,920 clipped examples"] = {
        name: lambda net=net: net.summed_gradients(start, same, index, count, bounds) for name, net in engines.items()
    }
    return made | head(data, draw)


def head(data: fl.Dataset, draw: np.random.Generator) -> dict[str, dict[str, Callable[[], Any]]]:
    """A round of the linear head on features, and its two products over records that are already gathered."""
    linear = fl.build("scattering-linear", data)
    network, weights = linear.on(data, "cpu"), linear.initial(0)[None]
    count, bounds = draw.poisson(4096 / 30, 30), np.full(30, 0.1, np.float32)
    index, same = draw.integers(0, data.records, (30, count.max())), np.zeros(30, np.int64)
    x, matrix = np.ones((4096, 3969), np.float32), np.ones((10, 3969), np.float32)
    return {
        "scattering-linear: a round of 4,096 clipped examples": {
            "torch": lambda: network.summed_gradients(weights, same, index, count, bounds)
        },
        "scattering-linear: its two products alone, NumPy": {"numpy": lambda: (matrix @ x.T) @ x},
    }


def runs() -> list[dict[str, Any]]:
    """Whole runs on both engines, after two rounds that compile what is compiled: seconds and accuracy."""
    made = []
    for preset in ("algorithm1", "convolutional"):
        for device in ENGINES.values():
            settings = fl.preset(preset).updated({"run.device": device, "run.simulate": True})
            with tempfile.TemporaryDirectory() as folder:
                fl.train(settings.updated({"training.rounds": 2}), Path(folder) / "warm")
                wall, processor = time.perf_counter(), time.process_time()
                summary = fl.train(settings, Path(folder) / "run")
            row = {"run": preset, "engine": summary["engine"], "accuracy": summary["accuracy"],
                   "wall_s": time.perf_counter() - wall, "processor_s": time.process_time() - processor}  # fmt: skip
            print(row, flush=True)
            made.append(row)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", action="store_true")
    parser.add_argument("--only", default="", help="calls whose name holds this word")
    parser.add_argument("--times", type=int, default=7)
    chosen, rows = parser.parse_args(), []
    for what, calls in jobs(fl.load("mnist")).items():
        if chosen.only not in what:
            continue
        found = timed(calls, chosen.times)
        rows.append({"what": what, **found})
        told = [f"{n} {t['wall_ms']:.2f} ms wall {t['processor_ms']:.2f} processor" for n, t in found.items()]
        print(f"{what}: {', '.join(told)}", flush=True)
    kept = {"load": os.getloadavg()[0], "cores": os.cpu_count(), "calls": rows, "runs": runs() if chosen.runs else []}
    save(RESULTS, kept)


if __name__ == "__main__":
    main()
