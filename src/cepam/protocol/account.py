"""The account of a deployment: how epsilon is counted, noise for a target, and what is kept on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from logging import INFO, WARNING, getLogger
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, get_args
from weakref import WeakValueDictionary, finalize

from cepam._internal.files import locked_file, settle, write_atomically
from cepam.clip import Clip, Unit
from cepam.distributions.laws import PRIVATE_LAWS, Gaussian, Law
from cepam.errors import CepamError
from cepam.protocol.settings import UplinkSettings

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Cohort, CohortMechanism, Mechanism, Sampling

Released = Literal["auto", "average", "vectors"]
Reply = tuple[int, UplinkSettings]


@dataclass(frozen=True)
class Accounting:
    """How epsilon is counted, what a run may spend, and where its account is kept.

    Epsilon is for everything that was published so far, at `delta`.

    Args:
        delta: The probability outside the epsilon bound, in (0, 1). Default 1e-5.
        unit: What one change of the data replaces: one `record` of a client (default), or all data of one `client`. A
            client needs whole clipped updates of all its records.
        records: How many records a client holds, a public constant. It matters with `record_sampling`. Default 1.
        record_sampling: How a client draws its records, afresh and in secret for every reply. Default: it uses all of
            them, which claims no amplification.
        adjacency: `replace` one unit by another (default), or `add-remove` one.
        colluders: How many other clients pool what they know, so that their noise does not count. Default 0.
        released: What the server publishes: the weighted `average`, whose noise is that of all replies, or anything
            else, for which only a client's own noise counts (`vectors`). `auto` (default) takes the average for the
            strategies of Flower that publish nothing else.
        clipped: What is clipped: the whole `update` (default), or each `example` by the ClientApp itself.
        stable_nodes: Charge each node for the rounds it took part in. Needs one authenticated key per client. By
            default every round is charged as its worst client paid it, since ids change when a SuperNode restarts. That
            is one client's own figure, unless clients of unlike `NodeSettings` draw records: then it is a bound above.
        stateful: Sampled clients remember the rounds they took part in, as with layers that stay on them.
        budget: The largest epsilon that may be published; training ends before it is exceeded. Default: a target
            epsilon if one is given, else no limit.
        folder: Where accounts are kept, one folder per population. Default: `cepam` in Flower's home, or
            `cepam-accounts` in the FLARE server's workspace.

    Raises:
        ValueError: For a value outside its range, or a unit that the clipping does not protect.
    """

    delta: float = 1e-5
    unit: Unit = "record"
    records: int = 1
    record_sampling: Sampling | None = None
    adjacency: Literal["replace", "add-remove"] = "replace"
    colluders: int = 0
    released: Released = "auto"
    clipped: Literal["update", "example"] = "update"
    stable_nodes: bool = False
    stateful: bool = False
    budget: float | None = None
    folder: str | Path | None = None

    @classmethod
    def per_example(cls, records: int, batch: float, **options: Any) -> Self:
        """The account of clients that clip each example's gradient, as `cepam.torch.PerExampleGradients` does.

        It sets `clipped="example"`, `adjacency="add-remove"` and secret Poisson draws of `record_sampling`.

        Args:
            records: How many records a client holds, a public constant.
            batch: How many of them a reply draws on average, the `expected_batch_size` of `gradient`.
            options: Any other argument of `Accounting`.

        Returns:
            The account.

        Raises:
            ValueError: `batch` is not in (0, records], or an option is outside its range.
        """
        from cepam.privacy import Sampling

        if not 0.0 < batch <= records:
            raise ValueError(f"batch must lie in (0, {records}], the records, got {batch!r}")
        drawn = Sampling("poisson", batch)
        return cls(records=records, record_sampling=drawn, clipped="example", adjacency="add-remove", **options)

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta!r}")
        if isinstance(self.records, bool) or not isinstance(self.records, int) or self.records < 1:
            raise ValueError(f"records must be a positive integer, got {self.records!r}")
        if isinstance(self.colluders, bool) or not isinstance(self.colluders, int) or self.colluders < 0:
            raise ValueError(f"colluders must be a count, got {self.colluders!r}")
        if self.released not in get_args(Released):
            raise ValueError(f"released must be one of {', '.join(get_args(Released))}, got {self.released!r}")
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {self.unit!r}")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget must be a positive epsilon, got {self.budget!r}")
        drawn = self.record_sampling is not None and self.record_sampling.kind != "all"
        if self.unit == "client" and (self.clipped != "update" or drawn):
            raise ValueError("unit 'client' needs clipped='update' and no draws of records: those do not hide a client")

    def mechanism(self, replies: Iterable[Reply], average: bool, coordinates: int) -> Mechanism:
        """One round in which these replies were used.

        A node that it was offered to twice and answered twice stands there twice, and is charged for both.
        Guarantee: fewer replies have less noise and cost more (tests/protocol/test_account.py).

        Args:
            replies: Each node with the settings that its reply followed.
            average: Whether only the average of the replies is published.
            coordinates: Length of an update.

        Returns:
            The mechanism, to be charged.

        Raises:
            ValueError: There is no reply.
        """
        from cepam.privacy import Client, Mechanism, Sampling

        used = sorted(replies, key=lambda reply: reply[0])
        if not used:
            raise ValueError("a round without a reply releases nothing")
        others = len({node for node, _ in used}) - 1
        return Mechanism(
            clients=tuple(
                Client(s.law, s.records, s.weight, None, s.clip, s.lattice, s.codec.searches) for _, s in used
            ),
            clip=used[0][1].clip,
            sampling=self.record_sampling or Sampling("all"),
            colluders=min(self.colluders, others) if average else others,
            adjacency=self.adjacency,
            clipped=self.clipped,
            coordinates=coordinates,
            nodes=tuple(node for node, _ in used),
            unit=self.unit,
        )

    def cohort_mechanism(self, cohort: Cohort, settings: UplinkSettings, coordinates: int) -> CohortMechanism:
        """One round of a cohort that was sampled in secret, its noise compensated whoever replied.

        Args:
            cohort: Who is sampled in a round.
            settings: The settings of every client.
            coordinates: Length of an update.

        Returns:
            The mechanism, to be charged.
        """
        from cepam.privacy import Client, CohortMechanism

        share, searched = settings.law.scale, settings.codec.searches
        kind = Client(settings.law, settings.records, 1.0 / cohort.size, None, None, settings.lattice, searched)
        return CohortMechanism(
            (kind,),
            settings.clip,
            colluders=min(self.colluders, cohort.population - 1),
            adjacency=self.adjacency,
            coordinates=coordinates,
            cohort=cohort,
            stateful=self.stateful,
            bit=share * math.sqrt(cohort.cap) / settings.bit if settings.bit else None,
        )


@dataclass(frozen=True)
class Target:
    """A target epsilon: the noise is the smallest that meets it over a whole run.

    Args:
        epsilon: The target, positive; also the budget unless `Accounting.budget` says otherwise.
        rounds: How many rounds the run has. Default: those that `start` is given.
        nodes: How many replies a round has. Default: as many as the first round samples.
        noise: The family of the noise, `cepam.Gaussian` (default) or `cepam.Laplace`.

    Raises:
        ValueError: For a value outside its range.
    """

    epsilon: float
    rounds: int | None = None
    nodes: int | None = None
    noise: type[Law] = Gaussian

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon!r}")
        for name, value in (("rounds", self.rounds), ("nodes", self.nodes)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if self.noise not in PRIVATE_LAWS.values():
            raise ValueError(f"noise of a target must be cepam.Gaussian or cepam.Laplace itself, got {self.noise!r}")

    def meet(self, settings: UplinkSettings, one: Mechanism, delta: float) -> UplinkSettings:
        """The settings with the smallest noise that meets the target over a run of rounds like `one`.

        Where the search coder's arithmetic alone leaves no finite figure, the coder is `"layered"`.
        Guarantee: the account of such a run ends at or under epsilon (tests/protocol/test_target.py).

        Args:
            settings: The settings of every client; the scale of their noise is ignored.
            one: One round.
            delta: delta of the guarantee.

        Returns:
            The settings, with that noise.

        Raises:
            ValueError: The number of rounds is not known, or no noise meets the target.
        """
        from cepam.privacy import calibrate

        met = calibrate(self._whole(one), self.epsilon, delta)
        return replace(settings_for(settings, met), law=met.clients[0].law)

    def describe(self, one: Mechanism) -> str:
        """What the noise means for the model, in a line.

        Args:
            one: One round, with the noise that meets the target.

        Returns:
            A line of text.

        Raises:
            ValueError: The number of rounds is not known.
        """
        from cepam.privacy import noise_ratio

        run, nodes = self._whole(one), self.nodes or 1
        met = f"{one.clients[0].law} meets epsilon {self.epsilon:g} over {run.rounds} rounds of {nodes} replies"
        return f"{met}; {noise_ratio(run).advice}"

    def _whole(self, one: Mechanism) -> Mechanism:
        if self.rounds is None:
            raise ValueError("rounds must be given where a strategy is not run by `start`")
        return one.over(self.rounds)


def settings_for(settings: UplinkSettings, run: Mechanism) -> UplinkSettings:
    """The settings, of coder `"layered"` where the clients of the run are charged as never searching."""
    return replace(settings, coder="layered") if settings.codec.searches and not run.searched() else settings


def noise_of(noise: Law | None, epsilon: float | Target | None, clip: Clip) -> tuple[Law, Target | None]:
    """Find the law and the target of a run, of which exactly one is given.

    Args:
        noise: The law of each client's noise.
        epsilon: The target that a law is calibrated to.
        clip: The clip, which gives the law its first scale while a target is not met yet.

    Returns:
        The law, and the target or None. With a target the law has the right family and any scale.

    Raises:
        ValueError: Where both are given, or none, or a law without a scale.
    """
    if (noise is None) == (epsilon is None):
        raise ValueError(f"exactly one of noise and epsilon must be given, got noise={noise!r} and epsilon={epsilon!r}")
    if isinstance(noise, type):
        raise ValueError(f"noise must have a scale, such as cepam.Gaussian(0.2), got {noise!r}: epsilon=… finds one")
    if noise is not None:
        return noise, None
    target = epsilon if isinstance(epsilon, Target) else Target(epsilon)  # type: ignore[arg-type]  # not None here
    return target.noise(clip.bound), target  # type: ignore[call-arg]  # both families take their scale


# The account on disk: saved before each model is published, found again by the run or by the model.
#
# A folder holds one JSON file an account, and `index.txt`: a line for each time that an account was written, with its
# revision, its checksum and the model that was published with it. Each revision also holds the checksum of the one
# before. So a server that starts again notices an account that is lost, edited or restored from a backup. That stops
# accidents, not an operator who rewrites the whole folder.
#
# Whoever starts from a model that was published goes on with its account, since the same records paid for it. Where a
# budget is in force, all accounts of the folder count, a run from a start that is known goes on with its account, and
# whatever contradicts the index ends the run. Without a budget these are warnings.


class AccountHold:
    """An account that this process uses; given back when nobody in the process refers to it any more.

    Strategies of one process share it; the index's lock lets them write one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.process = os.getpid()
        stack = ExitStack()
        file = stack.enter_context(locked_file(path, wait=False))
        finalize(self, stack.close)
        file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(f"process {self.process} on {socket.gethostname()} since {now}".encode())
        file.flush()


_held: WeakValueDictionary[Path, AccountHold] = WeakValueDictionary()
_held_lock = Lock()


def hold(account: Path) -> AccountHold:
    """This process's hold of the account in that file.

    Raises:
        BlockingIOError: Another process holds it; the text says which process, on which host, since when.
    """
    path = account.with_name(f".{account.name}.lock").resolve()
    with _held_lock:
        known = _held.get(path)
        if known is not None and known.process == os.getpid():
            return known
        try:
            made = _held[path] = AccountHold(path)
        except BlockingIOError:
            raise BlockingIOError(path.read_text(errors="replace") or "another process") from None
        return made


# The index of a folder of accounts: a line for each time that an account was written, appended and never changed.
#
#     model 2c26b46b68ffc68ff99b453c1d304134 run-77 3 9f86d081884c7d659a2feaa0c55ad015
#
# says that revision 3 of the account `run-77` has this checksum, and that this model was published with it. Other
# lines name the run (`run`) or the model that a run started from (`start`). So an account that was lost, edited or
# restored from a backup contradicts the index. A line that was cut by a crash is dropped: the account itself can say
# it again.


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


VERSION = 2
FORMAT = "cepam account"
OTHER_FOLDER = "if it is about other records, keep it in another folder (Accounting(folder=…))"
OWN_LOG = getLogger("cepam").log


class AccountLost(CepamError):
    """An account that should be there cannot be read or contradicts the index, or another process uses it."""


@dataclass(frozen=True)
class SavedAccount:
    """An account as its file has it.

    `start` is the model that its first run started from, `published` the one that was published last, `previous` the
    checksum of the revision before. `beside` names the accounts whose rounds are counted together with these. `stamp`
    tells whether the file was written since.
    """

    name: str
    accountant: Accountant
    participations: Counter[int] = field(default_factory=Counter)
    clip: float | None = None
    start: str = ""
    published: str = ""
    beside: tuple[str, ...] = ()
    state: State = field(default_factory=State)
    previous: str = ""
    stamp: tuple[int, ...] = ()


class RunAccount:
    """The account of one run: what earlier runs on the same model spent, and every round of this one.

    `strict` says that a budget is in force: what cannot be counted ends the run. Nothing is published before `charge`
    has come back.
    Guarantee: a server that starts again goes on where it was, and is refused where it cannot know where that is
    (tests/protocol/test_saved_account.py, tests/attacks/test_accounts.py).
    """

    def __init__(self, folder: Path, account: Accounting, strict: bool, log: Callable[..., None] = OWN_LOG) -> None:
        from cepam.privacy import Accountant

        self._folder = Path(folder)
        self._account = account
        self._strict = strict
        self._log = log
        self._nothing: Accountant = Accountant(identified=account.stable_nodes)
        self._own: SavedAccount | None = None
        self._beside: dict[str, SavedAccount] = {}
        self._holds: dict[str, AccountHold] = {}
        self._warned: set[str] = set()
        self.accountant: Accountant = self._nothing
        self.participations: Counter[int] = Counter()
        self.clip: float | None = None

    @property
    def path(self) -> Path:
        """The account's file."""
        return self._path("" if self._own is None else self._own.name)

    def epsilon(self, also: Mechanism | None = None, limit: float = math.inf) -> float:
        """epsilon of all rounds so far, and of one more, at the account's delta; infinite where none can be given.

        A bound that is quick to find; where that is above `limit`, the figure itself: calibrated runs end at it.
        """
        from cepam.privacy import spent

        accountant = self.accountant if also is None else self.accountant.add(also)
        quick = spent(accountant, self._account.delta)
        return quick if quick <= limit else accountant.epsilon(self._account.delta)

    def observers(self) -> dict[str, float]:
        """epsilon of all rounds so far for each kind of observer, at the account's delta; nothing before the first."""
        return self.accountant.observers(self._account.delta) if self.accountant.mechanisms else {}

    def sees_uploads(self) -> float:
        """epsilon of all rounds so far against an adversary who sees participation (clients drawn in secret)."""
        return self.accountant.sees_uploads(self._account.delta) if self.accountant.mechanisms else 0.0

    def resume(self, run: str, model: str) -> None:
        """Find the account of this run, or of the model that it starts from, as the disk has it now; or begin one.

        Args:
            run: The run's name.
            model: The digest of the model that the run starts from.

        Raises:
            AccountLost: Another process uses the account; or, with a budget, an account is lost, edited or restored,
                or the model is unknown in a folder that has accounts.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with open_index(self._folder) as index:
            if self._own is not None:
                self._refresh(index)
                return
            try:
                self._check_index(index)
                found = self._find(index, run, model)
                if self._own is None:
                    self._begin(index, run, model)
                self._note(index, run_key(run))
            except BaseException:
                self._own, self._beside, self._holds = None, {}, {}
                raise
        known = f"goes on, epsilon so far {self.epsilon():.4g}" if self.accountant.mechanisms else "is new"
        also = f"; counted with it: {', '.join(sorted(self._beside))}" if self._beside else ""
        self._log(INFO, "cepam: the account %s %s%s", self.path, known, also)
        if not found and (others := index.accounts(start_key(model))[1:]):
            self._log(
                WARNING,
                "cepam: this run begins a new account, though earlier runs started from the same model (%s): their "
                "rounds are not counted, and if the records are the same, epsilon adds up; with a budget they count",
                ", ".join(others),
            )

    def charge(
        self, mechanism: Mechanism, model: str | None, participations: Iterable[int] = (), clip: float | None = None
    ) -> None:
        """Charge a round, on disk, before `model` may be published.

        `participations` are nodes whose rounds are counted, where they may take part so often and no more. `clip` is
        the next round's, where it follows what was published.
        """
        with open_index(self._folder) as index:
            own = self._refresh(index, strict=True)
            charged = replace(
                own,
                accountant=own.accountant.add(mechanism),
                participations=own.participations + Counter(participations),
                clip=own.clip if clip is None else clip,
            )
            self._write(index, charged, model, self.accountant.add(mechanism) if self._beside else charged.accountant)

    def note_model(self, model: str) -> None:
        """Let a run that starts from this model find this account."""
        with open_index(self._folder) as index:
            self._own = replace(self._refresh(index), published=model)
            self._note(index, model_key(model))

    def has_published(self, model: str) -> bool:
        """Whether this model was published from the folder."""
        with open_index(self._folder) as index:
            return bool(index.accounts(model_key(model)))

    def privacy_warnings(self, mechanism: Mechanism) -> list[str]:
        """What must be said beside the figure after this round, and was not said before."""
        from cepam.privacy import LARGE_EPSILON, privacy_warnings

        epsilon = self.epsilon()
        if self._warned and (epsilon <= LARGE_EPSILON or "no-guarantee" in self._warned):
            return []
        made = [c for c in privacy_warnings(mechanism, epsilon, self._account.delta) if c.code not in self._warned]
        self._warned |= {"looked", *(warning.code for warning in made)}
        return [str(warning) for warning in made]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _check_index(self, index: AccountIndex) -> None:
        """Check that the index can be read and names every account of the folder; end the run or warn where not."""
        if index.unreadable:
            self._lost(
                f"{self._folder / INDEX} has a line that cannot be read: {index.unreadable[0][:80]!r}; put it back "
                f"from a backup, or take another folder (Accounting(folder=…)) for other records"
            )
        for name in sorted(path.stem for path in self._folder.glob("*.json")):
            try:
                saved = self._read(name)
            except (OSError, ValueError) as unknown:
                if name not in index.states:
                    self._lost(f"{self._folder / INDEX} does not name {self._path(name)}: {unknown}; move it away")
                continue
            if not _caught_up(index, saved) and name not in index.states:
                self._lost(
                    f"{self._folder / INDEX} does not name the account {self._path(name)}: put the index back from a "
                    f"backup, or add these lines to it to count the account as it is: {_lines_of(saved)}; "
                    f"{OTHER_FOLDER}"
                )

    def _find(self, index: AccountIndex, run: str, model: str) -> bool:
        """Whether an account of this run or model was there; it and all that counts with it are on this one."""
        keys = [run_key(run), model_key(model)] + ([start_key(model)] if self._strict else [])
        found = [name for key in keys for name in index.accounts(key)[:1]]
        waiting = found + (sorted(index.states) if self._strict else [])
        while waiting:
            name = waiting.pop(0)
            if name in self._holds:
                continue
            saved = self._load(index, name)
            if saved is None:
                continue
            waiting += saved.beside
            if self._own is None and name in found:
                self._own = saved
            else:
                self._beside[name] = saved
        self._gather()
        if self._strict and self._own is None and self.accountant.mechanisms:
            raise AccountLost(
                f"{self._folder} holds accounts, and the model {model} that this run starts from is in none of them: "
                "it was neither published from here nor a start. Start from a model that was published or from the "
                "first start; for other records, take another folder (Accounting(folder=…)); to train other "
                f"weights on the same records, add the line '{_latest_line(index, start_key(model))}' to {INDEX}"
            )
        if self._own is not None and self._beside:
            self._own = replace(self._own, beside=tuple(sorted({*self._own.beside, *self._beside})))
        return self._own is not None

    def _begin(self, index: AccountIndex, run: str, model: str) -> None:
        """Write a new, empty account to disk."""
        plain = re.sub(r"[^A-Za-z0-9-]", "-", run)
        names = (f"run-{plain}{more}" for more in chain([""], (f"-{number}" for number in count(2))))
        free = next(name for name in names if name not in index.states and not self._path(name).exists())
        self._hold(free)
        self._write(
            index,
            SavedAccount(free, self._nothing, start=model, beside=tuple(sorted(self._beside))),
            None,
            self.accountant,
        )

    def _load(self, index: AccountIndex, name: str) -> SavedAccount | None:
        """The account of this name, held by this process; None where it is lost and that is no error."""
        self._hold(name)
        try:
            saved = self._read(name)
            self._confirm(index, saved)
        except (OSError, ValueError) as lost:
            self._lost(
                f"the account {self._path(name)} cannot be counted: {lost}; put its last revision back; {OTHER_FOLDER}"
            )
            return None
        return saved

    def _hold(self, name: str) -> None:
        """Lock the account of this name against other processes."""
        try:
            self._holds[name] = hold(self._path(name))
        except BlockingIOError as taken:
            raise AccountLost(
                f"the account {self._path(name)} is in use by {taken}: one ServerApp at a time may charge it. Wait for "
                "its end or end it; for other records, keep the accounts in another folder (Accounting(folder=…))"
            ) from None

    def _confirm(self, index: AccountIndex, saved: SavedAccount) -> None:
        """Bring the index to this revision where it is one line behind; raise ValueError where it is farther."""
        known, at = index.states.get(saved.name, State()), saved.state.revision
        if known == saved.state or _caught_up(index, saved):
            return
        if at < known.revision:
            raise ValueError(
                f"it stands at revision {at} and {INDEX} at {known.revision}: it was restored from a backup, and "
                "rounds that were published are missing"
            )
        if at == known.revision:
            raise ValueError(f"its revision {at} is not the one that {INDEX} knows: it was edited or replaced")
        raise ValueError(f"it stands at revision {at} and {INDEX} at {known.revision}: the index was cut or restored")

    def _refresh(self, index: AccountIndex, strict: bool = False) -> SavedAccount:
        """The own account; what another strategy of this process has added is on it. `strict`: nobody may have."""
        if self._own is None:
            raise ValueError("resume was not called: there is no account to charge")
        for saved in (self._own, *self._beside.values()):
            try:
                if self._stamp(saved.name) == saved.stamp:
                    continue
                now = self._read(saved.name)
                self._confirm(index, now)
            except (OSError, ValueError) as lost:
                raise AccountLost(f"the account {self._path(saved.name)} can no longer be counted: {lost}") from lost
            if strict and now.state != saved.state:
                raise AccountLost(
                    f"the account {self._path(saved.name)} was changed by somebody else during this round"
                )
            if saved.name == self._own.name:
                self._own = now
            else:
                self._beside[saved.name] = now
            self._gather()
        try:
            self._confirm(index, self._own)
        except ValueError as lost:
            raise AccountLost(f"the account {self.path} can no longer be counted: {lost}") from lost
        return self._own

    def _gather(self) -> None:
        """Add up the rounds of all accounts that count."""
        counted = [*([] if self._own is None else [self._own]), *self._beside.values()]
        accountant = counted[0].accountant if counted else self._nothing
        try:
            for mechanism in chain.from_iterable(saved.accountant.mechanisms for saved in counted[1:]):
                accountant = accountant.add(mechanism)
            for mechanism in accountant.mechanisms[:1]:
                if (mechanism.adjacency, mechanism.unit) != (self._account.adjacency, self._account.unit):
                    raise ValueError(
                        f"their rounds are for adjacency {mechanism.adjacency!r} and unit {mechanism.unit!r}, "
                        f"this run's for {self._account.adjacency!r} and {self._account.unit!r}"
                    )
        except ValueError as apart:
            raise AccountLost(
                f"the accounts {', '.join(str(self._path(saved.name)) for saved in counted)} cannot be counted "
                f"together in this run: {apart}; for other records, keep them in another folder (Accounting(folder=…))"
            ) from apart
        self.accountant = accountant
        self._gather_counts()

    def _gather_counts(self) -> None:
        counted = [*([] if self._own is None else [self._own]), *self._beside.values()]
        self.participations = sum((saved.participations for saved in counted), Counter())
        self.clip = next((saved.clip for saved in counted if saved.clip is not None), None)

    def _write(self, index: AccountIndex, account: SavedAccount, model: str | None, accountant: Accountant) -> None:
        """Write the account to disk as its next revision, and then the index; `accountant` has all that
        counts."""
        published = account.published if model is None else model
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "revision": account.state.revision + 1,
            "previous": account.state.checksum,
            "start": account.start,
            "published": published,
            "beside": list(account.beside),
            "participations": {str(node): times for node, times in sorted(account.participations.items())},
            "clip": account.clip,
        }
        body = f'{json.dumps(content)[:-1]}, "accountant": {account.accountant.state_text()}}}'
        state = State(account.state.revision + 1, _checksum(body))
        write_atomically(self._path(account.name), f'{body[:-1]}, "checksum": "{state.checksum}"}}'.encode())
        settle(self._folder)
        self._own = replace(
            account,
            state=state,
            previous=account.state.checksum,
            published=published,
            stamp=self._stamp(account.name),
        )
        self.accountant = accountant
        self._gather_counts()
        index.append(account.name, state, start_key(account.start) if not published else model_key(published))

    def _stamp(self, name: str) -> tuple[int, ...]:
        found = self._path(name).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self, name: str) -> SavedAccount:
        """The account in a file.

        Raises:
            OSError: It cannot be read.
            ValueError: It is of another version, damaged or edited.
        """
        stamp = self._stamp(name)
        try:
            read = json.loads(self._path(name).read_text())
            if not isinstance(read, dict) or read.get("format") != FORMAT or read.get("version") != VERSION:
                raise ValueError(f"it is not an account of version {VERSION}")
            checksum = read.pop("checksum", None)
            if checksum != _checksum(json.dumps(read)):
                raise ValueError("its checksum is wrong: it was edited or damaged")
            # Who is followed by name is asked for afterwards: the rounds are the same.
            accountant = self._nothing.load_state_dict({**read["accountant"], "identified": self._account.stable_nodes})
            return SavedAccount(
                name,
                accountant,
                Counter({int(node): int(times) for node, times in read["participations"].items()}),
                None if read["clip"] is None else float(read["clip"]),
                str(read["start"]),
                str(read["published"]),
                tuple(map(str, read["beside"])),
                State(int(read["revision"]), checksum),
                str(read["previous"]),
                stamp,
            )
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as odd:
            raise ValueError(f"it is damaged: {type(odd).__name__} {odd}") from odd

    def _lost(self, reason: str) -> None:
        if self._strict:
            raise AccountLost(f"{reason}. With a budget in force nothing more is published")
        self._log(WARNING, "cepam: %s. epsilon is counted from here only and is too small", reason)

    def _note(self, index: AccountIndex, key: str) -> None:
        """Let the index lead from this run or model to the account."""
        if self._own is not None and self._own.name not in index.accounts(key)[:1]:
            index.append(self._own.name, self._own.state, key)


def _caught_up(index: AccountIndex, saved: SavedAccount) -> bool:
    """Whether the index was one line behind this account, and now has it: a process ended between the two writings."""
    if index.states.get(saved.name, State()) != State(saved.state.revision - 1, saved.previous):
        return False
    index.append(saved.name, saved.state, model_key(saved.published) if saved.published else start_key(saved.start))
    return True


def _lines_of(saved: SavedAccount) -> str:
    """The lines of the index that lead to this account from its start and from what was published last."""
    keys = [start_key(saved.start), *([model_key(saved.published)] if saved.published else [])]
    return " and ".join(f"'{written_line(saved.name, saved.state, key)}'" for key in keys)


def _latest_line(index: AccountIndex, key: str) -> str:
    name = list(index.states)[-1]
    return written_line(name, index.states[name], key)


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:32]
