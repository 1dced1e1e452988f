"""A node's own account: all that it has answered, in a file of its own, written before anything is sent.

The file counts every run and every mode. A missing account is never an empty one: the operator opens it once
(`cepam policy open`), and a node whose account is gone, damaged or older than its mark answers nothing.

It also holds where the node stands in runs of secure aggregation, so that both move in one step. The secrets of such a
run stay with whoever drives the node (a framework's context, in memory); the account knows their digest. Secrets that
are older than the account, after a fault, a rollback or a second copy, are refused: they would answer twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from cepam._internal.files import locked_file, settle, write_atomically
from cepam.errors import CepamError
from cepam.policy.charges import MOST_CHARGES, MOST_COUNT, AnsweredRounds, RoundCharge, check_count

FORMAT = "cepam node account"
VERSION = 1
DIGEST_BYTES = 32
LONGEST_RUN = 64
LARGEST_FILE = 1 << 24
MOST_RUNS = 64


class AccountUnusable(CepamError):
    """The node's account is missing, damaged, restored from a backup, or cannot be locked: nothing may be answered."""


@dataclass(frozen=True)
class RunPlace:
    """Where a node stands in one run of secure aggregation: its last epoch, and the digest of its state."""

    run: bytes
    epoch: int
    state: bytes

    def __post_init__(self) -> None:
        if len(self.run) > LONGEST_RUN or len(self.state) != DIGEST_BYTES:
            raise ValueError(f"a place has a run of at most {LONGEST_RUN} bytes and a digest of {DIGEST_BYTES}")
        check_count("epoch", self.epoch, 0, 2**64 - 1)


@dataclass(frozen=True)
class NodeAccount:
    """All that a node has answered in any run and mode, and where it stands in the runs of secure aggregation.

    `revision` counts how often the account was written: one that is older than the node remembers was restored.
    """

    places: tuple[RunPlace, ...] = ()
    answered: AnsweredRounds = field(default_factory=AnsweredRounds)
    revision: int = 0

    def place(self, run: bytes) -> RunPlace | None:
        """Where the node stands in this run; None where it never was, or too many runs ago."""
        return next((place for place in self.places if place.run == run), None)

    def moved(self, place: RunPlace) -> NodeAccount:
        """The account with the node at another place of a run. The oldest of too many runs is forgotten: it must say
        hello again, with new keys."""
        others = tuple(known for known in self.places if known.run != place.run)
        return replace(self, places=(*others, place)[-MOST_RUNS:])

    def encode(self) -> bytes:
        """The account as JSON, with a checksum."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "revision": self.revision,
            "charges": [charge.to_fields() for charge in self.answered.charges],
            "places": [[place.run.hex(), place.epoch, place.state.hex()] for place in self.places],
        }
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> NodeAccount:
        """The account that these bytes are; a damaged one raises `AccountUnusable`."""
        try:
            if len(data) > LARGEST_FILE:
                raise ValueError(f"it is larger than {LARGEST_FILE} bytes")
            content = json.loads(data, parse_constant=_no_constant)
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise ValueError(f"it is not a {FORMAT}")
            if content.get("version") != VERSION:
                raise ValueError(f"it is of version {content.get('version')!r}, this package reads {VERSION}")
            if content.pop("checksum", None) != _checksum(content):
                raise ValueError("its checksum is wrong")
            return cls._of(content)
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as damaged:
            raise AccountUnusable(f"this is no sound account of a node: {str(damaged)[:200]}") from damaged

    @classmethod
    def _of(cls, content: dict[str, Any]) -> NodeAccount:
        charges, places, revision = content["charges"], content["places"], content["revision"]
        check_count("revision", revision, 0)
        for name, listed, most in (("charges", charges, MOST_CHARGES), ("places", places, MOST_RUNS)):
            if not isinstance(listed, list) or len(listed) > most:
                raise ValueError(f"{name} must be a list of at most {most}")
        answered = AnsweredRounds(tuple(RoundCharge.from_fields(charge) for charge in charges))
        check_count("rounds", answered.rounds, 0, MOST_COUNT)
        stands = tuple(RunPlace(bytes.fromhex(run), epoch, bytes.fromhex(state)) for run, epoch, state in places)
        return cls(stands, answered, revision)


class AccountStore(Protocol):
    """Where a node keeps its account."""

    def hold(self) -> AbstractContextManager[NodeAccount]:
        """The account as it was last written; nobody else reads or writes until the block ends."""

    def commit(self, account: NodeAccount) -> None:
        """Make this the account, whatever happens next. Call it inside `hold`."""


class FileAccount:
    """An account in a file: it survives the process and the machine, and is locked against others.

    Beside it lie `<name>.lock` and `<name>.mark`; the mark has the last revision, so that an account that was put back
    from a backup by itself is refused. Move the three together, and restore none of them.
    Guarantee: two processes never spend the same part of a limit, a kill at any moment loses no charge
    (tests/policy/test_account.py, tests/attacks/test_node_policy.py).
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path) -> FileAccount:
        """Open an empty account, once: the operator's act before a node's first start.

        Raises:
            FileExistsError: an account, or what is left of one, is there.
        """
        made = cls(path)
        with locked_file(made._beside("lock")):
            for known in (made.path, made._beside("mark")):
                if known.exists():
                    raise FileExistsError(f"{known} exists: an account is opened once, and only grows")
            made.commit(NodeAccount(revision=-1))
        return made

    @contextmanager
    def hold(self) -> Iterator[NodeAccount]:
        if not self.path.exists():
            raise AccountUnusable(
                f"there is no account at {self.path}: `cepam policy open {self.path}` opens one, once. If the node had "
                "one before, put that back: a new one would forget what was spent"
            )
        try:
            with locked_file(self._beside("lock")):
                yield self._read()
        except OSError as failed:
            raise AccountUnusable(f"the account {self.path} cannot be used: {failed}") from failed

    def commit(self, account: NodeAccount) -> None:
        revision = account.revision + 1
        write_atomically(self.path, replace(account, revision=revision).encode(), private=True)
        settle(self.path.parent)
        write_atomically(self._beside("mark"), f"{revision}\n".encode(), private=True)
        settle(self.path.parent)

    def _read(self) -> NodeAccount:
        account = NodeAccount.decode(self.path.read_bytes())
        try:
            mark = int(self._beside("mark").read_bytes()[:32])
        except (OSError, ValueError) as lost:
            raise AccountUnusable(f"{self._beside('mark')}, which goes with the account, cannot be read") from lost
        if account.revision < mark:
            raise AccountUnusable(
                f"{self.path} stands at revision {account.revision} and its mark at {mark}: it was restored from a "
                "backup, and what was answered since is missing"
            )
        return account

    def _beside(self, kind: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{kind}")


class MemoryAccount:
    """An account that dies with the process: FOR SIMULATION ONLY."""

    def __init__(self) -> None:
        self._account, self._lock = NodeAccount(), Lock()

    @contextmanager
    def hold(self) -> Iterator[NodeAccount]:
        with self._lock:
            yield self._account

    def commit(self, account: NodeAccount) -> None:
        self._account = replace(account, revision=account.revision + 1)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of an account")
