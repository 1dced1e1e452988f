"""Scheme, noise and target: what adds noise says how much, what adds none promises nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_noise(settings: Settings) -> None:
    """Nothing, or a refusal of noise and target that do not go together."""
    if settings.noise is not None and settings.epsilon is not None:
        raise ValueError("give either noise or a target epsilon, not both")
    if settings.noisy and settings.noise is None and settings.epsilon is None:
        raise ValueError(f"scheme {settings.scheme} needs noise (--noise) or a target (--epsilon)")
    if settings.epsilon is not None and not settings.noisy:
        raise ValueError(
            f"scheme {settings.scheme} adds no noise, so a target epsilon of {settings.epsilon} is impossible"
        )
    if settings.epsilon is not None and settings.clip_norm == "none":
        raise ValueError("a target epsilon needs clipping: clip_norm must not be none")
