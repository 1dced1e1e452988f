"""The training runs behind the paper's tables and figures: done once each, kept on disk, found again.

A run holds 10,000 training images out for validation (a sixth of a smaller set), looks at them after every evaluated
round, and reports the test accuracy of each seed's best model: what the paper's tables report.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cepam import fl
from cepam._internal.files import write_atomically
from cepam.codec.codec import Codec, DitheredCodec, UpdateCodec
from cepam.distributions.laws import Gaussian, Laplace
from cepam.fl.clients.sending import NoisyDithered, PlainFloats
from cepam.fl.config.settings import Settings
from cepam.fl.runs.summary import interval
from cepam.lattices.lattice import lattice_named
from cepam_paper.meter import Meter, Metered, WatchedWork
from cepam_paper.published import ARITHMETIC, PublishedChannel
from cepam_paper.section import Say

Name = TypeVar("Name")
Followed = Callable[[int, int], None]
VALIDATION = 10_000
KEEP = 2


@dataclass(frozen=True)
class Run:
    """One training run over several seeds: the settings, and the published quantizer in place of theirs, if asked."""

    name: str
    settings: Settings
    published: int | None = None
    """n of the published quantizer; None: the scheme of the settings, done right."""

    def mark(self) -> str:
        """What fixes the result: a run on disk with another mark is done again."""
        made = f"v{KEEP} {self.settings!r} {self.published} {ARITHMETIC if self.published is not None else ''}"
        return hashlib.sha256(made.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TrainingOutcome:
    """What a run showed, by seed. `validation` has a row a seed, a column an evaluated round."""

    name: str
    seeds: tuple[int, ...]
    accuracy: tuple[float, ...]
    rounds: tuple[int, ...]
    validation: tuple[tuple[float, ...], ...]
    snr: float | None
    program_snr: tuple[float | None, ...]
    largest_norm: float
    bits_per_coordinate: float | None
    seconds: float
    mark: str = field(default="")

    def mean(self) -> tuple[float, float | None]:
        """Mean test accuracy in percent and the half-width of its 95 % interval."""
        mean, half = interval(list(self.accuracy))
        return 100 * mean, None if half is None else 100 * half

    def gain_over(self, other: TrainingOutcome) -> tuple[float, float | None]:
        """The accuracy over that of another run, paired by seed, in points, with its half-width."""
        if self.seeds != other.seeds:
            raise ValueError(f"{self.name} and {other.name} were run on other seeds")
        mean, half = interval([a - b for a, b in zip(self.accuracy, other.accuracy)])
        return 100 * mean, None if half is None else 100 * half


def channel_of(run: Run, sizes: tuple[int, ...]) -> UpdateCodec:
    """The channel of a run's scheme, by the settings alone or with the published arithmetic."""
    chosen = run.settings
    law: Gaussian | Laplace | None = None
    if chosen.privacy.noise_scale is not None:
        law = (
            Laplace(chosen.privacy.noise_scale)
            if "laplace" in chosen.compression.scheme
            else Gaussian(chosen.privacy.noise_scale)
        )
    if run.published is not None:
        assert law is not None
        return PublishedChannel(law, run.published, sizes)
    if chosen.compression.scheme.startswith("cepam"):
        assert law is not None
        return Codec(law, lattice_named(chosen.compression.lattice), coder="layered")
    if chosen.compression.scheme == "fl+sdq":
        return DitheredCodec(chosen.compression.sdq_step)
    if chosen.compression.scheme.endswith("+sdq"):
        assert law is not None
        return NoisyDithered(law, chosen.compression.sdq_step)
    return PlainFloats(law)


def outcome(run: Run, report: Path, data: fl.Dataset, follow: Followed = lambda done, of: None) -> TrainingOutcome:
    """The outcome of a run: read from the report's folder if it was done before, else done now and written there."""
    path = report / "runs" / f"{run.name}.json"
    if path.is_file():
        kept = json.loads(path.read_text())
        if kept["mark"] == run.mark():
            kept["validation"] = list(map(tuple, kept["validation"]))
            whole: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
            return TrainingOutcome(**whole)
    made = _trained(run, data, follow)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(asdict(made)) + "\n").encode())
    return made


def outcomes(runs: dict[Name, Run], report: Path, data: fl.Dataset, say: Say) -> dict[Name, TrainingOutcome]:
    """The outcome of every run, with progress as a share of all their rounds."""
    made: dict[Name, TrainingOutcome] = {}
    for at, (name, run) in enumerate(runs.items()):
        made[name] = outcome(run, report, data, partial(_tell, say, run.name, at, len(runs)))
    return made


def _tell(say: Say, name: str, at: int, of: int, done: int, rounds: int) -> None:
    say(f"{name}, round {done}", at * rounds + done, of * rounds)


def _trained(run: Run, data: fl.Dataset, follow: Followed) -> TrainingOutcome:
    start, every = time.monotonic(), run.settings.run.evaluate_every
    held = min(VALIDATION, len(data.train_labels) // 6)
    settings = run.settings.updated(
        {"data.validation_records": held, "run.evaluate_every": run.settings.training.rounds}
    )
    model = fl.build(settings.model.name, data, settings.model.activation)
    sizes = tuple(p.numel() for p in model.module.parameters())
    meter = Meter(settings.clients.count, sizes)
    channel = Metered(channel_of(run, sizes), meter)
    simulation = fl.Simulation(settings, data, model, codecs=lambda client: channel)
    simulation.work = WatchedWork.over(simulation.work, meter)
    meter.owner = {
        row.key(k).secret: (s, k) for s, row in enumerate(simulation.rows) for k in range(settings.clients.count)
    }
    best, score = simulation.state.weights.copy(), np.full(settings.run.seeds, -1.0)
    seen: list[npt.NDArray[np.float64]] = []
    while not simulation.done:
        simulation.step()
        meter.close_round()
        if simulation.state.round % every == 0 or simulation.done:
            seen.append(validated(simulation))
            better = seen[-1] > score
            best[better], score[better] = simulation.state.weights[better], seen[-1][better]
        follow(simulation.state.round, settings.training.rounds)
    sent = settings.training.rounds * settings.clients.count * simulation.size * settings.run.seeds
    rounds = [r for r in range(1, settings.training.rounds + 1) if r % every == 0 or r == settings.training.rounds]
    return TrainingOutcome(
        run.name, settings.run_seeds, tuple(map(float, simulation.network.evaluate(best).accuracy)), tuple(rounds),
        tuple(tuple(map(float, row)) for row in np.stack(seen, 1)), meter.snr_db(),
        meter.program_snr_db(), meter.largest_norm,
        None if run.published is not None else float(simulation.state.bits.sum()) / sent,
        round(time.monotonic() - start, 2), run.mark(),
    )  # fmt: skip


def validated(simulation: fl.Simulation) -> npt.NDArray[np.float64]:
    """Each seed's accuracy on its own held-out records."""
    pairs = zip(simulation.state.weights, simulation.validation)
    return np.array([simulation.network.evaluate(row[None], held).accuracy[0] for row, held in pairs])
