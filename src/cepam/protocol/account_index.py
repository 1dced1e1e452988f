"""The index of a folder of accounts: a line for each time that an account was written, appended and never changed.

    model 2c26b46b68ffc68ff99b453c1d304134 run-77 3 9f86d081884c7d659a2feaa0c55ad015

says that revision 3 of the account `run-77` has this checksum, and that this model was published with it. Other lines
name the run (`run`) or the model that a run started from (`start`). So an account that was lost, edited or restored
from a backup contradicts the index. A line that was cut by a crash is dropped: the account itself can say it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cepam._internal.files import locked_file, settle

INDEX = "index.txt"
_LINE = re.compile(r"((?:run|start|model) .+) (\S+) ([0-9]{1,15}) ([0-9a-f]{32})")


@dataclass(frozen=True)
class State:
    """A revision of an account and its checksum; before the first one: 0 and nothing."""

    revision: int = 0
    checksum: str = ""


class AccountIndex:
    """The index, open and locked: nobody else reads or writes it meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
        self.states: dict[str, State] = {}
        self.unreadable: list[str] = []
        self._accounts: dict[str, list[str]] = {}
        for line in content[:whole].decode(errors="replace").split("\n")[:-1]:
            self._take(line)

    def accounts(self, key: str) -> list[str]:
        """The accounts that belong to this run, start or model, the latest first."""
        return list(dict.fromkeys(reversed(self._accounts.get(key, []))))

    def append(self, account: str, state: State, key: str) -> None:
        """Append the line to the index, on the disk."""
        line = written_line(account, state, key)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._take(line)

    def _take(self, line: str) -> None:
        read = _LINE.fullmatch(line)
        if read is None:
            self.unreadable.append(line)
            return
        key, name, revision, checksum = read.groups()
        self.states[name] = State(int(revision), checksum)
        self._accounts.setdefault(key, []).append(name)


@contextmanager
def open_index(folder: Path) -> Iterator[AccountIndex]:
    """The folder's index, locked until the block ends; a new one where there is none."""
    is_new = not (folder / INDEX).exists()
    with locked_file(folder / INDEX) as file:
        if is_new:
            settle(folder)
        yield AccountIndex(file)


def written_line(account: str, state: State, key: str) -> str:
    """A line of the index."""
    return f"{key} {account} {state.revision} {state.checksum}"


def run_key(run: str) -> str:
    """How the index names a run."""
    return f"run {'-'.join(run.split())}"


def start_key(model: str) -> str:
    """How the index names a model that a run started from."""
    return f"start {model}"


def model_key(model: str) -> str:
    """How the index names a model that was published."""
    return f"model {model}"
