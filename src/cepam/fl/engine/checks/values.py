"""Each setting by itself: its choices and its range."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings

COUNTS = (
    "clients", "rounds", "tau", "batch", "epochs", "labels_each", "slices", "seeds", "evaluate_every",
    "checkpoint_every",
)  # fmt: skip
POSITIVE = ("rate", "clip", "delta", "step", "alpha", "expected_batch")
POSITIVE_OR_NONE = ("noise", "epsilon", "local_rate", "step_noise")
FRACTIONS = ("momentum", "local_momentum", "average", "dropout")


def check_values(settings: Settings) -> None:
    """Nothing, or a refusal of a value that no run could have."""
    for each in fields(settings):
        if each.metadata["choices"] and not settings.own(each.name):
            one_of(each.name, getattr(settings, each.name), each.metadata["choices"])
    for name in COUNTS:
        at_least_one(name, getattr(settings, name))
    for name in POSITIVE:
        positive(name, getattr(settings, name))
    for name in POSITIVE_OR_NONE:
        positive(name, getattr(settings, name), optional=True)
    for name in FRACTIONS:
        if not 0.0 <= getattr(settings, name) < 1.0:
            raise ValueError(f"{name} must lie in [0, 1), got {getattr(settings, name)!r}")
    if not 0.0 < settings.share <= 1.0:
        raise ValueError(f"share must lie in (0, 1], got {settings.share!r}")
    if not settings.delta < 1.0:
        raise ValueError(f"delta must lie in (0, 1), got {settings.delta!r}")
    if settings.seed < 0 or settings.validation < 0:
        raise ValueError("seed and validation must not be negative")


def check_seeds(settings: Settings) -> None:
    """Refuse several seeds in a run that is no simulation.

    Every seed publishes a model of the same records, and epsilon is that of one: it would cover one of them.
    """
    if settings.seeds > 1 and not settings.simulate:
        raise ValueError(
            f"seeds must be 1 without simulate, got {settings.seeds}: each seed publishes a model of the same records "
            "and epsilon covers one; set simulate (--simulate) to study seeds, or train one run per seed and divide "
            "the budget among them"
        )


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Nothing, or a refusal of a value that is no choice."""
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if choice is not None)
        raise ValueError(f"{name} must be one of {known}; got {value!r}")


def at_least_one(name: str, value: Any) -> None:
    """Nothing, or a refusal of what is no count."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def positive(name: str, value: Any, optional: bool = False) -> None:
    """Nothing, or a refusal of what is no positive number; None passes where it is optional."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
