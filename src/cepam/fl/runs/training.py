"""Runs on disk: `runs/<name>/` holds all there is to know about a run, and enough to go on after a kill.

config.toml      the full configuration            final.pt, best.pt   weights, by seed
metrics.jsonl    one line a round and seed         curve.png           accuracy, epsilon and bits
timing.jsonl     seconds a round                   events.…tfevents…   the same for TensorBoard
checkpoint.npz   where to go on                    summary.json        the figures at the end
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cepam.fl.data.dataset import Dataset, load
from cepam.fl.data.fetch import Report
from cepam.fl.data.fetch import quiet as quiet_fetch
from cepam.fl.engine.ledger import Bill
from cepam.fl.engine.settings import Settings
from cepam.fl.engine.simulation import Line, Sent, Simulation, State, quiet
from cepam.fl.models.model import Model
from cepam.fl.runs import toml
from cepam.fl.runs.events import write_events
from cepam.fl.runs.summary import summarise

Watcher = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """A round done: its lines, how many rounds there are, and the seconds since the start of this process."""

    lines: list[Line]
    rounds: int
    started_at: int
    seconds: float


def unseen(progress: Progress) -> None:
    """Nothing: for runs that nobody watches."""


def write_atomically(path: Path, content: bytes) -> None:
    """Nothing; the file holds the old content or the new one, whenever the machine stops."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


def prepared(settings: Settings, report: Callable[[Report], None] = quiet_fetch) -> Dataset:
    """The settings' data set, with its pixels as they ask."""
    data = load(settings.data, Path(settings.folder) if settings.folder else None, report)
    if settings.pixels == "centred" and data.train_inputs.dtype == np.uint8:
        return replace(data, scale=2.0 / 255.0, shift=-1.0)
    return data


def train(
    settings: Settings, folder: Path, data: Dataset | None = None, model: Model | None = None, resume: bool = False,
    watch: Watcher = unseen,
) -> dict[str, Any]:  # fmt: skip
    """The summary of a run that is now complete on disk, started anew or gone on with.

    Guarantee: killed at any moment and resumed, the metrics and weights are bit for bit those of an uninterrupted run
    on the same machine (tests/fl/runs/test_training.py).
    """
    simulation = Simulation(settings, data or prepared(settings), model, watch=_keeper(settings, folder))
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _claim(settings, folder, resume)
        offset = _restore(simulation, folder) if resume else 0
        _truncate(folder / "metrics.jsonl", offset)
        _rounds(simulation, folder, watch)
        return _finish(simulation, folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another process is training in {folder}") from None
        yield


def _claim(settings: Settings, folder: Path, resume: bool) -> None:
    """Nothing; the folder is new, or holds this very run."""
    config, text = folder / "config.toml", toml.write(settings)
    if not resume:
        if config.exists():
            raise ValueError(f"{folder} already holds a run: choose another --name, or --resume it")
        write_atomically(config, text.encode())
    elif toml.settings_from(toml.read(config)) != settings:
        raise ValueError(f"{config} differs from the given settings: a run is resumed as it was started")


def _keeper(settings: Settings, folder: Path) -> Callable[[Sent], None]:
    if not settings.keep_messages:
        return quiet

    def keep(sent: Sent) -> None:
        place = folder / "messages" / f"seed-{sent.seed}" / f"round-{sent.round + 1:05d}"
        place.mkdir(parents=True, exist_ok=True)
        for envelope in sent.envelopes:
            if envelope.message is not None:
                (place / f"client-{envelope.client:04d}.bin").write_bytes(envelope.message)

    return keep


def _rounds(simulation: Simulation, folder: Path, watch: Watcher) -> None:
    started_at, start = simulation.state.round, time.monotonic()
    with (folder / "metrics.jsonl").open("ab") as metrics, (folder / "timing.jsonl").open("a") as timing:
        while not simulation.done:
            begun = time.monotonic()
            lines = simulation.step()
            for line in lines:
                metrics.write(json.dumps(line).encode() + b"\n")
            metrics.flush()
            number, now = simulation.state.round, time.monotonic()
            timing.write(json.dumps({"round": number, "seconds": round(now - begun, 4)}) + "\n")
            if number % simulation.settings.checkpoint_every == 0 or simulation.done:
                os.fsync(metrics.fileno())
                _save(simulation, folder, metrics.tell())
            watch(Progress(lines, simulation.settings.rounds, started_at, now - start))


def _save(simulation: Simulation, folder: Path, offset: int) -> None:
    """Nothing; the checkpoint names the length of the metrics that belong to it."""
    state, fetch = simulation.state, simulation.home.fetch
    arrays: dict[str, Any] = {f"memory/{name}": fetch(value) for name, value in state.memory.items()}
    arrays |= {name: fetch(getattr(state, name)) for name in ("weights", "average", "best")}
    arrays |= {"best_score": state.best_score, "bits": state.bits}
    rest = {"round": state.round, "offset": offset, "bills": [bill.entries for bill in state.bills]}
    buffer = io.BytesIO()
    np.savez(buffer, rest=np.frombuffer(json.dumps(rest).encode(), dtype=np.uint8), **arrays)
    write_atomically(folder / "checkpoint.npz", buffer.getvalue())


def _restore(simulation: Simulation, folder: Path) -> int:
    """How many bytes of the metrics belong to the checkpoint that the simulation now stands at."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        return 0
    with np.load(path) as saved:
        rest = json.loads(bytes(saved["rest"]))
        put, remembered = simulation.home.put, [name for name in saved.files if name.startswith("memory/")]
        memory = {name.removeprefix("memory/"): put(saved[name]) for name in remembered}
        bills = [Bill(tuple((tuple(absent), count) for absent, count in bill)) for bill in rest["bills"]]
        simulation.state = State(
            put(saved["weights"]), memory, put(saved["average"]), put(saved["best"]), saved["best_score"],
            saved["bits"], bills, int(rest["round"]),
        )  # fmt: skip
    return int(rest["offset"])


def _truncate(path: Path, length: int) -> None:
    with path.open("ab") as file:
        file.truncate(length)


def read_metrics(folder: Path) -> list[Line]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _finish(simulation: Simulation, folder: Path) -> dict[str, Any]:
    import torch

    from cepam.fl.runs.curve import draw_curve

    vector, seeds = simulation.vector, simulation.settings.run_seeds
    for name, rows in (("final", simulation.reported), ("best", simulation.state.best)):
        buffer = io.BytesIO()
        host = simulation.home.fetch(rows)
        torch.save({seed: vector.state_dict(host[s]) for s, seed in enumerate(seeds)}, buffer)
        write_atomically(folder / f"{name}.pt", buffer.getvalue())
    lines = read_metrics(folder)
    timing = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    summary = summarise(simulation, lines, sum(line["seconds"] for line in timing))
    write_atomically(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    write_events(folder / "events.out.tfevents.0.cepam", lines)
    draw_curve(folder / "curve.png", lines, simulation.settings)
    return summary
