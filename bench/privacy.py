"""CPU seconds of the accountant: one answer, one calibration, a running count, cohorts. Run: python bench/privacy.py

Written to bench/results/privacy.json.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

from cepam import L2, Gaussian
from cepam.privacy import (
    Accountant,
    Cohort,
    CohortMechanism,
    Mechanism,
    Sampling,
    calibrate,
    epsilon,
    epsilon_by_round,
    spent,
)
from stamp import save

ROUNDS = 80
FOUND: list[dict[str, float | str]] = []
mechanism = Mechanism.uniform(30, Gaussian(0.25), L2(1.0), Sampling("replacement", 15), 2000, rounds=ROUNDS)
users = CohortMechanism.of(Cohort(100_000, 1000.0), L2(1.0), 1.0, rounds=1000, adjacency="add-remove")
COMMAND = (
    "-m cepam privacy epsilon --unit client --clients 100000 --sampling-rate 0.01 --noise-multiplier 1 --rounds 1000 "
    "--delta 1e-6 --adjacency add-remove --json"
)


def timed(name: str, task: Callable[[], object], each: int = 1) -> None:
    start = time.process_time()
    task()
    note(name, (time.process_time() - start) / each)


def note(name: str, seconds: float) -> None:
    """Prints the processor seconds of a task and keeps them."""
    FOUND.append({"what": name, "processor_seconds": seconds})
    print(f"{name}: {seconds:.3f} s")


def with_dropouts() -> float:
    accountant = Accountant()
    for turn in range(ROUNDS):
        accountant = accountant.add(mechanism.over(1).without(range(turn % 4)))
    return spent(accountant, 1e-5)


def by_round() -> object:
    return epsilon_by_round(mechanism, 1e-5, range(1, ROUNDS + 1))


if __name__ == "__main__":
    epsilon(mechanism.over(2), 1e-5)  # imports what it needs, once
    timed("epsilon of 80 rounds", lambda: epsilon(mechanism, 1e-5))
    timed("calibration over 80 rounds", lambda: calibrate(mechanism, 1.0, 1e-5))
    timed(
        "epsilon after every round of 80, per round",
        lambda: epsilon_by_round(mechanism, 1e-5, range(1, ROUNDS + 1)),
        ROUNDS,
    )
    timed("epsilon of 80 rounds of four kinds", with_dropouts)
    timed("epsilon of 1,000 rounds, 1,000 of 100,000 users sampled", lambda: epsilon(users, 1e-6))
    start = time.perf_counter()
    subprocess.run([sys.executable, *COMMAND.split()], check=True, stdout=subprocess.DEVNULL)
    whole, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    note("the same as a command, for every adversary", used.ru_utime + used.ru_stime)
    save("privacy", {"rows": FOUND, "command_wall_seconds": whole})
