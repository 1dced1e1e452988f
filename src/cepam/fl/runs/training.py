"""Runs on disk: `runs/<name>/` holds all there is to know about a run, and enough to go on after a kill.

config.toml      the full configuration            final.pt, best.pt   weights, by seed
metrics.jsonl    one line per round and seed       curve.png           accuracy, epsilon and bits
timing.jsonl     seconds per round                 events.…tfevents…   the same for TensorBoard
checkpoint.npz   until the end: where to go on,    summary.json        the figures at the end
                 and the one before it             secret.key          until the end: keys and draws
personal.npz     clients' own layers, by seed, where some stay on the client
"""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cepam._internal.files import naming, write_atomically
from cepam.fl.aggregation.aggregator import Line
from cepam.fl.clients.randomness import RunSecret
from cepam.fl.config.settings import Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.models.model import Model
from cepam.fl.runs import checkpoint, record
from cepam.fl.runs.sources import prepared, referred
from cepam.fl.runs.summary import summarise
from cepam.fl.runs.tensorboard import write_events
from cepam.fl.simulation import Sent, Simulation, quiet

Watcher = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """A round done: its lines, how many rounds there are, and the seconds since the start of this process."""

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


def unseen(progress: Progress) -> None:
    """Nothing: for runs that nobody watches."""


def log(text: str) -> None:
    """Nothing; what must be said before the first round goes to the log `cepam`."""
    logging.getLogger("cepam").warning(text)


def train(
    settings: Settings, folder: Path | str, data: Dataset | None = None, model: Model | None = None,
    resume: bool = False, watch: Watcher = unseen, say: Callable[[str], None] = log,
) -> dict[str, Any]:  # fmt: skip
    """The summary of a run that is now complete on disk, started anew or gone on with.

    Keys and draws come from a fresh secret, which lies in the folder (mode 600) until the run is over; with
    `settings.simulate` they come from the seed. `say` hears what must be known before the first round.

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
            for text in simulation.notices:
                say(text)
            _go_on(simulation, folder, say)
            _rounds(simulation, folder, watch)
            _finish(simulation, folder)
        checkpoint.remove(folder)
        if not settings.run.keep_keys:
            record.forget(folder)
        return read_summary(folder)


def _go_on(simulation: Simulation, folder: Path, say: Callable[[str], None]) -> None:
    """Nothing; the simulation and the metrics stand where the folder's checkpoint was made, or at the beginning."""
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
    """The lines of a run's metrics."""
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


def _finish(simulation: Simulation, folder: Path) -> None:
    """Nothing; the run's files are whole. The summary comes last: where it is, the run is over."""
    import torch

    from cepam.fl.runs.curve import draw_curve

    vector, seeds = simulation.vector, simulation.settings.run_seeds
    starts = np.stack([vector.initial(seed) for seed in seeds])
    for name, rows in (("final", simulation.reported), ("best", simulation.state.best)):
        buffer = io.BytesIO()
        whole = simulation.division.joined(simulation.arrays.fetch(rows), starts[:, simulation.division.kept])
        torch.save({seed: vector.state_dict(whole[s]) for s, seed in enumerate(seeds)}, buffer)
        write_atomically(folder / f"{name}.pt", buffer.getvalue())
    if simulation.own is not None:
        buffer = io.BytesIO()
        held = {seed: own.state_dict() for seed, own in zip(seeds, simulation.own.ownership.layers)}
        np.savez(buffer, **{f"{seed}/{name}": rows for seed, own in held.items() for name, rows in own.items()})
        write_atomically(folder / "personal.npz", buffer.getvalue(), private=True)
    lines = read_metrics(folder)
    summary = summarise(simulation, lines, _seconds(folder / "timing.jsonl"))
    write_events(folder / "events.out.tfevents.0.cepam", lines)
    draw_curve(folder / "curve.png", lines, simulation.settings)
    write_atomically(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
