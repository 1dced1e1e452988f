"""Per-client guarantees: what each client's records get, against whom.

Paper: privacy adaptability, Section III. Every client may have its own noise, weight, records and delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cepam.privacy.cohorts.cohort import CohortMechanism
from cepam.privacy.composition.account import epsilon
from cepam.privacy.composition.accountant import Accountant
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Mechanism


@dataclass(frozen=True)
class Guarantee:
    """What one client's records get over the whole run: epsilon at `delta`, against three adversaries.

    `outsider` sees the published models; `curious` is one other client, who also knows its own noise;
    `colluding` is all other clients together, against whom only the client's own noise is left. None of
    them is the server; where local steps are noised, it gets the same figure. `sees_uploads`, where cohorts are drawn
    in secret, is an adversary who sees participation.
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
