"""The server learning rate that suits a target epsilon. It needs no PyTorch: `cepam plan` uses it too."""

from __future__ import annotations

FOLLOWED = {"private": (4.0, 1.99)}
"""Presets whose server learning rate follows the target: the rate and the epsilon that it was chosen at."""
FOLLOWED_FROM, FOLLOWED_TO = 0.25, 8.0


def rate_for_target(preset: str | None, epsilon: float | None) -> float | None:
    """The server learning rate that a preset takes at a target epsilon.

    More noise wants smaller steps. A search on held-out training records of MNIST found that the best rate of `private`
    is proportional to epsilon from 0.25 to 8 (about 2 epsilon); beyond that range the rate at its end is taken.

    Args:
        preset: The name of the preset, or None.
        epsilon: The target of the whole run, or None where a noise scale is given instead.

    Returns:
        The rate, or None where no rule is known and the preset's own rate stays.
    """
    if preset not in FOLLOWED or epsilon is None or not epsilon > 0.0:
        return None
    rate, at = FOLLOWED[preset]
    return rate * min(max(epsilon, FOLLOWED_FROM), FOLLOWED_TO) / at
