"""The way down: a grid needs noise, and reports what clients hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


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
