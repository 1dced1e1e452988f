"""Scheme, noise and target: what adds noise says how much, what adds none promises nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_noise(settings: Settings) -> None:
    """Nothing, or a refusal of noise and target that do not go together."""
    if settings.update == "dp-sgd":
        _check_steps(settings)
        return
    if settings.step_noise is not None:
        raise ValueError(f"step_noise is of local steps: it goes with update dp-sgd, got {settings.update}")
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


def _check_steps(settings: Settings) -> None:
    """Nothing, or a refusal of noise that local DP-SGD cannot do with: target and step_noise are of the local steps."""
    if (settings.step_noise is None) == (settings.epsilon is None):
        raise ValueError("update dp-sgd needs a local step's noise (--step-noise) or a target (--epsilon), not both")
    if settings.noisy != (settings.noise is not None):
        raise ValueError(
            f"scheme {settings.scheme} of update dp-sgd {'needs' if settings.noisy else 'takes no'} noise (--noise) on "
            "the way up, which comes on top; scheme fl+sdq compresses without more noise, fl not at all"
        )
    if any(each.noise is not None and not settings.noisy for each in settings.client):
        raise ValueError(f"client.noise is of the way up, where scheme {settings.scheme} adds none")
