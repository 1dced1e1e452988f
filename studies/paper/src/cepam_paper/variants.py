"""The three readings of the paper, as training runs.

`text`: Algorithm 1 as printed. `published`: what the published code computes: no local steps, each tensor clipped by
itself, FL not clipped at all, and a decoder that draws its own randomness. `correct`: that same training, every row
clipped alike, with LRSUQ done right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cepam import fl
from cepam_paper import printed
from cepam_paper.run_size import RunSize
from cepam_paper.training import Run

Changes = Mapping[str, Any]
Variant = Literal["text", "published", "correct"]
VARIANTS: tuple[Variant, ...] = ("text", "published", "correct")
TELL = {
    "text": "Algorithm 1 as printed",
    "published": "as the published code computes",
    "correct": "published training, exact LRSUQ",
}


PLAIN: dict[str, dict[str, Any]] = {
    "fl-clipped": {},
    "fl-momentum": {"training.local_momentum": 0.9},
    "fl-server-momentum": {"training.server_optimizer": "momentum", "training.server_momentum": 0.9},
    "fl-rate-0.4": {"training.server_learning_rate": 0.4},
}
"""Plain FL with one setting changed."""


def _scheme(row: str) -> dict[str, Any]:
    """The settings that a row of the tables stands for."""
    if row in ("fl", "fl+sdq", *PLAIN):
        return {
            "compression.scheme": "fl+sdq" if row == "fl+sdq" else "fl",
            "privacy.noise_scale": None,
            **PLAIN.get(row, {}),
        }
    if row.startswith("cepam-gaussian"):
        return {
            "compression.scheme": "cepam-gaussian",
            "privacy.noise_scale": printed.SIGMA,
            "compression.lattice": f"Z{row[-1]}",
        }
    return {"compression.scheme": row, "privacy.noise_scale": printed.B if "laplace" in row else printed.SIGMA}


def trained(name: str, preset: str, size: RunSize, changes: Changes, published: int | None = None) -> Run:
    """A run of a preset of this size."""
    values = {
        "run.simulate": True, "data.name": size.data, "run.seeds": size.seeds, "training.rounds": size.rounds,
        "run.evaluate_every": size.every, **changes,
    }  # fmt: skip
    return Run(name, fl.preset(preset).updated(values), published)


def run_of(reading: Variant, row: str, size: RunSize, name: str | None = None, changes: Changes | None = None) -> Run:
    """The run behind one cell of the tables. Runs that two readings share have one name, so they are done once."""
    changes = changes or {}
    if reading == "text":
        own = {"privacy.norm_type": "none"} if row == "fl" else {}
        return trained(name or f"text-{row}", "algorithm1", size, {**_scheme(row), **own, **changes})
    if row.startswith("cepam") and reading == "published":
        n = 1 if row == "cepam-laplace" else int(row[-1])
        return trained(name or f"published-{row}", "published", size, {**_scheme(row), **changes}, n)
    if row == "fl" and reading == "published":
        free = {"privacy.norm_type": "none"}
        return trained(name or "published-fl", "published", size, {**_scheme(row), **free, **changes})
    return trained(name or f"correct-{row}", "published", size, {**_scheme(row), **changes})
