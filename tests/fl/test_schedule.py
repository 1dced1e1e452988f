from __future__ import annotations

import pytest

from cepam.fl.optim import schedule


def test_theorem_schedule_is_the_papers() -> None:
    made = schedule("theorem", 0.0, 100, tau=5, convexity=0.5, smoothness=2.0)
    alpha = 5 * 16
    assert made.at(0) == pytest.approx(5 / (0.5 * alpha))
    assert made.at(37) == pytest.approx(5 / (0.5 * (37 + alpha)))
    assert made.at(0) <= 1 / (4 * 2.0) * 5


def test_other_schedules() -> None:
    assert schedule("constant", 0.3, 10).at(9) == 0.3
    assert schedule("linear", 1.0, 10).at(5) == 1.0
    assert schedule("linear", 1.0, 10).at(9) == pytest.approx(0.2)
    assert schedule("cosine", 1.0, 10).at(5) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="schedule must be one of"):
        schedule("step", 1.0, 10)
    with pytest.raises(ValueError, match="convexity"):
        schedule("theorem", 1.0, 10, tau=2)
