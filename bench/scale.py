"""Rounds of a thousand clients out of ever larger populations: seconds per round, and memory.

    python bench/scale.py                          1,000 to 1,000,000 clients, cohorts of 1,000
    python bench/scale.py --populations 10000      one of them
    python bench/scale.py --device cuda --rounds 3 --out scale_gpu.json      the same on a GPU
    python bench/scale.py --preset cifar10-users --rounds 3 --out scale_cifar.json      clients that are copies of users

Whole clients (unit client, Poisson cohorts, dropouts compensated), a linear model of 1,010 weights, one record per
client or more, both ways compressed. Each population has a process of its own: its peak memory is the system's figure.
With `--preset` clients are drawn with replacement from the preset's 10,000 users: a client is a copy of a user, so what
is simulated is the work for so many clients, not what so many people would teach.
Seconds are the median round's, after one that is not counted; processor seconds say more on a machine that is not idle.
The draw of the cohort, the only work as long as the population, is timed by itself. Written to `--out`,
bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from stamp import save

RESULTS = Path(__file__).parent / "results" / "scale.json"
FEATURES, CLASSES = 100, 10


def made_clients(population: int, cohort: int, rounds: int, device: str) -> Any:
    """A simulation of clients with a made record each, or more."""
    from cepam import fl

    draw = np.random.Generator(np.random.PCG64(population))
    labels = draw.integers(0, CLASSES, max(population, 100_000))
    inputs = draw.integers(0, 200, (len(labels), FEATURES), dtype=np.uint8)
    inputs[np.arange(len(labels)), labels] += 55
    data = fl.from_arrays((inputs, labels), (inputs[:1000], labels[:1000]), "drawn")
    settings = fl.Settings.of(
        {
            "data.name": "own: drawn",
            "model.name": "linear",
            "clients.count": population,
            "clients.sampling_rate": cohort / population,
            "privacy.unit": "client",
            "clients.sampling": "poisson",
            "training.update": "difference",
            "training.local_steps": 1,
            "training.rounds": rounds + 1,
            "training.server_learning_rate": 1.0,
            "training.local_learning_rate": 0.5,
            "privacy.clipping_norm": 1.0,
            "privacy.noise_scale": 0.02,
            "privacy.adjacency": "add-remove",
            "compression.downlink": "quantized",
            "run.evaluate_every": rounds + 1,
            "run.simulate": True,
            "run.device": device,
        }
    )
    return fl.Simulation(settings, data)


def copied_users(preset: str, population: int, cohort: int, rounds: int, device: str) -> Any:
    """A simulation of a preset whose clients are drawn with replacement from its users."""
    from cepam import fl
    from cepam.fl.data.partition import Parts, partition

    start = fl.preset(preset)

    class Copied(fl.Simulation):
        """Clients that hold the records of users who may have other copies."""

        def _parts(self, records: Any, seed: int) -> Parts:
            data = start.data
            users = partition(
                data.partition, self.data.train_labels[records], start.clients.count, seed, data.concentration,
                data.shards_per_client,
            ).within(records)  # fmt: skip
            drawn = np.random.default_rng([seed, population]).integers(len(users), size=population)
            return Parts.of(users[int(k)] for k in drawn)

    settings = start.updated(
        {
            "clients.count": population, "clients.sampling_rate": cohort / population, "training.rounds": rounds + 1,
            "privacy.noise_scale": 0.02, "run.evaluate_every": rounds + 1, "run.simulate": True, "run.device": device,
        }
    )  # fmt: skip
    return Copied(settings, fl.prepared(settings))


def measured(population: int, cohort: int, rounds: int, device: str, preset: str | None) -> dict[str, Any]:
    """The figures of one population, of this process."""
    begun = time.perf_counter()
    simulation = (
        made_clients(population, cohort, rounds, device)
        if preset is None
        else copied_users(preset, population, cohort, rounds, device)
    )
    simulation.step()
    ready, seconds, spent = time.perf_counter() - begun, [], []
    while not simulation.done:
        start, used = time.perf_counter(), time.process_time()
        simulation.step()
        seconds.append(time.perf_counter() - start)
        spent.append(time.process_time() - used)
    start = time.perf_counter()
    simulation.aggregators[0].sampled(0)
    return {
        "clients": population, "preset": preset, "weights": simulation.size, "cohort": cohort,
        "seconds_a_round": statistics.median(seconds[:-1] or seconds),
        "processor_seconds_a_round": statistics.median(spent[:-1] or spent),
        "seconds_of_the_draw": time.perf_counter() - start, "seconds_of_start": ready,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "device": device,
        "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--populations", nargs="+", type=int, default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", help="whose users clients are copies of")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.alone:
        print(json.dumps(measured(chosen.populations[0], chosen.cohort, chosen.rounds, chosen.device, chosen.preset)))
        return
    rows = []
    for population in chosen.populations:
        told = ["--populations", population, "--cohort", chosen.cohort, "--rounds", chosen.rounds]
        command = [sys.executable, __file__, *map(str, told), "--device", chosen.device, "--alone"]
        command += ["--preset", chosen.preset] if chosen.preset else []
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            raise RuntimeError(f"{population} clients: {made.stderr[-2000:]}")
        row = json.loads(made.stdout.splitlines()[-1])
        rows.append(row)
        print(f"{row['clients']:>9,} clients: {row['seconds_a_round']:.3f} s per round, "
              f"{row['processor_seconds_a_round']:.3f} of processors, the draw {row['seconds_of_the_draw']:.3f}; "
              f"peak {row['peak_bytes'] / 1e9:.2f} GB; start {row['seconds_of_start']:.1f} s; load {row['load']}",
              flush=True)  # fmt: skip
        save(chosen.out, {"rows": rows})


if __name__ == "__main__":
    main()
