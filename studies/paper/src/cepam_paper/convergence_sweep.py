"""Training runs on strongly convex problems, one parameter varied at a time, beside the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.lattices.lattice import E8, Integer, Lattice
from cepam_paper.theory.convergence import Convergence
from cepam_paper.theory.descent import Descent, descend, stacked
from cepam_paper.theory.distortion import noise_energy, printed_noise_energy
from cepam_paper.theory.problem import Problem
from cepam_paper.theory.synthetic import Kind, synthetic

Floats = npt.NDArray[np.float64]
SIZE = 10
PROBLEM_SEED = 0
BASE_LAW, BASE_LATTICE = Gaussian(0.1), Integer(1)
KINDS: tuple[Kind, ...] = ("logistic regression", "least squares")
SWEEPS: dict[str, tuple[float, ...]] = {
    "sigma": (0.1, 0.5, 2.0),
    "tau": (2, 5, 15),
    "K": (2, 10, 30),
    "heterogeneity": (0.0, 1.0, 3.0),
}


@dataclass(frozen=True)
class Case:
    """One training: which problem, and tau, K, heterogeneity, noise, lattice and clip (infinite: never active)."""

    kind: Kind
    law: Law = BASE_LAW
    lattice: Lattice = BASE_LATTICE
    steps: int = 5
    clients: int = 10
    heterogeneity: float = 1.0
    clip: float = float("inf")

    @property
    def label(self) -> str:
        """What tells this case from the others, in words."""
        clip = "" if self.clip == float("inf") else f", gamma {self.clip:g}"
        noise = f"{self.law.name} {self.law.scale:g} on {self.lattice.name}"
        return f"{self.kind}, {noise}, tau {self.steps}, K {self.clients}, h {self.heterogeneity:g}{clip}"


@dataclass(frozen=True)
class Outcome:
    """A case's measured gap (mean over repetitions, 95 % band) and the bounds, at the same T."""

    case: Case
    theory: Convergence
    descent: Descent
    totals: Floats
    mean: Floats
    low: Floats
    high: Floats
    bound: Floats
    recursion: Floats
    measured_recursion: Floats
    printed: Floats

    @property
    def held(self) -> bool:
        """Whether the repaired bound, and the sharper recursion behind it, lie above the band everywhere."""
        sharper = self.bound if self.descent.clipped else np.minimum(self.bound, self.recursion)
        return bool((self.high <= sharper).all())

    @property
    def slope(self) -> float:
        """The slope of log gap against log(T + alpha) over the last half of the marks: -1 if the gap falls as 1/T."""
        last = slice(len(self.totals) // 2, None)
        t = np.log(self.totals[last] + self.theory.schedule.alpha)
        return float(np.polyfit(t, np.log(self.mean[last]), 1)[0])

    @property
    def printed_held(self) -> bool:
        """Whether the printed bound lies above the band everywhere."""
        return bool((self.high <= self.printed).all())


@lru_cache(maxsize=64)
def problem_of(kind: Kind, clients: int, heterogeneity: float) -> Problem:
    """The case's problem; equal for cases that differ in noise, tau or clip only."""
    return synthetic(kind, clients, SIZE, heterogeneity, PROBLEM_SEED)


def vary(kind: Kind, name: str, value: float) -> Case:
    """The base case with one parameter changed."""
    base = Case(kind)
    if name == "sigma":
        return replace(base, law=Gaussian(value))
    if name == "tau":
        return replace(base, steps=int(value))
    if name == "K":
        return replace(base, clients=int(value))
    return replace(base, heterogeneity=value)


def cases() -> Iterator[Case]:
    """Every case of the sweeps once, then other laws and lattices, then active clipping."""
    seen = set()
    for kind in KINDS:
        for name, values in SWEEPS.items():
            for value in values:
                case = vary(kind, name, value)
                if case.label not in seen:
                    seen.add(case.label)
                    yield case
    for kind in KINDS:
        yield Case(kind, law=Laplace(0.1))
        yield Case(kind, lattice=E8)
        yield Case(kind, clip=0.3)


def train(case: Case, rounds: int, repetitions: int, seed: int) -> Outcome:
    """The case run through real messages, with gaps at about thirty rounds spread evenly in the logarithm."""
    problem = problem_of(case.kind, case.clients, case.heterogeneity)
    constants, law, lattice = problem.constants, case.law, case.lattice
    start = np.zeros(SIZE)
    start[0] = 0.75 * problem.radius
    theory = Convergence(
        constants=constants,
        steps=case.steps,
        noise=noise_energy(law, lattice, SIZE),
        printed_noise=printed_noise_energy(law, lattice, SIZE),
        subvectors=-(-SIZE // lattice.dimension),
        start_square=float(np.square(start - problem.minimum[0]).sum()),
    )
    marks = sorted({0, *np.unique(np.geomspace(1, rounds, 30).astype(int)).tolist()})
    clip = min(case.clip, constants.gradient_norm)
    channel = stacked(Codec(law, lattice, coder="layered"), seed)
    descent = descend(problem, theory.schedule, channel, start, marks, clip, repetitions, seed)
    totals = np.array(marks, dtype=np.float64) * case.steps
    mean, low, high = descent.band()
    return Outcome(
        case=case,
        theory=theory,
        descent=descent,
        totals=totals,
        mean=mean,
        low=low,
        high=high,
        bound=theory.clipped_bound(totals, clip),
        recursion=constants.smoothness / 2 * theory.recursion(rounds)[marks],
        measured_recursion=constants.smoothness
        / 2
        * theory.measured_recursion(descent.drifts, descent.energies)[marks],
        printed=theory.printed_bound(totals),
    )
