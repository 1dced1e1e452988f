"""The server learning rate that suits a target epsilon. It needs no PyTorch: `cepam plan` uses it too."""

from __future__ import annotations

FOLLOWED = {"private": (4.0, 1.99)}
"""Presets whose server learning rate follows the target: the rate and the epsilon that it was chosen at."""
FOLLOWED_FROM, FOLLOWED_TO = 0.25, 8.0
ADAM_RATE = 0.02
"""The rate of Adam on the server for a model of one's own, trained with per-example gradients.

Adam divides by the noise, so that its steps follow epsilon by themselves. For a small CNN this rate was within 1.5
points of the best of four on held-out records of MNIST at epsilon 0.5, 2 and 8 (`python bench/flower_records.py
--held-out --rounds 100 --seeds 2`); twice the rate was best there, and failed in some runs with little noise.
"""


def rate_for_target(preset: str | None, epsilon: float | None, own: bool = False) -> float | None:
    """The server learning rate that a preset takes at a target epsilon.

    More noise wants smaller steps. A search on held-out training records of MNIST found that the best rate of `private`
    is proportional to epsilon from 0.25 to 8 (about 2 epsilon); beyond that range the rate at its end is taken.

    Args:
        preset: The name of the preset, or None.
        epsilon: The target of the whole run, or None where a noise scale is given instead.
        own: Another model or other data than the preset's: the rate follows down, and not above the preset's own. A
            small CNN learned nothing at twice epsilon 8.

    Returns:
        The rate, or None where no rule is known and the preset's own rate stays.
    """
    if preset not in FOLLOWED or epsilon is None or not epsilon > 0.0:
        return None
    rate, at = FOLLOWED[preset]
    return rate * min(max(epsilon, FOLLOWED_FROM), at if own else FOLLOWED_TO) / at
