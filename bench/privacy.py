"""CPU seconds of the accountant: one answer, one calibration, a running count. Run: python bench/privacy.py"""

from __future__ import annotations

import time
from collections.abc import Callable

from cepam import L2, Gaussian
from cepam.privacy import Ledger, Release, Sampling, calibrate, epsilon, epsilon_by_round, spent

ROUNDS = 80
release = Release.uniform(30, Gaussian(0.25), L2(1.0), Sampling("replacement", 15), 2000, rounds=ROUNDS)


def timed(name: str, task: Callable[[], object], each: int = 1) -> None:
    start = time.process_time()
    task()
    print(f"{name}: {(time.process_time() - start) / each:.3f} s")


def with_dropouts() -> float:
    ledger = Ledger()
    for turn in range(ROUNDS):
        ledger = ledger.add(release.over(1).without(range(turn % 4)))
    return spent(ledger, 1e-5)


if __name__ == "__main__":
    epsilon(release.over(2), 1e-5)  # imports dp-accounting, once
    timed("epsilon of 80 rounds", lambda: epsilon(release, 1e-5))
    timed("calibration over 80 rounds", lambda: calibrate(release, 1.0, 1e-5))
    timed("spent, a round of a schedule", lambda: epsilon_by_round(release, 1e-5, range(1, ROUNDS + 1)), ROUNDS)
    timed("spent, four kinds of rounds", with_dropouts)
