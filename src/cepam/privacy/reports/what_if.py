"""What else a run could have been: other rounds, clients, noise or targets, and what each does to epsilon and noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from cepam.privacy.cohorts.cohort import CohortMechanism
from cepam.privacy.composition.account import epsilon, spent
from cepam.privacy.composition.calibration import calibrate
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Mechanism
from cepam.privacy.reports.noise_ratio import noise_to_clip


@dataclass(frozen=True)
class Alternative:
    """A run that differs in one thing: what that is, its epsilon, and the noise of a round's average.

    `epsilon` is infinite where no finite bound is available; `noise` is in clipping norms per coordinate.
    """

    change: str
    epsilon: float
    noise: float


def what_if(mechanism: Mechanism, delta: float) -> tuple[Alternative, ...]:
    """The run as it is, then with half and twice the rounds, clients, noise and epsilon, one at a time.

    Args:
        mechanism: The run.
        delta: At which epsilon is given.

    Returns:
        The run itself first. A change that the mechanism does not allow is left out: more rounds than a matrix has, or
        fewer clients where they are unlike.
    """
    now = epsilon(mechanism, delta)
    found = [Alternative("as it is", now, noise_to_clip(mechanism).noise)]
    for change, make in _changes(mechanism, delta, now):
        try:
            other = make()
            if other is not None:
                found.append(Alternative(change, spent(other, delta), noise_to_clip(other).noise))
        except ValueError:  # refused: such a run cannot be accounted for
            continue
    return tuple(found)


def _changes(mechanism: Mechanism, delta: float, now: float) -> Iterator[tuple[str, Callable[[], Mechanism | None]]]:
    rounds, scales = mechanism.rounds, [client.law.scale for client in mechanism.clients]
    if rounds > 1:
        yield _count(rounds // 2, "round"), lambda: mechanism.over(rounds // 2)
    yield f"{2 * rounds:,} rounds", lambda: mechanism.over(2 * rounds)
    if mechanism.enrolled > 1:
        yield _count(mechanism.enrolled // 2, "client"), lambda: _fewer(mechanism)
    yield f"{2 * mechanism.enrolled:,} clients", lambda: _more(mechanism)
    yield "half the noise", lambda: mechanism.with_noise([scale / 2.0 for scale in scales])
    yield "twice the noise", lambda: mechanism.with_noise([2.0 * scale for scale in scales])
    if 0.0 < now < math.inf:
        for target in (now / 2.0, 2.0 * now):
            yield f"noise for epsilon {target:.3g}", partial(calibrate, mechanism, target, delta)


def _count(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _plain(mechanism: Mechanism) -> bool:
    """Whether clients are counted once each, all of them in every round."""
    kept = mechanism.nodes is None and mechanism.node_rounds is None and not mechanism.absent
    return kept and not (isinstance(mechanism, MatrixMechanism) and mechanism.observed_participation is not None)


def _more(mechanism: Mechanism) -> Mechanism | None:
    """Twice as many clients like these; as many of them sampled per round, where clients are sampled."""
    if isinstance(mechanism, CohortMechanism):
        return replace(mechanism, cohort=replace(mechanism.cohort, population=2 * mechanism.cohort.population))
    if not _plain(mechanism):
        return None
    made = tuple(replace(client, weight=client.weight / 2.0) for client in mechanism.clients) * 2
    if isinstance(mechanism, LocalMechanism):
        return replace(mechanism, clients=made, steps=mechanism.steps * 2)
    return replace(mechanism, clients=made)


def _fewer(mechanism: Mechanism) -> Mechanism | None:
    """Half as many clients, where they are alike."""
    if isinstance(mechanism, CohortMechanism):
        half = mechanism.cohort.population // 2
        if mechanism.cohort.cap > half:
            return None
        return replace(mechanism, cohort=replace(mechanism.cohort, population=half))
    if not _plain(mechanism) or len(set(mechanism.clients)) > 1:
        return None
    many = len(mechanism.clients) // 2
    grown = len(mechanism.clients) / many
    made = tuple(replace(client, weight=client.weight * grown) for client in mechanism.clients[:many])
    if isinstance(mechanism, LocalMechanism):
        return replace(mechanism, clients=made, steps=mechanism.steps[:many])
    return replace(mechanism, clients=made)
