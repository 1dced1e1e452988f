"""Live progress of training: round, accuracy, epsilon so far, bits per coordinate both ways, time left."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cepam.fl import Progress as Done
from cepam.fl.data.fetch import Report
from cepam.fl.runs.progress import ProgressText, clock, in_words, note, time_left

WIDE = 120


def wide(stderr: bool = False) -> Console:
    """A console as wide as its tables need where no terminal sets the width: in a pipe, a log, a file."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=max(WIDE, console.width))


class Watch:
    """A progress bar that follows a run; where no terminal shows it, a line now and then on standard error.

    `shown=False` follows silently.
    """

    def __init__(self, console: Console, shown: bool = True, simulated: bool = False) -> None:
        self.simulated = simulated
        self.round = self.rounds = 0
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), console=console, disable=not shown, transient=True,
        )  # fmt: skip
        self.tasks: dict[str, Any] = {}
        self.known: dict[str, dict[str, float]] = {}
        self.logged = shown and not console.is_terminal
        self.texts: dict[str, ProgressText] = {}

    def __enter__(self) -> Watch:
        self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.bar.stop()

    def follow(self, name: str, done: Done) -> None:
        """Shows a round that was just done."""
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=done.rounds, note="")
            self.known[name] = {}
        number = int(done.lines[0]["round"])
        self.round, self.rounds = number, done.rounds
        if self.logged:
            self.texts.setdefault(name, ProgressText(name, self.simulated)).follow(done)
        note(self.known[name], done.lines)
        text = f"{in_words(self.known[name], self.simulated)} · {clock(time_left(done))} left"
        self.bar.update(self.tasks[name], completed=number, note=text)

    def fetch(self, report: Report) -> None:
        """Show data or frozen features on their way."""
        if report.text not in self.tasks:
            self.tasks[report.text] = self.bar.add_task(report.text, total=report.total or None, note="")
        text = f"{report.done / 1e6:.1f} MB" if report.unit == "bytes" else report.unit
        self.bar.update(self.tasks[report.text], completed=report.done, note=text)
