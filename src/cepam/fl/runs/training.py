"""Runs on disk: `runs/<name>/` holds all there is to know about a run, and enough to go on after a kill.

config.toml      the full configuration            final.pt, best.pt   weights, by seed
metrics.jsonl    one line per round and seed       curve.png           accuracy, epsilon and bits
timing.jsonl     seconds per round                 events.…tfevents…   the same for TensorBoard
checkpoint.npz   until the end: where to go on,    summary.json        the figures at the end
                 and the one before it             secret.key          until the end: keys and draws
personal.npz     clients' own layers, by seed, where some stay on the client
index.html       the page: a verdict in words, charts, epsilon by observer, bytes and settings
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cepam._internal.files import naming, write_atomically
from cepam.fl.aggregation.trusted_server import Line
from cepam.fl.clients.sampling import RunSecret
from cepam.fl.config.settings import Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.models.model import Model
from cepam.fl.runs import checkpoint, record
from cepam.fl.runs.progress import Progress, ProgressText, wanted
from cepam.fl.runs.run_page import run_page
from cepam.fl.runs.sources import prepared, referred
from cepam.fl.runs.summary import summarise
from cepam.fl.runs.trackers import write_events
from cepam.fl.simulation import Sent, Simulation, quiet

Watcher = Callable[[Progress], None]
SHARE = 0.01
"""The share of a run's time that pages before the last may take."""


def unseen(progress: Progress) -> None:
    """Ignore progress: for runs that nobody watches."""


def log(text: str) -> None:
    """Log to `cepam` what must be said before the first round."""
    logging.getLogger("cepam").warning(text)


def train(
    settings: Settings, folder: Path | str, data: Dataset | None = None, model: Model | None = None,
    resume: bool = False, watch: Watcher = unseen, say: Callable[[str], None] = log, progress: bool | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train to the end, in a folder that then holds all there is to know about the run.

    Args:
        settings: What to run.
        folder: Where the files of the run go; `index.html` there is its page.
        data: Your own data; by default what the settings name.
        model: Your own model; by default what the settings name.
        resume: Continue the run that the folder holds.
        watch: Called after every round.
        say: Called with what must be known before the first round; by default a warning of the log `cepam`.
        progress: Whether to write to standard error how far the run is. By default a terminal shows a line after two
            seconds and a log gets one now and then; notebooks show none.

    Returns:
        The summary.

    Raises:
        ValueError: The folder holds another run, or what it was started with differs from what is given.

    Keys and draws come from a fresh secret, which lies in the folder (mode 600) until the run is over; with
    `run.simulate` they come from the seed.

    Guarantee: killed at any moment and resumed, the metrics and weights are bit for bit those of an uninterrupted run
    on the same machine (tests/fl/runs/test_training.py). Nothing that is left at the end of a run that was not
    simulated opens its messages (tests/fl/runs/test_secrecy.py).
    """
    folder, data = Path(folder), data if data is not None else prepared(settings)
    model = model or referred(settings, data)
    settings = record.as_given(settings, data, model)
    secret = record.stored(settings, folder) if resume else RunSecret.of(settings)
    if secret is None:
        return read_summary(folder)
    simulation = Simulation(settings, data, model, watch=_keeper(settings, folder), secret=secret)
    mine = record.Record.of(secret, settings, data, simulation.vector, simulation.network)
    folder.mkdir(parents=True, exist_ok=True)
    with record.alone(folder):
        if resume:
            record.check(folder, mine)
        else:
            record.start(settings, folder, secret, mine)
        if not (folder / "summary.json").exists():
            for text in simulation.warnings:
                say(text)
            _go_on(simulation, folder, say)
            page = PageFile(simulation, folder)
            shown = wanted(sys.stderr) if progress is None else progress
            try:
                with _progress(settings, folder, watch) if shown else nullcontext(watch) as follow:
                    _rounds(simulation, folder, page.following(follow))
            except BaseException:  # Ctrl-C too
                with suppress(OSError, ValueError):  # what stopped the run is what must be said
                    page.write()
                raise
            _finish(simulation, folder, page)
        checkpoint.remove(folder)
        if not settings.run.keep_keys:
            record.forget(folder)
        return read_summary(folder)


def _go_on(simulation: Simulation, folder: Path, say: Callable[[str], None]) -> None:
    """Restore the simulation and the metrics from the folder's checkpoint, or start at the beginning."""
    assert simulation.secret is not None
    found = checkpoint.latest(folder, simulation.secret.checkpoint_key())
    if found is not None:
        checkpoint.restore(simulation, found)
        if found.path.name != checkpoint.NAME:
            say(f"{folder / checkpoint.NAME} is not there: going on from {found.path.name}, round {found.round}")
    with naming(folder / "metrics.jsonl"), (folder / "metrics.jsonl").open("ab") as file:
        file.truncate(0 if found is None else found.offset)


def _keeper(settings: Settings, folder: Path) -> Callable[[Sent], None]:
    if not settings.run.keep_messages:
        return quiet

    def keep(sent: Sent) -> None:
        place = folder / "messages" / f"seed-{sent.seed}" / f"round-{sent.round + 1:05d}"
        with naming(place):
            (folder / "messages").mkdir(mode=0o700, parents=True, exist_ok=True)  # names tell who uploaded, and when
            place.mkdir(parents=True, exist_ok=True)
            for envelope in sent.envelopes:
                if envelope.message is not None:
                    (place / f"client-{envelope.client:04d}.bin").write_bytes(envelope.message)

    return keep


@contextmanager
def _progress(settings: Settings, folder: Path, watch: Watcher) -> Iterator[Watcher]:
    """A watcher that also writes how far the run is."""
    text = ProgressText(folder.name, settings.run.simulate)

    def follow(done: Progress) -> None:
        text.follow(done)
        watch(done)

    try:
        yield follow
    finally:
        text.close()


class PageFile:
    """`index.html` of a run, written at its end, and after evaluations as long as `SHARE` of the time is enough."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.simulation, self.folder = simulation, folder
        self.start, self.taken = time.monotonic(), 0.0

    def following(self, watch: Watcher) -> Watcher:
        """A watcher that writes the page after an evaluation, where there is time for one as slow as all so far."""

        def follow(progress: Progress) -> None:
            evaluated = "loss" in progress.lines[0]
            if evaluated and not progress.done and 2.0 * self.taken <= SHARE * (time.monotonic() - self.start):
                self.write()
            watch(progress)

        return follow

    def write(self) -> None:
        """Write it as the run stands."""
        begun = time.monotonic()
        made = run_page(self.folder.name, self.simulation, read_metrics(self.folder))
        write_atomically(self.folder / "index.html", made.encode())
        self.taken += time.monotonic() - begun


def _rounds(simulation: Simulation, folder: Path, watch: Watcher) -> None:
    started_at, start = simulation.state.round, time.monotonic()
    path = folder / "metrics.jsonl"
    with path.open("ab") as metrics, (folder / "timing.jsonl").open("a") as timing:
        while not simulation.done:
            begun = time.monotonic()
            lines = simulation.step()
            number, now = simulation.state.round, time.monotonic()
            with naming(path):
                for line in lines:
                    metrics.write(json.dumps(line).encode() + b"\n")
                metrics.flush()
                timing.write(json.dumps({"round": number, "seconds": round(now - begun, 4)}) + "\n")
                if number % simulation.settings.run.checkpoint_every == 0 or simulation.done:
                    os.fsync(metrics.fileno())
                    checkpoint.save(simulation, folder, metrics.tell())
            watch(Progress(lines, simulation.settings.training.rounds, started_at, now - start))


def read_metrics(folder: Path | str) -> list[Line]:
    """The lines of a run's metrics.

    Args:
        folder: The run's folder.

    Returns:
        A dictionary per round and seed.

    Raises:
        ValueError: The file is damaged.
    """
    path, made = Path(folder) / "metrics.jsonl", []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            made.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path} is damaged: line {number} is no JSON") from None
    return made


def _seconds(path: Path) -> float:
    """The seconds of all rounds; a line that a kill tore is left out."""
    total = 0.0
    for line in path.read_text(errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError):
            total += json.loads(line)["seconds"]
    return total


def read_summary(folder: Path | str) -> dict[str, Any]:
    """The summary of a run that is over."""
    path = Path(folder) / "summary.json"
    try:
        held: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise ValueError(f"{path} is damaged: it is no JSON") from None
    return held


def _finish(simulation: Simulation, folder: Path, page: PageFile) -> None:
    """Write the run's last files. The summary comes last: where it is, the run is over."""
    import torch

    from cepam.fl.runs.summary import draw_curve

    vector, seeds = simulation.vector, simulation.settings.run_seeds
    starts = np.stack([vector.initial(seed) for seed in seeds])
    for name, rows in (("final", simulation.reported), ("best", simulation.state.best)):
        buffer = io.BytesIO()
        whole = simulation.layer_split.joined(simulation.arrays.fetch(rows), starts[:, simulation.layer_split.kept])
        torch.save({seed: vector.state_dict(whole[s]) for s, seed in enumerate(seeds)}, buffer)
        write_atomically(folder / f"{name}.pt", buffer.getvalue())
    if simulation.own is not None:
        buffer = io.BytesIO()
        held = {seed: own.state_dict() for seed, own in zip(seeds, simulation.own.client_state.layers)}
        np.savez(buffer, **{f"{seed}/{name}": rows for seed, own in held.items() for name, rows in own.items()})
        write_atomically(folder / "personal.npz", buffer.getvalue(), private=True)
    lines = read_metrics(folder)
    summary = summarise(simulation, lines, _seconds(folder / "timing.jsonl"))
    write_events(folder / "events.out.tfevents.0.cepam", lines)
    draw_curve(folder / "curve.png", lines, simulation.settings)
    page.write()
    write_atomically(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
