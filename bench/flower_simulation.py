"""500 simulated clients in Flower's own simulation engine, end to end: seconds per round, bytes, memory, epsilon.

    python bench/flower_simulation.py                       # some minutes on 2 cores
    python bench/flower_simulation.py --clients 100 --rounds 2

The app of the tests (tests/flower/app) trains nothing: every client replies with a known update, so that the time is
that of Flower and of this package. Each round draws a secret Poisson cohort; the server publishes the noisy mean.
Epsilon is for one record of a client whose whole update is clipped. Written to bench/results/flower_simulation.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from stamp import ROOT, save

sys.path.insert(0, str(ROOT / "tools"))
from loopback_simulation import simulate

APP = ROOT / "tests" / "flower" / "app"


class Watched:
    """The most memory of all processes below this one, while a simulation runs."""

    def __init__(self) -> None:
        self.memory, self._going = 0, True
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._going = False
        self._thread.join()

    def _watch(self) -> None:
        while self._going:
            self.memory = max(self.memory, sum(resident(each) for each in below(os.getpid())))
            time.sleep(0.5)


def below(process: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:  # it has just ended
            continue
        found += [each for child in children for each in (child, *below(child))]
    return found


def resident(process: int) -> int:
    """Bytes of memory of a process that it shares with no other; 0 where it has ended."""
    try:
        _, held, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0
    return 4096 * (int(held) - int(shared))


def measured(clients: int, cohort: int, rounds: int, size: int) -> dict[str, Any]:
    """A whole run."""
    with tempfile.TemporaryDirectory(prefix="flower-simulation-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        report = folder / "report"
        config = {"report": str(report), "num-server-rounds": rounds, "nodes": clients, "size": size, "sigma": 0.5}
        config |= {"rate": cohort / clients, "timeout": 600.0}
        os.environ["RAY_DEDUP_LOGS"] = "0"  # every node's line is counted below
        with Watched() as watched:
            done = simulate(folder / "simulation", APP, clients, config, 1500)
        last = json.loads(report.read_text())[str(rounds)]
    # A secret cohort's size is in no metric: the nodes' own lines tell what left them.
    sent = [int(number) for number in re.findall(r"coordinates leave in (\d+) bytes", done.output)]
    (took,) = re.findall(r"Strategy execution finished in ([\d.]+)s", done.output)
    return {
        "clients": clients, "expected_cohort": cohort, "rounds": rounds, "coordinates": size, "sigma": 0.5,
        "seconds": round(done.seconds, 1), "seconds_per_round": round(float(took) / rounds, 1),
        "replies": len(sent), "bytes_up_per_reply": statistics.mean(sent) if sent else None,
        "bytes_down_per_reply": 4 * size, "memory_mib": round(watched.memory / 2**20),
        "epsilon": last["cepam-epsilon"], "epsilon_sees_participation": last["cepam-epsilon-sees-participation"],
        "delta": last["cepam-delta"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--cohort", type=int, default=50, help="expected clients in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=10_000, help="weights of the model")
    given = parser.parse_args()
    found = measured(given.clients, given.cohort, given.rounds, given.size)
    print(json.dumps(found, indent=1))
    save("flower_simulation", found)


if __name__ == "__main__":
    main()
