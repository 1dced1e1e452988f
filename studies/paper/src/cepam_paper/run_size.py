"""How much of the reproduction is done: all of it, a quick look, or the paper's experiment with one seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Extent(StrEnum):
    """How much is done. Only a full run has the seeds that a verdict on accuracy needs."""

    FULL = "full"
    QUICK = "quick"
    ONE_SEED = "one seed"


@dataclass(frozen=True)
class RunSize:
    """Seeds, rounds and grid points of the training parts."""

    seeds: int
    rounds: int
    every: int
    grid_seeds: int
    grid_every: int
    grid_points: tuple[int, ...]
    budgets: tuple[float, ...]
    budget_seeds: int
    budget_rounds: int
    samples: int
    data: str = "mnist"


FULL = RunSize(
    seeds=10, rounds=80, every=1, grid_seeds=4, grid_every=4, grid_points=tuple(range(10)),
    budgets=(0.5, 1.0, 2.0, 4.0, 8.0), budget_seeds=1, budget_rounds=500, samples=50_000,
)  # fmt: skip
QUICK = RunSize(
    seeds=2, rounds=20, every=4, grid_seeds=2, grid_every=10, grid_points=(0, 4, 9), budgets=(0.5, 2.0, 8.0),
    budget_seeds=1, budget_rounds=40, samples=10_000,
)  # fmt: skip


ONE_SEED = replace(FULL, seeds=1, grid_seeds=1, grid_points=(0, 2, 4, 7, 9))


def run_size(extent: Extent) -> RunSize:
    """The size of a reproduction."""
    return {Extent.FULL: FULL, Extent.QUICK: QUICK, Extent.ONE_SEED: ONE_SEED}[extent]
