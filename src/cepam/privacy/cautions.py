"""Cautions: when a figure is right but worth little, or is not the figure of what was run.

Each has a reason in one line and what to do about it. They never change a figure.
"""

from __future__ import annotations

from dataclasses import dataclass

from cepam.privacy.account import delta_without_noise, epsilon, slack
from cepam.privacy.release import Release

LARGE_EPSILON = 10.0
VOID_EPSILON = 700.0
INSENSITIVE = 1.05


@dataclass(frozen=True)
class Caution:
    """One reason to distrust a figure: a short code, the reason in one line, and what to do."""

    code: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}. {self.remedy}."


@dataclass(frozen=True)
class Practice:
    """How the run was really done, where that differs from what the account assumes.

    `rounds` is the length of the run that the figure will be quoted for; `tensors` the number of tensors
    clipped one by one instead of as a whole; `sampler_persists`: a data loader that goes on across rounds;
    `state_persists`: momentum buffers, batch-norm statistics or the like that a client keeps from one round
    to the next; `called_pure`: an l2-clipped Laplace figure quoted as pure DP.
    """

    rounds: int | None = None
    tensors: int = 1
    sampler_persists: bool = False
    state_persists: bool = False
    called_pure: bool = False


AS_ACCOUNTED = Practice()


def cautions(release: Release, epsilon: float, delta: float, practice: Practice = AS_ACCOUNTED) -> tuple[Caution, ...]:
    """What should be said next to (epsilon, delta) for this release, the gravest first; often nothing.

    Adjacency, sampling, trust: as recorded. Rests on: docs/privacy.md; each one is triggered
    in tests/privacy/test_cautions.py.
    """
    return (
        *about_epsilon(epsilon),
        *_about_delta(release, epsilon, delta),
        *_about_draws(release),
        *_about_law(release, delta, practice),
        *_about_numerics(release, epsilon, delta),
        *_about_practice(release, practice),
    )


def about_epsilon(epsilon: float) -> list[Caution]:
    """What should be said next to an epsilon by itself, wherever one is printed; nothing up to `LARGE_EPSILON`."""
    if epsilon > VOID_EPSILON:
        reason = f"epsilon {epsilon:.4g} is no guarantee: it allows any odds to become certainty"
        return [Caution("no-guarantee", reason, "Calibrate the noise to a target under 10")]
    if epsilon > LARGE_EPSILON:
        reason = f"epsilon {epsilon:.4g} allows odds to change by a factor of e^{epsilon:.3g}"
        return [Caution("large-epsilon", reason, "Add noise, or run fewer rounds, until it is under 10")]
    return []


def _about_delta(release: Release, epsilon: float, delta: float) -> list[Caution]:
    made = []
    whole = release.unit == "client"
    records = release.enrolled if whole else min(client.records for client in release.clients)
    if delta >= 1.0 / records:
        what = "client's data" if whole else "record"
        reason = f"delta {delta:.3g} is at least 1/{records}: a {what} might be published outright"
        made.append(Caution("delta-over-1/n", reason, f"Choose delta well under {1.0 / records:.2g}"))
    free = delta_without_noise(release)
    if delta >= free:
        reason = f"delta {delta:.3g} is at or above {free:.3g}, which publishing with no noise at all gives"
        made.append(Caution("delta-is-free", reason, f"Choose delta under {free:.2g}; this figure says nothing"))
    if delta > 0 and _noise_does_nothing(release, epsilon, delta):
        reason = f"halving the noise changes delta at epsilon {epsilon:.3g} by less than 5 %"
        made.append(Caution("delta-insensitive", reason, "Choose a delta that the noise, not the sampling, pays for"))
    return made


def _noise_does_nothing(release: Release, at: float, delta: float) -> bool:
    """Whether half the noise would give nearly the same delta at the same epsilon."""
    if INSENSITIVE * delta >= delta_without_noise(release):
        return True
    halved = release.with_noise([client.law.scale / 2 for client in release.clients])
    return epsilon(halved, min(INSENSITIVE * delta, 0.999)) <= at


def _about_draws(release: Release) -> list[Caution]:
    """Draws are of a client's own records: more than it has, by many clients, are likely meant to be of clients."""
    if release.unit == "client" or release.sampling.kind != "replacement" or len(release.clients) < 2:
        return []
    place = min(range(len(release.clients)), key=lambda j: release.clients[j].records)
    records, draws = release.clients[place].records, release.sampling_of(place).draws
    if draws <= records or (records > 1 and draws < 10 * records):
        return []
    reason = f"each client draws {draws:g} times from its own {records} record(s), every round: no draw is secret"
    remedy = "For cohorts of whole clients say --unit client --cohort (privacy.CohortRelease)"
    return [Caution("draws-of-clients", reason, remedy)]


def _about_numerics(release: Release, epsilon: float, delta: float) -> list[Caution]:
    if (release.coordinates is None and not release.exceeded) or delta == 0.0:
        return []
    excess = slack(release).excess(epsilon, delta)
    return [] if excess is None else [Caution("numerics", *excess)]


def _about_law(release: Release, delta: float, practice: Practice) -> list[Caution]:
    if not release.l2_clipped_laplace or not (practice.called_pure or delta == 0.0):
        return []
    reason = "Laplace noise under l2 clipping is pure DP only at sqrt(m) times the l1 figure"
    return [Caution("l2-laplace", reason, "Clip in l1, or quote the zCDP figure with a delta")]


def _about_practice(release: Release, practice: Practice) -> list[Caution]:
    made = []
    if practice.rounds is not None and practice.rounds > release.rounds:
        reason = f"the figure is for {release.rounds} of {practice.rounds} rounds"
        made.append(Caution("not-the-whole-run", reason, f"Account for all {practice.rounds} rounds"))
    if practice.tensors > 1:
        reason = (
            f"{practice.tensors} tensors clipped one by one: the whole norm can reach "
            f"{practice.tensors**0.5:.3g} times the bound"
        )
        made.append(Caution("per-tensor-clip", reason, "Clip the whole vector, or account for that bound"))
    if practice.sampler_persists and release.sampling.kind != "all":
        reason = "a sampler that goes on across rounds gives no amplification by sampling"
        made.append(Caution("sampler-persists", reason, 'Draw afresh every round, or account with sampling "all"'))
    if practice.state_persists and release.confines_records:
        reason = "client state kept across rounds (momentum, batch norm) shows records that were not drawn"
        made.append(Caution("state-persists", reason, 'Reset it every round, or account with sampling "all"'))
    return made
