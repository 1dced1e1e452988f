"""User-level aggregation: cohorts sampled in secret, noise that does not depend on who replied, adaptive clips.

The mechanism of a round is the subsampled Gaussian of `cepam.privacy.CohortMechanism`: each client's clipped update
with its share of the noise, the server's own noise for every share that did not come, all over the expected cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from cepam.clip import L2
from cepam.distributions.laws import Gaussian
from cepam.fl.aggregation.accounting import cohort_warnings, empty_accountant, lattice_of, searches
from cepam.fl.aggregation.trusted_server import (
    AggregatorContext,
    Index,
    Received,
    RoundResult,
    TrustedServerAggregator,
    coder_warnings,
    compensated,
    with_layered,
)
from cepam.fl.clients import sampling
from cepam.fl.clients.sampling import Drawn
from cepam.fl.clients.sending import ClientPlan, Senders, draft_of, plan_of
from cepam.fl.config.settings import ClientOverride, Settings
from cepam.privacy import Client, Cohort, CohortMechanism, calibrate, fraction_within, next_clip
from cepam.privacy.cohorts.dropouts import LINE, server_noise
from cepam.privacy.composition.accountant import affordable

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
    """Who is sampled in a round of these settings."""
    if settings.clients.sampling == "poisson":
        size, kind = settings.clients.sampling_rate * settings.clients.count, "poisson"
    else:
        size, kind = float(settings.clients_per_round), "without"
    return Cohort(settings.clients.count, size, kind, settings.clients.max_cohort, settings.clients.max_participations)  # type: ignore[arg-type]


def mechanism_of_cohort(settings: Settings, plan: ClientPlan, size: int) -> CohortMechanism:
    """One round as the accountant sees it, with the noise that is stated or that a target needs over the whole run."""
    assert plan.clip is not None
    cohort = cohort_of(settings)
    kind = Client(
        Gaussian(settings.privacy.noise_scale or plan.clip.bound),
        1,
        1.0 / cohort.size,
        lattice=lattice_of(plan),
        searched=searches(plan),
    )
    mechanism = CohortMechanism(
        (kind,), plan.clip, rounds=settings.training.rounds, adjacency=settings.privacy.adjacency,  # type: ignore[arg-type]
        coordinates=size, cohort=cohort, bit=None if settings.privacy.clip_quantile is None else cohort.size / BITS,
        stateful=settings.model.personal_layers is not None,
    )  # fmt: skip
    made = (
        affordable(mechanism, settings.privacy.delta)
        if settings.privacy.epsilon is None
        else calibrate(mechanism, settings.privacy.epsilon, settings.privacy.delta)
    )
    assert isinstance(made, CohortMechanism)
    return replace(made, rounds=1)


class CohortAggregator(TrustedServerAggregator):
    """Clients who are all alike, asked in secret cohorts; a round is charged whoever replied, and whoever was drawn.

    Guarantee: epsilon with dropouts is exactly that without, and the noise of every aggregate is the same
    (tests/fl/aggregation/test_dropouts.py).
    """

    def __init__(self, row: AggregatorContext) -> None:
        self.row, self.settings, self.vectors = row, row.settings, row.vectors
        if row.codecs is not None:
            raise ValueError(
                "privacy.unit client has noise of a known distribution: codecs of your own cannot be given"
            )
        draft, size = draft_of(row.settings, ClientOverride((0,)), 1, 1.0, row.vectors.tensors), row.vectors.size
        start = plan_of(row.settings, draft, draft.clip.bound if draft.clip is not None else 1.0, size)
        self.mechanism: CohortMechanism = mechanism_of_cohort(row.settings, start, size)
        if searches(start) and not self.mechanism.searched():
            self.row = row = with_layered(row)
            self.settings = row.settings
        self.cohort, self.compensation = self.mechanism.cohort, self.mechanism.compensation
        made = plan_of(row.settings, draft, self.mechanism.clients[0].law.scale, size)
        plan = replace(made, weight=1.0 / self.cohort.size)
        self.plans = Alike(plan, row.settings.clients.count)
        self.senders = Senders(row.settings, row.draws, row.run_id, self.plans, row.vectors.arrays, None)
        self.accountant = empty_accountant(row.settings)
        limit = row.settings.clients.max_participations
        self.taken = None if limit is None else np.zeros(row.settings.clients.count, dtype=np.int32)

    @cached_property
    def noise(self) -> float:
        return self.compensation.total / self.cohort.size

    @property
    def warnings(self) -> list[str]:
        return [
            *cohort_warnings(self.settings, self.mechanism, self.plans, self.vectors.size), *coder_warnings(self.row)
        ]  # fmt: skip

    def sampled(self, number: int) -> Index:
        chosen, draws = self.settings, self.row.draws
        if self.cohort.kind == "poisson":
            drawn = sampling.poisson_cohort(draws, number, chosen.clients.count, self.cohort.rate)
        else:
            drawn = sampling.cohort(draws, number, chosen.clients.count, chosen.clients.sampling_rate)
        if self.taken is not None and self.cohort.participations is not None:
            drawn = drawn[self.taken[drawn] < self.cohort.participations]
        return sampling.capped(draws, number, drawn, self.cohort.cap)

    def drawn(self, number: int, clients: Sequence[int]) -> Drawn:
        return sampling.drawn_by_each(self.settings, self.row.draws, number, self.row.held, clients)

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        if self.taken is not None:
            self.taken[clients] += 1
        return super().collect(number, clients, raw)

    def _charge(self, number: int, clients: list[int], received: Received) -> None:
        self.accountant = self.accountant.add(self.mechanism)

    def _aggregate(self, number: int, clients: list[int], received: Received) -> Any:
        """The sum of what came and of the server's noise for every share that did not, over the expected cohort."""
        sigma, size = self.compensation.missing(len(received.vectors)), self.vectors.size
        at, lattice = self._server_address(number), self.mechanism.clients[0].lattice or LINE
        noise = server_noise(sigma, size, at, lattice) if sigma else np.zeros(size)
        return compensated(self.vectors.arrays, received, dict.fromkeys(clients, 1.0), self.cohort.size, [(1.0, noise)])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({} if self.taken is None else {"taken": self.taken.copy()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.taken is not None:
            self.taken = np.array(state["taken"], dtype=np.int32)


CLIP_RATE = 0.2


class AdaptiveClipAggregator(CohortAggregator):
    """Cohorts whose updates and bits are one Gaussian mechanism, whatever the clip is in which round.

    Guarantee: the account does not depend on the clips, which follow from what was published
    (docs/proofs/cohorts-and-dropouts.md, "Adaptive clipping"; tests/fl/aggregation/test_adaptive_clip.py).
    """

    def __init__(self, row: AggregatorContext) -> None:
        self.clip = row.settings.privacy.clipping_norm
        noise = None if row.settings.privacy.noise_scale is None else row.settings.privacy.noise_scale / self.clip
        within = replace(row.vectors, size=row.vectors.size + 1)
        super().__init__(
            replace(
                row,
                settings=row.settings.updated({"privacy.clipping_norm": 1.0, "privacy.noise_scale": noise}),
                vectors=within,
            )
        )
        bit = self.mechanism.bit
        assert bit is not None
        self.scale = 2.0 * self.compensation.total / bit
        plan = replace(self.plans[0], clip=L2(float(np.hypot(1.0, self.scale / 2.0))))
        self.plans = Alike(plan, self.settings.clients.count)
        self.senders = Senders(self.settings, row.draws, row.run_id, self.plans, row.vectors.arrays, None)

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        used, arrays = self.clip, self.vectors.arrays
        came = super().collect(number, clients, arrays.put(self._joint(arrays.fetch(raw))))
        bits = float(came.aggregate[-1]) * self.cohort.size / self.scale
        fraction = fraction_within(bits, self.cohort.size)
        self.clip = next_clip(used, fraction, self.settings.privacy.clip_quantile or 0.5, CLIP_RATE)
        return replace(came, aggregate=came.aggregate[:-1] * used, line=came.line | {"clip": used})

    def _joint(self, rows: Any) -> Any:
        """Each update over the clip, at most 1 long, and the scaled bit; zeros for an update that is not finite."""
        norms = np.linalg.norm(rows.astype(np.float64), axis=1)
        sound = np.isfinite(norms)
        factors = np.where(sound, 1.0 / np.maximum(np.where(sound, norms, 1.0), self.clip), 0.0)
        updates = np.where(sound[:, None], rows, 0.0) * factors[:, None]
        bits = self.scale * ((sound & (norms <= self.clip)) - 0.5)
        return np.concatenate([updates, bits[:, None]], axis=1).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"clip": self.clip}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.clip = float(state["clip"])
