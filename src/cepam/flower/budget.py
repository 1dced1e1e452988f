"""What a run of Flower spends: the account on disk, the budget, and when training ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from logging import WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.supercore.utils import get_flwr_home

from cepam.protocol.accounting import Accounting, Target
from cepam.protocol.saved_account import RunAccount

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


class Budget:
    """The account of a run under its budget (None: none); once it would be exceeded, `exhausted` stays true."""

    def __init__(self, account: RunAccount, budget: float | None) -> None:
        self._account = account
        self.limit = budget
        self.exhausted = False

    @property
    def epsilon(self) -> float:
        """epsilon of everything published so far."""
        return self._account.epsilon(limit=math.inf if self.limit is None else self.limit)

    @property
    def participations(self) -> Mapping[int, int]:
        """How often each node was sampled, where that is limited."""
        return self._account.participations

    def observers(self) -> dict[str, float]:
        """epsilon of everything published so far, for each kind of observer."""
        return self._account.observers()

    @property
    def sees_participation(self) -> float:
        """epsilon of everything published so far against an adversary who sees participation."""
        return self._account.sees_uploads()

    def resume(self, run: str, model: str) -> bool:
        """Whether the account of this run, found again on disk, leaves anything to spend."""
        self._account.resume(run, model)
        spent = self.epsilon
        if self.limit is not None and spent >= self.limit:
            self.exhausted = True
            log(WARNING, "cepam: the budget is spent: epsilon %.4g of %.4g; nothing is trained", spent, self.limit)
        return not self.exhausted

    def allows(self, mechanism: Mechanism) -> bool:
        """Whether the budget has room for this round; if not, training ends here."""
        after = self._account.epsilon(mechanism, self.limit) if self.limit is not None else 0.0
        if self.limit is not None and after > self.limit:
            self.exhausted = True
            log(
                WARNING,
                "cepam: the budget is spent: a round more would bring epsilon to %.4g, above %.4g; training ends with "
                "the model that was published last",
                after,
                self.limit,
            )
        return not self.exhausted

    def charge(
        self, mechanism: Mechanism, model: str | None, sampled: Iterable[int] = (), clip: float | None = None
    ) -> None:
        """Charge the round, on disk, so that `model` may be published; the rounds of `sampled` nodes are counted.

        `clip` is the next round's, where it follows the norms.
        """
        self._account.charge(mechanism, model, sampled, clip)
        for warning in self._account.privacy_warnings(mechanism):
            log(WARNING, "cepam: %s", warning)

    @property
    def clip(self) -> float | None:
        """The clip that followed from what was published last, where it follows the norms."""
        return self._account.clip

    @property
    def accountant(self) -> Accountant:
        """Everything that is on the account."""
        return self._account.accountant

    def has_published(self, model: str) -> bool:
        """Whether this model was published from the account's folder."""
        return self._account.has_published(model)

    def note_model(self, model: str) -> None:
        """Note a model, so that a run that starts from it will find this account."""
        self._account.note_model(model)


def budget_of(accounting: Accounting, target: Target | None) -> Budget:
    """The budget and account of a run; with a budget, an account that is lost ends the run."""
    limit = target.epsilon if accounting.budget is None and target is not None else accounting.budget
    where = Path(accounting.folder) if accounting.folder is not None else get_flwr_home() / "cepam"
    return Budget(RunAccount(where, accounting, strict=limit is not None, log=log), limit)
