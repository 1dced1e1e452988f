"""The convergence theorem as printed, as it can be proved, and what clipping leaves of it (docs/paper/theory.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam_paper.theory.distortion import checked_weights, clipping_bias

Floats = npt.NDArray[np.float64]

# The share c of the local drift in the contraction: ||W^k - w*||^2 >= (1-c)||W - w*||^2 - (1/c-1)||W - W^k||^2.
_DRIFT_SHARE = 1 / 8
# Bounds (2 + 7 C eta) (eta_t0 / eta)^2 <= 15/4 · 25/16, since C eta <= 1/4 and alpha >= 4 tau.
_DRIFT = 6.0
# (1 + C eta / 8) <= 33/32: what Young's inequality adds when clipping is active.
_YOUNG = 33 / 32


@dataclass(frozen=True)
class Schedule:
    """The paper's learning rates eta_t = tau / (C (t + alpha)), alpha = tau max(4 L / C, 1).

    Paper: Theorem "convergence". Guarantee: eta_t <= 1 / (4 L) for every t.
    """

    steps: int
    smoothness: float
    convexity: float

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not 0 < self.convexity <= self.smoothness < math.inf:
            raise ValueError(f"0 < convexity <= smoothness must hold, got {self.convexity} and {self.smoothness}")

    @property
    def alpha(self) -> float:
        """alpha = tau max(4 L / C, 1)."""
        return self.steps * max(4.0 * self.smoothness / self.convexity, 1.0)

    def rate(self, t: float | npt.ArrayLike) -> Floats:
        """eta_t."""
        return np.asarray(self.steps / (self.convexity * (np.asarray(t, dtype=np.float64) + self.alpha)))


@dataclass(frozen=True)
class Constants:
    """What AS1 to AS4 say of one problem: L, C, and client by client p_k, theta_k^2, M_k and the minimum of F_k.

    M_k bounds the norm of every sample's gradient, as the paper's supremum over weights and samples does. Departs: it
    and theta_k^2 are taken on a bounded domain: no strongly convex function has bounded gradients on all of R^m.
    """

    smoothness: float
    convexity: float
    weights: tuple[float, ...]
    theta_squares: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    least_values: tuple[float, ...]
    least_value: float

    def __post_init__(self) -> None:
        clients = len(checked_weights(self.weights))
        if not len(self.theta_squares) == len(self.gradient_norms) == len(self.least_values) == clients:
            raise ValueError(
                f"theta_squares, gradient_norms and least_values must have one entry for {clients} clients"
            )

    @property
    def gradient_norm(self) -> float:
        """M, the largest norm of any sample's gradient."""
        return max(self.gradient_norms)

    @property
    def printed_psi(self) -> float:
        """psi = F(w*) - sum_k min F_k, as printed: without the weights, so that constants in the losses move it."""
        return self.least_value - sum(self.least_values)

    @property
    def heterogeneity(self) -> float:
        """Gamma = F(w*) - sum_k p_k min F_k, never negative (Li et al. 2020); what psi has to be."""
        return self.least_value - float(np.dot(self.weights, self.least_values))

    @property
    def mean_theta_square(self) -> float:
        """sum_k p_k theta_k^2."""
        return float(np.dot(self.weights, self.theta_squares))

    @property
    def spread(self) -> float:
        """sum_k p_k^2."""
        return float(np.square(self.weights).sum())


@dataclass(frozen=True)
class Convergence:
    """The bounds on E[F(W_T)] - F(w*) of one training: T local steps, tau a round, noise energy E||Z||^2 a client.

    `printed_noise` is N Var(f) and `subvectors` N, as the printed bound wants them; `start_square` is ||W_0 - w*||^2.
    """

    constants: Constants
    steps: int
    noise: float
    printed_noise: float
    subvectors: int
    start_square: float

    @property
    def schedule(self) -> Schedule:
        """The learning rates that all bounds here are for."""
        return Schedule(self.steps, self.constants.smoothness, self.constants.convexity)

    def printed_b(self) -> float:
        """B as printed. Paper: Theorem "convergence"."""
        c = self.constants
        own = float(np.dot(np.square(c.weights), c.theta_squares))
        drift = 8.0 * (self.steps - 1) ** 2 * c.mean_theta_square
        noise = (self.printed_noise + self.subvectors * c.gradient_norm**2) * c.spread
        return 6.0 * c.smoothness * c.printed_psi + noise + own + drift

    def printed_bound(self, total: npt.ArrayLike) -> Floats:
        """L / (2 (T + alpha)) max{4 B tau^2 (tau + alpha) / (C^2 alpha (tau - 1)), alpha ||W_0 - w*||}, as printed.

        Paper: Theorem "convergence". FALSE in general: see `counterexamples` (active clipping; constants in the
        losses). Infinite at tau = 1, where it divides by zero.
        """
        tau, alpha, c = self.steps, self.schedule.alpha, self.constants
        if tau == 1:
            return np.full(np.shape(total), math.inf)
        nu = 4.0 * self.printed_b() * tau**2 * (tau + alpha) / (c.convexity**2 * alpha * (tau - 1))
        return self._hyperbola(total, max(nu, alpha * math.sqrt(self.start_square)))

    def repaired_b(self) -> float:
        """B = 6 L Gamma + sum p_k^2 (theta_k^2 + E||Z||^2) + 6 (tau - 1)^2 sum p_k theta_k^2."""
        c = self.constants
        own = float(np.dot(np.square(c.weights), c.theta_squares)) + self.noise * c.spread
        drift = _DRIFT * (self.steps - 1) ** 2 * c.mean_theta_square
        return 6.0 * c.smoothness * c.heterogeneity + own + drift

    def bound(self, total: npt.ArrayLike) -> Floats:
        """L / (2 (T + alpha)) max{4 tau B / C^2, alpha ||W_0 - w*||^2}: holds when clipping is idle (gamma >= M).

        Departs: the learning rates are the printed ones; B has Gamma for psi and no M^2; the distance is squared; the
        constant 4 tau is smaller than the printed one and needs no tau > 1. Proof: docs/paper/theory.md.
        Guarantee: tests/theory/test_convergence.py (never under the recursion; the recursion against exact rounds).
        """
        nu = 4.0 * self.steps * self.repaired_b() / self.constants.convexity**2
        return self._hyperbola(total, max(nu, self.schedule.alpha * self.start_square))

    def clipped_bound(self, total: npt.ArrayLike, clip: float) -> Floats:
        """The bound with active clipping: a part that vanishes with T, and `clipping_floor`, which does not.

        Departs: the paper takes the clipping error for zero-mean, so that its bound vanishes.
        Proof: docs/paper/theory.md.
        """
        c = self.constants
        bias = clipping_bias(c.weights, c.gradient_norms, clip)
        if bias == 0.0:
            return self.bound(total)
        sent = np.minimum(c.theta_squares, clip**2) + self.noise
        drift = _DRIFT * (self.steps - 1) ** 2 * c.mean_theta_square
        b = _YOUNG * (6.0 * c.smoothness * c.heterogeneity + drift) + bias**2 + float(np.square(c.weights) @ sent)
        nu = max(8.0 * self.steps * b / c.convexity**2, self.schedule.alpha * self.start_square)
        return self._hyperbola(total, nu) + self.clipping_floor(clip)

    def clipping_floor(self, clip: float) -> float:
        """32 L (sum p_k c_k)^2 / (9 C^2), c_k = max(0, M_k - gamma): what the bound tends to under active clipping."""
        c = self.constants
        bias = clipping_bias(c.weights, c.gradient_norms, clip)
        return 32.0 * c.smoothness * bias**2 / (9.0 * c.convexity**2)

    def recursion(self, rounds: int) -> Floats:
        """Bounds on E||W - w*||^2 after 0, 1, …, `rounds` rounds by the one-round inequality, iterated."""
        c, tau = self.constants, self.steps
        rates = self.schedule.rate(np.arange(rounds)[:, None] * tau + np.arange(tau))
        drifts = (tau - 1) * np.square(rates[:, :-1]).sum(axis=1) * c.mean_theta_square
        return self.measured_recursion(drifts, np.full(rounds, np.dot(np.square(c.weights), c.theta_squares)))

    def measured_recursion(self, drifts: Floats, energies: Floats) -> Floats:
        """The same with each round's drift E sum p_k ||W - W^k||^2 and gradient energy E sum p_k^2 ||X^k||^2 given.

        With measured values this is no bound any more, but shows how much of it is due to worst cases of both.
        """
        squares = np.empty(len(drifts) + 1)
        squares[0] = self.start_square
        noise = self.noise * self.constants.spread
        for r, (drift, energy) in enumerate(zip(drifts, energies)):
            rate = float(self.schedule.rate((r + 1) * self.steps - 1))
            squares[r + 1] = one_round(self.constants, rate, float(squares[r]), float(drift), float(energy) + noise)
        return squares

    def _hyperbola(self, total: npt.ArrayLike, nu: float) -> Floats:
        return np.asarray(self.constants.smoothness * nu / (2.0 * (np.asarray(total) + self.schedule.alpha)))


def one_round(
    constants: Constants, rate: float, square: float, drift: float, variance: float, share: float = _DRIFT_SHARE
) -> float:
    """A bound on E||W_{t+tau} - w*||^2 given ||W_t - w*||^2 = `square`, for idle clipping.

    `rate` is eta_{t+tau-1} <= 1/(4L); `drift` bounds E sum p_k ||W_t - W^k||^2; `variance` bounds the variance of the
    weighted mean of what the server gets; `share` is any c in (0, 1):
    (1 - q C eta) square + (2 + C eta (1/c - 1)) drift + eta^2 (6 L Gamma + variance),
    with q = 1 - c + (1 - 2 L eta)(1 - L eta).

    Paper: equation "recursive bound 2". Departs: the step starts at W_t, not at the mean of the local models, so a
    round contracts once, not tau times; what is lost there is more than regained from the term that Li et al. drop.
    """
    l_eta, c_eta = constants.smoothness * rate, constants.convexity * rate
    if not 0 < l_eta <= 0.25 * (1 + 1e-12):
        raise ValueError(f"rate must lie in (0, 1/(4L)], got {rate}")
    shrink = (1.0 - share + (1.0 - 2.0 * l_eta) * (1.0 - l_eta)) * c_eta
    spill = 2.0 + c_eta * (1.0 / share - 1.0)
    return (
        (1.0 - shrink) * square
        + spill * drift
        + rate**2 * (6.0 * constants.smoothness * constants.heterogeneity + variance)
    )
