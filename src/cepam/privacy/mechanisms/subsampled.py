"""One subsampled mechanism as charged to one client: a shift, and the probability that a record is sampled.

With probability 1 - p the record is not drawn and nothing about it is released. The pair that dominates the
round is

- add-or-remove: ((1-p)Q + pP, Q) in one direction and its swap in the other;
- replace-one: the symmetric pair whose hockey-stick curve is that of ((1-p)Q + pP, Q) at a >= 1 and its
  mirror image 1 - a + a h(1/a) below (`docs/proofs/mechanisms-and-sampling.md`: convex at a = 1, hence a pair, hence
  it composes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import optimize

from cepam.clip import Adjacency
from cepam.distributions.laws import Floats
from cepam.privacy.mechanisms.dominating_pairs import Masses, Shift

SamplingKind = Literal["replacement", "without", "poisson", "all"]

LARGEST_EXPONENT = 700.0


def check_probability(name: str, value: float) -> None:
    """Raise ValueError when a probability does not lie in (0, 1]."""
    if not (0.0 < value <= 1.0):
        raise ValueError(f"{name} must lie in (0, 1], got {value!r}")


def check_adjacency(value: str) -> None:
    """Raise ValueError when the adjacency is not one of the two that are accounted for."""
    if value not in get_args(Adjacency):
        raise ValueError(f"adjacency must be one of {', '.join(get_args(Adjacency))}, got {value!r}")


@dataclass(frozen=True)
class Sampling:
    """How a client draws its records in a round, afresh in every round.

    `replacement`: `draws` records, each uniform over all (Paper: tau of them, the tau-1 local steps and the
    final gradient). `without`: `draws` different records. `poisson`: each record by itself, `draws` in
    expectation.
    `all`: every record every round; also the honest choice when a sampler or client state survives a round.
    """

    kind: SamplingKind = "replacement"
    draws: float = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(SamplingKind):
            raise ValueError(f"sampling must be one of {', '.join(get_args(SamplingKind))}, got {self.kind!r}")
        if not (0 < self.draws < math.inf):
            raise ValueError(f"draws must be positive, got {self.draws!r}")
        if self.kind in ("replacement", "without") and self.draws != int(self.draws):
            raise ValueError(f"draws must be a whole number for sampling {self.kind!r}, got {self.draws!r}")

    def sampling_rate(self, records: int) -> float:
        """p, the probability that one given record of `records` is drawn in a round.

        Paper: Theorem 7 has 1 - (1 - 1/n)^(tau - 1). Departs: the final gradient draws too, so the exponent
        is tau; with tau - 1 the bound is violated (tests/privacy/test_subsampled.py enumerates a case).
        """
        if self.kind == "all":
            return 1.0
        if self.kind == "replacement":
            return -math.expm1(self.draws * math.log1p(-1.0 / records)) if records > 1 else 1.0
        if self.draws > records:
            raise ValueError(f"draws must be at most the {records} records of a client, got {self.draws!r}")
        return self.draws / records


@dataclass(frozen=True)
class SubsampledMechanism:
    """What one round costs one client's record: `shift` if the record is drawn, and `sampling_rate` that it is.

    Guarantee: dominates the round for every pair of adjacent data sets and every history, so charges compose
    adaptively (Zhu, Dong and Wang 2022, Theorem 10); tests/privacy/test_subsampled.py enumerates tiny cases.
    """

    shift: Shift
    sampling_rate: float = 1.0
    adjacency: Adjacency = "replace"

    def __post_init__(self) -> None:
        check_probability("sampling_rate", self.sampling_rate)
        check_adjacency(self.adjacency)

    @property
    def largest_loss(self) -> float:
        """The largest loss of the round (pure DP), amplified by sampling; infinite for Gaussian noise."""
        return amplified(self.shift.largest_loss, self.sampling_rate)

    def profile(self, epsilon: float) -> float:
        """delta of one round at epsilon >= 0, in closed form; the same for both adjacencies.

        Paper: Theorem 7, with its sum over j replaced by the truth: being drawn twice moves one clipped
        vector no further.
        Rests on: Balle, Barthe and Gaboardi 2018, Theorem 2 (advanced joint convexity).
        """
        if epsilon < 0:
            raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
        return self.sampling_rate * self.shift.profile(unamplified(epsilon, self.sampling_rate))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of one round at delta, in closed form up to a root in one unknown."""
        if self.sampling_rate * self.shift.profile(0.0) <= delta:
            return 0.0
        if delta == 0.0:
            return self.largest_loss
        reach = min(self.shift.loss_exceeded(delta / self.sampling_rate), self.shift.largest_loss)
        root = optimize.brentq(
            lambda before: self.sampling_rate * self.shift.profile(before) - delta,
            0.0,
            reach,
            xtol=1e-13,
            rtol=1e-13,
        )
        return amplified(float(root), self.sampling_rate)

    def masses(self, edges: Floats) -> tuple[Masses, ...]:
        """For each direction to be charged, the probability of the loss in (edges[i], edges[i+1]] under its pair.

        `edges` must be symmetric about an edge at zero; one direction for replace-one, remove and add
        otherwise.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            before = unamplified_array(edges, self.sampling_rate)
        drawn, absent = self.shift.masses(before)
        mixed = (1.0 - self.sampling_rate) * absent + self.sampling_rate * drawn
        if self.adjacency == "add-remove":
            return (mixed, absent), (absent[::-1].copy(), mixed[::-1].copy())
        half = (len(edges) - 1) // 2
        upper, lower = mixed.copy(), absent.copy()
        upper[:half], lower[:half] = absent[half:][::-1], mixed[half:][::-1]
        return ((upper, lower),)


def amplified(epsilon: float, sampling_rate: float) -> float:
    """log(1 + p(e^epsilon - 1)), without overflow: what a loss paid only with probability p is worth."""
    if math.isinf(epsilon) or sampling_rate == 1.0:
        return epsilon
    if epsilon > LARGEST_EXPONENT:
        return epsilon + math.log(sampling_rate)
    return math.log1p(sampling_rate * math.expm1(epsilon))


def unamplified(epsilon: float, sampling_rate: float) -> float:
    """The inverse of `amplified` for epsilon >= 0."""
    if sampling_rate == 1.0:
        return epsilon
    if epsilon - math.log(sampling_rate) > LARGEST_EXPONENT:
        return epsilon - math.log(sampling_rate)
    return math.log1p(math.expm1(epsilon) / sampling_rate)


def unamplified_array(loss: Floats, sampling_rate: float) -> Floats:
    """`unamplified` for many losses; minus infinity at and below log(1 - p), the least loss there is."""
    if sampling_rate == 1.0:
        return loss
    inside = np.log1p(np.maximum(np.expm1(loss) / sampling_rate, -1.0))
    return np.where(loss - math.log(sampling_rate) > LARGEST_EXPONENT, loss - math.log(sampling_rate), inside)
