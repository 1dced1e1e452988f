"""What a round of a simulation releases, as the privacy accountant sees it: charges, calibration, warnings."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.clip import Adjacency, Clip, ClippedUnit
from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian, Laplace
from cepam.fl.clients.sampling import link_of
from cepam.fl.clients.sending import ClientDraft, ClientPlan, draft_of, draws_of, plan_of, sampling_of
from cepam.fl.config.settings import ClientOverride, Settings, surely_in
from cepam.keys import Address, Key
from cepam.lattices.lattice import Lattice
from cepam.privacy import (
    Accountant,
    Client,
    CohortMechanism,
    MatrixMechanism,
    Mechanism,
    Practice,
    Sampling,
    calibrate,
    epsilon,
    fingerprint,
    noise_ratio,
    privacy_warnings,
)
from cepam.privacy.cohorts.dropouts import NoiseShare


def mechanism_of(settings: Settings, plans: Sequence[ClientPlan], size: int) -> Mechanism | None:
    """One round of these clients as the accountant sees it, or None where someone adds no noise or clips nothing."""
    if any(plan.law is None or plan.clip is None for plan in plans) or len({type(plan.law) for plan in plans}) > 1:
        return None
    charged = []
    for plan in plans:
        assert plan.law is not None
        draws = draws_of(settings, plan.batch)
        charged.append(Client(plan.law, plan.records, plan.weight, draws, plan.clip, lattice_of(plan), searches(plan)))
    clip = plans[0].clip
    assert clip is not None
    return round_of(settings, tuple(charged), clip, plans[0].batch, size)


def round_of(settings: Settings, clients: tuple[Client, ...], clip: Clip, batch: float, size: int) -> Mechanism:
    """One round of these clients: of independent draws, or with correlated noise over fixed slices."""
    clipped: ClippedUnit = "example" if settings.training.update == "examples" else "update"
    adjacency: Adjacency = settings.privacy.adjacency  # type: ignore[assignment]
    link = link_of(settings)
    if link is None:
        return Mechanism(clients, clip, sampling_of(settings, batch), 1, 0, adjacency, clipped, size)
    secret = settings.training.record_sampling == "poisson"
    if not secret:
        clients = tuple(replace(client, draws=None) for client in clients)  # a slice divides by records/slices
    return MatrixMechanism(
        clients,
        clip,
        sampling_of(settings, batch) if secret else Sampling("all"),
        adjacency=adjacency,
        clipped=clipped,
        coordinates=size,
        link=link,
        run=fingerprint(settings),
    )


def lattice_of(plan: ClientPlan) -> Lattice | None:
    """What a client's codec quantizes on: the server's noise for it does so too."""
    return plan.codec.on if isinstance(plan.codec, Codec) else None


def searches(plan: ClientPlan) -> bool:
    """Whether a client's codec may take the search coder."""
    return isinstance(plan.codec, Codec) and plan.codec.searches


def share_of(plan: ClientPlan) -> NoiseShare:
    """What a client brings to a round's sum, and the server if it is missing."""
    if not isinstance(plan.law, Gaussian):
        raise ValueError(
            f"clients.dropout_handling compensate needs Gaussian noise of every client, got {plan.law!r}: use "
            "charge or wait"
        )
    return NoiseShare(plan.weight, plan.law.scale, lattice_of(plan))


def noise_of_average(settings: Settings, plans: Sequence[ClientPlan]) -> float | None:
    """The standard deviation, per coordinate, of the noise in a round's average; None where a client adds none.

    Public, and the same in every round: of a cohort it is that of an average one, whoever is sampled.
    """
    total = 0.0
    for plan in plans:
        if plan.law is None:
            return None
        total += plan.weight**2 * plan.law.variance()
    sampled = settings.clients_per_round
    return float(np.sqrt(total * len(plans) / sampled)) / sum(plan.weight for plan in plans)


def least_noise(mechanism: Mechanism, client: int, replies: int, never: Collection[int] = ()) -> Mechanism:
    """The round with so many replies that hides a client least: its own, and the quietest of the others."""
    others = [j for j in range(len(mechanism.clients)) if j != client and j not in never]
    others.sort(key=lambda j: mechanism.clients[j].noise)
    present = {client, *others[: replies - 1]}
    return mechanism.without(set(range(len(mechanism.clients))) - present)


def empty_accountant(settings: Settings) -> Accountant:
    """The book of a run before its first round; a saved one of other settings is refused."""
    return Accountant(configuration=fingerprint(settings))


def after_round(accountant: Accountant, mechanism: Mechanism | None, replied: Collection[int]) -> Accountant:
    """The book with one more round; one in which nobody replied released nothing."""
    if mechanism is None or not replied:
        return accountant
    return accountant.add(mechanism.without(set(range(len(mechanism.clients))) - set(replied)))


def spent(accountant: Accountant, settings: Settings) -> float:
    """epsilon of the whole run against an outsider: the figure that a target was held against."""
    return accountant.observers(settings.privacy.delta)["outsider"]


def budgets(
    settings: Settings,
    names: Sequence[str],
    plans: Sequence[ClientPlan],
    mechanism: Mechanism | None,
    accountant: Accountant,
) -> list[dict[str, Any]]:
    """A row for each client: name, records, noise scale of the uplink, noise multiplier of local steps, and epsilon.

    Empty where clients have neither names nor targets of their own, and so nothing that tells them apart.
    """
    own = {k: each for each in settings.clients.overrides for k in each.clients}
    if (
        mechanism is None
        or mechanism.unit == "client"
        or not (names or any(each.epsilon is not None for each in settings.clients.overrides))
    ):
        return []
    rows = []
    found: dict[Any, float] = {}
    for k, plan in enumerate(plans):
        mine = own.get(k)
        aimed = mine.epsilon if mine is not None and (mine.epsilon or mine.noise_scale) else settings.privacy.epsilon
        delta = mine.delta if mine is not None and mine.delta is not None else settings.privacy.delta
        kind = (accountant.charges(k), delta) if not mechanism.l2_clipped_laplace else (k, delta)
        if kind not in found:
            found[kind] = accountant.epsilon(delta, k)
        rows.append({
            "name": names[k] if names else str(k), "records": plan.records,
            "noise_scale": None if plan.law is None else plan.law.scale,
            "noise_multiplier": None if plan.steps is None else plan.steps.multiplier,
            "target_epsilon": aimed, "delta": delta,
            "epsilon": found[kind] if math.isfinite(found[kind]) else None,
        })  # fmt: skip
    return rows


def foresee(settings: Settings, mechanism: Mechanism) -> None:
    """Compute now what a run in which everyone replies will ask for. What is refused, the run reports."""
    with suppress(ValueError):
        empty_accountant(settings).foresee(mechanism, settings.privacy.delta, settings.training.rounds)


def warnings_of(settings: Settings, mechanism: Mechanism | None, tensors: int) -> list[str]:
    """What must be said beside the figures of the whole run, in one line each."""
    if mechanism is None:
        return [
            f"compression.scheme {settings.compression.scheme} with privacy.norm_type {settings.privacy.norm_type}: "
            "no differential privacy"
        ]
    run = mechanism.over(settings.training.rounds)
    whole = spent(empty_accountant(settings).add(run), settings)
    practice = Practice(
        rounds=settings.training.rounds, tensors=tensors if settings.privacy.clip_scope == "tensor" else 1
    )
    return [str(each) for each in privacy_warnings(run, whole, settings.privacy.delta, practice)]


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


SIMULATED = "simulated"
"""The one word beside every epsilon of a run whose keys and draws come from a seed."""


def shown_epsilon(value: float | None, simulated: bool, digits: str = ".4g") -> str:
    """An epsilon as it is shown anywhere."""
    if value is None:
        return "no finite bound"
    return f"{value:{digits}} ({SIMULATED})" if simulated else f"{value:{digits}}"


def cost(mechanism: Mechanism, delta: float, rounds: int, replies: int) -> float | None:
    """epsilon of a run in which every round has so many replies, those with the least noise, for the worst client.

    None where no finite bound is available. No amplification: a client is charged as if it were sampled in every round.
    """
    found = []
    for k in {each: k for k, each in enumerate(mechanism.clients)}.values():
        with suppress(ValueError):
            found.append(epsilon(least_noise(mechanism, k, replies).over(rounds), delta, k))
    return max(found, default=None)


def costs_of_dropouts(settings: Settings, mechanism: Mechanism) -> str:
    """What missing replies are expected to cost, and what at worst, in words."""
    sampled = settings.clients_per_round
    likely = max(1, round(sampled * (1.0 - settings.clients.dropout_rate)))
    least = surely_in(settings) if settings.privacy.trust == "secure-aggregation" else 1
    likely = max(likely, least)
    some, worst = (
        cost(mechanism, settings.privacy.delta, settings.training.rounds, replies) for replies in (likely, least)
    )
    return (
        f"epsilon {_figure(some)} with {likely} of {settings.clients.count} replies per round, "
        f"{_figure(worst)} at worst ({'one reply' if least == 1 else f'the quorum of {least}'})"
    )


def _figure(value: float | None) -> str:
    return "without a finite bound" if value is None or value == np.inf else f"{value:.4g}"


def _aims(settings: Settings) -> bool:
    return settings.privacy.epsilon is not None or any(each.epsilon is not None for each in settings.clients.overrides)


def of_target(settings: Settings, mechanism: Mechanism | None) -> list[str]:
    """What the noise that was found for a target means for the model, in one sentence; nothing where none was."""
    if mechanism is None or not _aims(settings):
        return []
    found = noise_ratio(mechanism.over(settings.training.rounds))
    if settings.clients.sampling_rate < 1.0 and not isinstance(mechanism, CohortMechanism):
        sampled = settings.clients_per_round
        found = replace(found, noise=found.noise * float(np.sqrt(settings.clients.count / sampled)))
    return [f"noise for the target: {found.advice}"]


def check_target(settings: Settings, mechanism: Mechanism | None) -> None:
    """Raise ValueError where missing replies would break a target epsilon. A sum always has its quorum."""
    if (
        mechanism is not None
        and _aims(settings)
        and settings.clients.dropout_rate
        and settings.dropout_handling == "charge"
        and settings.privacy.trust != "secure-aggregation"
    ):
        raise ValueError(
            f"clients.dropout_rate {settings.clients.dropout_rate:g} with dropout_handling charge cannot meet a "
            f"target epsilon: {costs_of_dropouts(settings, mechanism)}; choose "
            "clients.dropout_handling compensate or wait, or state privacy.noise_scale instead of privacy.epsilon"
        )


def run_warnings(settings: Settings, mechanism: Mechanism | None, plans: Sequence[ClientPlan], size: int) -> list[str]:
    """The lines, in one sentence each."""
    said = _of_any_run(settings, plans, size)
    independent = mechanism is not None and not isinstance(mechanism, MatrixMechanism)
    if (
        mechanism is not None
        and independent
        and settings.clients.dropout_rate
        and settings.dropout_handling == "charge"
    ):
        said.append(
            f"clients.dropout_rate {settings.clients.dropout_rate:g} with dropout_handling charge: "
            f"{costs_of_dropouts(settings, mechanism)}"
        )
    elif mechanism is not None and settings.clients.sampling_rate < 1.0:
        sampled = settings.clients_per_round
        most = cost(mechanism, settings.privacy.delta, settings.training.rounds, sampled)
        said.append(
            f"clients.sampling_rate {settings.clients.sampling_rate:g}: {sampled} clients per round, epsilon at most "
            f"{_figure(most)}"
        )
    return said


def cohort_warnings(
    settings: Settings, mechanism: CohortMechanism, plans: Sequence[ClientPlan], size: int
) -> list[str]:
    """The lines of a run whose clients are drawn in cohorts: whom the draws hide from, and from whom not."""
    cohort = mechanism.cohort
    views = Accountant((mechanism.over(settings.training.rounds),)).observers(settings.privacy.delta)
    drawn = "in expectation" if cohort.kind == "poisson" else "exactly"
    told_apart = ", ".join(f"{_figure(value)} against {who}" for who, value in views.items())
    said = f"whole clients, cohorts of {cohort.size:g} of {cohort.population} {drawn}: epsilon {told_apart}"
    if settings.run.keep_messages and cohort.rate < 1.0:
        said += "; kept messages show who uploads"
    return [*_of_any_run(settings, plans, size), said]


def _of_any_run(settings: Settings, plans: Sequence[ClientPlan], size: int) -> list[str]:
    said = []
    if settings.run.simulate:
        said.append(f"{SIMULATED}: keys and draws come from the seed, so every epsilon is that of a simulation")
    if settings.run.keep_messages:
        said.append(_kept(settings, plans, size))
    if settings.run.keep_keys and not settings.run.simulate:
        said.append("secret.key stays in the run's folder at the end: who has it and the messages can strip the noise")
    return said


def message_bytes(plans: Sequence[ClientPlan], size: int) -> float:
    """The mean bytes of a message whose update has the clipping norm: about the longest, whatever the data are."""
    draw, at = np.random.default_rng(0).standard_normal(size), Address(Key.simulated(0), round=0, client=0)
    each: dict[object, int] = {}
    for plan in plans:
        if (plan.clip, plan.law) not in each:
            bound = plan.clip.bound if plan.clip is not None else 1.0
            example = (draw * (bound / float(np.linalg.norm(draw)))).astype(np.float32)
            if plan.clip is not None:
                example = plan.clip.apply(example).astype(np.float32)
            each[plan.clip, plan.law] = len(plan.codec.encode(example, at))
    return sum(each[plan.clip, plan.law] for plan in plans) / len(plans)


def _kept(settings: Settings, plans: Sequence[ClientPlan], size: int) -> str:
    """What kept messages take on disk, and whether they can be opened."""
    mean = message_bytes(plans, size)
    total = mean * settings.clients_per_round * settings.training.rounds * settings.run.seeds
    opened = settings.run.simulate or settings.run.keep_keys
    tail = (
        ""
        if opened
        else "; nobody will be able to open them, as their keys are erased at the end (run.keep_keys keeps them)"
    )
    size_on_disk = f"{total / 1e6:,.1f} MB" if total >= 1e5 else f"{total:,.0f} bytes"
    return f"messages are kept, about {size_on_disk}{tail}"
