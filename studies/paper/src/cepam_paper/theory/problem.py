"""Strongly convex problems with clients that differ: ridge logistic regression and ridge least squares.

Strong convexity and bounded gradients hold together only on a bounded domain. Here it is the ball of radius R around
the origin that local steps cannot leave: one sample pulls the weights outward by at most `pull`, the ridge pulls them
back by ridge·||w||, so R = pull / ridge. The server's noise can leave it; `descent` projects back onto the
ball, which never increases the distance to w* (w* is inside), and counts how often it had to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from cepam.distributions.laws import check_scale
from cepam_paper.theory.convergence import Constants
from cepam_paper.theory.distortion import checked_weights
from cepam_paper.theory.gradients import GradientBounds

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Problem(ABC):
    """K clients with `features` (K, records, m), `targets` (K, records) and weights p_k; loss of x·w plus a ridge.

    F_k(w) = mean over records of loss(x·w, y) + ridge/2 ||w||^2, F = sum p_k F_k.
    """

    features: Floats = field(repr=False)
    targets: Floats = field(repr=False)
    weights: tuple[float, ...]
    ridge: float
    name: ClassVar[str]
    curvature: ClassVar[float]

    def __post_init__(self) -> None:
        check_scale("ridge", self.ridge)
        if self.features.ndim != 3 or self.targets.shape != self.features.shape[:2]:
            raise ValueError(f"features (K, records, m) need targets (K, records), got {self.targets.shape}")
        if len(checked_weights(self.weights)) != len(self.features):
            raise ValueError(f"{len(self.features)} clients need as many weights, got {len(self.weights)}")

    @abstractmethod
    def value(self, score: Floats, target: Floats) -> Floats:
        """The loss of a score x·w, without the ridge."""

    @abstractmethod
    def slope(self, score: Floats, target: Floats) -> Floats:
        """The loss's derivative in the score."""

    @abstractmethod
    def bend(self, score: Floats, target: Floats) -> Floats:
        """The loss's second derivative in the score, at most `curvature`."""

    @property
    @abstractmethod
    def pull(self) -> float:
        """The most that a sample can push the weights outward: R = pull / ridge is then invariant under local steps."""

    @abstractmethod
    def sample_norms(self, radius: float) -> Floats:
        """A bound on the norm of each record's gradient on the ball, (K, records)."""

    @abstractmethod
    def theta_squares(self, radius: float) -> Floats:
        """A bound on the mean squared norm of a client's sample gradients on the ball, one a client (Paper: AS2)."""

    @abstractmethod
    def variances(self, radius: float) -> Floats:
        """A bound on the variance of a client's sample gradients on the ball, one a client; the ridge does not vary."""

    @abstractmethod
    def full_norms(self, radius: float) -> Floats:
        """A bound on the norm of a client's full gradient on the ball, one a client."""

    @property
    def size(self) -> int:
        """The number m of coordinates."""
        return int(self.features.shape[2])

    @cached_property
    def record_norms(self) -> Floats:
        """||x|| of every record."""
        return np.asarray(np.linalg.norm(self.features, axis=2))

    @property
    def radius(self) -> float:
        """R, the radius of the domain."""
        return self.pull / self.ridge

    def gradient(self, w: Floats, x: Floats, y: Floats) -> Floats:
        """The gradients at weights (…, m) of single records x (…, m), y (…)."""
        return np.asarray(self.slope((x * w).sum(axis=-1), y)[..., None] * x + self.ridge * w)

    def objective(self, w: Floats) -> Floats:
        """F at weights (…, m)."""
        scores = np.einsum("kjm,...m->...kj", self.features, w)
        losses = self.value(scores, self.targets).mean(axis=-1) @ np.asarray(self.weights)
        return np.asarray(losses + self.ridge / 2 * np.square(w).sum(axis=-1))

    @cached_property
    def minimum(self) -> tuple[Floats, float]:
        """(w*, F(w*))."""
        w = self._newton(self.features, self.targets, np.asarray(self.weights))
        return w, float(self.objective(w))

    @cached_property
    def constants(self) -> Constants:
        """L, C, theta_k^2, M_k and the minima, the gradients bounded on the domain."""
        grams = np.einsum("kji,kjl->kil", self.features, self.features) / self.features.shape[1]
        eigen = np.linalg.eigvalsh(grams)
        least = tuple(self._least(k) for k in range(len(self.features)))
        convexity = self.ridge + (float(eigen[:, 0].min()) if self.name == "least squares" else 0.0)
        return Constants(
            smoothness=self.curvature * float(eigen[:, -1].max()) + self.ridge,
            convexity=convexity,
            weights=self.weights,
            theta_squares=tuple(map(float, self.theta_squares(self.radius))),
            gradient_norms=tuple(map(float, self.sample_norms(self.radius).max(axis=1))),
            least_values=least,
            least_value=self.minimum[1],
        )

    @cached_property
    def gradients(self) -> GradientBounds:
        """What mini-batch gradients do on the domain."""
        return GradientBounds(
            smoothness=self.constants.smoothness,
            weights=self.weights,
            full_norms=tuple(map(float, self.full_norms(self.radius))),
            variances=tuple(map(float, self.variances(self.radius))),
            sample_norms=self.constants.gradient_norms,
        )

    @property
    def largest_local_rate(self) -> float:
        """The largest learning rate at which a local step maps the domain into itself."""
        return 1.0 / (self.curvature * float(self.record_norms.max()) ** 2 + self.ridge)

    def _least(self, client: int) -> float:
        x, y = self.features[client : client + 1], self.targets[client : client + 1]
        w = self._newton(x, y, np.ones(1))
        return float(self.value(x[0] @ w, y[0]).mean() + self.ridge / 2 * w @ w)

    def _newton(self, x: Floats, y: Floats, p: Floats) -> Floats:
        """The minimiser; plain Newton steps suffice on these mild losses, and the result is checked."""
        w, share = np.zeros(x.shape[2]), p[:, None] / x.shape[1]
        for _ in range(100):
            score = x @ w
            slope = np.einsum("kj,kjm->m", share * self.slope(score, y), x) + self.ridge * w
            if np.linalg.norm(slope) < 1e-13:
                break
            hessian = np.einsum("kj,kji,kjl->il", share * self.bend(score, y), x, x) + self.ridge * np.eye(len(w))
            w = w - np.linalg.solve(hessian, slope)
        if not np.linalg.norm(slope) < 1e-10:
            raise RuntimeError(f"Newton's method stopped at a gradient of {np.linalg.norm(slope):.3g}")
        return w


@dataclass(frozen=True, eq=False)
class Logistic(Problem):
    """Binary logistic regression, targets -1 and 1."""

    name: ClassVar[str] = "logistic regression"
    curvature: ClassVar[float] = 0.25

    def value(self, score: Floats, target: Floats) -> Floats:
        return np.logaddexp(0.0, -target * score)

    def slope(self, score: Floats, target: Floats) -> Floats:
        return np.asarray(-target * special.expit(-target * score))

    def bend(self, score: Floats, target: Floats) -> Floats:
        return np.asarray(special.expit(score) * special.expit(-score))

    @property
    def pull(self) -> float:
        return float(self.record_norms.max())

    def sample_norms(self, radius: float) -> Floats:
        return self.record_norms + self.ridge * radius

    def theta_squares(self, radius: float) -> Floats:
        spread = np.sqrt(np.square(self.record_norms).mean(axis=1))
        return np.asarray(np.square(spread + self.ridge * radius))

    def variances(self, radius: float) -> Floats:
        return np.asarray(np.square(self.record_norms).mean(axis=1))

    def full_norms(self, radius: float) -> Floats:
        return np.asarray(self.record_norms.mean(axis=1) + self.ridge * radius)


@dataclass(frozen=True, eq=False)
class LeastSquares(Problem):
    """Linear regression with squared error (x·w - y)^2 / 2."""

    name: ClassVar[str] = "least squares"
    curvature: ClassVar[float] = 1.0

    def value(self, score: Floats, target: Floats) -> Floats:
        return np.square(score - target) / 2

    def slope(self, score: Floats, target: Floats) -> Floats:
        return score - target

    def bend(self, score: Floats, target: Floats) -> Floats:
        return np.ones_like(score)

    @property
    def pull(self) -> float:
        return float((np.abs(self.targets) * self.record_norms).max())

    def sample_norms(self, radius: float) -> Floats:
        squares = np.square(self.record_norms)
        return np.asarray((squares + self.ridge) * radius + np.abs(self.targets) * self.record_norms)

    def theta_squares(self, radius: float) -> Floats:
        # The gradient of a record is A w - y x with A = x x' + ridge: Minkowski's inequality on its mean square.
        squares = np.square(self.record_norms)
        mixed = np.einsum("kj,kji,kjl->kil", squares + 2 * self.ridge, self.features, self.features)
        largest = np.linalg.eigvalsh(mixed / self.features.shape[1])[:, -1] + self.ridge**2
        constant = np.sqrt((squares * np.square(self.targets)).mean(axis=1))
        return np.asarray(np.square(np.sqrt(largest) * radius + constant))

    def variances(self, radius: float) -> Floats:
        # Without the ridge, which is the same for all records: A = x x'.
        squares = np.square(self.record_norms)
        mixed = np.einsum("kj,kji,kjl->kil", squares, self.features, self.features) / self.features.shape[1]
        constant = np.sqrt((squares * np.square(self.targets)).mean(axis=1))
        return np.asarray(np.square(np.sqrt(np.linalg.eigvalsh(mixed)[:, -1]) * radius + constant))

    def full_norms(self, radius: float) -> Floats:
        grams = np.einsum("kji,kjl->kil", self.features, self.features) / self.features.shape[1]
        pulls = np.linalg.norm((self.targets[..., None] * self.features).mean(axis=1), axis=1)
        return np.asarray((np.linalg.eigvalsh(grams)[:, -1] + self.ridge) * radius + pulls)
