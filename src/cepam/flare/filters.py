"""The two filters, as FLARE builds them from a job's configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from cepam.clip import Clip
from cepam.distributions.laws import Gaussian, Law
from cepam.errors import CepamError, WrongAddress
from cepam.flare.job import ClientJob, JobPlan, ServerJob, end_job, job_of, number_of
from cepam.flare.weights import PAYLOAD, difference_of, is_difference, learned, replace_result, weights_of
from cepam.policy import FileAccount, read_policy
from cepam.protocol.account import Accounting, Released, Target, noise_of
from cepam.protocol.agreement import Answer, Declined, Offer, check_offer, seal_update
from cepam.protocol.enforcement import EnforcedPolicy
from cepam.protocol.models import count, from_vector, to_vector
from cepam.protocol.settings import Compression, Dropouts

HEADER = "cepam"
_ERRORS = {value for name, value in vars(ReturnCode).items() if name.isupper() and value != ReturnCode.OK}


class ServerFilter(Filter):  # type: ignore[misc]
    """The server's half: makes offers with the tasks, opens the results, and charges those that were used.

    A result that does not open raises, and FLARE hands the workflow an error in its place. Every result that opened is
    charged unless the workflow said that it was not accepted. After every round epsilon is in the log and goes out as
    the metric `cepam-epsilon`. With a budget the job ends before a round would bring epsilon above it, and that round's
    aggregate is not published. FLARE's workflow chooses the sites of a round before a filter sees a task, so nothing is
    sampled in secret; secure aggregation needs messages before and after a task, which a filter cannot send. A job that
    ends although no result was ever used fails, whatever its workflow ignores.

    Example:
        ```python
        server = ServerFilter(clip=cepam.L2(1.0), noise=cepam.Gaussian(0.2))
        ```

    Args:
        clip: The bound on each update before noise, `cepam.L2` or `cepam.L1`, in units of the weights.
        noise: The law of each site's noise, such as `cepam.Gaussian(0.2)`, in units of the weights.
        epsilon: A target that Gaussian noise is calibrated to: `Target(epsilon, rounds, nodes)`, where `clients` may
            stand in for `nodes`. Exactly one of `noise` and `epsilon` is given.
        accounting: Delta, unit, budget, folder, and how epsilon is counted. `released="average"` counts the noise of
            all results together: say it only where the workflow publishes nothing but their average with equal weights.
            Sites are known by their certificates, so each pays for its own rounds.
        dropouts: `Dropouts("compensate")` with `clients`: the server adds the noise of results that do not come and
            divides by `clients`, so that epsilon does not depend on who was there. The workflow is handed no movement,
            and its aggregate is replaced by the compensated one. The default charges the results that came, unless
            `clients` is given and noise and release allow compensation. The workflow says how many replies are needed.
        compression: The lattice by its name, the coder and the padding.
        weight: The public weight of a result in the workflow's average. Default 1.
        clients: How many sites the job has, for compensation and for a target.

    Raises:
        ValueError: For options that do not go together, with the reason.
    """

    def __init__(
        self,
        *,
        clip: Clip,
        noise: Law | None = None,
        epsilon: float | Target | None = None,
        accounting: Accounting = Accounting(),
        dropouts: Dropouts = Dropouts(),
        compression: Compression = Compression(),
        weight: float = 1.0,
        clients: int | None = None,
    ) -> None:
        super().__init__()
        # FLARE writes a job's configuration from attributes that are named like the arguments.
        self.clip, self.noise, self.epsilon, self.accounting = clip, noise, epsilon, accounting
        self.dropouts, self.compression, self.weight, self.clients = dropouts, compression, weight, clients
        if not isinstance(compression.lattice, str):
            raise ValueError("compression in FLARE names its lattice, such as Compression('E8'): jobs are text")
        law, target = noise_of(noise, epsilon, clip)
        self._settings = compression.settings(
            law, clip, weight=weight, records=accounting.records, unit=accounting.unit
        )
        released: Released = "vectors" if accounting.released == "auto" else accounting.released
        self._account = replace(accounting, stable_nodes=True, released=released)
        compensated = _compensated(dropouts, clients, law, released, target is not None)
        if target is not None:
            target = replace(target, nodes=target.nodes or clients)
            if target.rounds is None or target.nodes is None or target.noise is not Gaussian:
                raise ValueError(
                    "epsilon in FLARE must be cepam.flare.Target(epsilon, rounds=…, nodes=…) with Gaussian noise: a "
                    "filter does not see how many rounds and sites a job has"
                )
        self._plan = JobPlan(self._settings, target, self._account, clients if compensated else None)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task with an offer, or the result with dense arrays.

        Args:
            shareable: The task or the result.
            fl_ctx: FLARE's context of the run.

        Returns:
            What goes on.
        """
        client = fl_ctx.get_peer_context().get_identity_name()
        job = self._job(fl_ctx)
        with job.lock:
            if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT:
                job.settle_before_next_task(client, self, fl_ctx)
                try:
                    return self._offer(shareable, job, client)
                except CepamError as nothing_left:  # FLARE would ask the client to try again, for ever
                    self.system_panic(f"cepam: {nothing_left}", fl_ctx)
                    raise
            try:
                return self._open(shareable, job, client)
            except Exception as refused:  # FLARE hands the workflow an error in the result's place
                job.refused(type(refused).__name__)
                raise

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow what the workflow does with the results: charge, replace, publish.

        Args:
            event_type: FLARE's event.
            fl_ctx: FLARE's context of the run.
        """
        if event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            peer = fl_ctx.get_peer_context()
            if peer is not None and fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED) is False:
                self._job(fl_ctx).unused(peer.get_identity_name())
        elif event_type == AppEventType.BEFORE_AGGREGATION:
            self._job(fl_ctx).settle(self, fl_ctx)
        elif event_type == AppEventType.AFTER_AGGREGATION:
            job = self._job(fl_ctx)
            if job.layout is not None:
                result = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT)
                model = job.reference if job.ended else job.take_compensated()
                replace_result(result, job.reference, job.layout, model)
        elif event_type == AppEventType.AFTER_SHAREABLE_TO_LEARNABLE:
            self._job(fl_ctx).note_published(learned(fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)))
        elif event_type == EventType.ABOUT_TO_END_RUN:
            self._job(fl_ctx).check_trained(self, fl_ctx)
        elif event_type == EventType.END_RUN:
            end_job(fl_ctx)

    def _job(self, fl_ctx: FLContext) -> ServerJob:
        return job_of(fl_ctx, "server", self._new_job(fl_ctx))

    def _new_job(self, fl_ctx: FLContext) -> Callable[[], ServerJob]:
        return lambda: ServerJob(self._plan, _folder(self.accounting.folder, fl_ctx))

    def _offer(self, shareable: Shareable, job: ServerJob, client: str) -> Shareable:
        dxo = from_shareable(shareable)
        reference = job.broadcast(weights_of(dxo))
        offer = job.offer(client, reference)
        dxo.data = reference
        task: Shareable = dxo.update_shareable(shareable)
        task.set_header(HEADER, offer.to_fields())
        return task

    def _open(self, shareable: Shareable, job: ServerJob, client: str) -> Shareable:
        if shareable.get_return_code() != ReturnCode.OK:
            code = shareable.get_return_code()
            job.refused(f"the site replied {code if code in _ERRORS else 'an unknown code'}")
            return shareable
        header, dxo = shareable.get_header(HEADER), from_shareable(shareable)
        if not isinstance(header, dict) or list(dxo.data) != [PAYLOAD]:
            raise WrongAddress(f"the result of {client} is not a sealed update")
        vector, reference = job.open(client, Answer.from_fields(header), bytes(dxo.data[PAYLOAD]))
        if is_difference(dxo):
            dxo.data = difference_of(from_vector(vector, reference, None), reference)
        else:
            dxo.data = from_vector(vector, reference, 1.0)
        dxo.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, self.weight)
        return dxo.update_shareable(shareable)


class ClientFilter(Filter):  # type: ignore[misc]
    """The client's half: takes the offer off on the way in, clips, adds the noise and seals on the way out.

    One result leaves for each offer. Without an offer (no filter on the server, or a second result for one task) the
    result is refused, so that nothing plain can leave; `required=False` lets it pass, with a warning. Results with an
    error code leave as the bare code. An update that is not finite leaves as zero with its noise.

    FLARE runs filters for the tasks that a job names. This one also looks at the result of every other task, after all
    filters: what is neither sealed by it nor plain metrics (single finite numbers) leaves as an error code without
    content. What leaves is made anew: no other entry or header, and no metadata but single numbers where metrics may
    leave. So it is the last filter of its chain. What executors send past task results (streamed events, files) it
    does not see.

    `policy` and `account` are paths on the site: a client's privacy policy and the account that it limits. An offer
    below the floors or beyond the limits is refused, every result is charged on disk before it leaves, metrics leave
    where the policy allows them, and `required=False` changes nothing. Put this filter into the site's own
    `local/privacy.json`, in a scope and among the components: it then runs before a job's filters, and no job can leave
    it out (docs/flare.md). A job's own `ClientFilter` behind it lets pass what it sealed.

    Args:
        required: Whether a result without an offer is refused. False lets it pass with a warning.
        policy: Path of the site's policy (TOML).
        account: Path of the site's account; goes with `policy`.

    Raises:
        ValueError: Only one of `policy` and `account` is given, or the policy allows secure aggregation alone.
    """

    def __init__(self, required: bool = True, policy: str | None = None, account: str | None = None) -> None:
        super().__init__()
        if (policy is None) != (account is None):
            raise ValueError(f"policy and account go together: paths of two files, got {policy!r} and {account!r}")
        self.required, self.policy, self.account = required, policy, account
        self._rules = None if policy is None or account is None else _enforced(policy, account)
        if self._rules is not None and self._rules.policy.trust != "server":
            raise ValueError(f"trust in {policy} must be 'server' for FLARE, which has no secure aggregation")

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Take the offer off a task on its way in, or seal a result on its way out.

        Args:
            shareable: The task or the result.
            fl_ctx: FLARE's context of the run.

        Returns:
            What goes on.

        Raises:
            Declined: No offer waits for this result, or the site's policy refuses the offer.
        """
        client = fl_ctx.get_identity_name()
        job = job_of(fl_ctx, f"client {client}", ClientJob)
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            header = shareable.get_header(HEADER)
            job.received = (header, weights_of(from_shareable(shareable))) if header else None
            if self._rules is not None:
                job.rules = self._rules
                if job.received is not None:
                    _check_offered(self._rules, *job.received)
            return shareable
        received, job.received = job.received, None
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code if code in _ERRORS else ReturnCode.EXECUTION_EXCEPTION)
        if received is not None:
            return self._sealed(shareable, *received, job, number_of(fl_ctx.get_job_id()), number_of(client))
        rules = self._rules or job.rules
        if (rules is not None or job.sealed) and _leaving(shareable, job, rules) is not None:
            return shareable  # sealed by the site's own filter, or metrics of a task without an offer
        if self.required or rules is not None:
            raise Declined("no-offer", "no offer of the server's cepam filter waits for this result")
        self.log_warning(fl_ctx, "cepam: no offer of the server's cepam filter; this result leaves as plain arrays")
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Empty a result that must not leave, whichever task it is of; forget a job's keys when it ends.

        Args:
            event_type: FLARE's event.
            fl_ctx: FLARE's context of the run.
        """
        if event_type == EventType.AFTER_TASK_RESULT_FILTER and (self.required or self._rules is not None):
            result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            job = job_of(fl_ctx, f"client {fl_ctx.get_identity_name()}", ClientJob)
            try:
                leaves = _leaving(result, job, self._rules or job.rules)
            except Exception:  # FLARE would log it and send the result
                leaves = None
            if isinstance(result, Shareable):
                code = result.get_return_code()
                result.clear()
                if leaves is None:
                    leaves = make_reply(code if code in _ERRORS else ReturnCode.TASK_RESULT_FILTER_ERROR)
                    self.log_warning(fl_ctx, "cepam: a result that was not sealed was emptied, an error leaves")
                result.update(leaves)
        elif event_type == EventType.END_RUN:
            end_job(fl_ctx)

    def _sealed(
        self, shareable: Shareable, header: dict[str, Any], reference: Any, job: ClientJob, run: int, node: int
    ) -> Shareable:
        offer = Offer.from_fields(header)
        check_offer(offer, run, node, None)
        dxo = from_shareable(shareable)
        update = to_vector(dxo.data, reference, difference=not is_difference(dxo))
        rules = self._rules or job.rules
        if rules is not None:
            rules.charge(offer.settings, len(update) + offer.settings.beside)
        sealed = seal_update(update, offer, job.chain)
        job.chain, job.sealed, job.answer = sealed.chain, sealed.message, sealed.answer.to_fields()
        data = {PAYLOAD: np.frombuffer(sealed.message, dtype=np.uint8)}
        if rules is None:
            dxo.data = data
        else:  # nothing that stood beside the weights leaves
            dxo = DXO(dxo.data_kind, data=data)
            for name in set(shareable) - {ReservedHeaderKey.HEADERS}:
                del shareable[name]
        result: Shareable = dxo.update_shareable(shareable)
        result.set_header(HEADER, job.answer)
        return result


def _enforced(policy: str, account: str) -> EnforcedPolicy:
    """The policy and account of these files; ValueError where the first cannot be read."""
    try:
        text = Path(policy).expanduser().read_bytes()
    except OSError as unreadable:
        raise ValueError(f"the policy cannot be read: {unreadable}") from unreadable
    return EnforcedPolicy(read_policy(text), FileAccount(Path(account).expanduser()))


def _check_offered(rules: EnforcedPolicy, header: dict[str, Any], reference: Any) -> None:
    """Raise `Declined` for an offer that the site's policy does not allow, before anything is trained."""
    settings = Offer.from_fields(header).settings
    if settings.correlated_noise is not None:
        raise Declined("policy", "the offer asks for correlated noise, and this end keeps none")
    rules.check(settings, count(reference) + settings.beside)


def _leaving(result: Shareable, job: ClientJob, rules: EnforcedPolicy | None) -> Shareable | None:
    """What leaves of a result: an error code, what was sealed last, plain metrics that the policy allows, or nothing.

    It is made anew, so that no other entry or header leaves, and none of the metadata but single numbers. None where
    the result must not leave.
    """
    code = result.get_return_code()
    if set(result) <= {ReservedHeaderKey.HEADERS}:
        return make_reply(code) if code in _ERRORS or code == ReturnCode.OK else None
    if code != ReturnCode.OK:
        return None
    dxo, metrics = from_shareable(result), rules is None or rules.policy.metrics
    meta = {str(name): value for name, value in (dxo.meta or {}).items() if metrics and _is_plain(value)}
    if list(dxo.data) == [PAYLOAD]:
        if not job.sealed or bytes(dxo.data[PAYLOAD]) != job.sealed:
            return None
        kind = DataKind.WEIGHT_DIFF if is_difference(dxo) else DataKind.WEIGHTS
        made: Shareable = DXO(kind, {PAYLOAD: np.frombuffer(job.sealed, dtype=np.uint8)}, meta).to_shareable()
        made.set_header(HEADER, job.answer)
        return made
    if not metrics or dxo.data_kind != DataKind.METRICS or not all(map(_is_plain, dxo.data.values())):
        return None
    return DXO(DataKind.METRICS, dict(dxo.data), meta).to_shareable()


def _is_plain(value: object) -> bool:
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def _compensated(dropouts: Dropouts, clients: int | None, law: Law, released: str, has_target: bool) -> bool:
    """Whether the server adds the noise of results that do not come; ValueError for what does not go together."""
    if dropouts.least_replies != 1:
        raise ValueError("least_replies is the workflow's in FLARE: say min_clients or min_responses there")
    fits = isinstance(law, Gaussian) and released == "average"
    if dropouts.handling == "charge" or (dropouts.handling == "auto" and not (fits and clients is not None)):
        if clients is not None and not has_target:
            raise ValueError(
                f"clients goes with dropout handling 'compensate', which needs Gaussian noise and "
                f"Accounting(released='average'), or with epsilon; got {clients!r}"
            )
        return False
    if not fits:
        raise ValueError("dropout handling 'compensate' needs Gaussian noise and Accounting(released='average')")
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        raise ValueError(f"clients must be the number of the job's sites for compensation, got {clients!r}")
    return True


def _folder(given: str | Path | None, fl_ctx: FLContext) -> Path:
    if given is not None:
        return Path(given)
    engine = fl_ctx.get_engine()
    root = engine.get_workspace().get_root_dir() if engine is not None else "."
    return Path(root) / "cepam-accounts"
