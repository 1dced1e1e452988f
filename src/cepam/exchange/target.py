"""Noise for a target: the scale with which so many replies a round stay within epsilon, and what it means for use."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cepam.clip import Clip
from cepam.exchange.uplink_settings import UplinkSettings
from cepam.noise.laws import Gaussian, Laplace, Law

if TYPE_CHECKING:
    from cepam.privacy import Release


@dataclass(frozen=True)
class Target:
    """What a run may spend: epsilon over `rounds` rounds with `nodes` replies each (None: told when it starts)."""

    epsilon: float
    rounds: int | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon!r}")
        for name, value in (("rounds", self.rounds), ("nodes", self.nodes)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")

    def meet(self, settings: UplinkSettings, one: Release, delta: float) -> UplinkSettings:
        """The settings with the smallest noise that meets the target over rounds like `one`; whatever scale they had.

        Guarantee: the account of such a run ends at or under epsilon (tests/exchange/test_target.py).
        """
        from cepam.privacy import calibrate

        met = calibrate(self._whole(one), self.epsilon, delta)
        return replace(settings, law=met.clients[0].law)

    def describe(self, one: Release) -> str:
        """What the noise of rounds like `one` means for the model, in a line."""
        from cepam.privacy import noise_to_clip

        run, nodes = self._whole(one), self.nodes or 1
        met = f"{one.clients[0].law} meets epsilon {self.epsilon:g} over {run.rounds} rounds of {nodes} replies"
        return f"{met}; {noise_to_clip(run).advice}"

    def _whole(self, one: Release) -> Release:
        if self.rounds is None:
            raise ValueError("rounds must be given where a strategy is not run by `start`")
        return one.over(self.rounds)


def target_of(epsilon: float | None, rounds: int | None, nodes: int | None, delta: float | None) -> Target | None:
    """The target, or None where no epsilon is given, and then nothing that goes with it."""
    if epsilon is not None:
        return Target(epsilon, rounds, nodes)
    if (rounds, nodes, delta) != (None, None, None):
        raise ValueError("rounds, nodes and delta go with epsilon; Account(delta=…) sets delta otherwise")
    return None


def law_of(law: Law | type[Law], clip: Clip, target: Target | None) -> Law:
    """The law itself; where a target will give the scale, one of its family. ValueError where the other was given."""
    if target is None and isinstance(law, type):
        raise ValueError(f"law must have a scale, or epsilon be given, got {law!r}")
    if target is None:
        return law  # type: ignore[return-value]  # an instance
    if law is Gaussian:
        return Gaussian(clip.bound)
    if law is Laplace:
        return Laplace(clip.bound)
    raise ValueError(f"law must be cepam.Gaussian or cepam.Laplace itself (epsilon gives the scale), got {law!r}")
