"""The uplink of whole clients: cohorts drawn in secret, noise that does not depend on who replied.

The mechanism of a round is the subsampled Gaussian of `cepam.privacy.CohortRelease`: each client's clipped update with
its share of the noise, the server's own noise for every share that did not come, all over the expected cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from cepam.fl.engine import sampling
from cepam.fl.engine.clients import ClientPlan, draft_of, plan_of
from cepam.fl.engine.notices import cohort_notices
from cepam.fl.engine.releases import empty_ledger, lattice_of
from cepam.fl.engine.sampling import Drawn
from cepam.fl.engine.sending import Senders
from cepam.fl.engine.server import Received, topped_up
from cepam.fl.engine.server_uplink import ServerUplink
from cepam.fl.engine.settings import ClientSettings, Settings
from cepam.fl.engine.uplink import Collected, Index, SeedRow
from cepam.noise.laws import Gaussian
from cepam.privacy import Client, Cohort, CohortRelease, calibrate
from cepam.privacy.topup import LINE, server_noise

BITS = 20.0
"""z_bit of a clip that follows a quantile is the expected cohort over this: the share within is known to 1/40 or so."""


@dataclass(frozen=True)
class Alike(Sequence[ClientPlan]):
    """The plans of clients that are all alike: one, however many there are."""

    plan: ClientPlan
    clients: int

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, place: int) -> ClientPlan: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ClientPlan]: ...
    def __getitem__(self, place: int | slice) -> ClientPlan | Sequence[ClientPlan]:
        if isinstance(place, slice):
            return Alike(self.plan, len(range(self.clients)[place]))
        range(self.clients)[place]  # an IndexError for one that there is not
        return self.plan


def cohort_of(settings: Settings) -> Cohort:
    """Who is asked in a round of these settings."""
    if settings.cohort == "poisson":
        size, kind = settings.share * settings.clients, "poisson"
    else:
        size, kind = float(sampling.asked(settings.clients, settings.share)), "without"
    return Cohort(settings.clients, size, kind, settings.cohort_cap, settings.participations)  # type: ignore[arg-type]


def release_of_cohort(settings: Settings, plan: ClientPlan, size: int) -> CohortRelease:
    """One round as the accountant sees it, with the noise that is stated or that a target needs over the whole run."""
    assert plan.clip is not None
    cohort = cohort_of(settings)
    kind = Client(Gaussian(settings.noise or plan.clip.bound), 1, 1.0 / cohort.size, lattice=lattice_of(plan))
    release = CohortRelease(
        (kind,), plan.clip, rounds=settings.rounds, adjacency=settings.adjacency,  # type: ignore[arg-type]
        coordinates=size, cohort=cohort, bit=None if settings.clip_quantile is None else cohort.size / BITS,
        stateful=settings.personal is not None,
    )  # fmt: skip
    made = release if settings.epsilon is None else calibrate(release, settings.epsilon, settings.delta)
    assert isinstance(made, CohortRelease)
    return replace(made, rounds=1)


class CohortUplink(ServerUplink):
    """Clients who are all alike, asked in secret cohorts; a round is charged whoever replied, and whoever was drawn.

    Guarantee: epsilon with dropouts is exactly that without, and the noise of every aggregate is the same
    (tests/fl/engine/test_top_up.py).
    """

    def __init__(self, row: SeedRow) -> None:
        self.row, self.settings, self.vectors = row, row.settings, row.vectors
        if row.codecs is not None:
            raise ValueError("unit client has noise of a known law: codecs of your own cannot be given")
        draft = draft_of(row.settings, ClientSettings((0,)), 1, 1.0, row.vectors.tensors)
        start = plan_of(row.settings, draft, draft.clip.bound if draft.clip is not None else 1.0)
        self.release: CohortRelease = release_of_cohort(row.settings, start, row.vectors.size)
        self.cohort, self.topup = self.release.cohort, self.release.topup
        plan = replace(plan_of(row.settings, draft, self.release.clients[0].law.scale), weight=1.0 / self.cohort.size)
        self.plans = Alike(plan, row.settings.clients)
        self.senders = Senders(row.settings, row.draws, row.run_id, self.plans, row.vectors.arrays, None)
        self.ledger = empty_ledger(row.settings)
        limit = row.settings.participations
        self.taken = None if limit is None else np.zeros(row.settings.clients, dtype=np.int32)

    @cached_property
    def noise(self) -> float:
        return self.topup.total / self.cohort.size

    @property
    def notices(self) -> list[str]:
        return cohort_notices(self.settings, self.release, self.plans, self.vectors.size)

    def asked(self, number: int) -> Index:
        chosen, draws = self.settings, self.row.draws
        if self.cohort.kind == "poisson":
            drawn = sampling.poisson_cohort(draws, number, chosen.clients, self.cohort.rate)
        else:
            drawn = sampling.cohort(draws, number, chosen.clients, chosen.share)
        if self.taken is not None and self.cohort.participations is not None:
            drawn = drawn[self.taken[drawn] < self.cohort.participations]
        return sampling.capped(draws, number, drawn, self.cohort.cap)

    def drawn(self, number: int, clients: Sequence[int]) -> Drawn:
        return sampling.drawn_by_each(self.settings, self.row.draws, number, self.row.held, clients)

    def collect(self, number: int, clients: list[int], raw: Any) -> Collected:
        if self.taken is not None:
            self.taken[clients] += 1
        return super().collect(number, clients, raw)

    def _charge(self, number: int, clients: list[int], received: Received) -> None:
        self.ledger = self.ledger.add(self.release)

    def _aggregate(self, number: int, clients: list[int], received: Received) -> Any:
        """The sum of what came and of the server's noise for every share that did not, over the expected cohort."""
        sigma, size = self.topup.missing(len(received.vectors)), self.vectors.size
        at, lattice = self._server_address(number), self.release.clients[0].lattice or LINE
        noise = server_noise(sigma, size, at, lattice) if sigma else np.zeros(size)
        return topped_up(self.vectors.arrays, received, dict.fromkeys(clients, 1.0), self.cohort.size, [(1.0, noise)])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({} if self.taken is None else {"taken": self.taken.copy()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.taken is not None:
            self.taken = np.array(state["taken"], dtype=np.int32)
