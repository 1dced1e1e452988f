"""The picture of a run: accuracy, privacy spent and bits over the rounds."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cepam.fl.aggregation.aggregator import Line
from cepam.fl.aggregation.warnings import SIMULATED
from cepam.fl.config.settings import Settings

PANELS = (
    ("accuracy", "test accuracy"),
    ("epsilon", "epsilon spent"),
    ("bits_per_coordinate", "bits per coordinate"),
    ("snr_db", "SNR (dB)"),
)


def series(lines: list[Line], name: str) -> tuple[Any, Any, Any, Any]:
    """Rounds at which the quantity is known for every seed, its mean over seeds, its smallest and largest value."""
    seeds = len({line.get("seed") for line in lines})
    by_round: dict[int, list[float]] = {}
    for line in lines:
        if line.get(name) is not None:
            by_round.setdefault(line["round"], []).append(float(line[name]))
    rounds = sorted(number for number, values in by_round.items() if len(values) == seeds)
    values = [by_round[number] for number in rounds]
    mean, low, high = (np.array([reduce(each) for each in values]) for reduce in (np.mean, np.min, np.max))
    return np.array(rounds), mean, low, high


def draw_curve(path: Path, lines: list[Line], settings: Settings) -> None:
    """Draw the picture to the file. Without matplotlib a run ends well without one."""
    if find_spec("matplotlib") is None:
        warnings.warn(f"no {path.name}: install cepam[plots] for pictures", stacklevel=2)
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))  # not pyplot's: the caller's backend and figures stay as they are
    axes = figure.subplots(2, 2)
    figure.subplots_adjust(left=0.09, right=0.98, bottom=0.09, top=0.92, wspace=0.25, hspace=0.3)
    known = any(line.get("accuracy") is not None for line in lines)
    for axis, (name, label) in zip(axes.flat, PANELS if known else (("loss", "test loss"), *PANELS[1:])):
        rounds, mean, low, high = series(lines, name)
        if len(rounds):
            axis.plot(rounds, mean, marker="." if len(rounds) < 40 else "", label="up")
            axis.fill_between(rounds, low, high, alpha=0.2)
            if name == "bits_per_coordinate":
                axis.plot(*series(lines, "bits_per_coordinate_down")[:2], label="down")
                axis.set_yscale("log")
                axis.legend()
        else:
            axis.text(0.5, 0.5, "none", ha="center", transform=axis.transAxes)
        marked = name == "epsilon" and settings.run.simulate
        axis.set(xlabel="round", ylabel=f"{label} ({SIMULATED})" if marked else label)
        axis.grid(alpha=0.3)
    figure.suptitle(
        f"{settings.compression.scheme}, {settings.data.name}, {settings.clients.count} clients, "
        f"{settings.training.rounds} rounds"
    )
    figure.savefig(path, dpi=110, metadata={"Software": None})
