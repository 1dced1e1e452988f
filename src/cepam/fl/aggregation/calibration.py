"""The noise of every client: as stated, or calibrated to its target epsilon over the whole run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Laplace
from cepam.fl.aggregation.accounting import lattice_of, least_noise, mechanism_of, round_of, searches
from cepam.fl.clients.plan import ClientDraft, ClientPlan, draft_of, draws_of, plan_of
from cepam.fl.config.secure_graph import surely_in
from cepam.fl.config.settings import ClientOverride, Settings
from cepam.privacy import Client, Mechanism, calibrate, epsilon

TRIES = 5


def plan_clients(settings: Settings, held: npt.NDArray[np.int64], size: int, tensors: int) -> tuple[ClientPlan, ...]:
    """The clients of a run, with weights that sum to one and noise that meets every stated target.

    Weights are public constants in proportion to the records held, unless the settings give others.
    Guarantee: the epsilon of the whole run, as it will be reported, is at most every target, whoever is sampled
    (tests/fl/test_refusals.py).
    """
    own = {k: each for each in settings.clients.overrides for k in each.clients}
    nothing = ClientOverride((0,))
    drafts = [
        draft_of(settings, own.get(k, nothing), int(n), float(n / held.sum()), tensors) for k, n in enumerate(held)
    ]
    if settings.privacy.trust == "secure-aggregation":
        # Nobody sees one vector, so nobody can weigh it.
        drafts = [replace(draft, weight=1.0) for draft in drafts]
    total = sum(draft.weight for draft in drafts)
    drafts = [replace(draft, weight=draft.weight / total) for draft in drafts]
    scales = _calibrated(settings, drafts, size)
    for _ in range(TRIES):
        plans = tuple(plan_of(settings, draft, scale, size) for draft, scale in zip(drafts, scales))
        excess = _excess(settings, drafts, plans, size)
        if excess <= 0.0:
            return plans
        if math.isinf(excess):
            break
        grown = 1.0 + 1.5 * excess + 1e-9
        scales = [scale * grown if draft.epsilon and scale else scale for draft, scale in zip(drafts, scales)]
    raise ValueError("no noise scale meets the target epsilon: the mechanism's own rounding costs too much")


def _calibrated(settings: Settings, drafts: list[ClientDraft], size: int) -> list[float | None]:
    """The noise scale of each client.

    Clients with a target share the noise that the strictest of them needs in the weighted sum, each in proportion to
    what it asks for; noise that others state for themselves comes on top. So every target is met against an outsider.
    Where a round asks only a share of the clients, or some send garbage, the noise of those that surely reply suffices;
    no amplification is claimed for who is sampled.
    """
    asking = [k for k, draft in enumerate(drafts) if draft.epsilon is not None]
    if not asking:
        return [draft.noise for draft in drafts]
    if len({drafts[k].family for k in asking}) > 1:
        raise ValueError("clients with a target epsilon must all use one law, Gaussian or Laplace")
    known = {draft: _noise_needed(settings, draft, size) for draft in {replace(drafts[k], weight=1.0) for k in asking}}
    needed = {k: known[replace(drafts[k], weight=1.0)] for k in asking}
    if drafts[asking[0]].family is Laplace:
        return [needed.get(k, draft.noise) for k, draft in enumerate(drafts)]
    sound = sorted(need * drafts[k].weight for k, need in needed.items() if k not in settings.uncounted_clients)
    others = len(drafts) - len(sound)
    surely = max(1, surely_in(settings) - others)
    # The cohort with the least noise beside the strictest client: that client and the quietest of the rest.
    strictest = max(need * drafts[k].weight for k, need in needed.items())
    factor = strictest / math.hypot(strictest, *sound[: surely - 1])
    scales = [needed[k] * factor if k in needed else draft.noise for k, draft in enumerate(drafts)]
    # A sum has one law: the noise of the client that needs the most.
    return (
        [max(scale for scale in scales if scale)] * len(scales)
        if settings.privacy.trust == "secure-aggregation"
        else scales
    )


def _noise_needed(settings: Settings, draft: ClientDraft, size: int) -> float:
    """The noise scale with which this client alone would meet its target over the whole run."""
    assert draft.family is not None
    assert draft.clip is not None
    assert draft.epsilon is not None
    plan = plan_of(settings, draft, draft.clip.bound, size)
    alone = Client(
        draft.family(draft.clip.bound), draft.records, 1.0, draws_of(settings, draft.batch), None, lattice_of(plan),
        searches(plan),
    )  # fmt: skip
    mechanism = round_of(settings, (alone,), draft.clip, draft.batch, size).over(settings.training.rounds)
    return float(calibrate(mechanism, draft.epsilon, draft.delta).clients[0].law.scale)


def _excess(settings: Settings, drafts: list[ClientDraft], plans: tuple[ClientPlan, ...], size: int) -> float:
    """By how much the whole run would exceed a target, relative, in the cohort with the least noise; else 0."""
    mechanism = mechanism_of(settings, plans, size)
    if mechanism is None:
        return 0.0
    replies = max(1, surely_in(settings) - len(settings.uncounted_clients))
    first = {(mechanism.clients[k], draft.epsilon, draft.delta): k for k, draft in enumerate(drafts) if draft.epsilon}
    return max((_over(settings, mechanism, drafts[k], k, replies) for k in first.values()), default=0.0)


def _over(settings: Settings, mechanism: Mechanism, draft: ClientDraft, client: int, replies: int) -> float:
    assert draft.epsilon is not None
    run = least_noise(mechanism, client, replies, settings.uncounted_clients).over(settings.training.rounds)
    return epsilon(run, draft.delta, client) / draft.epsilon - 1.0
