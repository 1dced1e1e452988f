"""Per-client guarantees, and what the noise means for the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cepam.privacy.cohorts.cohort import CohortMechanism
from cepam.privacy.composition.accountant import Accountant, epsilon
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.matrix.participation import weight_noise
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Mechanism

# What noise means for a model: its norm in a round's average beside the longest update.
#
#     privacy.noise_ratio(privacy.calibrate(mechanism, epsilon=1.0, delta=1e-5)).advice
#
# A heuristic, not a bound: models whose useful directions are few learn under more noise than this advises.


REMEDIES = "more clients, a larger epsilon, fewer trained weights (a head, adapters) or a secret draw of records help"


@dataclass(frozen=True)
class NoiseRatio:
    """The noise of a round's average beside the clipping norm and beside what rounds average out.

    Args:
        noise: Standard deviation per coordinate of the noise of a round's average, in units of the clipping norm.
        averaging: How much faster the sum of agreeing updates grows than the sum of the noise: √rounds where noise
            is independent.
        coordinates: Length of an update; None where it is not known.
    """

    noise: float
    averaging: float
    coordinates: int | None = None

    @property
    def ratio(self) -> float | None:
        """The norm of the average's noise over the clipping norm, which no update exceeds; None without coordinates."""
        return None if self.coordinates is None else self.noise * math.sqrt(self.coordinates)

    @property
    def advice(self) -> str:
        """The figures in a sentence, and what follows from them."""
        said = f"a round's average has noise of {self.noise:.3g} clipping norms per coordinate"
        if self.ratio is not None:
            return f"{said}, as a whole {self.ratio:.3g} times the largest update: {self.meaning}"
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
        """How many coordinates bring the noise to so many clipping norms."""
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


def noise_units(mechanism: Mechanism) -> dict[str, str]:
    """What the noise scale and the noise multiplier are measured in."""
    what = "local step's mean gradient" if isinstance(mechanism, LocalMechanism) else "update"
    kind = "standard deviation" if mechanism.law_is_gaussian else "scale b of Laplace noise"
    whose = "a step of one client" if isinstance(mechanism, LocalMechanism) else "all clients"
    return {
        "noise_scale": f"{kind} per coordinate that one client adds to its {what}, in the unit of the {what}",
        "noise_multiplier": f"standard deviation of the noise of the sum over {whose}, in clipping norms",
    }


def _one_item(mechanism: Mechanism, client: int) -> float:
    """How long one clipped update is in a client's vector, or one clipped gradient."""
    bound = mechanism.clip_of(client).bound
    if mechanism.clipped == "update":
        return bound
    if isinstance(mechanism, MatrixMechanism):
        return bound / mechanism.batch(client)
    every = mechanism.sampling.kind == "all"
    return bound / (mechanism.clients[client].records if every else mechanism.sampling_of(client).draws)


def noise_ratio(mechanism: Mechanism) -> NoiseRatio:
    """The noise of a round's average beside the largest update, and what that means for the model.

    Local steps are taken together: a client's noise grows with the root of its steps, what they could add with their
    number. Rests on: `weight_noise` for noise that later rounds take away. Tests: tests/privacy/test_noise_ratio.py.

    Args:
        mechanism: What is published.

    Returns:
        The noise of a round's average, in units of the clipping norm.
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


FOLLOWED = {"private": (4.0, 1.99)}
"""Presets whose server learning rate follows the target: the rate and the epsilon that it was chosen at."""
FOLLOWED_FROM, FOLLOWED_TO = 0.25, 8.0
ADAM_RATE = 0.02
"""The rate of Adam on the server for a model of one's own, trained with per-example gradients.

Adam divides by the noise, so that its steps follow epsilon by themselves. For a small CNN this rate was within 1.5
points of the best of four on held-out records of MNIST at epsilon 0.5, 2 and 8 (`python bench/flower_records.py
--held-out --rounds 100 --seeds 2`); twice the rate was best there, and failed in some runs with little noise.
"""


def rate_for_target(preset: str | None, epsilon: float | None, own: bool = False) -> float | None:
    """The server learning rate that a preset takes at a target epsilon.

    More noise wants smaller steps. A search on held-out training records of MNIST found that the best rate of `private`
    is proportional to epsilon from 0.25 to 8 (about 2 epsilon); beyond that range the rate at its end is taken.

    Args:
        preset: The name of the preset, or None.
        epsilon: The target of the whole run, or None where a noise scale is given instead.
        own: Another model or other data than the preset's: the rate follows down, and not above the preset's own. A
            small CNN learned nothing at twice epsilon 8.

    Returns:
        The rate, or None where no rule is known and the preset's own rate stays.
    """
    if preset not in FOLLOWED or epsilon is None or not epsilon > 0.0:
        return None
    rate, at = FOLLOWED[preset]
    return rate * min(max(epsilon, FOLLOWED_FROM), at if own else FOLLOWED_TO) / at


# Paper: privacy adaptability, Section III. Every client may have its own noise, weight, records and delta.


@dataclass(frozen=True)
class Guarantee:
    """What the records of one client get over the whole run: epsilon at `delta` against each adversary.

    Against the server there is no guarantee, except where local steps are noised: then it gets the same figure.

    Args:
        client: Its place.
        noise_scale: Noise scale of its decoded vector.
        weight: Its weight in the aggregate.
        records: How many it has.
        sampling_rate: Probability that a given record is drawn in a round.
        delta: delta of the guarantee.
        outsider: epsilon against whoever sees the published models.
        curious: epsilon against one other client, who also knows its own noise.
        colluding: epsilon against all other clients together: only this client's own noise is left.
        sees_uploads: epsilon against an adversary who sees participation, where cohorts are sampled in secret.
    """

    client: int
    noise_scale: float
    weight: float
    records: int
    sampling_rate: float
    delta: float
    outsider: float
    curious: float
    colluding: float
    sees_uploads: float | None = None


def report(mechanism: Mechanism, delta: float | Sequence[float]) -> tuple[Guarantee, ...]:
    """Every client's guarantee over the whole release, at one delta or at each client's own.

    Adjacency, sampling, rounds: as recorded; colluders: none, one, and all others, whatever is recorded.
    Trust: trusted server. Rests on: as `cepam.privacy.epsilon`, with the colluders' noise removed (the
    loudest ones).
    Guarantee: tests/privacy/test_guarantee.py.

    Args:
        mechanism: What is published.
        delta: One for all clients, or one for each.

    Returns:
        A guarantee per client and observer.

    Raises:
        ValueError: The number of deltas is neither one nor that of the clients.
    """
    count = len(mechanism.clients)
    deltas = list(delta) if isinstance(delta, Sequence) else [delta] * count
    if len(deltas) != count:
        raise ValueError(f"delta must be one number or one for each of the {count} clients, got {len(deltas)}")
    known: dict[tuple[object, ...], Guarantee] = {}
    made = []
    for j in range(count):
        kind = (mechanism.history(j), deltas[j])
        if kind not in known:
            known[kind] = _guarantee(mechanism, j, deltas[j])
        made.append(replace(known[kind], client=j))
    return tuple(made)


def _guarantee(mechanism: Mechanism, client: int, delta: float) -> Guarantee:
    count, who = mechanism.enrolled, mechanism.clients[client]
    if isinstance(mechanism, CohortMechanism):
        against = list(Accountant((mechanism,)).observers(delta).values())
    elif isinstance(mechanism, LocalMechanism):
        against = [epsilon(mechanism, delta, client)] * 3
    else:
        against = [epsilon(replace(mechanism, colluders=c), delta, client) for c in (0, min(1, count - 1), count - 1)]
    return Guarantee(client, who.law.scale, who.weight, who.records, mechanism.sampling_rate(client), delta, *against)
