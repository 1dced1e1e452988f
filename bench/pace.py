"""Processor time of whole runs against each other, round by round in turn, so that a busy machine slows them alike.

    python bench/pace.py private dp-ftrl                                      ratios to the first
    python bench/pace.py private "private privacy.noise_correlation=matrix training.slices=4" --rounds 60

A run is a preset and the settings that are changed. Each is set up, then all of them do `--turn` rounds in turn, until
each has done `--rounds`; the first turn warms up and does not count. A whole run is taken as its set-up and its own
number of rounds at the median of the turns. Features are kept and kernels compiled before.
"""

from __future__ import annotations

import argparse
import statistics
import time

from cepam import fl
from cepam.cli.settings import set_values


def settings_of(told: str) -> fl.Settings:
    """The settings of `preset name=value …`."""
    preset, *changes = told.split()
    return fl.preset(preset).updated({**set_values(changes), "run.simulate": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--turn", type=int, default=5)
    chosen = parser.parse_args()
    made, started, spent = [], [], []
    for told in chosen.runs:
        settings = settings_of(told)
        data, before = fl.prepared(settings), time.process_time()
        made.append(fl.Simulation(settings, data))
        started.append(time.process_time() - before)
        spent.append([])
    for turn in range(-(-chosen.rounds // chosen.turn) + 1):
        for simulation, times in zip(made, spent):
            before = time.process_time()
            for _ in range(chosen.turn):
                simulation.step()
            if turn:
                times.append((time.process_time() - before) / chosen.turn)
    whole = [
        start + statistics.median(times) * simulation.settings.training.rounds
        for start, times, simulation in zip(started, spent, made)
    ]
    for told, start, times, total in zip(chosen.runs, started, spent, whole):
        each = (
            f"{1000 * statistics.median(times):.0f} ms per round ({1000 * min(times):.0f} to {1000 * max(times):.0f})"
        )
        print(f"{told}: set up {start:.1f} s, {each}, whole run {total:.0f} processor s, ratio {total / whole[0]:.2f}")


if __name__ == "__main__":
    main()
