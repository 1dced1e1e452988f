"""The engine's targets, measured: accuracy, time and size of `private`, time of the paper's setting.

    python bench/engine.py              everything (about a quarter of an hour on two cores)
    python bench/engine.py --seeds 1    `private` on one seed only

Prints a table and writes bench/results/engine.json. Compilation is done before any clock starts.
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
from cepam.fl.summary import interval

RESULTS = Path(__file__).parent / "results" / "engine.json"


def timed(name: str, **changes: Any) -> tuple[dict[str, Any], float]:
    """A run of a preset in a folder of its own: its summary and the seconds from start to finish, files included."""
    settings = fl.settings_from({**fl.preset(name), **changes})
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        summary = fl.train(settings, Path(folder) / "run")
        return summary, time.perf_counter() - start


def private(seeds: int) -> list[dict[str, Any]]:
    """Accuracy over seeds, one run's time, bits a coordinate, and the same accuracy with plain float32 noise."""
    runs = [timed("private", seed=seed) for seed in range(1, seeds + 1)]
    plain = [timed("private", seed=seed, scheme="fl+gaussian") for seed in range(1, seeds + 1)]
    accuracy, half = interval([summary["accuracy"] for summary, _ in runs])
    gain, gain_half = interval([a["accuracy"] - b["accuracy"] for (a, _), (b, _) in zip(runs, plain)])
    ratio = sum(b["uplink_bytes"] for b, _ in plain) / sum(a["uplink_bytes"] for a, _ in runs)
    first = runs[0][0]
    return [
        row("private: test accuracy, %", 100 * accuracy, None if half is None else 100 * half, 96.0, 97.3, True),
        row("private: epsilon at delta 1e-5", max(s["epsilon_against"]["outsider"] for s, _ in runs), None, 2.0, 2.0),
        row("private: whole run, s", max(seconds for _, seconds in runs), None, 360.0, 90.0),
        row("private: bits a coordinate", first["bits_per_coordinate"], None, 0.8, 0.4),
        row("private: CEPAM less FL+Gaussian, paired, %", 100 * gain, None if gain_half is None else 100 * gain_half),
        row("private: messages smaller by", ratio, None, 25.0, 25.0, True),
    ]


def papers() -> list[dict[str, Any]]:
    """The paper's setting, evaluated every round, on one seed and on ten."""
    return [
        row("algorithm1: 80 rounds, n = 1, s", timed("algorithm1")[1], None, 25.0, 8.0),
        row("algorithm1: ten seeds, s", timed("algorithm1", seeds=10)[1], None, 180.0, 60.0),
    ]


def row(what: str, value: float, half: float | None = None, must: float | None = None, aim: float | None = None,
        larger: bool = False) -> dict[str, Any]:  # fmt: skip
    """One line of the table, with whether it holds."""
    held = None if must is None else (value >= must if larger else value <= must)
    return {"what": what, "value": value, "half_width": half, "must": must, "aim": aim, "holds": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--skip-private", action="store_true")
    chosen = parser.parse_args()
    fl.load("mnist")
    timed("algorithm1", rounds=1)
    timed("private", rounds=1, noise=1e-3, epsilon=None)
    rows = papers() + ([] if chosen.skip_private else private(chosen.seeds))
    for each in rows:
        half = "" if each["half_width"] is None else f" ± {each['half_width']:.2f}"
        goal = "" if each["must"] is None else f"must {each['must']:g}, aim {each['aim']:g}"
        print(f"{each['what']:45} {each['value']:9.3f}{half:9} {goal}")
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0]}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
