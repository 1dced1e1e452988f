"""How far a run is: one line that a terminal rewrites, or a line now and then in a log."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from typing import TextIO

import numpy as np

from cepam.fl.aggregation.accounting import shown_epsilon
from cepam.fl.aggregation.trusted_server import Line

FIRST_SHOWN, REWRITTEN = 2.0, 0.2
"""Seconds until a terminal shows a line, and between two states of it."""
FIRST_LOGGED, LOGGED, LOGGED_SHARE = 10.0, 10.0, 0.05
"""Seconds until a log gets its first line, and between two lines: at least this share of the time so far."""


@dataclass(frozen=True)
class Progress:
    """A round that is done, as `watch` of `train` hears of it.

    Args:
        lines: The round's metrics, one dictionary per seed.
        rounds: Rounds of the whole run.
        started_at: The round at which this process began; above 0 after a resume.
        seconds: Time since this process began.
    """

    lines: list[Line]
    rounds: int
    started_at: int
    seconds: float

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.lines)

    @property
    def done(self) -> bool:
        """Whether this was the last round."""
        return int(self.lines[0]["round"]) >= self.rounds


def wanted(stream: TextIO | None) -> bool:
    """Whether progress is shown without being asked for: on a terminal or in a log, not in a notebook or a test.

    Both of these put an object of their own in the place of the standard stream.
    """
    return stream is not None and (stream.isatty() or stream is sys.__stderr__)


class ProgressText:
    """Follows rounds of a run and writes how far it is to a stream, standard error by default.

    Args:
        name: What the run is called.
        simulated: Whether every epsilon says so.
        stream: Where to write.
    """

    def __init__(self, name: str, simulated: bool, stream: TextIO | None = None) -> None:
        self.name, self.simulated = name, simulated
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.known: dict[str, float] = {}
        self.due = FIRST_SHOWN if self.terminal else FIRST_LOGGED
        self.shown = False

    def follow(self, done: Progress) -> None:
        """Take note of a round that is done , and write where a line is due."""
        note(self.known, done.lines)
        if done.seconds < self.due:
            return
        self.due = done.seconds + (REWRITTEN if self.terminal else max(LOGGED, LOGGED_SHARE * done.seconds))
        number = int(done.lines[0]["round"])
        line = f"{self.name}: round {number:,} of {done.rounds:,} · {in_words(self.known, self.simulated)}"
        line = f"{line} · {clock(time_left(done))} left"
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r{line[:width]:<{width}}")
        else:
            self.stream.write(f"{line}\n")
        self.shown = True
        self.stream.flush()

    def close(self) -> None:
        """Clear the line of a terminal."""
        if self.terminal and self.shown:
            self.stream.write(f"\r{'':<{shutil.get_terminal_size().columns - 1}}\r")
            self.stream.flush()


def note(known: dict[str, float], lines: list[Line]) -> None:
    """Bring figures up to date with a round's lines of metrics, one per seed."""
    for key in ("accuracy", "loss", "bits_per_coordinate", "bits_per_coordinate_down"):
        values = [line[key] for line in lines if line.get(key) is not None]
        if values:
            known[key] = float(np.mean(values))
    if "epsilon" in lines[0]:  # the worst of the seeds; none where a seed has none
        spent = [line["epsilon"] for line in lines]
        known.pop("epsilon", None)
        if None not in spent:
            known["epsilon"] = float(max(spent))


def time_left(done: Progress) -> float:
    """The seconds that the rounds still to come take, if they take as long as those of this process."""
    number = int(done.lines[0]["round"])
    return float(done.seconds / max(1, number - done.started_at) * (done.rounds - number))


def in_words(known: dict[str, float], simulated: bool) -> str:
    """The known figures in a few words."""
    words = []
    if "accuracy" in known:
        words.append(f"accuracy {100 * known['accuracy']:.2f} %")
    elif "loss" in known:
        words.append(f"loss {known['loss']:.4g}")
    if "epsilon" in known:
        words.append(f"eps {shown_epsilon(known['epsilon'], simulated, '.2f')}")
    if "bits_per_coordinate" in known:
        words.append(f"{known['bits_per_coordinate']:.3f} bit/coordinate up")
    if "bits_per_coordinate_down" in known:
        words.append(f"{known['bits_per_coordinate_down']:.3f} down")
    return " · ".join(words)


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds."""
    return time.strftime("%M:%S" if seconds < 3600 else "%H:%M:%S", time.gmtime(max(0.0, seconds)))
