"""What a run of Flower spends: the account on disk, the budget, and when training ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from logging import WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.supercore.utils import get_flwr_home

from cepam.protocol.accounting import Accounting
from cepam.protocol.saved_account import RunAccount

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


class Budget:
    """The account of a run under its budget (None: none); once it would be exceeded, `exhausted` stays true."""

    def __init__(self, account: RunAccount, budget: float | None) -> None:
        self._account = account
        self._budget = budget
        self.exhausted = False

    @property
    def epsilon(self) -> float:
        """epsilon of everything published so far."""
        return self._account.epsilon(limit=math.inf if self._budget is None else self._budget)

    @property
    def asked(self) -> Mapping[int, int]:
        """How often each node was asked, where that is limited."""
        return self._account.asked

    def observers(self) -> dict[str, float]:
        """epsilon of everything published so far, for each kind of observer."""
        return self._account.observers()

    @property
    def sees_uploads(self) -> float:
        """epsilon of everything published so far against whoever sees who uploads."""
        return self._account.sees_uploads()

    def resume(self, run: str, model: str) -> bool:
        """Whether the account of this run, found again on disk, leaves anything to spend."""
        self._account.resume(run, model)
        spent = self.epsilon
        if self._budget is not None and spent >= self._budget:
            self.exhausted = True
            log(WARNING, "cepam: the budget is spent: epsilon %.4g of %.4g; nothing is trained", spent, self._budget)
        return not self.exhausted

    def allows(self, mechanism: Mechanism) -> bool:
        """Whether the budget has room for this round; if not, training ends here."""
        after = self._account.epsilon(mechanism, self._budget) if self._budget is not None else 0.0
        if self._budget is not None and after > self._budget:
            self.exhausted = True
            log(
                WARNING,
                "cepam: the budget is spent: a round more would bring epsilon to %.4g, above %.4g; training ends with "
                "the model that was published last",
                after,
                self._budget,
            )
        return not self.exhausted

    def charge(
        self, mechanism: Mechanism, model: str | None, asked: Iterable[int] = (), clip: float | None = None
    ) -> None:
        """Nothing; the round is on the account, on disk, and `model` may be published; `asked` are counted.

        `clip` is the next round's, where it follows the norms.
        """
        self._account.charge(mechanism, model, asked, clip)
        for caution in self._account.privacy_warnings(mechanism):
            log(WARNING, "cepam: %s", caution)

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
        """Nothing; a run that starts from this model will find this account."""
        self._account.note_model(model)


def account_in(folder: str | Path | None, account: Accounting, budget: float | None) -> RunAccount:
    """The account in this folder (None: `cepam` in Flower's home); with a budget, one that is lost ends the run."""
    where = Path(folder) if folder is not None else get_flwr_home() / "cepam"
    return RunAccount(where, account, strict=budget is not None, log=log)
