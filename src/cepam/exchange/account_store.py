"""The account on disk: saved before each model is published, found again by the run or by the model.

A folder holds one JSON file an account, and `index.txt`: a line for each run and each published model, with the account
that it belongs to. Whoever starts from a model that was published goes on with its account, since the same records
paid for it. A model whose account is gone is an error where a budget is in force, and a warning otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, count
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepam.errors import CepamError
from cepam.exchange.account import Account
from cepam.files import append_line, write_atomically

if TYPE_CHECKING:
    from cepam.privacy import Ledger, Release

VERSION = 1
INDEX = "index.txt"
FORMAT = "cepam account"
OWN_LOG = getLogger("cepam").log


class AccountLost(CepamError):
    """An account that should be there cannot be read, or somebody else goes on with it."""


class RunAccount:
    """The account of one run: what earlier runs on the same model spent, and every round of this one.

    `strict` says that an account that is lost ends the run (a budget is in force). Nothing is published before `charge`
    has come back.
    Guarantee: a server that starts again goes on where it was (tests/exchange/test_account_store.py).
    """

    def __init__(self, folder: Path, account: Account, strict: bool, log: Callable[..., None] = OWN_LOG) -> None:
        from cepam.privacy import Ledger

        self._folder = Path(folder)
        self._account = account
        self._strict = strict
        self._log = log
        self._name = ""
        self._revision = 0
        self._noted: set[str] = set()
        self._cautioned: set[str] = set()
        self.ledger: Ledger = Ledger(identified=account.stable_nodes)
        self.asked: Counter[int] = Counter()
        self.clip: float | None = None

    @property
    def path(self) -> Path:
        """The account's file."""
        return self._folder / f"{self._name}.json"

    def epsilon(self, also: Release | None = None, limit: float = math.inf) -> float:
        """epsilon of all rounds so far, and of one more, at the account's delta; infinite where none can be given.

        A bound that is quick to find; where that is above `limit`, the figure itself: calibrated runs end at it.
        """
        from cepam.privacy import spent

        ledger = self.ledger if also is None else self.ledger.add(also)
        quick = spent(ledger, self._account.delta)
        return quick if quick <= limit else ledger.epsilon(self._account.delta)

    def observers(self) -> dict[str, float]:
        """epsilon of all rounds so far for each kind of observer, at the account's delta; nothing before the first."""
        return self.ledger.observers(self._account.delta) if self.ledger.releases else {}

    def sees_uploads(self) -> float:
        """epsilon of all rounds so far against whoever sees who uploads, where clients were drawn in secret."""
        return self.ledger.sees_uploads(self._account.delta) if self.ledger.releases else 0.0

    def resume(self, run: str, model: str) -> None:
        """Nothing; the account is the one of this run or of this model, as the disk has it now, or a new one."""
        if self._name:
            self._refresh()
            return
        index = self._index()
        for name in dict.fromkeys(index[key] for key in (_run_key(run), _model_key(model)) if key in index):
            self._load(name)
        if not self._name:
            self._name = self._free_name(run)
            self._save()
        known = f"goes on, epsilon so far {self.epsilon():.4g}" if self.ledger.releases else "is new"
        self._log(INFO, "cepam: the account %s %s", self.path, known)
        self._note(_run_key(run))

    def charge(self, release: Release, model: str | None, asked: Iterable[int] = (), clip: float | None = None) -> None:
        """Nothing; the round is on the account, on disk, and `model` may be published.

        `asked` are nodes whose rounds are counted, where they may take part so often and no more. `clip` is the next
        round's, where it follows what was published.
        """
        self._refresh(strict=True)
        self.ledger = self.ledger.add(release)
        self.asked.update(asked)
        self.clip = self.clip if clip is None else clip
        self._save()
        if model is not None:
            self.note_model(model)

    def note_model(self, model: str) -> None:
        """Nothing; a run that starts from this model will find this account."""
        self._note(_model_key(model))

    def cautions(self, release: Release) -> list[str]:
        """What must be said beside the figure after this round, and was not said before."""
        from cepam.privacy import LARGE_EPSILON, cautions

        epsilon = self.epsilon()
        if self._cautioned and (epsilon <= LARGE_EPSILON or "no-guarantee" in self._cautioned):
            return []
        made = [c for c in cautions(release, epsilon, self._account.delta) if c.code not in self._cautioned]
        self._cautioned |= {"looked", *(caution.code for caution in made)}
        return [str(caution) for caution in made]

    def _save(self) -> None:
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "revision": self._revision + 1}
        content["ledger"] = self.ledger.state_dict()
        content["asked"] = {str(node): times for node, times in sorted(self.asked.items())}
        content["clip"] = self.clip
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(content).encode())
        self._revision += 1

    def _load(self, name: str) -> None:
        """Nothing; the account of this name is on this one, which takes its name if it has none."""
        path = self._folder / f"{name}.json"
        try:
            revision, saved, asked, clip = self._read(path)
        except (OSError, ValueError) as lost:
            self._lost(f"this model was published before, and its account {path} cannot be read: {lost}")
            return
        for release in saved.releases:
            self.ledger = self.ledger.add(release)
        self.asked.update(asked)
        self.clip = self.clip if clip is None else clip
        if not self._name:
            self._name, self._revision = name, revision

    def _refresh(self, strict: bool = False) -> None:
        """Nothing; what another strategy of this run has added is on the account. `strict`: nobody may have."""
        try:
            revision, saved, asked, clip = self._read(self.path)
        except (OSError, ValueError) as lost:
            raise AccountLost(f"the account {self.path} can no longer be read: {lost}") from lost
        if revision == self._revision:
            return
        if strict:
            raise AccountLost(f"the account {self.path} was changed by somebody else during this round")
        self.ledger, self.asked, self.clip, self._revision = saved, asked, clip, revision

    def _read(self, path: Path) -> tuple[int, Ledger, Counter[int], float | None]:
        """Revision, ledger, who was asked, and the clip in a file; ValueError if of another version or damaged."""
        from cepam.privacy import Ledger

        read = json.loads(path.read_text())
        if not isinstance(read, dict) or read.get("format") != FORMAT or read.get("version") != VERSION:
            raise ValueError(f"not an account of version {VERSION}")
        # Who is followed by name is asked for afterwards: the rounds are the same.
        state = {**read["ledger"], "identified": self._account.stable_nodes}
        asked = Counter({int(node): int(times) for node, times in read.get("asked", {}).items()})
        ledger = Ledger(identified=self._account.stable_nodes).load_state_dict(state)
        clip = read.get("clip")
        return int(read["revision"]), ledger, asked, None if clip is None else float(clip)

    def _lost(self, reason: str) -> None:
        if self._strict:
            raise AccountLost(f"{reason}; with a budget in force nothing more is published")
        self._log(WARNING, "cepam: %s; epsilon is counted from here only and is too small", reason)

    def _index(self) -> dict[str, str]:
        try:
            lines = (self._folder / INDEX).read_text().splitlines()
        except FileNotFoundError:
            return {}
        return dict(line.rsplit(" ", 1) for line in lines if " " in line)

    def _note(self, key: str) -> None:
        """Nothing; the index leads from this run or model to the account."""
        if key not in self._noted:
            self._folder.mkdir(parents=True, exist_ok=True)
            append_line(self._folder / INDEX, f"{key} {self._name}")
            self._noted.add(key)

    def _free_name(self, run: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9-]", "-", run)
        names = (f"run-{plain}{more}" for more in chain([""], (f"-{number}" for number in count(2))))
        return next(name for name in names if not (self._folder / f"{name}.json").exists())


def _run_key(run: str) -> str:
    return f"run {run}"


def _model_key(model: str) -> str:
    return f"model {model}"
