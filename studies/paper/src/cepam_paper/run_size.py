"""How much of the reproduction is done: all of it, or a quick look that finishes in minutes."""

from __future__ import annotations

from dataclasses import dataclass


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


def run_size(quick: bool) -> RunSize:
    """The size of a quick or a full reproduction."""
    return QUICK if quick else FULL
