"""Where the paper's statements fail, as small worlds that run: clipping that cancels, constants in the losses, clients
that agree, and a round that contracts once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam_paper.theory.convergence import Constants, Convergence, Schedule, one_round
from cepam_paper.theory.descent import clip_rows, separate
from cepam_paper.theory.distortion import noise_energy, printed_noise_energy

Floats = npt.NDArray[np.float64]

# Minimisers of the two clients' parabolas w -> (w - a)^2 / 2; their mean has its minimum at -4.
CENTRES = (1.0, -9.0)


@dataclass(frozen=True)
class Stall:
    """Training that clipping holds fast: gaps and bounds after every round, W_0 = 0, minimiser -4, gap 8."""

    totals: Floats
    gaps: Floats
    printed: Floats
    clipped: Floats

    @property
    def violated_at(self) -> int | None:
        """The first T at which the measured gap exceeds the printed bound, or None."""
        over = np.flatnonzero(self.gaps > self.printed)
        return int(self.totals[over[0]]) if len(over) else None


def opposed_convergence(codec: Codec, steps: int) -> Convergence:
    """The bounds for two parabolas of curvature 1 with minima at 1 and -9, on the interval [-9, 1] between them.

    Every gradient there is at most 10, and clients have one record each, so theta_k^2 = 100 and M = 10.
    """
    constants = Constants(1.0, 1.0, (0.5, 0.5), (100.0, 100.0), (10.0, 10.0), (0.0, 0.0), 12.5)
    law, lattice = codec.law, codec.on
    return Convergence(
        constants, steps, noise_energy(law, lattice, 1), printed_noise_energy(law, lattice, 1), 1, start_square=16.0
    )


def opposed_clients(codec: Codec, clip: float, rounds: int, steps: int = 2, seed: int = 0) -> Stall:
    """Algorithm 1 on the two parabolas: clipped gradients are +clip and -clip between the minima, and cancel.

    Only the noise moves the weights, as a martingale of bounded variance: they do not converge to w* = -4, while the
    printed bound goes to zero. Paper: Theorem "convergence", for any gamma in (0, M].
    """
    theory = opposed_convergence(codec, steps)
    schedule, channel = theory.schedule, separate(codec, seed)
    centres, w = np.array(CENTRES)[:, None], np.zeros(1)
    gaps = [_opposed_gap(w)]
    for r in range(rounds):
        rates = schedule.rate(r * steps + np.arange(steps))
        local = np.repeat(w[None, :], 2, axis=0)
        for rate in rates[:-1]:
            local = local - rate * (local - centres)
        sent, _ = clip_rows(local - centres, clip)
        w = w - rates[-1] * channel(sent, r).mean(axis=0)
        if not CENTRES[1] <= float(w[0]) <= CENTRES[0]:
            raise RuntimeError("the weights left the interval that the constants are for: less noise is needed")
        gaps.append(_opposed_gap(w))
    totals = np.arange(rounds + 1, dtype=np.float64) * steps
    return Stall(totals, np.array(gaps), theory.printed_bound(totals), theory.clipped_bound(totals, clip))


def _opposed_gap(w: Floats) -> float:
    """F(w) - F(w*) = (w + 4)^2 / 2: the mean of the two parabolas is a parabola of curvature 1."""
    return float((w[0] - np.mean(CENTRES)) ** 2 / 2)


def with_offset(constants: Constants, offset: float) -> Constants:
    """The same problem with a constant added to every client's loss: nothing changes but the printed psi."""
    return replace(
        constants,
        least_values=tuple(value + offset for value in constants.least_values),
        least_value=constants.least_value + offset,
    )


def silencing_offset(convergence: Convergence) -> float:
    """An offset that makes the printed B negative: then the printed bound started at w* is zero for every T.

    Paper: psi lacks the weights, so a constant c in every loss adds c - K c to it.
    """
    clients = len(convergence.constants.weights)
    if clients < 2:
        raise ValueError("one client's psi does not depend on constants: at least 2 clients are needed")
    scale = 6.0 * convergence.constants.smoothness * (clients - 1)
    return 1.0 + max(convergence.printed_b(), 0.0) / scale


def aligned_clients(clients: int, size: int, norm: float) -> Floats:
    """Gradients (K, m) that are all the same vector of this norm: clipping errors that add up instead of averaging out.

    Paper: Proposition "weight distance" is violated by them for small gamma as soon as N < K.
    """
    return np.full((clients, size), norm / math.sqrt(size))


@dataclass(frozen=True)
class Contraction:
    """One noiseless round of K equal clients F_k(w) = w^2/2 from W_t = 1: the exact square after it, and the claims."""

    exact: float
    printed_step: float
    printed_induction: float
    repaired: float


def one_parabola(steps: int, first: int) -> Contraction:
    """What a round at time t = `first` does, and what the printed induction and the repaired inequality say.

    Paper: the one-step inequality at a synchronization, whose drift is taken from the mean of the local models (zero
    here, as are its other terms: clients are equal and noiseless), leaving 1 - C eta; and the induction step
    delta_{t+tau} <= delta_t prod (1 - C eta_i) + 4 B tau eta_t^2, with tau contractions, though the step starts at W_t.
    The first fails in early rounds, the second in late ones. The domain is [-1, 1]: theta_k^2 = M^2 = 1.
    """
    schedule = Schedule(steps, 1.0, 1.0)
    rates = schedule.rate(first + np.arange(steps))
    kept = float(np.prod(1.0 - rates[:-1]))
    constants = Constants(1.0, 1.0, (1.0,), (1.0,), (1.0,), (0.0,), 0.0)
    theory = Convergence(constants, steps, 0.0, 0.0, 1, start_square=1.0)
    printed = float(np.prod(1.0 - rates)) + 4.0 * theory.printed_b() * steps * float(rates[0]) ** 2
    return Contraction(
        exact=(1.0 - float(rates[-1]) * kept) ** 2,
        printed_step=1.0 - float(rates[-1]),
        printed_induction=printed,
        repaired=one_round(constants, float(rates[-1]), 1.0, (1.0 - kept) ** 2, 0.0),
    )
