"""What a round of a simulation releases, as the privacy accountant sees it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from cepam.clip import Adjacency, Clip, ClippedUnit
from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian
from cepam.fl.clients.plan import ClientPlan, draws_of, sampling_of
from cepam.fl.clients.slices import link_of
from cepam.fl.config.settings import Settings
from cepam.lattices.lattice import Lattice
from cepam.privacy import (
    Accountant,
    Client,
    MatrixMechanism,
    Mechanism,
    Practice,
    Sampling,
    fingerprint,
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
