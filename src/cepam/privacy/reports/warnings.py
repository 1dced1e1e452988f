"""Warnings: when a figure is right but worth little, or is not the figure of what was run.

Each has a reason in one line and what to do about it. They never change a figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cepam.privacy.composition.accountant import delta_without_noise, epsilon, slack
from cepam.privacy.mechanisms.mechanism import Mechanism

LARGE_EPSILON = 10.0
VOID_EPSILON = 700.0
INSENSITIVE = 1.05


@dataclass(frozen=True)
class PrivacyWarning:
    """A reason to distrust a figure.

    Args:
        code: A short name.
        reason: Why, in one line.
        remedy: What to do about it.
    """

    code: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}. {self.remedy}."


@dataclass(frozen=True)
class Practice:
    """How the run was really done, where that differs from what the accountant assumes.

    Args:
        rounds: Length of the run for which the figure will be quoted.
        tensors: Tensors that are clipped one by one, instead of the whole vector.
        sampler_persists: Whether a data loader goes on across rounds.
        state_persists: Whether momentum buffers, batch-norm statistics or the like stay on a client between rounds.
        called_pure: Whether the figure of l2-clipped Laplace noise is quoted as pure differential privacy.
    """

    rounds: int | None = None
    tensors: int = 1
    sampler_persists: bool = False
    state_persists: bool = False
    called_pure: bool = False


AS_ACCOUNTED = Practice()


def privacy_warnings(
    mechanism: Mechanism, epsilon: float, delta: float, practice: Practice = AS_ACCOUNTED
) -> tuple[PrivacyWarning, ...]:
    """What should be said next to (epsilon, delta) for this release, the gravest first; often nothing.

    Adjacency, sampling, trust: as recorded. Rests on: docs/sharp-edges.md; each one is triggered
    in tests/privacy/test_warnings.py.

    Args:
        mechanism: What is published.
        epsilon: Its epsilon.
        delta: At this delta.
        practice: What is known of the training loop beyond the mechanism.

    Returns:
        Warnings, often none.
    """
    return (
        *about_epsilon(epsilon),
        *_about_delta(mechanism, epsilon, delta),
        *_about_draws(mechanism),
        *_about_law(mechanism, delta, practice),
        *_about_numerics(mechanism, epsilon, delta),
        *_about_practice(mechanism, practice),
    )


def about_epsilon(epsilon: float) -> list[PrivacyWarning]:
    """What should be said next to an epsilon by itself, wherever one is printed; nothing up to `LARGE_EPSILON`.

    Args:
        epsilon: The figure that is printed.

    Returns:
        Warnings, often none.
    """
    if epsilon > VOID_EPSILON:
        figure = f"epsilon {epsilon:.4g}" if epsilon < math.inf else "without a finite bound on epsilon this"
        reason = f"{figure} is no guarantee: it allows any odds to become certainty"
        return [PrivacyWarning("no-guarantee", reason, "Calibrate the noise to a target under 10")]
    if epsilon > LARGE_EPSILON:
        reason = f"epsilon {epsilon:.4g} allows odds to change by a factor of e^{epsilon:.3g}"
        return [PrivacyWarning("large-epsilon", reason, "Add noise, or run fewer rounds, until it is under 10")]
    return []


def _about_delta(mechanism: Mechanism, epsilon: float, delta: float) -> list[PrivacyWarning]:
    made = []
    whole = mechanism.unit == "client"
    records = mechanism.enrolled if whole else min(client.records for client in mechanism.clients)
    if delta >= 1.0 / records:
        what = "client's data" if whole else "record"
        reason = f"delta {delta:.3g} is at least 1/{records}: a {what} might be published outright"
        made.append(PrivacyWarning("delta-over-1/n", reason, f"Choose delta well under {1.0 / records:.2g}"))
    free = delta_without_noise(mechanism)
    if delta >= free:
        reason = f"delta {delta:.3g} is at or above {free:.3g}, which publishing with no noise at all gives"
        made.append(PrivacyWarning("delta-is-free", reason, f"Choose delta under {free:.2g}; this figure says nothing"))
    if delta > 0 and math.isfinite(epsilon) and _noise_does_nothing(mechanism, epsilon, delta):
        reason = f"halving the noise changes delta at epsilon {epsilon:.3g} by less than 5 %"
        made.append(
            PrivacyWarning("delta-insensitive", reason, "Choose a delta that the noise, not the sampling, pays for")
        )
    return made


def _noise_does_nothing(mechanism: Mechanism, at: float, delta: float) -> bool:
    """Whether half the noise would give nearly the same delta at the same epsilon."""
    if INSENSITIVE * delta >= delta_without_noise(mechanism):
        return True
    halved = mechanism.with_noise([client.law.scale / 2 for client in mechanism.clients])
    return epsilon(halved, min(INSENSITIVE * delta, 0.999)) <= at


def _about_draws(mechanism: Mechanism) -> list[PrivacyWarning]:
    """Draws are of a client's own records: more than it has, by many clients, are likely meant to be of clients."""
    if mechanism.unit == "client" or mechanism.sampling.kind != "replacement" or len(mechanism.clients) < 2:
        return []
    place = min(range(len(mechanism.clients)), key=lambda j: mechanism.clients[j].records)
    records, draws = mechanism.clients[place].records, mechanism.sampling_of(place).draws
    if draws <= records or (records > 1 and draws < 10 * records):
        return []
    reason = f"each client draws {draws:g} times from its own {records} record(s), every round: no draw is secret"
    remedy = "For cohorts of whole clients say --unit client --sampling-rate (privacy.CohortMechanism)"
    return [PrivacyWarning("draws-of-clients", reason, remedy)]


def _about_numerics(mechanism: Mechanism, epsilon: float, delta: float) -> list[PrivacyWarning]:
    if (mechanism.coordinates is None and not mechanism.exceeded) or delta == 0.0:
        return []
    excess = slack(mechanism).excess(epsilon, delta)
    return [] if excess is None else [PrivacyWarning("numerics", *excess)]


def _about_law(mechanism: Mechanism, delta: float, practice: Practice) -> list[PrivacyWarning]:
    if not mechanism.l2_clipped_laplace or not (practice.called_pure or delta == 0.0):
        return []
    reason = "Laplace noise under l2 clipping is pure DP only at sqrt(m) times the l1 figure"
    return [PrivacyWarning("l2-laplace", reason, "Clip in l1, or quote the zCDP figure with a delta")]


def _about_practice(mechanism: Mechanism, practice: Practice) -> list[PrivacyWarning]:
    made = []
    if practice.rounds is not None and practice.rounds > mechanism.rounds:
        reason = f"the figure is for {mechanism.rounds} of {practice.rounds} rounds"
        made.append(PrivacyWarning("not-the-whole-run", reason, f"Account for all {practice.rounds} rounds"))
    if practice.tensors > 1:
        reason = (
            f"{practice.tensors} tensors clipped one by one: the whole norm can reach "
            f"{practice.tensors**0.5:.3g} times the bound"
        )
        made.append(PrivacyWarning("per-tensor-clip", reason, "Clip the whole vector, or account for that bound"))
    if practice.sampler_persists and mechanism.sampling.kind != "all":
        reason = "a sampler that goes on across rounds gives no amplification by sampling"
        made.append(
            PrivacyWarning("sampler-persists", reason, 'Draw afresh every round, or account with sampling "all"')
        )
    if practice.state_persists and mechanism.confines_records:
        reason = "client state kept across rounds (momentum, batch norm) shows records that were not drawn"
        made.append(PrivacyWarning("state-persists", reason, 'Reset it every round, or account with sampling "all"'))
    return made
