"""What noise means for a model: its norm in a round's average beside the longest update.

    privacy.noise_to_clip(privacy.calibrate(mechanism, epsilon=1.0, delta=1e-5)).advice

A heuristic, not a bound: models whose useful directions are few learn under more noise than this advises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cepam.privacy.cohorts.cohort import CohortMechanism
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.matrix.workload import weight_noise
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Mechanism

REMEDIES = "more clients, a larger epsilon, fewer trained weights (a head, adapters) or a secret draw of records help"


@dataclass(frozen=True)
class NoiseRatio:
    """The noise of a round's average, a standard deviation per coordinate in clips, beside what rounds take off it.

    `averaging` is by how much the steps of a run that agree outgrow its noise: √rounds where noise is independent.
    `coordinates` is None where nobody said how many there are.
    """

    noise: float
    averaging: float
    coordinates: int | None = None

    @property
    def ratio(self) -> float | None:
        """The length of the average's noise over the clip, which no update is longer than; None without coordinates."""
        return None if self.coordinates is None else self.noise * math.sqrt(self.coordinates)

    @property
    def advice(self) -> str:
        """The figures in a sentence, and what follows from them."""
        said = f"in the average the noise is {self.noise:.3g} clips per coordinate"
        if self.ratio is not None:
            return f"{said}, as a whole {self.ratio:.3g} times the clip: {self.meaning}"
        return f"{said}: {self.meaning}"

    @property
    def meaning(self) -> str:
        """What the figures mean for the model, in a few words."""
        if self.ratio is None:
            one, run = (self._most(each) for each in (1.0, self.averaging))
            return f"a round is mostly update up to {one} coordinates, the run up to {run}; beyond that, {REMEDIES}"
        if self.ratio <= 1.0:
            return "a round's average is mostly update"
        if self.ratio <= self.averaging:
            return "single rounds are mostly noise, the run as a whole is not: prefer small steps and momentum"
        return f"more noise than the rounds can average out in all coordinates: {REMEDIES}"

    def _most(self, ratio: float) -> str:
        """How many coordinates bring the noise to so many clips."""
        count = math.floor((ratio / self.noise) ** 2)
        rounded = count if count < 100 else round(count, 2 - len(str(count)))
        return f"{rounded:,}"


def noise_multiplier(mechanism: Mechanism) -> float:
    """The noise multiplier: the standard deviation of the noise of a round's sum, in units of the clipping norm.

    The unit is what one clipped update (or, with per-example clipping, one clipped gradient) adds to that sum. Where
    clients are unlike, of the client whose unit is largest beside the noise. For local DP-SGD it is that of a client's
    own steps, the smallest of all clients.

    Args:
        mechanism: The run; its rounds do not matter.

    Returns:
        The multiplier, per coordinate. Noise that later rounds cancel counts in full, as one message carries it.
    """
    if isinstance(mechanism, CohortMechanism):
        return mechanism.compensation.total / mechanism.clip.bound
    heard = [j for j in range(len(mechanism.clients)) if j not in mechanism.absent]
    if isinstance(mechanism, LocalMechanism):
        return min(mechanism.multiplier(j) for j in heard)
    squares = [mechanism.clients[j].weight ** 2 * mechanism.clients[j].law.variance() for j in heard]
    largest = max(mechanism.clients[j].weight * _one_item(mechanism, j) for j in heard)
    return math.sqrt(math.fsum(squares)) / largest


def _one_item(mechanism: Mechanism, client: int) -> float:
    """How long one clipped update is in a client's vector, or one clipped gradient."""
    bound = mechanism.clip_of(client).bound
    if mechanism.clipped == "update":
        return bound
    if isinstance(mechanism, MatrixMechanism):
        return bound / mechanism.batch(client)
    every = mechanism.sampling.kind == "all"
    return bound / (mechanism.clients[client].records if every else mechanism.sampling_of(client).draws)


def noise_to_clip(mechanism: Mechanism) -> NoiseRatio:
    """How loud the noise of a run is beside its updates.

    Local steps are taken together: a client's noise grows with the root of its steps, what they could add with their
    number. Rests on: `weight_noise` for noise that later rounds take away. Tests: tests/privacy/test_noise_ratio.py.

    Args:
        mechanism: What is published.

    Returns:
        The noise of a round's average in units of the clip.
    """
    if isinstance(mechanism, CohortMechanism):
        noise = mechanism.compensation.total / mechanism.cohort.size / mechanism.clip.bound
    else:
        heard = [j for j in range(len(mechanism.clients)) if j not in mechanism.absent]
        steps = mechanism.steps if isinstance(mechanism, LocalMechanism) else (1,) * len(mechanism.clients)
        squares = [mechanism.clients[j].weight ** 2 * steps[j] * mechanism.clients[j].law.variance() for j in heard]
        reach = [mechanism.clients[j].weight * steps[j] * mechanism.clip_of(j).bound for j in heard]
        noise = math.sqrt(math.fsum(squares)) / math.fsum(reach)
    averaging = math.sqrt(mechanism.rounds)
    if isinstance(mechanism, MatrixMechanism):
        averaging *= math.sqrt((mechanism.rounds + 1) / 2) / weight_noise(mechanism.link, mechanism.rounds)
    return NoiseRatio(noise, averaging, mechanism.coordinates)
