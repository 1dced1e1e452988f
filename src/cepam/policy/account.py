"""A node's own account: what each answer costs, in a file of its own, written before anything is sent."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from cepam._internal.files import locked_file, settle, write_atomically
from cepam.distributions.laws import PRIVATE_LAWS
from cepam.errors import CepamError

if TYPE_CHECKING:
    from cepam.privacy import Accountant

Trust = Literal["server", "secure-aggregation"]
MOST_CHARGES = 1 << 12
MOST_COUNT = 2**63 - 1
DELTA_SHARE = 0.97
"""What the rounding of the noise leaves of delta; both have shares of their own, which no answer can move."""
SLACK_SHARE = 2e-4
LARGEST_SLACK = 0.01
RECORDS = 1 << 20  # the accountant asks for a number of records; a record's probability alone matters


@dataclass(frozen=True)
class RoundCharge:
    """What answers of one kind cost a node.

    Args:
        trust: The mode that was answered.
        noise_scale: Standard deviation of Gaussian noise, or b of Laplace noise. Of correlated noise that of a
            single message that costs as much as all of them.
        clipping_norm: Clipping norm of an update, or with `divisor` of each example's gradient.
        coordinates: Length of an update.
        shares: Nodes whose noise hides this one, itself included.
        divisor: The number that divides a sum of clipped examples; 0: whole updates are clipped.
        record_sampling_rate: Probability that a round looks at a given record.
        law: Kind of noise.
        norm_type: Norm that is clipped.
        rounds: Messages that left.
        releases: What they cost: as many releases, or one for all messages with correlated noise.

    Raises:
        ValueError: A value is out of range.
    """

    trust: Trust
    noise_scale: float
    clipping_norm: float
    coordinates: int
    shares: int = 1
    divisor: float = 0.0
    record_sampling_rate: float = 1.0
    law: Literal["gaussian", "laplace"] = "gaussian"
    norm_type: Literal["l2", "l1"] = "l2"
    rounds: int = 1
    releases: int = 1

    def __post_init__(self) -> None:
        _check_choice("trust", self.trust, get_args(Trust))
        _check_choice("law", self.law, tuple(PRIVATE_LAWS))
        _check_choice("norm_type", self.norm_type, ("l2", "l1"))
        least = {"coordinates": 1, "shares": 1, "rounds": 1, "releases": 0}
        for name, at_least in least.items():
            check_count(name, getattr(self, name), at_least)
        for name in ("noise_scale", "clipping_norm", "divisor", "record_sampling_rate"):
            value = getattr(self, name)
            if type(value) is not float or not 0.0 <= value < math.inf or (not value and name != "divisor"):
                raise ValueError(f"{name} must be a positive finite number, got {value!r}")
        if self.record_sampling_rate > 1.0:
            raise ValueError(f"record_sampling_rate must lie in (0, 1], got {self.record_sampling_rate!r}")
        if self.divisor and (self.law != "gaussian" or self.norm_type != "l2"):
            raise ValueError("examples are clipped one by one with Gaussian noise and an l2 norm alone")

    def to_fields(self) -> dict[str, Any]:
        """The charge as plain values.

        Returns:
            Values by name.
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_fields(cls, read: object) -> RoundCharge:
        """The charge of these values; ValueError for anything else.

        Args:
            read: What `to_fields` gave.

        Returns:
            The charge.

        Raises:
            ValueError: Other fields, or values out of range.
        """
        if not isinstance(read, Mapping) or set(read) != {field.name for field in fields(cls)}:
            raise ValueError("a charge has other fields than this version writes")
        return cls(**read)


@dataclass(frozen=True)
class AnsweredRounds:
    """All that a node has answered, in any run and any mode: it only grows.

    Args:
        charges: What each kind of answer cost, and how often it was given.
    """

    charges: tuple[RoundCharge, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds in all."""
        return sum(charge.rounds for charge in self.charges)

    def add(self, charge: RoundCharge) -> AnsweredRounds:
        """These and one more answer; equal ones are counted, not listed.

        Args:
            charge: What one more answer costs.

        Returns:
            New rounds; these do not change.
        """
        for place, known in enumerate(self.charges):
            if replace(known, rounds=1, releases=1) == replace(charge, rounds=1, releases=1):
                longer = replace(known, rounds=known.rounds + charge.rounds, releases=known.releases + charge.releases)
                return AnsweredRounds((*self.charges[:place], longer, *self.charges[place + 1 :]))
        return AnsweredRounds((*self.charges, charge))

    def accountant(self) -> Accountant:
        """What the node has answered, as the privacy accountant takes it; the node itself is its client 0.

        A charge of secure aggregation is against a server that lies about drop-outs. One for a trusted server is
        against everybody who does not hold the keys, whatever else is published of the decoded vectors.

        Returns:
            An accountant.
        """
        from cepam.privacy import Accountant

        accountant = Accountant()
        for charge in self.charges:
            if charge.releases:
                accountant = accountant.add(_mechanism(charge))
        return accountant

    def epsilon(self, delta: float, order: float | None = None, limit: float = 0.0) -> float:
        """Return epsilon for one record by the node's own account, however offers depend on earlier answers.

        It is a privacy filter's (docs/proofs/node-policy.md): a limit on it holds although the server
        chooses noise, clip and law of each round by what the rounds before it released.

        Args:
            delta: the delta of that epsilon.
            order: the Rényi order, fixed before the first answer; None counts no record sampling, and is tighter
                without any.
            limit: the epsilon that the figure is compared with.

        Returns:
            epsilon; 0 where nothing was answered, infinite where the noise's rounding has no share of `delta` left.
        """
        from cepam.privacy.composition.filters import PrivacyFilter

        accountant = self.accountant()
        if not accountant.mechanisms:
            return 0.0
        ideal = PrivacyFilter(order).epsilon(accountant.charges(0), DELTA_SHARE * delta)
        slack = accountant.slack()
        if slack is None:
            return ideal
        found = max(ideal * (1.0 + SLACK_SHARE), slack.epsilon * (1.0 + 1.0 / SLACK_SHARE))
        fits = slack.epsilon <= LARGEST_SLACK and slack.excess(max(found, limit), delta) is None
        return found if fits else math.inf


def _mechanism(charge: RoundCharge) -> Any:
    from cepam.clip import CLIPS
    from cepam.privacy import Client, Mechanism, Sampling

    law = PRIVATE_LAWS[charge.law](charge.noise_scale)
    drawn = charge.record_sampling_rate * RECORDS
    # The accountant divides an example's bound by the expected draws; the update was divided by the divisor.
    bound = charge.clipping_norm * drawn / charge.divisor if charge.divisor else charge.clipping_norm
    return Mechanism(
        # Which coder a round had is not on record: the one whose arithmetic costs the most is charged.
        (Client(law, RECORDS, searched=charge.law == "gaussian"),) * charge.shares,
        CLIPS[charge.norm_type](bound),
        Sampling("poisson", drawn) if charge.record_sampling_rate < 1.0 else Sampling("all"),
        charge.releases,
        clipped="example" if charge.divisor else "update",
        coordinates=charge.coordinates,
        nodes=tuple(range(charge.shares)),
    )


def check_count(name: str, value: object, least: int, most: int = MOST_COUNT) -> None:
    """Raise ValueError for what is no integer within these bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, got {value!r}")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


# The file counts every run and every mode. A missing account is never an empty one: the operator opens it once
# (`cepam policy open`), and a node whose account is gone, damaged or older than its mark answers nothing.
#
# It also holds where the node stands in runs of secure aggregation, so that both move in one step. The secrets of
# such a run stay with whoever drives the node (a framework's context, in memory); the account knows their digest.
# Secrets that are older than the account, after a fault, a rollback or a second copy, are refused: they would answer
# twice.


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
    """Where a node stands in one run of secure aggregation.

    Args:
        run: Id of the run.
        epoch: The last epoch that it took part in.
        state: Digest of its state.

    Raises:
        ValueError: A value has another length or is out of range.
    """

    run: bytes
    epoch: int
    state: bytes

    def __post_init__(self) -> None:
        if len(self.run) > LONGEST_RUN or len(self.state) != DIGEST_BYTES:
            raise ValueError(f"a place has a run of at most {LONGEST_RUN} bytes and a digest of {DIGEST_BYTES}")
        check_count("epoch", self.epoch, 0, 2**64 - 1)


@dataclass(frozen=True)
class NodeAccount:
    """What a node has answered in any run and mode, and where it stands in runs of secure aggregation.

    Args:
        places: Where it stands, one entry per run.
        answered: What it has answered.
        revision: How often the account was written. One that is older than the node remembers was restored.
    """

    places: tuple[RunPlace, ...] = ()
    answered: AnsweredRounds = field(default_factory=AnsweredRounds)
    revision: int = 0

    def place(self, run: bytes) -> RunPlace | None:
        """Where the node stands in this run; None where it never was, or too many runs ago.

        Args:
            run: Id of the run.

        Returns:
            The place or None.
        """
        return next((place for place in self.places if place.run == run), None)

    def moved(self, place: RunPlace) -> NodeAccount:
        """The account with the node at another place of a run. The oldest of too many runs is forgotten: it must say
        hello again, with new keys.

        Args:
            place: The new place.

        Returns:
            A new account.
        """
        others = tuple(known for known in self.places if known.run != place.run)
        return replace(self, places=(*others, place)[-MOST_RUNS:])

    def encode(self) -> bytes:
        """The account as JSON, with a checksum.

        Returns:
            The bytes of the file.
        """
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
        """The account that these bytes are; a damaged one raises `AccountUnusable`.

        Args:
            data: What `encode` gave.

        Returns:
            The account.

        Raises:
            AccountUnusable: The bytes are no sound account.
        """
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
    """Where a node keeps its account.

    `FileAccount` keeps it on disk; `MemoryAccount` is for simulation.
    """

    def hold(self) -> AbstractContextManager[NodeAccount]:
        """The account as it was last written; nobody else reads or writes until the block ends.

        Returns:
            A context manager that gives the account.
        """

    def commit(self, account: NodeAccount) -> None:
        """Make this the account, whatever happens next. Call it inside `hold`.

        Args:
            account: What `hold` gave, with one more answer.
        """


class FileAccount:
    """An account in a file: it survives the process and the machine, and is locked against others.

    Beside it lie `<name>.lock` and `<name>.mark`; the mark has the last revision, so that an account that was put back
    from a backup by itself is refused. Move the three together, and restore none of them.
    Guarantee: two processes never spend the same part of a limit, a kill at any moment loses no charge
    (tests/policy/test_account.py, tests/attacks/test_node_policy.py).

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path) -> FileAccount:
        """Open an empty account, once: the operator's act before a node's first start.

        Raises:
            FileExistsError: an account, or what is left of one, is there.

        Args:
            path: The file.

        Returns:
            The account.
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
        """Lock the account and read it; nobody else reads or writes until the block ends.

        Returns:
            A context manager that gives the account.

        Raises:
            AccountUnusable: The account is missing, damaged, restored from a backup, or cannot be locked.
        """
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
        """Make this the account on disk, whatever happens next. Call it inside `hold`.

        Args:
            account: What `hold` gave, with one more answer.

        Guarantee: the answer is on the disk when this returns (tests/policy/test_account.py).
        """
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
        """Lock the account and read it; no other thread does until the block ends.

        Returns:
            A context manager that gives the account.
        """
        with self._lock:
            yield self._account

    def commit(self, account: NodeAccount) -> None:
        """Make this the account. Call it inside `hold`.

        Args:
            account: What `hold` gave, with one more answer.
        """
        self._account = replace(account, revision=account.revision + 1)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of an account")
