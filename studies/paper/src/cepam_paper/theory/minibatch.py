"""The convex theorem with mini-batches and a quantized downlink (docs/paper/theory.md, proof)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam_paper.theory.convergence import Constants, Schedule, one_round
from cepam_paper.theory.downlink import DownlinkError
from cepam_paper.theory.gradients import GradientBounds

Floats = npt.NDArray[np.float64]
SPILL = 15 / 4
"""2 + 7 C eta at most, since C eta <= 1/4: what drift costs in a round."""
OLDEST = 5 / 4
"""eta_t / eta_{t + tau - 1} at most, since alpha >= 4 tau."""
YOUNG = 33 / 32
"""1 + C eta / 8 at most: what Young's inequality adds for a bias."""


@dataclass(frozen=True)
class BatchConvergence:
    """Bounds on E[F(W_T)] - F(w*) with mini-batches of b records and a broadcast off by delta.

    Learning rates are the paper's. `bound` is for clipping that is idle and delta_r <= kappa eta_r, as the downlink's
    rule gives with exponent 1; `biased_bound` is for active clipping and any exponent.

    Args:
        constants: L, C and the minima of the problem.
        gradients: what mini-batch gradients do on the domain.
        steps: tau.
        batch: b.
        noise: E||Z||^2 of one client.
        start_square: ||W_0 - w*||^2.
        downlink_ratio: kappa; 0 for a downlink without error.
    """

    constants: Constants
    gradients: GradientBounds
    steps: int
    batch: int
    noise: float
    start_square: float
    downlink_ratio: float = 0.0

    @property
    def schedule(self) -> Schedule:
        """The paper's learning rates."""
        return Schedule(self.steps, self.constants.smoothness, self.constants.convexity)

    @property
    def theta(self) -> float:
        """The root of sum p_k theta_k(b)^2."""
        return math.sqrt(float(np.dot(self.constants.weights, self.gradients.second_moment(self.batch))))

    def b(self) -> float:
        """B = 6 L Gamma + sum p_k^2 (s_k^2/b + E||Z||^2) + (15/4) (kappa + (5/4) (tau - 1) theta)^2."""
        c = self.constants
        drift = SPILL * (self.downlink_ratio + OLDEST * self._drift(self.steps - 1)) ** 2
        own = self.gradients.update_variance(self.batch, math.inf, self.noise)
        return 6.0 * c.smoothness * c.heterogeneity + own + drift

    def bound(self, total: npt.ArrayLike) -> Floats:
        """L / (2 (T + alpha)) max{4 tau B / C^2, alpha ||W_0 - w*||^2}, for gamma >= M."""
        nu = 4.0 * self.steps * self.b() / self.constants.convexity**2
        return self._hyperbola(total, nu)

    def biased_bound(self, total: npt.ArrayLike, clip: float, downlink: DownlinkError) -> Floats:
        """32 L beta^2 / (9 C^2) + L / (2 (T + alpha)) max{8 tau B' / C^2, alpha ||W_0 - w*||^2}.

        (sum p_k c_k + L delta_r)^2 <= beta^2 + lambda eta_r in every round, chosen for every T anew, and
        B' = (33/32) (6 L Gamma + (375/64) (tau - 1)^2 theta^2) + beta^2 + (1/(4L) + 8/C) lambda + sum p_k^2 (v_k +
        E||Z||^2).
        """
        c, tau = self.constants, self.steps
        drift = SPILL * (OLDEST * self._drift(tau - 1)) ** 2
        own = self.gradients.update_variance(self.batch, clip, self.noise)
        now = self.schedule.rate(np.maximum(np.asarray(total, dtype=np.float64), tau) - 1)
        bias = self.gradients.bias(self.batch, clip)
        beta_square, slope = downlink.line(bias, c.smoothness, now, float(self.schedule.rate(tau - 1)))
        b = YOUNG * (6.0 * c.smoothness * c.heterogeneity + drift) + beta_square + own
        b = b + (1 / (4.0 * c.smoothness) + 8.0 / c.convexity) * slope
        return self._hyperbola(total, 8.0 * tau * b / c.convexity**2) + _floor(c, beta_square)

    def biased_recursion(self, rounds: int, clip: float, downlink: DownlinkError) -> Floats:
        """Bounds on E||W - w*||^2 after 0, 1, …, `rounds` rounds by the one-round inequality with a bias."""
        c, tau, squares = self.constants, self.steps, np.empty(rounds + 1)
        squares[0] = self.start_square
        variance = self.gradients.update_variance(self.batch, clip, self.noise)
        for r in range(rounds):
            rates = self.schedule.rate(r * tau + np.arange(tau))
            drift, rate = self._drift(float(rates[:-1].sum())) ** 2, float(rates[-1])
            bias = self.gradients.bias(self.batch, clip) + c.smoothness * float(downlink.at(rate))
            squares[r + 1] = one_biased_round(c, rate, float(squares[r]), drift, variance, bias)
        return squares

    def floor(self, clip: float, downlink: float) -> float:
        """32 L (sum p_k c_k + L delta)^2 / (9 C^2): what the bound tends to if the downlink's error stays delta."""
        bias = self.gradients.bias(self.batch, clip) + self.constants.smoothness * downlink
        return float(_floor(self.constants, np.asarray(bias**2)))

    def recursion(self, rounds: int) -> Floats:
        """Bounds on E||W - w*||^2 after 0, 1, …, `rounds` rounds by the one-round inequality, for gamma >= M."""
        tau, squares = self.steps, np.empty(rounds + 1)
        squares[0] = self.start_square
        variance = self.gradients.update_variance(self.batch, math.inf, self.noise)
        for r in range(rounds):
            rates = self.schedule.rate(r * tau + np.arange(tau))
            rate = float(rates[-1])
            drift = (self.downlink_ratio * rate + self._drift(float(rates[:-1].sum()))) ** 2
            squares[r + 1] = one_round(self.constants, rate, float(squares[r]), drift, variance)
        return squares

    def _drift(self, moved: float) -> float:
        """theta times the sum of the local learning rates: none at tau = 1, whatever theta is."""
        return moved * self.theta if moved else 0.0

    def _hyperbola(self, total: npt.ArrayLike, nu: npt.ArrayLike) -> Floats:
        nu = np.maximum(nu, self.schedule.alpha * self.start_square)
        return np.asarray(self.constants.smoothness * nu / (2.0 * (np.asarray(total) + self.schedule.alpha)))


def _floor(constants: Constants, beta_square: Floats) -> Floats:
    return np.asarray(32.0 * constants.smoothness * beta_square / (9.0 * constants.convexity**2))


def one_biased_round(
    constants: Constants, rate: float, square: float, drift: float, variance: float, bias: float
) -> float:
    """A bound on E||W_{t+tau} - w*||^2 where the expectation of what the server gets is off by at most `bias`.

    (1 + C eta / 8) times `one_round` without its variance, plus eta^2 variance and (eta^2 + 8 eta / C) bias^2.
    """
    young = constants.convexity * rate / 8
    clean = one_round(constants, rate, square, drift, 0.0)
    return (1.0 + young) * clean + rate**2 * variance + (rate**2 + 8.0 * rate / constants.convexity) * bias**2
