"""The bill of a run: what was released in which round, for the accountant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from cepam.fl.engine.clients import ClientPlan, draws_of, sampling_of
from cepam.fl.engine.settings import Settings
from cepam.privacy import Client, Ledger, Practice, Release, cautions, spent

MARKS = 16
Entries = tuple[tuple[tuple[int, ...], int], ...]


def release_of(settings: Settings, plans: Sequence[ClientPlan], size: int) -> Release | None:
    """One round of these clients as the accountant sees it, or None where some client adds no noise or clips nothing.

    Clients with clips of their own are charged under one clip: scaling a client's weight by its bound and its noise by
    the inverse keeps both its shift and its noise in the weighted sum.
    """
    if any(plan.law is None or plan.clip is None for plan in plans):
        return None
    if len({type(plan.law) for plan in plans}) > 1:
        return None
    clip = plans[0].clip
    assert clip is not None
    charged = []
    for plan in plans:
        assert plan.clip is not None
        assert plan.law is not None
        ratio = plan.clip.bound / clip.bound
        law = type(plan.law)(plan.law.scale / ratio)  # type: ignore[call-arg]
        charged.append(Client(law, plan.records, plan.weight * ratio, draws_of(settings, plan.batch)))
    clipped = "example" if settings.update == "examples" else "update"
    return Release(
        tuple(charged), clip, sampling_of(settings, plans[0].batch), 1, 0, settings.adjacency, clipped, size,  # type: ignore[arg-type]
    )  # fmt: skip


def least_noise(release: Release, client: int, replies: int, never: Collection[int] = ()) -> Release:
    """The round with so many replies that hides a client least: its own, and the quietest of the others."""
    others = [j for j in range(len(release.clients)) if j != client and j not in never]
    others.sort(key=lambda j: release.clients[j].noise)
    present = {client, *others[: replies - 1]}
    return release.without(set(range(len(release.clients))) - present)


@dataclass(frozen=True)
class Bill:
    """Rounds so far, counted by who was absent: fewer replies, less noise, and that is what is charged."""

    entries: Entries = ()

    def add(self, absent: frozenset[int]) -> Bill:
        """The bill with one more round."""
        key, known = tuple(sorted(absent)), dict(self.entries)
        return Bill(tuple(sorted({**known, key: known.get(key, 0) + 1}.items())))

    @property
    def rounds(self) -> int:
        """How many rounds are on the bill."""
        return sum(count for _, count in self.entries)

    def epsilon(self, release: Release | None, delta: float, rounds: int) -> float | None:
        """epsilon spent so far against an outsider, in a run of so many rounds.

        While everyone replies: a bound, exact at every MARKS-th of the run, and what the next mark will cost in
        between. With absent clients: exact at the marks, None in between. None also where there is no guarantee. At the
        end of the run: the figure that a target was held against.
        """
        if release is None:
            return None
        if self.rounds == rounds:
            return _exact(self.entries, release, delta)
        apart = -(-rounds // MARKS)
        if all(not absent for absent, _ in self.entries):
            mark = min(rounds, -(-self.rounds // apart) * apart)
            return (_exact if mark == rounds else _spent)((((), mark),), release, delta)
        return _spent(self.entries, release, delta) if self.rounds % apart == 0 else None


@lru_cache(maxsize=256)
def _spent(entries: Entries, release: Release, delta: float) -> float:
    return float(spent(Ledger(_releases(entries, release)), delta))


def colluding(release: Release, bill: Bill, delta: float) -> dict[str, float]:
    """epsilon of what is on the bill against an outsider, one curious client, and all clients but one together."""
    most = len(release.clients) - 1
    views = {"outsider": 0, "one curious client": min(1, most), f"{most} colluders": most}
    return {who: _exact(bill.entries, replace(release, colluders=count), delta) for who, count in views.items()}


def foresee(release: Release, delta: float, rounds: int) -> None:
    """Nothing; what a run in which everyone replies will ask for is computed now and found when it is asked.

    What the accountant refuses is left for the run itself to report.
    """
    apart = -(-rounds // MARKS)
    with suppress(ValueError):
        for mark in range(apart, rounds, apart):
            _spent((((), mark),), release, delta)
        colluding(release, Bill((((), rounds),)), delta)


@lru_cache(maxsize=256)
def _exact(entries: Entries, release: Release, delta: float) -> float:
    ledger = Ledger(_releases(entries, release))
    return float(ledger.epsilon(delta))


def _releases(entries: Entries, release: Release) -> tuple[Release, ...]:
    """The rounds of a bill for the accountant; a round in which nobody replied released nothing."""
    everyone = len(release.clients)
    return tuple(release.without(absent).over(count) for absent, count in entries if len(absent) < everyone)


def warnings_of(settings: Settings, release: Release | None, tensors: int) -> list[str]:
    """What must be said beside the figures of the whole run, in one line each."""
    if release is None:
        return [f"scheme {settings.scheme} with clip {settings.clip_norm}: no differential privacy"]
    run = release.over(settings.rounds)
    whole = _exact((((), settings.rounds),), release, settings.delta)
    practice = Practice(rounds=settings.rounds, tensors=tensors if settings.clip_scope == "tensor" else 1)
    return [str(each) for each in cautions(run, whole, settings.delta, practice)]
