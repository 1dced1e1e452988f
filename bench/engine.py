"""The engine's targets, measured: accuracy, time and size of `private`, time of the paper's setting.

    python bench/engine.py                   everything (about ten minutes on two cores)
    python bench/engine.py --seeds 1         `private` on one seed only
    python bench/engine.py --skip-private    the paper's setting only

Prints a line for every run and a table, and writes bench/results/engine.json after every run, so that what was measured
survives an interruption. Compilation is done before any clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from cepam import fl
from cepam.fl.runs.summary import interval

RESULTS = Path(__file__).parent / "results" / "engine.json"
KEPT = ("accuracy", "epsilon_against", "bits_per_coordinate", "uplink_bytes")
Run = dict[str, Any]


def run(name: str, **changes: Any) -> Run:
    """A run of a preset in a folder of its own: its figures, the seconds from start to finish, files included, and
    how busy the machine was when it started and ended."""
    settings = fl.settings_from({**fl.preset(name), **changes, "simulate": True})
    with tempfile.TemporaryDirectory() as folder:
        before, start = os.getloadavg()[0], time.perf_counter()
        summary = fl.train(settings, Path(folder) / "run")
        seconds = time.perf_counter() - start
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    return {"preset": name, **changes, "seconds": seconds, "load": load, **{key: summary[key] for key in KEPT}}


def papers(runs: list[Run]) -> list[dict[str, Any]]:
    """The paper's setting, evaluated every round, on one seed and on ten."""
    rows = []
    for made in runs:
        if made["preset"] == "algorithm1":
            ten = made.get("seeds", 1) == 10
            what = "algorithm1: ten seeds, s" if ten else "algorithm1: 80 rounds, n = 1, s"
            rows.append(row(what, made["seconds"], None, *((180.0, 60.0) if ten else (25.0, 8.0))))
    return rows


def private(runs: list[Run]) -> list[dict[str, Any]]:
    """Accuracy over seeds, a run's time, bits a coordinate, and the same accuracy with plain float32 noise.

    Difference and size are over the seeds that both schemes have run.
    """
    ours = {made["seed"]: made for made in runs if made["preset"] == "private" and "scheme" not in made}
    plain = {made["seed"]: made for made in runs if made["preset"] == "private" and "scheme" in made}
    if not ours:
        return []
    accuracy, half = interval([made["accuracy"] for made in ours.values()])
    rows = [
        row("private: test accuracy, %", 100 * accuracy, percent(half), 96.0, 97.3, True),
        row("private: epsilon at delta 1e-5", max(m["epsilon_against"]["outsider"] for m in ours.values()), None, 2, 2),
        row("private: whole run, s", max(made["seconds"] for made in ours.values()), None, 360.0, 90.0),
        row("private: bits a coordinate", next(iter(ours.values()))["bits_per_coordinate"], None, 0.8, 0.4),
    ]
    both = [(ours[seed], plain[seed]) for seed in ours if seed in plain]
    if both:
        gain, half = interval([a["accuracy"] - b["accuracy"] for a, b in both])
        ratio = sum(b["uplink_bytes"] for _, b in both) / sum(a["uplink_bytes"] for a, _ in both)
        rows.append(row("private: CEPAM less FL+Gaussian, paired, %", 100 * gain, percent(half)))
        rows.append(row("private: messages smaller by", ratio, None, 25.0, 25.0, True))
    return rows


def percent(half: float | None) -> float | None:
    """The half width in per cent, where there is one."""
    return None if half is None else 100 * half


def row(what: str, value: float, half: float | None = None, must: float | None = None, aim: float | None = None,
        larger: bool = False) -> dict[str, Any]:  # fmt: skip
    """One line of the table, with whether it holds."""
    held = None if must is None else (value >= must if larger else value <= must)
    return {"what": what, "value": value, "half_width": half, "must": must, "aim": aim, "holds": held}


def write(runs: list[Run]) -> list[dict[str, Any]]:
    """The table of the runs so far, now also on disk."""
    rows = papers(runs) + private(runs)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0]}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    beside = RESULTS.with_suffix(".tmp")
    beside.write_text(json.dumps({"machine": machine, "rows": rows, "runs": runs}, indent=2) + "\n")
    beside.replace(RESULTS)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--skip-private", action="store_true")
    chosen = parser.parse_args()
    fl.load("mnist")
    print("compiling", flush=True)
    run("algorithm1", rounds=1)
    run("private", rounds=1, noise=1e-3, epsilon=None)
    jobs: list[tuple[str, dict[str, Any]]] = [("algorithm1", {}), ("algorithm1", {"seeds": 10})]
    for seed in range(1, 1 + (0 if chosen.skip_private else chosen.seeds)):
        jobs += [("private", {"seed": seed}), ("private", {"seed": seed, "scheme": "fl+gaussian"})]
    runs: list[Run] = []
    rows: list[dict[str, Any]] = []
    for number, (name, changes) in enumerate(jobs, 1):
        told = " ".join([name, *(f"{key}={value}" for key, value in changes.items())])
        print(f"[{number}/{len(jobs)}] {told} ...", flush=True)
        runs.append(run(name, **changes))
        rows = write(runs)
        print(
            f"    {runs[-1]['seconds']:.1f} s, accuracy {runs[-1]['accuracy']:.4f}, load {runs[-1]['load']}", flush=True
        )
    for each in rows:
        half = "" if each["half_width"] is None else f" ± {each['half_width']:.2f}"
        goal = "" if each["must"] is None else f"must {each['must']:g}, aim {each['aim']:g}"
        print(f"{each['what']:45} {each['value']:9.3f}{half:9} {goal}")


if __name__ == "__main__":
    main()
