"""Live progress of training: round, accuracy, epsilon so far, bits per coordinate both ways, time left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cepam.fl import Progress as Done
from cepam.fl.aggregation.warnings import told
from cepam.fl.data.fetch import Report

if TYPE_CHECKING:
    pass

WIDE = 120


def wide(stderr: bool = False) -> Console:
    """A console as wide as its tables need where no terminal sets the width: in a pipe, a log, a file."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=max(WIDE, console.width))


class Watch:
    """A progress bar that follows a run; `shown=False` follows silently."""

    def __init__(self, console: Console, shown: bool = True, simulated: bool = False) -> None:
        self.simulated = simulated
        self.round = self.rounds = 0
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"), TimeElapsedColumn(), console=console, disable=not shown, transient=True,
        )  # fmt: skip
        self.tasks: dict[str, Any] = {}
        self.known: dict[str, dict[str, float]] = {}

    def __enter__(self) -> Watch:
        self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.bar.stop()

    def follow(self, name: str, done: Done) -> None:
        """Shows a round that was just done."""
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=done.rounds, told="")
            self.known[name] = {}
        for key in ("accuracy", "loss", "bits_per_coordinate", "bits_per_coordinate_down"):
            values = [line[key] for line in done.lines if line.get(key) is not None]
            if values:
                self.known[name][key] = float(np.mean(values))
        if "epsilon" in done.lines[0]:  # the worst of the seeds; none where a seed has none
            spent = [line["epsilon"] for line in done.lines]
            self.known[name].pop("epsilon", None)
            if None not in spent:
                self.known[name]["epsilon"] = float(max(spent))
        number = int(done.lines[0]["round"])
        self.round, self.rounds = number, done.rounds
        left = done.seconds / max(1, number - done.started_at) * (done.rounds - number)
        self.bar.update(
            self.tasks[name],
            completed=number,
            told=f"{in_words(self.known[name], self.simulated)} · {clock(left)} left",
        )

    def fetch(self, report: Report) -> None:
        """Show data or frozen features on their way."""
        if report.text not in self.tasks:
            self.tasks[report.text] = self.bar.add_task(report.text, total=report.total or None, told="")
        told = f"{report.done / 1e6:.1f} MB" if report.unit == "bytes" else report.unit
        self.bar.update(self.tasks[report.text], completed=report.done, told=told)


def in_words(known: dict[str, float], simulated: bool) -> str:
    """The known figures in a few words."""
    words = []
    if "accuracy" in known:
        words.append(f"accuracy {100 * known['accuracy']:.2f} %")
    elif "loss" in known:
        words.append(f"loss {known['loss']:.4g}")
    if "epsilon" in known:
        words.append(f"eps {told(known['epsilon'], simulated, '.2f')}")
    if "bits_per_coordinate" in known:
        words.append(f"{known['bits_per_coordinate']:.3f} bit/coordinate up")
    if "bits_per_coordinate_down" in known:
        words.append(f"{known['bits_per_coordinate_down']:.3f} down")
    return " · ".join(words)


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds."""
    return time.strftime("%M:%S" if seconds < 3600 else "%H:%M:%S", time.gmtime(max(0.0, seconds)))
