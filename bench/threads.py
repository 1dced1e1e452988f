"""How many threads should share out a model without convolutions: milliseconds of a round of `private` by part.

    PYTHONPATH=src python bench/threads.py

Each number of threads in a process of its own, in a pool as on a machine with 16 cores; where there are fewer cores,
that shows what threads cost that wait for the interpreter, not what more cores gain. Records are synthetic.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from typing import Any

CORES, ROUNDS = 16, 20


def measure(most: int) -> dict[str, float]:
    """Median milliseconds of gradients and evaluation, and how often a thread gave way in a round's gradients."""
    os.sched_getaffinity = lambda _: set(range(CORES))  # type: ignore[assignment]
    from cepam import fl
    from cepam.fl.models import network

    network.DENSE_THREADS = most
    values = {**fl.preset("private"), "data": "synthetic", "rounds": ROUNDS, "evaluate_every": 1, "simulate": True}
    run = fl.Simulation(fl.settings_from({**values, "epsilon": None, "noise": 4.7297e-4}), fl.synthetic(6000, 10_000))
    parts: dict[str, list[float]] = defaultdict(list)

    def watch(of: Any, name: str, part: str) -> None:
        work = getattr(of, name)

        def timed(*args: Any, **options: Any) -> Any:
            begun, gave = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            made = work(*args, **options)
            parts[part].append(1e3 * (time.perf_counter() - begun))
            parts[f"{part}: switches"].append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - gave)
            return made

        object.__setattr__(of, name, timed)

    watch(run.work, "updates", "gradients")
    watch(run.network, "evaluate", "evaluation")
    while not run.done:
        run.step()
    return {part: statistics.median(found[3:]) for part, found in parts.items()}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    print(
        f"{len(os.sched_getaffinity(0))} cores; ms a round, switches in brackets\n| threads | gradients | evaluation |"
    )
    print("|---|---|---|")
    for most in (1, 2, 4, 8, CORES):
        done = subprocess.run([sys.executable, __file__, str(most)], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{found[part]:.1f} ({found[f'{part}: switches']:.0f})" for part in ("gradients", "evaluation")]
        print(f"| {most} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
