"""A non-convex problem all of whose constants are known: robust location with the loss of Geman and McClure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cepam_paper.theory.distortion import checked_weights
from cepam_paper.theory.gradients import GradientBounds

Floats = npt.NDArray[np.float64]
STEEPEST = 9 / (8 * np.sqrt(3))
"""The largest slope of x^2/(1+x^2), at x = 1/sqrt(3)."""
CURVED = 2.0
"""The largest curvature, at x = 0; the least is -1/2, at x = 1."""
TAIL = 8.0
"""Beyond this distance from every record slopes are below 2 TAIL^-3."""


def loss(x: Floats) -> Floats:
    """x^2 / (1 + x^2): between 0 and 1, not convex."""
    return np.asarray(np.square(x) / (1.0 + np.square(x)))


def slope(x: Floats) -> Floats:
    """Its derivative 2 x / (1 + x^2)^2."""
    return np.asarray(2.0 * x / np.square(1.0 + np.square(x)))


@dataclass(frozen=True, eq=False)
class GemanMcClure:
    """K clients with records a (K, records, m), heights h (K, records) and weights p_k.

    F_k(w) = mean over records j of h_kj sum_i (w_i - a_kji)^2 / (1 + (w_i - a_kji)^2), F = sum p_k F_k. Heights above 1
    make a client's gradients long. Coordinates separate, so that suprema over all of R^m are suprema over the line,
    found on a grid and raised by a Lipschitz constant times half its step: every constant is a proved bound.
    """

    records: Floats = field(repr=False)
    heights: Floats = field(repr=False)
    weights: tuple[float, ...]
    spacing: float = 2e-3

    def __post_init__(self) -> None:
        if self.records.ndim != 3 or self.heights.shape != self.records.shape[:2] or not (self.heights > 0).all():
            raise ValueError(f"records (K, records, m) need positive heights (K, records), got {self.heights.shape}")
        if len(checked_weights(self.weights)) != len(self.records):
            raise ValueError(f"{len(self.records)} clients need as many weights, got {len(self.weights)}")

    @property
    def size(self) -> int:
        """The number m of coordinates."""
        return int(self.records.shape[2])

    def gradient(self, w: Floats, records: Floats, heights: Floats) -> Floats:
        """The gradients at weights (…, m) of single records (…, m) with heights (…)."""
        return np.asarray(heights[..., None] * slope(w - records))

    def objective(self, w: Floats) -> Floats:
        """F at weights (…, m)."""
        values = loss(w[..., None, None, :] - self.records).sum(axis=-1)
        return np.asarray((self.heights * values).mean(axis=-1) @ np.asarray(self.weights))

    def full_gradient(self, w: Floats) -> Floats:
        """grad F at weights (…, m)."""
        each = self.gradient(w[..., None, None, :], self.records, self.heights).mean(axis=-2)
        return np.asarray(np.einsum("k,...km->...m", np.asarray(self.weights), each))

    @cached_property
    def gradients(self) -> GradientBounds:
        """L, G_k, s_k^2 and M_k on all of R^m."""
        high = self.heights.max(axis=1)
        full, spread = np.zeros(len(high)), np.zeros(len(high))
        for k, h in enumerate(self.heights):
            for i in range(self.size):
                slopes = h * slope(self._grid[:, None] - self.records[k, :, i])
                full[k] += self._highest(np.abs(slopes.mean(axis=1)), CURVED * float(h.mean())) ** 2
                spread[k] += self._highest(slopes.var(axis=1), 1.625 * float(high[k]) ** 2)
        return GradientBounds(
            smoothness=float(CURVED * self.heights.mean(axis=1).max()),
            weights=self.weights,
            full_norms=tuple(np.sqrt(full).tolist()),
            variances=tuple(spread.tolist()),
            sample_norms=tuple((high * STEEPEST * np.sqrt(self.size)).tolist()),
        )

    @cached_property
    def least(self) -> float:
        """A lower bound on inf F: the coordinates' least values on the grid, less L spacing^2 / 8 each."""
        found = 0.0
        for i in range(self.size):
            values = np.zeros(len(self._grid))
            for p, a, h in zip(self.weights, self.records[:, :, i], self.heights):
                values += p * (h * loss(self._grid[:, None] - a)).mean(axis=1)
            found += float(values.min()) - CURVED * float(self.heights.mean(axis=1).max()) * self.spacing**2 / 8
        return found

    @cached_property
    def _grid(self) -> Floats:
        return np.arange(self.records.min() - TAIL, self.records.max() + TAIL, self.spacing)

    def _highest(self, values: Floats, lipschitz: float) -> float:
        """The largest value on the line; beyond the grid values are below those that slopes of 2 TAIL^-3 give."""
        tail = float(self.heights.max()) * 2.0 * TAIL**-3
        return float(max(values.max() + lipschitz * self.spacing / 2, tail))


def scattered(clients: int, size: int, records: int, heterogeneity: float, seed: int) -> GemanMcClure:
    """Clients whose records lie around centres `heterogeneity` apart, a fifth of the records far away (outliers)."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((clients, 1, size)) * heterogeneity
    a = centres + 0.5 * draw.standard_normal((clients, records, size))
    a[:, : records // 5] += draw.choice((-4.0, 4.0), (clients, records // 5, size))
    weights = np.linspace(1.0, 2.0, clients)
    return GemanMcClure(a, np.ones((clients, records)), tuple((weights / weights.sum()).tolist()))
