"""What a run says before its first round: that it is a simulation, what it keeps, what dropouts cost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from cepam.fl.aggregation.accounting import least_noise
from cepam.fl.clients.plan import ClientPlan
from cepam.fl.config.secure_graph import surely_in
from cepam.fl.config.settings import Settings
from cepam.keys import Address, Key
from cepam.privacy import Accountant, CohortMechanism, MatrixMechanism, Mechanism, epsilon, noise_to_clip

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
    found = noise_to_clip(mechanism.over(settings.training.rounds))
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


def notices(settings: Settings, mechanism: Mechanism | None, plans: Sequence[ClientPlan], size: int) -> list[str]:
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


def cohort_notices(settings: Settings, mechanism: CohortMechanism, plans: Sequence[ClientPlan], size: int) -> list[str]:
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
