"""Progress of a run in words: a line that a terminal rewrites, or one now and then in a log."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from cepam.fl import Dataset, Progress, Settings, train
from cepam.fl.runs import progress
from cepam.fl.runs.progress import FIRST_LOGGED, LOGGED, LOGGED_SHARE, ProgressText, wanted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(text: ProgressText, seconds: float, number: int = 5) -> None:
    line = {"round": number, "seed": 1, "accuracy": 0.5, "epsilon": 1.0, "bits_per_coordinate": 0.1}
    text.follow(Progress([line], 10, 0, seconds))


def test_a_log_gets_a_line_now_and_then() -> None:
    log = io.StringIO()
    text = ProgressText("mine", True, log)
    for seconds in (
        0.0,
        FIRST_LOGGED - 1,
        FIRST_LOGGED,
        FIRST_LOGGED + 1,
        FIRST_LOGGED + LOGGED,
        FIRST_LOGGED + LOGGED + 1,
    ):
        told(text, seconds)
    text.close()
    lines = log.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("mine") and "5 of 10" in line and "simulated" in line for line in lines)
    assert "\r" not in log.getvalue()


def test_lines_of_a_log_come_every_few_seconds_and_of_a_long_run_more_rarely() -> None:
    log = io.StringIO()
    text = ProgressText("mine", False, log)
    for seconds in range(40):
        told(text, float(seconds))
    assert len(log.getvalue().splitlines()) == 3  # after 10, 20 and 30 s
    for seconds in range(40, 36_000, 10):
        told(text, float(seconds))
    many = len(log.getvalue().splitlines())
    assert many <= 1.0 + 1.0 / LOGGED_SHARE + np.log(36_000 * LOGGED_SHARE / LOGGED) / np.log1p(LOGGED_SHARE)
    told(text, 36_000 * (1.0 + LOGGED_SHARE))
    assert len(log.getvalue().splitlines()) == many + 1


def test_a_terminal_rewrites_one_line_and_clears_it() -> None:
    screen = Terminal()
    text = ProgressText("mine", False, screen)
    told(text, 0.5)
    assert screen.getvalue() == ""
    told(text, 3.0)
    told(text, 4.0, 6)
    text.close()
    written = screen.getvalue()
    assert "\n" not in written
    assert written.count("\r") == 4
    assert written.endswith("\r")
    assert len({len(part) for part in written.split("\r") if part}) == 1


def test_progress_is_for_terminals_and_logs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted(sys.__stderr__)
    assert wanted(Terminal())
    assert not wanted(io.StringIO())  # what a notebook or a test puts in its place
    assert not wanted(None)


@pytest.mark.parametrize("asked", [None, True, False])
def test_train_shows_progress_where_it_is_asked_for(
    tmp_path: Path, small: Dataset, quick: Settings, monkeypatch: pytest.MonkeyPatch, asked: bool | None
) -> None:
    monkeypatch.setattr(progress, "FIRST_LOGGED", 0.0)
    heard = io.StringIO()
    monkeypatch.setattr(sys, "stderr", heard)
    rounds: list[int] = []
    train(quick, tmp_path / "run", small, watch=lambda done: rounds.append(done.lines[0]["round"]), progress=asked)
    assert bool(heard.getvalue()) == (asked is True)
    assert rounds == [1, 2, 3]
