"""Local work: kinds of update, draws of records, and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_work(settings: Settings) -> None:
    """Nothing, or a refusal of an update, a sampling, a clip or a schedule that do not go together."""
    by_example = settings.update in ("examples", "dp-sgd")
    if by_example != (settings.sampling == "poisson") and settings.sampling != "cyclic":
        raise ValueError(
            f"update examples or dp-sgd and sampling poisson go together (examples also with cyclic), got "
            f"{settings.update} and {settings.sampling}"
        )
    if settings.sampling == "all" and settings.batch != 1:
        raise ValueError(f"sampling all uses every record in every step: leave batch at 1, got {settings.batch}")
    if by_example and settings.clip_norm != "l2":
        raise ValueError(f"update {settings.update} clips each example in l2, got clip_norm {settings.clip_norm}")
    if settings.update == "dp-sgd" and settings.clip_scope != "vector":
        raise ValueError(f"update dp-sgd clips each example as a whole, got clip_scope {settings.clip_scope}")
    if settings.schedule == "theorem" and not 0 < settings.convexity <= settings.smoothness:
        raise ValueError("schedule theorem needs 0 < convexity <= smoothness")
