"""Local work, the way down and which clients there are: kinds of update, draws, rates; a grid that has a step."""

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


def check_downlink(settings: Settings) -> None:
    """Nothing, or a refusal of a grid that has no step."""
    if settings.downlink == "grid" and not settings.noisy:
        raise ValueError(
            f"downlink grid takes its step from the noise, and scheme {settings.scheme} adds none: use downlink float32"
        )
    if settings.downlink == "grid" and settings.average:
        raise ValueError(
            f"downlink grid reports the weights that clients hold, and they hold no running average: average must "
            f"be 0, got {settings.average!r}"
        )


def check_clients(settings: Settings) -> None:
    """Nothing, or a refusal of a client number that nobody has."""
    beyond = [k for each in settings.client for k in each.clients if isinstance(k, int) and k >= settings.clients]
    if beyond or any(not 0 <= k < settings.clients for k in settings.byzantine):
        raise ValueError(f"client numbers must lie in [0, {settings.clients}), got {beyond or settings.byzantine}")
