"""The inside of a round: against one round of the training itself, and in a case done by hand."""

from __future__ import annotations

import numpy as np

from cepam_paper.theory.convergence import Schedule
from cepam_paper.theory.descent import descend, within_round
from cepam_paper.theory.synthetic import synthetic


def test_ends_where_training_ends_and_rises_there() -> None:
    problem = synthetic("logistic regression", 4, 5, 1.0, 0)
    schedule = Schedule(5, problem.constants.smoothness, problem.constants.convexity)
    start = np.zeros(5)
    start[0] = 0.5 * problem.radius

    def plain(updates: np.ndarray, round: int) -> np.ndarray:
        return updates

    path = within_round(problem, schedule, plain, start, 300, 3)
    once = descend(problem, schedule, plain, start, [0, 1], 1e9, 300, 3)
    assert path.shape == (6, 300)
    np.testing.assert_allclose(path[0], once.gaps[0], rtol=1e-12)
    np.testing.assert_allclose(path[-1], once.gaps[1], rtol=1e-9)
    means = path.mean(1)
    assert (np.diff(means[:-1]) < 0).all()
    assert means[-2] < means[-1] < means[0]
