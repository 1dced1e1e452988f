"""The non-convex theorem: a bound on the mean squared gradient of F over the rounds (docs/paper/theory.md, proof)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam_paper.theory.gradients import GradientBounds

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stationarity:
    """CEPAM with gradient updates on smooth F_k that need not be convex.

    A round: the server broadcasts Q = W + e with ||e|| <= delta. Each client takes tau - 1 local steps of rate lambda
    from Q, clips the mini-batch gradient X at its local model to gamma, and sends it through LRSUQ; the server steps
    W - eta sum p_k (clip(X_k) + Z_k).

    Args:
        gradients: what is known of the clients' gradients.
        steps: tau, local steps a round; the last is sent as a gradient.
        batch: b, records of a mini-batch, drawn afresh in every step.
        clip: gamma.
        noise: E||Z||^2 of one client, m sigma^2 for the Gaussian.
        start_gap: F(W_0) - inf F.
    """

    gradients: GradientBounds
    steps: int
    batch: int
    clip: float
    noise: float
    start_gap: float

    @property
    def largest_rate(self) -> float:
        """1/L: the theorem is for server learning rates up to this."""
        return 1.0 / self.gradients.smoothness

    @property
    def variance(self) -> float:
        """V = sum p_k^2 (min(s_k^2 / b, gamma^2) + E||Z||^2)."""
        return self.gradients.update_variance(self.batch, self.clip, self.noise)

    def gradient_error(self, local_rate: npt.ArrayLike, downlink: npt.ArrayLike) -> Floats:
        """B = L (delta + (tau - 1) lambda sum p_k theta_k(b)) + sum p_k c_k.

        It bounds the root of E||E[J] - grad F(W)||^2: downlink error, local drift and clipping bias add up.
        """
        own = self.gradients
        drift = float(np.dot(own.weights, np.sqrt(own.second_moment(self.batch))))
        moved = np.asarray(downlink) + (self.steps - 1) * np.asarray(local_rate) * drift
        return np.asarray(own.smoothness * moved + own.bias(self.batch, self.clip))

    def round_cost(self, rate: npt.ArrayLike, local_rate: npt.ArrayLike, downlink: npt.ArrayLike) -> Floats:
        """(eta/2) B^2 + (L eta^2 / 2) V.

        E F(W') <= F(W) - (eta/2) ||grad F(W)||^2 + this, for eta <= 1/L.
        """
        eta = np.asarray(rate, dtype=np.float64)
        error = np.square(self.gradient_error(local_rate, downlink))
        return np.asarray(eta / 2 * error + self.gradients.smoothness * eta**2 / 2 * self.variance)

    def bound(self, rates: npt.ArrayLike, local_rates: npt.ArrayLike, downlink: npt.ArrayLike) -> Floats:
        """Bounds on sum eta_r E||grad F(W_r)||^2 / sum eta_r over the first 1, 2, …, R rounds.

        Args:
            rates: the server learning rate of every round, at most 1/L.
            local_rates: the local learning rate of every round, or one for all.
            downlink: a bound on ||e|| for every round, or one for all.

        Raises:
            ValueError: a server learning rate exceeds 1/L.
        """
        eta = np.asarray(rates, dtype=np.float64)
        if not (eta > 0).all() or eta.max() > self.largest_rate * (1 + 1e-12):
            raise ValueError(f"rates must lie in (0, 1/L = {self.largest_rate:.4g}], got up to {eta.max():.4g}")
        return self.formula(eta, local_rates, downlink)

    def formula(self, rates: npt.ArrayLike, local_rates: npt.ArrayLike, downlink: npt.ArrayLike) -> Floats:
        """What `bound` states, at any learning rate: beyond 1/L it bounds nothing (the report's control)."""
        eta = np.asarray(rates, dtype=np.float64)
        paid = np.cumsum(self.round_cost(eta, local_rates, downlink))
        return np.asarray(2.0 * (self.start_gap + paid) / np.cumsum(eta))

    def best_rate(self, rounds: int) -> float:
        """The constant rate that is best for so many rounds: min(1/L, sqrt(2 (F(W_0) - inf F) / (L V R)))."""
        balanced = np.sqrt(2.0 * self.start_gap / (self.gradients.smoothness * self.variance * rounds))
        return float(min(self.largest_rate, balanced))
