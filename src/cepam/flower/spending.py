"""What a run may spend and has spent: its account on disk, its budget, and the policy on replies that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.supercore.utils import get_flwr_home

from cepam.exchange.account import Account, Reply
from cepam.exchange.account_store import RunAccount

if TYPE_CHECKING:
    from cepam.privacy import Release

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


class Spending:
    """The account of a run. A round with fewer than `least_replies` is not published; `exhausted` once none may be.

    `average` says that nothing but the average of the replies is published, so that the noise of all counts.
    """

    def __init__(
        self, account: Account, average: bool, least_replies: int, budget: float | None, folder: str | Path | None
    ) -> None:
        if isinstance(least_replies, bool) or not isinstance(least_replies, int) or least_replies < 1:
            raise ValueError(f"least_replies must be at least 1, got {least_replies!r}")
        if budget is not None and not budget > 0:
            raise ValueError(f"budget must be a positive epsilon, got {budget!r}")
        self.account, self.average, self.least_replies, self.budget = account, average, least_replies, budget
        self.exhausted = False
        where = Path(folder) if folder is not None else get_flwr_home() / "cepam"
        self._kept = RunAccount(where, account, strict=budget is not None, log=log)

    @property
    def epsilon(self) -> float:
        """epsilon of everything published so far, at the account's delta."""
        return self._kept.epsilon()

    def resume(self, run: str, model: str) -> bool:
        """Whether the account of this run, found again on disk, leaves anything to spend."""
        self._kept.resume(run, model)
        if self.budget is not None and self.epsilon >= self.budget:
            self.exhausted = True
            log(WARNING, "cepam: epsilon %.4g was spent before, of %.4g: nothing is trained", self.epsilon, self.budget)
        return not self.exhausted

    def release_of(self, replies: Sequence[Reply], coordinates: int) -> Release | None:
        """The round as the accountant sees it, or None where it must not be published."""
        if len(replies) < self.least_replies:
            log(
                WARNING,
                "cepam: %d good replies, %d needed: nothing is published this round, nothing is charged",
                len(replies),
                self.least_replies,
            )
            return None
        return self.within_budget(self.account.release(replies, self.average, coordinates))

    def within_budget(self, release: Release) -> Release | None:
        """The release, or None where it would bring epsilon above the budget: then the training ends."""
        after = self._kept.epsilon(release) if self.budget is not None else 0.0
        if self.budget is None or after <= self.budget:
            return release
        self.exhausted = True
        log(WARNING, "cepam: this round would bring epsilon to %.4g, above %.4g: training ends", after, self.budget)
        return None

    def charge(self, release: Release, model: str) -> None:
        """Nothing; the round is on the account and on disk, and `model` may be published."""
        self._kept.charge(release, model)
        for caution in self._kept.cautions(release):
            log(WARNING, "cepam: %s", caution)

    def summarise(self) -> None:
        """Logs how epsilon is counted."""
        noise = "all replies" if self.average else "each reply by itself (more than the average may be published)"
        log(INFO, "\t│\t├── noise counted: %s; delta %g", noise, self.account.delta)
