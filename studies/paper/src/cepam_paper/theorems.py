"""The paper's Theorems 7 and 8 exactly as stated, named as such: to reproduce its figures, not to rely on.

Both are for one round. What is wrong with them is in `docs/proofs/mechanisms-and-sampling.md`; in short: the factor
tau' on the sensitivity is superfluous, the exponent tau - 1 is one draw short, Theorem 7 saturates (it promises the
same with no noise at all), and Theorem 8 takes an l2 bound where Laplace noise needs an l1 bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from scipy import optimize, special

from cepam.distributions.laws import check_scale
from cepam.privacy.mechanisms.mechanism import amplified, check_count, unamplified

Convention = Literal["printed", "computed"]


@dataclass(frozen=True)
class PaperSetting:
    """What both theorems take: K clients, clip gamma, |D| records a client, tau draws, what tau' means.

    Paper: Section III-A. `printed` is tau' = tau - 1, as the theorems say; `computed` is tau' = tau, which
    is what the paper's own figures were computed with.
    """

    clients: int = 30
    gamma: float = 1.0
    records: int = 1666
    draws: int = 15
    convention: Convention = "computed"

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_count("records", self.records, 2)
        check_count("draws", self.draws, 2)
        check_scale("gamma", self.gamma)
        if self.convention not in get_args(Convention):
            raise ValueError(f"convention must be one of {', '.join(get_args(Convention))}, got {self.convention!r}")

    @property
    def tau_prime(self) -> int:
        """tau' under the convention."""
        return self.draws - 1 if self.convention == "printed" else self.draws

    @property
    def sampling_rate(self) -> float:
        """p = 1 - (1 - 1/|D|)^tau' of both theorems."""
        return -math.expm1(self.tau_prime * math.log1p(-1.0 / self.records))


def theorem_7(setting: PaperSetting, sigma: float, base_epsilon: float) -> tuple[float, float]:
    """(epsilon, delta) that Theorem 7 states for Gaussian noise, given the base mechanism's epsilon~.

    Adjacency: replace-one (by its factor 2). Sampling: with replacement. Trust: trusted server, no
    colluders. One round.
    Paper: Theorem 7, equation for delta, term by term. Reproduces (1.45, 9.69e-3) at sigma = 0.01, epsilon~
    = 5.9.
    """
    check_scale("sigma", sigma)
    check_scale("base_epsilon", base_epsilon)
    reach = setting.tau_prime * setting.gamma / (math.sqrt(setting.clients) * sigma)
    return amplified(base_epsilon, setting.sampling_rate), _theorem_7_sum(setting, base_epsilon, reach)


def theorem_7_saturation(setting: PaperSetting, base_epsilon: float) -> tuple[float, float]:
    """(epsilon, delta) that Theorem 7 states as sigma goes to zero: a promise with no noise at all.

    Adjacency, sampling, trust: as `theorem_7`. The paper's (1.45, 9.69e-3) is this value: its sigma did
    nothing.
    """
    check_scale("base_epsilon", base_epsilon)
    return amplified(base_epsilon, setting.sampling_rate), _theorem_7_sum(setting, base_epsilon, math.inf)


def _theorem_7_sum(setting: PaperSetting, base_epsilon: float, reach: float) -> float:
    """The theorem's sum over j; `reach` is tau' gamma/(sqrt(K) sigma)."""
    q, total = 1.0 / setting.records, 0.0
    for j in range(1, setting.tau_prime + 1):
        drawn = float(special.comb(setting.tau_prime, j)) * q**j * (1.0 - q) ** (setting.tau_prime - j)
        share = base_epsilon / j
        ratio = math.exp(base_epsilon - share) * -math.expm1(-base_epsilon) / -math.expm1(-share)
        if math.isinf(reach):
            total += drawn * ratio
            continue
        above = special.ndtr(reach - share / (2 * reach))
        below = math.exp(share + float(special.log_ndtr(-reach - share / (2 * reach))))
        total += drawn * ratio * (float(above) - below)
    return total


def theorem_7_sigma(setting: PaperSetting, epsilon: float, delta: float) -> float:
    """The smallest sigma for which Theorem 7 states (epsilon, delta); zero where it asks for no noise.

    Adjacency, sampling, trust: as `theorem_7`. At the paper's delta = 0.015 no epsilon from 0.5 to 5 asks
    for any noise.
    """
    base = unamplified(epsilon, setting.sampling_rate)
    if theorem_7_saturation(setting, base)[1] <= delta:
        return 0.0
    return float(optimize.brentq(lambda sigma: theorem_7(setting, sigma, base)[1] - delta, 1e-6, 1e6, xtol=1e-12))


def published_sigma(epsilon: float, delta: float = 0.015, setting: PaperSetting | None = None) -> float:
    """The sigma that the paper lists for epsilon (0.5 to 5 in steps of 0.5), reproduced to five digits.

    Departs: nothing to rely on. The list comes out only if delta is called with its arguments in the wrong
    order: sigma in the place of epsilon~, epsilon~ in that of sigma, |D| := K and K := |D|. Tests:
    studies/paper/paper_tests/test_theorems.py.
    """
    setting = setting or PaperSetting()
    swapped = PaperSetting(setting.records, setting.gamma, setting.clients, setting.draws, setting.convention)
    base = unamplified(epsilon, setting.sampling_rate)
    return float(optimize.brentq(lambda sigma: theorem_7(swapped, base, sigma)[1] - delta, 1e-9, 10.0, xtol=1e-12))


def theorem_8(setting: PaperSetting, b: float) -> float:
    """epsilon that Theorem 8 states for Laplace noise of scale b, at delta = 0.

    Adjacency: replace-one. Sampling: with replacement. Trust: trusted server; own noise only. One round.
    Paper: Theorem 8. Departs: false under l2 clipping for m > tau'^2; `cepam.privacy.pure_epsilon` has the
    truth.
    """
    check_scale("b", b)
    return amplified(2.0 * setting.tau_prime * setting.gamma / b, setting.sampling_rate)


def theorem_8_b(setting: PaperSetting, epsilon: float) -> float:
    """The scale b for which Theorem 8 states epsilon; reproduces the paper's list for 500 to 5000.

    Adjacency, sampling, trust: as `theorem_8`.
    """
    return 2.0 * setting.tau_prime * setting.gamma / unamplified(epsilon, setting.sampling_rate)
