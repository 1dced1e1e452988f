"""Weights & Biases and MLflow: what `fl.train(…, watch=…)` calls after every round.

    fl.train(settings, "runs/mine", watch=fl.to_wandb(project="hospitals"))
    fl.train(settings, "runs/mine", watch=fl.to_mlflow("hospitals"))

What they are sent is a run's metrics, and those look at raw data: epsilon does not cover them (docs/train.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cepam.fl.runs.progress import Progress
from cepam.fl.runs.tensorboard import scalars

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
