"""The figures and the curve at the end of a run."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from cepam.fl.aggregation.accounting import SIMULATED
from cepam.fl.aggregation.trusted_server import Line
from cepam.fl.config.settings import Settings
from cepam.fl.models.interface import AUC, engine_of
from cepam.fl.simulation import Simulation
from cepam.privacy.reports.guarantee import noise_multiplier, noise_units

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


def interval(values: list[float]) -> tuple[float, float | None]:
    """The mean and the half-width of its 95 % confidence interval (Student), None with fewer than two values."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None
    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean, float(special.stdtrit(len(values) - 1, 0.975)) * spread


def _metrics(simulation: Simulation, lines: list[Line]) -> list[str]:
    """The names of what the last round was judged by, the loss last; one that is not a number is left out."""
    objective = simulation.vector.objective
    names = [*(("accuracy", AUC) if objective.classifies else ()), *objective.metrics, "loss"]
    last = [line for line in lines if line["round"] == simulation.settings.training.rounds]
    return [name for name in dict.fromkeys(names) if all(line.get(name) is not None for line in last)]


def _epsilon(last: dict[int, Line]) -> float | None:
    """The largest epsilon of the seeds; None where one of them has no finite bound."""
    found: list[float | None] = [line["epsilon"] for line in last.values()]
    known = [value for value in found if value is not None]
    return max(known) if known and len(known) == len(found) else None


def summarise(simulation: Simulation, lines: list[Line], seconds: float) -> dict[str, Any]:
    """What a reader wants first: accuracy, privacy, size and time, with the warnings beside them."""
    settings = simulation.settings
    last = {line["seed"]: line for line in lines if line["round"] == settings.training.rounds}
    sent = [line["bits_per_coordinate"] for line in lines if line["bits_per_coordinate"] is not None]
    judged = {name: interval([line[name] for line in last.values()]) for name in _metrics(simulation, lines)}
    accuracy, half = judged.pop("accuracy", (None, None))
    noise = [line["snr_db"] for line in lines if line["snr_db"] is not None]
    aggregator = simulation.aggregators[0]
    return {
        "scheme": settings.compression.scheme,
        "trust": settings.privacy.trust,
        "lattice": settings.compression.lattice if settings.compression.scheme.startswith("cepam") else None,
        "rounds": settings.training.rounds,
        "seeds": list(settings.run_seeds),
        "weights": simulation.size,
        "engine": engine_of(simulation.network),
        "accuracy": accuracy,
        "accuracy_half_width": half,
        "accuracy_by_seed": {str(seed): line.get("accuracy") for seed, line in last.items()},
        "best_score_by_seed": dict(zip(map(str, settings.run_seeds), map(float, simulation.state.best_score))),
        "metrics": {name: {"mean": mean, "half_width": width} for name, (mean, width) in judged.items()},
        "epsilon": _epsilon(last),
        "delta": settings.privacy.delta if aggregator.mechanism is not None else None,
        "simulated": settings.run.simulate,
        "adjacency": settings.privacy.adjacency,
        "epsilon_against": simulation.views(),
        "clients": simulation.budgets(),
        "noise_scales": sorted({plan.law.scale for plan in aggregator.plans if plan.law is not None}),
        "noise_multiplier": None if aggregator.mechanism is None else noise_multiplier(aggregator.mechanism),
        "noise_units": None if aggregator.mechanism is None else noise_units(aggregator.mechanism),
        "server_optimizer": settings.training.server_optimizer,
        "server_learning_rate": settings.training.server_learning_rate,
        "bits_per_coordinate": float(np.mean(sent)) if sent else None,
        "uplink_bytes": int(simulation.state.bits.sum()) // 8,
        "downlink": settings.compression.downlink,
        "bits_per_coordinate_down": float(np.mean([line["bits_per_coordinate_down"] for line in lines])),
        "downlink_bytes": sum(line["downlink_bits"] for line in lines) // 8,
        "round_trip_bytes": sum(line["bits_round_trip"] for line in lines) // 8,
        "snr_db": float(np.mean(noise)) if noise else None,
        "seconds": round(seconds, 2),
        "warnings": simulation.privacy_warnings,
    }
