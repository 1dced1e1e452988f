"""Mechanisms for the audit's tests, exact and broken (an audit must refute those); what a round charges each node."""

from __future__ import annotations

import numpy as np

from cepam.privacy import Mechanism
from cepam.privacy.mechanisms.mechanism import SubsampledMechanism


class Exact:
    """Adds the noise that it says."""

    def __init__(self, scale: float, kind: str = "normal", seed: int = 1) -> None:
        self.scale, self.kind, self.random = scale, kind, np.random.default_rng(seed)

    def __call__(self, updates: np.ndarray, client: int, round: int) -> np.ndarray:
        return updates + self.scale * getattr(self.random, f"standard_{self.kind}", self.random.laplace)(
            size=len(updates)
        )


class Redrawn:
    """The published decoder's defect: a layered quantizer whose decoder draws a new radius and a new dither."""

    def __init__(self, scale: float, seed: int = 2) -> None:
        self.scale, self.random = scale, np.random.default_rng(seed)

    def layer(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self.scale * np.sqrt(self.random.chisquare(3, count)), self.random.random(count) - 0.5

    def __call__(self, updates: np.ndarray, client: int, round: int) -> np.ndarray:
        radius, dither = self.layer(len(updates))
        point = np.round(updates / (2 * radius) - dither)
        radius, dither = self.layer(len(updates))
        return 2 * radius * (point + dither)


class Shared(Redrawn):
    """The same quantizer done right: the decoder shares both, and the error is Gaussian."""

    def __call__(self, updates: np.ndarray, client: int, round: int) -> np.ndarray:
        radius, dither = self.layer(len(updates))
        return 2 * radius * (np.round(updates / (2 * radius) - dither) + dither)


def charges_by_node(mechanism: Mechanism) -> dict[int, tuple[SubsampledMechanism, ...]]:
    """What one round costs a record of each node that sent something: equal vectors are charged once, not each anew."""
    return {node: mechanism.round_charges[seat] for node, seat in mechanism.seats.items()}
