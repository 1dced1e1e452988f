"""A run in dp-accounting's vocabulary: a `DpEvent` for what that library can express, and whether it can.

For reports and for a second opinion. The event is what the run does to one client's records, for the add-or-remove
relation: Gaussian or Laplace noise in units of the shift, alone, or under Poisson sampling where each example is
clipped and a record that is not drawn leaves nothing. Sampling under replace-one, sampling with replacement, and
sampled updates that are clipped as a whole are not in the vocabulary: another draw takes a record's place, not a zero.
"""

from __future__ import annotations

from typing import Any

from cepam.privacy.correlated import CorrelatedRelease
from cepam.privacy.laplace import zcdp_rho
from cepam.privacy.ledger import Ledger
from cepam.privacy.release import Release
from cepam.privacy.sampled import Charge


def supports(run: Release | Ledger, client: int = 0) -> bool:
    """Whether `to_dp_event` can say what this run does to the client's records."""
    releases = run.releases if isinstance(run, Ledger) else (run,)
    return all(_expressible(release, j) for release in releases for j, _ in _sent(release, client))


def to_dp_event(run: Release | Ledger, client: int = 0) -> Any:
    """The run as a dp-accounting `DpEvent`, for add-or-remove; an `UnsupportedDpEvent` where it has no word for it.

    Guarantee: the library's accountant gives our epsilon for it (tests/privacy/test_events.py). The mechanism's own
    rounding is not in an event.
    """
    from dp_accounting import dp_event

    if not supports(run, client):
        return dp_event.UnsupportedDpEvent()
    releases = run.releases if isinstance(run, Ledger) else (run,)
    made = [
        dp_event.SelfComposedDpEvent(_event(release, j), times)
        for release in releases
        for j, times in _sent(release, client)
    ]
    if not made:
        return dp_event.NoOpDpEvent()
    return made[0] if len(made) == 1 else dp_event.ComposedDpEvent(made)


def _sent(release: Release, client: int) -> list[tuple[int, int]]:
    """The places of the vectors that a client sent, and how many times each."""
    if isinstance(release, CorrelatedRelease):
        return [(j, release.rounds) for j in release.sent_by_node().get(client, ())]
    taken, sent = release.taken().get(client, ()), release.sent_by_node()
    return [(j, times) for seat, times in taken for j in sent[release.node(seat)]]


def _expressible(release: Release, client: int) -> bool:
    if release.chance(client) == 1.0 or release.l2_clipped_laplace:
        return True
    return release.sampling.kind == "poisson" and release.clipped == "example" and release.adjacency == "add-remove"


def _event(release: Release, client: int) -> Any:
    from dp_accounting import dp_event

    if release.l2_clipped_laplace:
        return dp_event.ZCDpEvent(zcdp_rho(release.over(1), client))
    charge: Charge = release.charge(client)
    noise = dp_event.GaussianDpEvent if release.law_is_gaussian else dp_event.LaplaceDpEvent
    event = noise(1.0 / charge.shift.size)
    return event if charge.chance == 1.0 else dp_event.PoissonSampledDpEvent(charge.chance, event)
