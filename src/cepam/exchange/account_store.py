"""The account on disk: saved before each model is published, found again by the run or by the model.

A folder holds one JSON file an account, and `index.txt`: a line for each run and each published model, with the account
that it belongs to. Whoever starts from a model that was published goes on with its account, since the same records
paid for it. A model whose account is gone is an error where a budget is in force, and a warning otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain, count
from logging import INFO, WARNING, getLogger
from pathlib import Path

from cepam.errors import CepamError
from cepam.exchange.account import Account, Spending, UsedReplies
from cepam.files import append_line, write_atomically

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
        self._folder = Path(folder)
        self._strict = strict
        self._log = log
        self._name = ""
        self._revision = 0
        self._noted: set[str] = set()
        self._cautioned: set[str] = set()
        self.spending = Spending(account)

    @property
    def path(self) -> Path:
        """The account's file."""
        return self._folder / f"{self._name}.json"

    def resume(self, run: str, model: str) -> None:
        """Nothing; the account is the one of this run or of this model, as the disk has it now, or a new one."""
        if self._name:
            self._refresh()
            return
        index = self._index()
        names = list(dict.fromkeys(index[key] for key in (_run_key(run), _model_key(model)) if key in index))
        for name in names:
            self._load(name)
        if not self._name:
            self._name = self._free_name(run)
            self._save()
        known = f"goes on, epsilon so far {self.spending.epsilon():.4g}" if self.spending.rounds else "is new"
        self._log(INFO, "cepam: the account %s %s", self.path, known)
        self._note(_run_key(run))

    def charge(self, used: UsedReplies, model: str | None) -> None:
        """Nothing; the round is on the account, on disk, and `model` may be published."""
        self._refresh(strict=True)
        self.spending.add(used)
        self._save()
        if model is not None:
            self.note_model(model)

    def note_model(self, model: str) -> None:
        """Nothing; a run that starts from this model will find this account."""
        self._note(_model_key(model))

    def cautions(self, used: UsedReplies) -> list[str]:
        """What must be said beside the figure after this round, and was not said before."""
        from cepam.privacy import LARGE_EPSILON, cautions

        epsilon, delta = self.spending.epsilon(), self.spending.account.delta
        if self._cautioned and (epsilon <= LARGE_EPSILON or "no-guarantee" in self._cautioned):
            return []
        made = [each for each in cautions(used.release()[0], epsilon, delta) if each.code not in self._cautioned]
        self._cautioned |= {"looked", *(each.code for each in made)}
        return [str(each) for each in made]

    def _save(self) -> None:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "revision": self._revision + 1,
            "rounds": self.spending.to_json(),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(content).encode())
        self._revision += 1

    def _load(self, name: str) -> None:
        """Nothing; the account of this name is on this one, which takes its name if it has none."""
        path = self._folder / f"{name}.json"
        try:
            revision, rounds = _read(path)
            self.spending.add_json(rounds)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as lost:
            self._lost(f"this model was published before, and its account {path} cannot be read: {lost}")
            return
        if not self._name:
            self._name, self._revision = name, revision

    def _refresh(self, strict: bool = False) -> None:
        """Nothing; what another strategy of this run has added is on the account. `strict`: nobody may have."""
        try:
            revision, rounds = _read(self.path)
        except (OSError, ValueError, KeyError) as lost:
            raise AccountLost(f"the account {self.path} can no longer be read: {lost}") from lost
        if revision == self._revision:
            return
        if strict:
            raise AccountLost(f"the account {self.path} was changed by somebody else during this round")
        self.spending.rounds.clear()
        self.spending.add_json(rounds)
        self._revision = revision

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


def _read(path: Path) -> tuple[int, list[dict[str, object]]]:
    read = json.loads(path.read_text())
    if read["format"] != FORMAT or read["version"] != VERSION:
        raise ValueError(f"not an account of version {VERSION}")
    return int(read["revision"]), list(read["rounds"])


def _run_key(run: str) -> str:
    return f"run {run}"


def _model_key(model: str) -> str:
    return f"model {model}"
