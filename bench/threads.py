"""How many threads should share out a model without convolutions: milliseconds of a round of `private` by part.

    PYTHONPATH=src python bench/threads.py

Each number of threads in a process of its own, in a pool as on a machine with 16 cores; where there are fewer cores,
that shows what threads cost that wait for the interpreter, not what more cores gain. Evaluation goes in pieces of 100
and of 1,000 records; all records are synthetic.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CORES, TIMES = 16, 20
PIECES = (100, 1000)


def median(work: Callable[[], Any]) -> float:
    """Milliseconds of a call, the first three left out."""
    times = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times[3:])


def measure(most: int) -> list[float]:
    """Milliseconds of gradients, and of evaluation by the sizes of pieces."""
    os.sched_getaffinity = lambda _: set(range(CORES))  # type: ignore[assignment]
    from cepam import fl
    from cepam.fl.models import network

    network.DENSE_THREADS = most
    changes = {"data.name": "synthetic", "run.simulate": True, "privacy.noise_scale": 0.001}
    run = fl.Simulation(fl.preset("private").updated(changes), fl.synthetic(6000, 10_000))
    updates, taken = run.work.updates, []

    def timed(*args: Any) -> Any:
        taken.append(median(lambda: updates(*args)))
        return updates(*args)

    object.__setattr__(run.work, "updates", timed)
    run.step()
    for pieces in PIECES:
        run.network.scored = pieces
        taken.append(median(lambda: run.network.evaluate(run.state.weights)))
    return taken


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    print(f"{len(os.sched_getaffinity(0))} cores, ms")
    print("| threads | gradients | evaluation in pieces of 100 | of 1,000 |\n|---|---|---|---|")
    for most in (1, 2, 4, 8, CORES):
        done = subprocess.run([sys.executable, __file__, str(most)], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"| {most} | {' | '.join(f'{each:.1f}' for each in found)} |", flush=True)


if __name__ == "__main__":
    main()
