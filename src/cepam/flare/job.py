"""What each end of one job keeps between filter calls: FLARE makes a filter object for every chain."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.app_constant import AppConstants

from cepam.errors import BudgetSpent, WrongAddress
from cepam.protocol.account import Accounting, Reply, RunAccount, Target
from cepam.protocol.agreement import Answer, Chain, Offer, Peer
from cepam.protocol.enforcement import EnforcedPolicy
from cepam.protocol.models import Arrays, Layout, count, digest, from_vector, has_batch_statistics
from cepam.protocol.server import Pending, ServerEnd, Shares
from cepam.protocol.settings import UplinkSettings

if TYPE_CHECKING:
    from cepam.privacy import Mechanism

Job = TypeVar("Job")
_jobs: dict[tuple[str, str], Any] = {}
_jobs_lock = Lock()
MOST_REASONS, SAID = 100, 3


def job_of(fl_ctx: FLContext, who: str, make: Callable[[], Job]) -> Job:
    """What this end keeps of the context's job."""
    key = (str(fl_ctx.get_job_id()), who)
    with _jobs_lock:
        if key not in _jobs:
            _jobs[key] = make()
            if isinstance(_jobs[key], ServerJob):
                _jobs[key].name = key[0]
        made: Job = _jobs[key]
        return made


def end_job(fl_ctx: FLContext) -> None:
    """Forget the keys and offers of the context's job."""
    with _jobs_lock:
        for key in [key for key in _jobs if key[0] == str(fl_ctx.get_job_id())]:
            del _jobs[key]


def number_of(name: object) -> int:
    """A job or a site as a number."""
    return int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:8], "little")


@dataclass
class ClientJob:
    """A client's chain of keys, the offer that waits for a result, and the policy of the site where it has one."""

    chain: Chain | None = field(default=None, repr=False)
    received: tuple[dict[str, Any], Arrays] | None = None
    sealed: bytes = field(default=b"", repr=False)
    answer: dict[str, Any] = field(default_factory=dict, repr=False)
    rules: EnforcedPolicy | None = None


@dataclass(frozen=True)
class Used:
    """A result that opened: whose it is, the settings of its task, and the decoded update."""

    client: str
    reply: Reply
    vector: npt.NDArray[np.floating] = field(repr=False)


@dataclass(frozen=True)
class JobCompensation:
    """Noise that does not depend on which of `clients` sites sent results: the server adds what is missing.

    Guarantee: tests/flare/test_dropouts.py.
    """

    settings: UplinkSettings
    clients: int

    def mechanism(self, account: Accounting, coordinates: int) -> Mechanism:
        """A round, whoever was there: all sites are charged."""
        everybody = [(place, self.settings) for place in range(self.clients)]
        return replace(account.mechanism(everybody, True, coordinates), nodes=None)

    def model(self, used: list[Used], reference: Arrays) -> Arrays:
        """The weights moved by the compensated sum over all sites, never over the results."""
        came = [(one.reply[1], one.vector) for one in used]
        mean = Shares.of([self.settings] * self.clients).mean(came, count(reference))
        return from_vector(mean, reference, 1.0)


@dataclass(frozen=True)
class JobPlan:
    """What a job's sites are sent and how it is charged; `clients`: dropouts are compensated up to so many sites."""

    settings: UplinkSettings
    target: Target | None
    account: Accounting
    clients: int | None = None

    @property
    def budget(self) -> float | None:
        """The largest epsilon that may be published; None: no limit."""
        given = self.account.budget
        return self.target.epsilon if given is None and self.target is not None else given

    def calibrated(self, coordinates: int) -> UplinkSettings:
        """The settings, with noise that meets the target for a model of so many coordinates."""
        if self.target is None:
            return self.settings
        nodes = [(place, self.settings) for place in range(self.target.nodes or 1)]
        one = self.account.mechanism(nodes, self.account.released == "average", coordinates)
        return self.target.meet(self.settings, one, self.account.delta)


class ServerJob:
    """A server's keys, the offers that wait, the results of the round, and the account."""

    def __init__(self, plan: JobPlan, folder: Path) -> None:
        self.name = ""
        self.lock = RLock()
        self.layout: Layout | None = None
        self.reference: Arrays = {}
        self.ended = False
        self._plan, self._options, self._budget = plan, plan.account, plan.budget
        self._settings = plan.settings
        self._account = RunAccount(folder, plan.account, strict=plan.budget is not None)
        self._end = ServerEnd(log=_quiet)
        self._pending: dict[str, tuple[Pending, Arrays]] = {}
        self._compensation: JobCompensation | None = None
        self._compensated: Arrays | None = None
        self._used: list[Used] = []
        self._has_tasks = False
        self._rounds = 0
        self._start = ""
        self._tasks = 0
        self._trained = False
        self._reasons: Counter[str] = Counter()

    @property
    def epsilon(self) -> float:
        """epsilon of all rounds so far, at the account's delta."""
        return self._account.epsilon()

    def broadcast(self, weights: Arrays) -> Arrays:
        """The weights as they go out, integers as integers; the account is found, and must have something left."""
        self.layout = self.layout or Layout.of(weights)
        self.reference = reference = self.layout.restored(weights)
        model = digest(reference)
        if not self._start:
            self._start = model
            self._settings = self._plan.calibrated(count(reference))
            if self._plan.clients is not None:
                self._compensation = JobCompensation(self._settings, self._plan.clients)
            self._account.resume(self.name, model)
            self.ended = self._budget is not None and self.epsilon >= self._budget
        elif model != self._start:
            self._account.note_model(model)
        if self._budget is not None and self._compensation is not None and not self._has_tasks:
            mechanism = self._compensation.mechanism(self._options, count(reference))  # the same whoever will be there
            self.ended = self.ended or self._account.epsilon(mechanism, self._budget) > self._budget
        if self.ended:
            raise BudgetSpent("the privacy budget of this job is spent: no task goes out")
        return reference

    def note_published(self, weights: Arrays) -> None:
        """Note the workflow's model after a round, so that a job that starts from it will find this account."""
        with self.lock:
            if self._start and self.layout is not None and weights:
                self._account.note_model(digest(self.layout.restored(weights)))

    def offer(self, client: str, reference: Arrays) -> Offer:
        """A new offer to this client; one that it did not answer is void."""
        peer = Peer(number_of(self.name), number_of(client))
        pending = self._end.offer(self._settings, peer, count(reference))
        self._pending[client] = (pending, reference)
        self._has_tasks = True
        self._tasks += 1
        return pending.offer

    def open(self, client: str, answer: Answer, message: bytes) -> tuple[npt.NDArray[np.floating], Arrays]:
        """The decoded update and the weights that were broadcast; the result is on this round's list.

        With compensation the workflow is handed no movement at all: what it publishes is put into its aggregate.
        """
        if self._compensation is not None and len(self._used) >= self._compensation.clients:
            raise WrongAddress(f"the result of {client} is beyond the {self._compensation.clients} clients of the job")
        pending, reference = self._pending.pop(client, (None, {}))
        if pending is None or self.ended:
            raise WrongAddress(f"the result of {client} does not answer an open offer")
        vector = self._end.open(pending, answer, message)
        self._used.append(Used(client, (pending.offer.node, pending.offer.settings), vector))
        return (vector if self._compensation is None else np.zeros_like(vector)), reference

    def refused(self, reason: str) -> None:
        """Count a result that was of no use."""
        with self.lock:
            if reason in self._reasons or len(self._reasons) < MOST_REASONS:
                self._reasons[reason] += 1

    def check_trained(self, component: FLComponent, fl_ctx: FLContext) -> None:
        """Fail a job that ends although no result of its tasks was ever used."""
        with self.lock:
            tasks, self._tasks = self._tasks, 0
            if not tasks or self._trained or self._used or self.ended:
                return
            said = "; ".join(f"{times} times {reason}" for reason, times in self._reasons.most_common(SAID))
            reason = f"cepam: nothing was trained: no result of {tasks} tasks could be used"
            component.system_panic(f"{reason}: {said or 'no result came'}", fl_ctx)

    def unused(self, client: str) -> None:
        """Do not charge the client's last result, which the workflow did not accept."""
        with self.lock:
            for place in range(len(self._used) - 1, -1, -1):
                if self._used[place].client == client:
                    del self._used[place]
                    self.refused("the workflow did not accept the result")
                    return

    def settle_before_next_task(self, client: str, component: FLComponent, fl_ctx: FLContext) -> None:
        """Charge a result that the workflow said nothing of, once its client gets the next task."""
        if any(used.client == client for used in self._used):
            self.settle(component, fl_ctx)

    def settle(self, component: FLComponent, fl_ctx: FLContext) -> None:
        """Charge the round's results, on disk, before they are aggregated.

        With compensation a round that sites got tasks in is one also where none of them sent a result: it is published
        with all its noise, or the still model would tell that nobody was there. Where charging would exceed the budget,
        or fails, the job ends.
        """
        with self.lock:
            used, self._used, has_tasks, self._has_tasks = self._used, [], self._has_tasks, False
            if self.ended or not (used or (has_tasks and self._compensation)):
                return
            try:
                self._charge(used, component, fl_ctx)
            except Exception as failed:  # FLARE would log it and go on
                self.ended = True
                component.system_panic(f"cepam: the round could not be charged: {failed}", fl_ctx)

    def take_compensated(self) -> Arrays | None:
        """The model that the round publishes in place of the workflow's aggregate, once; None without compensation."""
        with self.lock:
            model, self._compensated = self._compensated, None
            return model

    def _charge(self, used: list[Used], component: FLComponent, fl_ctx: FLContext) -> None:
        replies = [one.reply for one in used]
        if self._compensation is None:
            average = self._options.released == "average"
            mechanism = self._options.mechanism(replies, average, count(self.reference))
        else:
            mechanism = self._compensation.mechanism(self._options, count(self.reference))
        after = self._account.epsilon(mechanism, math.inf if self._budget is None else self._budget)
        if self._budget is not None and after > self._budget:
            self.ended = True
            reason = f"this round would bring epsilon to {after:.4g}, above {self._budget:.4g}"
            component.system_panic(f"cepam: {reason}: the job ends, the round is not published", fl_ctx)
            return
        self._account.charge(mechanism, None)
        self._trained = self._trained or bool(used)
        if self._compensation is not None:
            self._compensated = self._compensation.model(used, self.reference)
        at = f"epsilon so far {after:.4g} at delta {self._options.delta:g}"
        component.log_info(fl_ctx, f"cepam: {len(replies)} results used, {at}")
        said = self._account.privacy_warnings(mechanism)
        if self._rounds == 0 and has_batch_statistics(self.reference):
            said.append("batch normalisation under noise harms: use group normalisation")
        for warning in said:
            component.log_warning(fl_ctx, f"cepam: {warning}")
        step = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        _send_metric(component, fl_ctx, after, step if isinstance(step, int) else self._rounds)
        self._rounds += 1


def _send_metric(component: FLComponent, fl_ctx: FLContext, epsilon: float, step: int) -> None:
    """Send epsilon to FLARE's receivers of metrics."""
    engine = fl_ctx.get_engine()
    if engine is None:
        return
    made = create_analytic_dxo("cepam-epsilon", epsilon, AnalyticsDataType.SCALAR, global_step=step)
    with engine.new_context() as context:
        send_analytic_dxo(component, made, context)


def _quiet(*_: object) -> None:
    """Log no warning: FLARE authenticates sites by certificate."""
