"""TensorBoard, Weights & Biases and MLflow: what `fl.train(…, watch=…)` calls after every round."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cepam._internal.files import write_atomically
from cepam.fl.aggregation.accounting import SIMULATED
from cepam.fl.aggregation.trusted_server import Line
from cepam.fl.runs.progress import Progress

# TensorBoard events, written from the metrics as a whole so that a resumed run has each round once.
#
# Needs the `tensorboard` package (`pip install "cepam[tensorboard]"`); without it no event file is written.


SCALARS = (
    "accuracy", "validation_accuracy", "validation_loss", "loss", "train_loss", "snr_db", "epsilon", "replies",
    "bits_per_coordinate", "bits_per_coordinate_down",
)  # fmt: skip


def scalars(line: Line, seeds: int) -> dict[str, float]:
    """Every scalar of a line of metrics by its tag, which names the seed where there are several."""
    tail = f"/seed-{line['seed']}" if seeds > 1 else ""
    made = {name: float(line[name]) for name in SCALARS if line.get(name) is not None}
    marked = f"epsilon ({SIMULATED})"
    return {f"{marked if name == 'epsilon' and line.get('simulated') else name}{tail}": x for name, x in made.items()}


def write_events(path: Path, lines: list[Line]) -> None:
    """Write every scalar of the metrics to one event file, in place of an older one.

    The wall time of an event is its round: metrics carry no clock, so that a resumed run has those of an uninterrupted
    one. Where `tensorboard` is not installed, nothing is written.

    Args:
        path: The event file; TensorBoard reads names that contain `tfevents`.
        lines: The lines of metrics, tagged by seed where there are several.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as missing:
        if missing.name != "tensorboard":
            raise
        return
    seeds = len({line["seed"] for line in lines})
    with TemporaryDirectory() as place:
        with SummaryWriter(place) as writer:
            for line in lines:
                for tag, value in scalars(line, seeds).items():
                    writer.add_scalar(tag, value, line["round"], walltime=float(line["round"]))
        (made,) = Path(place).iterdir()
        write_atomically(path, made.read_bytes())


#     fl.train(settings, "runs/mine", watch=fl.to_wandb(project="hospitals"))
#     fl.train(settings, "runs/mine", watch=fl.to_mlflow("hospitals"))
#
# What they are sent is a run's metrics, and those look at raw data: epsilon does not cover them (docs/train.md).


Watcher = Callable[[Progress], None]


def to_wandb(**given: Any) -> Watcher:
    """A watcher that logs every round to Weights & Biases; the arguments are those of `wandb.init`.

    Args:
        given: Arguments of `wandb.init`.

    Returns:
        What `train` takes as `watch`.
    """
    import wandb

    run = wandb.init(**given)

    def watch(progress: Progress) -> None:
        for line in progress.lines:
            run.log(scalars(line, progress.seeds), step=line["round"])
        if progress.done:
            run.finish()

    return watch


def to_mlflow(experiment: str, **given: Any) -> Watcher:
    """A watcher that logs every round to this experiment of MLflow; further arguments are those of `start_run`.

    Args:
        experiment: Its name.
        given: Arguments of `start_run`.

    Returns:
        What `train` takes as `watch`.
    """
    import mlflow

    mlflow.set_experiment(experiment)
    mlflow.start_run(**given)

    def watch(progress: Progress) -> None:
        for line in progress.lines:
            found = scalars(line, progress.seeds)  # MLflow takes no brackets in a name
            mlflow.log_metrics({re.sub("[()]", "", name): x for name, x in found.items()}, step=line["round"])
        if progress.done:
            mlflow.end_run()

    return watch
