"""The figures at the end of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from cepam.fl.aggregation.aggregator import Line
from cepam.fl.models.interface import AUC, engine_of
from cepam.fl.simulation import Simulation


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
