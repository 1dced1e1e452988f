"""Runs of the engine, measured: accuracy, bytes both ways, epsilon and time of the presets, suite by suite.

    python bench/engine.py --suite main                      what bench/results/engine.json does not hold yet
    python bench/engine.py --suite main budgets --processes 16 --commit $(git rev-parse --short HEAD)
    python bench/engine.py --suite main --seeds 1            one seed of every row
    python bench/engine.py --suite main --report             the tables of what was measured
    python bench/engine.py --picture docs/img/both_ways.png  accuracy against bytes both ways

A job is a preset, the settings that are changed, and a seed; a suite is a list of jobs (bench/suites.py). Settings that
this version does not know are skipped, and it says so. Each job is a process of its own; with `--processes` it has one
core and one thread, so that its seconds are those of one core. Runs are simulations. Those of a seed have one nonce, so
that schemes and ways down are paired with the same keys and the same record draws. Every run is written when it ends.
Seconds are of the simulation, features kept and kernels compiled before; processor seconds say more where a machine is
not idle.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "engine.json"
Job = dict[str, Any]
Run = dict[str, Any]


def measured(job: Job) -> Run:
    """The run's figures: accuracies and bytes so far at every evaluated round, epsilon, seconds, and the load."""
    from cepam import fl
    from cepam.fl.clients.sampling import RunSecret

    settings = effective(job)
    data = fl.prepared(settings)
    before, start, spent = os.getloadavg()[0], time.perf_counter(), time.process_time()
    simulation = fl.Simulation(settings, data, secret=RunSecret(None, b"bench %10d" % settings.run.seed))
    ready, lines, curve = time.perf_counter(), [], []
    while not simulation.done:
        made = simulation.step()
        lines += made
        if "accuracy" in made[0]:
            both = sum(line["bits_round_trip"] for line in lines) // 8
            curve.append([made[0]["round"], made[0]["accuracy"], both])
    last = [line for line in lines if line["round"] == settings.training.rounds]
    return {
        "job": job, "weights": simulation.size, "accuracy": [line["accuracy"] for line in last],
        "validation_accuracy": [line.get("validation_accuracy") for line in last],
        "epsilon_spent": [line.get("epsilon") for line in last], "epsilon_against": simulation.views(),
        "seconds": time.perf_counter() - start, "seconds_of_start": ready - start,
        "processor_seconds": time.process_time() - spent, "load": [round(before, 2), round(os.getloadavg()[0], 2)],
        "bits_up": mean(lines, "bits_per_coordinate"), "bits_down": mean(lines, "bits_per_coordinate_down"),
        "bytes_up": sum(line["bits"] for line in lines) // 8,
        "bytes_down": sum(line["downlink_bits"] for line in lines) // 8, "curve": curve,
    }  # fmt: skip


def mean(lines: list[dict[str, Any]], name: str) -> float | None:
    """The mean of a quantity over the rounds and seeds that have one."""
    found = [line[name] for line in lines if line.get(name) is not None]
    return sum(found) / len(found) if found else None


def effective(job: Job) -> Any:
    """The settings of a job: its preset, changed."""
    from cepam import fl

    changes = {name: value for name, value in job.items() if name not in ("preset", "suite")}
    return fl.preset(job["preset"]).updated({**changes, "run.simulate": True})


def completed(job: Job) -> Job | None:
    """The job with the settings that tell it from others, or None, and a line that says why, where it cannot be run.

    A preset's values are noted beside its name: with another value tomorrow it is another job.
    """
    try:
        settings = effective(job).values()
    except (ValueError, TypeError, KeyError) as unknown:
        print(f"skipped {job}: {unknown}", flush=True)
        return None
    base = effective({"preset": job["preset"]}).values()
    changed = {name: value for name, value in job.items() if base.get(name) != value}
    told = (
        "data.name", "model.name", "privacy.epsilon", "training.server_learning_rate", "training.rounds",
        "training.expected_batch_size", "compression.scheme", "compression.downlink", "run.seed", "run.seeds",
    )  # fmt: skip
    return {**changed, **{name: settings[name] for name in told}}


def key_of(job: Job) -> str:
    """What tells a job from the others, as text; which suite asked for it does not."""
    return json.dumps({name: value for name, value in job.items() if name != "suite"}, sort_keys=True)


class Kept:
    """The runs that a file holds; written whole after every run, from whichever thread."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, Lock()
        self.runs: list[Run] = json.loads(path.read_text())["runs"] if path.exists() else []

    def add(self, run: Run) -> None:
        """Add this run to the file."""
        with self.lock:
            self.runs.append(run)
            beside = self.path.with_suffix(".tmp")
            beside.write_text(json.dumps({"runs": self.runs}) + "\n")
            beside.replace(self.path)


def in_process(job: Job, core: int | None) -> Run:
    """The figures of a job that ran in a process of its own, on one core where one is named."""
    command = [sys.executable, str(HERE / "engine.py"), "--job", json.dumps(job)]
    environment = dict(os.environ)
    if core is not None:
        command += ["--core", str(core)]
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr[-2000:]}")
    found: Run = json.loads(done.stdout.splitlines()[-1])
    return found


def work(jobs: list[Job], kept: Kept, processes: int | None, about: dict[str, Any]) -> None:
    """Measure all jobs, the longest waiting first, and keep each as it ends."""
    cores: queue.Queue[int | None] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[:processes] if processes else [None]:
        cores.put(core)

    def one(job: Job) -> None:
        core = cores.get()
        try:
            run = {**in_process(job, core), **about, "alone": processes is None}
            kept.add(run)
            print(f"{time.strftime('%H:%M:%S')} {job} {run['accuracy']} {run['bits_up']} up {run['bits_down']} down, "
                  f"{run['seconds']:.0f} s, processor {run['processor_seconds']:.0f} s", flush=True)  # fmt: skip
        except RuntimeError as problem:
            print(problem, flush=True)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        list(pool.map(one, jobs))


def warm(jobs: list[Job]) -> None:
    """Keep features and compile kernels, so that no run pays for them."""

    def one(preset: str) -> None:
        for data in sorted({job["data.name"] for job in jobs if job["preset"] == preset}):
            in_process({"preset": preset, "data.name": data, "training.rounds": 2, "run.seed": 1}, None)

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, {job["preset"] for job in jobs}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=["main"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="instead of the presets' own, to try whether all of it runs")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--ready", action="store_true", help="features are kept and kernels compiled already")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--job")
    parser.add_argument("--core", type=int)
    chosen = parser.parse_args()
    if chosen.job:
        if chosen.core is not None:
            os.sched_setaffinity(0, {chosen.core})
        print(json.dumps(measured(json.loads(chosen.job))))
        return
    sys.path.insert(0, str(HERE))
    import suites
    from stamp import stamp

    kept = Kept(chosen.out)
    if chosen.picture:
        return suites.draw(chosen.picture, kept.runs)
    if chosen.report:
        return suites.report(kept.runs, chosen.suite)

    known = {key_of(run["job"]) for run in kept.runs}
    fewer = {} if chosen.rounds is None else {"training.rounds": chosen.rounds}
    asked = [{"suite": name, **job, **fewer} for name in chosen.suite for job in suites.SUITES[name](chosen.seeds)]
    jobs = {key_of(job): job for job in map(completed, asked) if job is not None}
    todo = [job for key, job in jobs.items() if key not in known]
    if not chosen.ready:
        warm(todo)
    work(todo, kept, chosen.processes, {"stamp": stamp(), "commit": chosen.commit})
    suites.report(kept.runs, chosen.suite)


if __name__ == "__main__":
    main()
