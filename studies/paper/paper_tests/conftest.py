from __future__ import annotations

import pytest

from cepam_paper import run_size
from cepam_paper.run_size import RunSize


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> RunSize:
    """A size that needs no download and takes seconds; `quick` asks for it."""
    made = RunSize(
        seeds=2, rounds=2, every=1, grid_seeds=2, grid_every=1, grid_points=(0, 4, 9), budgets=(0.5, 8.0),
        budget_seeds=1, budget_rounds=2, samples=10_000, data="synthetic",
    )  # fmt: skip
    monkeypatch.setattr(run_size, "QUICK", made)
    return made
