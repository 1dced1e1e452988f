"""The server's half: a wrapper that makes any Flower strategy ask for private, small replies and open them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import DEBUG, INFO, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from cepam.clip import Clip, Unit
from cepam.distributions.laws import Law
from cepam.errors import BudgetSpent
from cepam.flower.averaging import check_wrapping
from cepam.flower.budget import Budget, account_in
from cepam.flower.cohort import AdaptiveClip, Asking, Fixed, Poisson
from cepam.flower.correlated_noise import Streamed, check_streams
from cepam.flower.downlink import Step, distribution_for
from cepam.flower.dropouts import Aggregate, PolicyName
from cepam.flower.noise import NodeNoise, OfNode
from cepam.flower.replies import Known, Replies, consistent_metrics
from cepam.flower.round_metrics import RoundMetrics
from cepam.flower.round_model import RoundModel
from cepam.lattices.lattice import Lattice
from cepam.protocol.accounting import Accounting, law_of, target_of
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
from cepam.protocol.server import Authentication, Refused, ServerEnd, refusing
from cepam.protocol.settings import Update, UplinkSettings

if TYPE_CHECKING:
    from cepam.flower.secure_aggregation.options import Sum
    from cepam.privacy import Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
TIMEOUT = 3600.0  # Flower's own, for the replies of a round


class Private(Strategy):  # type: ignore[misc]
    """`strategy`, fed with updates that carry exactly the noise of `law` and travel in few bits.

    Every client's update is clipped to `clip`, gets noise of `law` by the codec, and travels sealed; the wrapped
    strategy sees ordinary dense arrays. `of_node` overrides settings by node id (a mapping or a function). With
    `update="gradient"` the ClientApp replies with gradients, and the wrapped strategy is handed the broadcast model
    less `learning_rate` times the noisy gradient (`learning_rate=None`: the noisy gradient itself).

    A reply that is missing, broken, forged or replayed costs itself only. `policy` says what becomes of its noise: with
    `top-up` (the default for Gaussian noise where nothing but the average is published) the server adds it from secret
    randomness and the sum is divided by those who were asked, so that epsilon does not depend on who replied; with
    `charge` the replies that came are averaged, and the noise that is really there is charged. A round with fewer than
    `least_replies` good replies is not published and costs nothing. Once a round would bring epsilon above `budget`
    nothing more is published: `start` ends and returns the model that was published last (`budget_spent` is then true),
    or raises `cepam.errors.BudgetSpent` where there is none to return. The account is saved under `accounts` (default:
    `cepam` in Flower's home) before each model is published; a ServerApp that starts again, in this run or from a model
    that was published, goes on with it. With a budget all accounts of the folder count, and a run from weights that it
    does not know is refused: keep one folder for one population.

    `unit` is what epsilon is for: one `record` of a client, or all data of one `client`. With a `cohort`
    (`Poisson(rate)`, `Fixed(size)`) the wrapper draws who is asked in each round, in secret, and whole clients are
    protected; neither log nor metrics say who was asked or how many. With `adaptive=AdaptiveClip()` the clip
    follows the norms.

    Integer arrays do not travel, whatever the wrapped strategy makes of them; variances of batch normalisation stay
    positive. `bucket` pads messages to a multiple of that many bytes.

    With `downlink="grid"` messages carry the model as a broadcast on a public grid (docs/downlink.md), and the arrays
    that come back are the public ones that nodes hold. The grid's step is 8 times the noise of the average; `step`, a
    number or a function of the round, replaces that.

    With `epsilon` the noise is found: `law` is then the family (`cepam.Gaussian`), its scale the smallest that meets
    epsilon at `delta` over `rounds` rounds (default: those of `start`) with `nodes` replies each (default: as many as
    the first round asks). epsilon is the budget too.

    `authentication` says what to do about a key agreement that is not signed with the node's authentication key:
    `warn`, or `require` to drop its replies. `server_key` is a private key file with which the server signs its
    offers, for clients that know the public one.

    With `streams=CorrelatedNoiseConfig(carry, slices, messages)` each node's replies are a stream whose later noise
    cancels the earlier, over fixed slices of its records, with no secret draw (docs/flower.md, "Streams"): the mod
    keeps the order.

    With `trust="sum"`, or `cepam.flower.Sum(…)`, the server learns one noisy sum a round and not its parts
    (docs/trust.md): nodes state `ClientPolicy` of their own, and what needs single replies is refused.
    """

    _counts: ClassVar[tuple[str, ...]] = ("cepam-asked", "cepam-replies")

    def __new__(cls, *_: Any, trust: object = "server", **__: Any) -> Private:
        """The wrapper for the trust that is asked for: one whose server opens replies, or sums alone."""
        if trust == "server" or cls is not Private:
            return object.__new__(cls)
        from cepam.flower.secure_aggregation.strategy import SecureAggregation

        return object.__new__(SecureAggregation)

    def __init__(
        self,
        strategy: Strategy,
        *,
        law: Law | type[Law],
        clip: Clip,
        lattice: Lattice | Literal["auto"] = "auto",
        coder: Literal["adaptive", "paper"] = "adaptive",
        bucket: int | None = None,
        update: Update = "parameters",
        learning_rate: float | None = 1.0,
        of_node: OfNode | None = None,
        records: int = 1,
        account: Accounting | None = None,
        least_replies: int = 1,
        budget: float | None = None,
        authentication: Authentication = "warn",
        server_key: str | Path | None = None,
        accounts: str | Path | None = None,
        downlink: Literal["float32", "grid"] = "float32",
        step: Step | None = None,
        epsilon: float | None = None,
        rounds: int | None = None,
        delta: float | None = None,
        nodes: int | None = None,
        unit: Unit | None = None,
        policy: PolicyName | None = None,
        cohort: Poisson | Fixed | None = None,
        adaptive: AdaptiveClip | None = None,
        trust: Literal["server", "sum"] | Sum = "server",
        streams: CorrelatedNoiseConfig | None = None,
    ) -> None:
        check_wrapping(strategy, least_replies, budget)
        self.strategy = strategy
        asking = Asking(policy, cohort, adaptive, of_node is not None, least_replies)
        told: dict[str, Any] = {"delta": delta, "unit": unit or asking.unit}
        counted = {name: value for name, value in told.items() if value is not None}
        self.account = replace(account or Accounting(), **counted)
        target = target_of(epsilon, rounds, nodes, delta)
        noise = law_of(law, clip, target)
        settings = UplinkSettings(
            noise,
            clip,
            lattice,
            coder,
            bucket,
            update,
            records=records,
            unit=self.account.unit,
            bit=asking.bit(clip),
            stream=streams,
        )
        self._noise = NodeNoise(settings, of_node, target)
        self.least_replies = least_replies
        self.budget = epsilon if budget is None else budget
        self._policy = asking.policy_for(strategy, settings, self.account)
        self._spending = Budget(account_in(accounts, self.account, self.budget), self.budget)
        whole = update == "parameters" or learning_rate is not None
        self._model = RoundModel(distribution_for(downlink, step, whole), whole)
        key = Path(server_key).read_bytes() if server_key else None
        level, quiet = (DEBUG, _quietly) if self._policy.is_secret else (INFO, log)
        end = ServerEnd(authentication, key, quiet)
        if streams is not None:
            check_streams(strategy, self.account, asking, streams)
            self._policy = Streamed(self.account, least_replies, streams, end.streams)
        self._replies = Replies(end, learning_rate, self._model.downlink, level)
        self._moved = 0.0
        self._evaluating: list[Message] = []
        self._grid: Grid | None = None
        self._timeout = TIMEOUT
        self._server_round = 0
        self._so_far: Result | None = None

    @property
    def settings(self) -> UplinkSettings:
        """What nodes are asked for; ValueError while the noise for `epsilon` is not found."""
        return self._noise.settings

    @property
    def epsilon(self) -> float:
        """epsilon of everything published so far, at the account's delta."""
        return self._spending.epsilon

    @property
    def epsilons(self) -> dict[str, float]:
        """epsilon of everything published so far for each observer: an outsider, curious clients, who sees uploads."""
        return self._spending.observers()

    @property
    def budget_spent(self) -> bool:
        """Whether the budget has ended the training: a script that starts runs can ask this, and exit with a code."""
        return self._spending.exhausted

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *given: Any, **named: Any) -> Result:
        """Run the rounds, as Flower's `start` does; its timeout holds for second messages too.

        Returns:
            Flower's result. Where the budget ends the training early it holds the rounds so far and the model that was
            published last; the last round's metrics then have `cepam-budget-spent`, and `budget_spent` is true.

        Raises:
            cepam.errors.BudgetSpent: Nothing was published in this run, and the initial arrays were not either, so
                there is no model to return.
        """
        told = inspect.signature(Strategy.start).bind(self, grid, initial_arrays, *given, **named)
        told.apply_defaults()
        arguments = {name: value for name, value in told.arguments.items() if name != "self"}
        self._timeout = arguments["timeout"]
        self._noise.plan(arguments["num_rounds"])
        result = self._so_far = Result()
        arguments["evaluate_fn"] = _kept(arguments["evaluate_fn"], result)
        try:
            result = super().start(**arguments)
        except _Ended:
            pass
        finally:
            self._so_far = None
        if self.budget_spent and not result.arrays:
            result.arrays = self._published_before(initial_arrays)
        return result

    def _published_before(self, arrays: ArrayRecord) -> ArrayRecord:
        """These arrays, if they are a model that was published: untrained ones must not be taken for a result."""
        if not self._spending.has_published(self._model.digest_of(arrays)):
            raise BudgetSpent(
                f"the budget of {self.budget:g} leaves nothing to train with (epsilon so far {self.epsilon:.4g}), and "
                "the initial arrays are no model that was published: nothing is returned. Start from the model that "
                "was published last to have it back, or raise the budget"
            )
        return arrays

    def _end(self, server_round: int) -> list[Message]:
        """No messages; inside `start` the rounds that are left are not walked through."""
        if self._so_far is None:
            return []
        counts = {} if self._policy.is_secret else dict.fromkeys(self._counts, 0)
        spent = {"cepam-epsilon": self.epsilon, "cepam-delta": self.account.delta}
        self._keep(server_round, None, MetricRecord({**counts, **spent}))
        raise _Ended

    def _keep(self, server_round: int, arrays: ArrayRecord | None, report: MetricRecord) -> Aggregate:
        """What a round has come to, kept for a result that the budget may cut short."""
        if self.budget_spent:
            report["cepam-budget-spent"] = 1
        if self._so_far is not None:
            self._so_far.train_metrics_clientapp[server_round] = report
            self._so_far.arrays = self._so_far.arrays if arrays is None else arrays
        return arrays, report

    def summary(self) -> None:
        """Logs what the wrapper does, then what the wrapped strategy says of itself."""
        self._noise.summarise()
        log(INFO, "\t│\t├── for one %s; %s; delta %g", self.account.unit, self._policy, self.account.delta)
        log(INFO, "\t│\t└── the server holds the keys and is trusted; metrics and evaluation are not covered")
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, each with an offer for its client."""
        self._replies.close_round()
        self._policy.close()
        messages = self._messages(server_round, arrays, config, grid)
        if messages or self._policy.is_open:
            self._ask(messages, grid)
        return messages

    def _messages(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The wrapped strategy's messages, once the noise is found; none where the budget is spent."""
        if self._spending.exhausted:
            return self._end(server_round)
        sent, known_by = self._model.sent(arrays)
        messages = list(self.strategy.configure_train(server_round, sent, config, grid))
        if not messages:
            return []
        if not self._spending.resume(str(messages[0].metadata.run_id), known_by):
            return self._end(server_round)
        self._policy.resume(self._spending.accountant, str(messages[0].metadata.run_id), self._spending.clip)
        self._noise.find(len(messages), self._policy, self._model.coordinates)
        self._noise.follow(self._policy.clip)
        self._grid, self._server_round = grid, server_round
        chosen = self._policy.choose(messages, self._noise.settings, self._spending.asked)
        asked = [(m.metadata.dst_node_id, self._noise.of(m.metadata.dst_node_id)) for m in chosen]
        foreseen = self._policy.foreseen(asked, self._model.coordinates)
        if foreseen is not None and not self._spending.allows(foreseen):
            self._policy.close()
            return self._end(server_round)
        return chosen

    def _ask(self, messages: list[Message], grid: Grid) -> None:
        """Nothing; each message carries an offer for its node."""
        identities = {node.node_id: bytes(node.public_key) for node in grid.get_nodes()}
        known = Known()
        asked = [(m.metadata.dst_node_id, self._noise.of(m.metadata.dst_node_id)) for m in messages]
        settings_asked = [settings for _, settings in asked] or [self._noise.settings]
        self._moved = self._policy.noise(settings_asked) * self._replies.rate(settings_asked)
        if self._model.downlink is not None:
            self._model.downlink.publish_if_new(self._model.reference, self._server_round, self._moved)
        for message, (node, settings) in zip(messages, asked):
            self._replies.ask(message, settings, self._server_round, identities.get(node, b""), known)
        self._policy.ask(asked, known.models or [self._model.reference], self._replies.step_of)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of the good replies, with the counts and epsilon among the metrics."""
        tally = self._collect(replies)
        arrays, metrics = None, None
        mechanism = self._policy.mechanism(tally.opened)
        if mechanism is not None and self._spending.allows(mechanism):
            arrays, metrics = self._policy.aggregate(self.strategy, server_round, tally)
            arrays = self._charged(arrays, mechanism)
        report = tally.report(server_round, metrics, self.epsilon, self.account.delta)
        for name, figure in self._policy.figures(self._spending).items():
            report[name] = figure
        return self._keep(server_round, arrays, report)

    def _charged(self, arrays: ArrayRecord | None, mechanism: Mechanism) -> ArrayRecord | None:
        """What may be published of a round, once the round is on the account and on disk."""
        published, model = self._model.published(arrays, self._server_round + 1, self._moved)
        self._spending.charge(mechanism, model, self._policy.counted, self._policy.clip)
        self._noise.follow(self._policy.clip)
        return published

    def _collect(self, replies: Iterable[Message]) -> RoundMetrics:
        """The round's replies, opened or dropped with a reason; the round's keys are forgotten."""
        came = self._replies.with_second(list(replies), self._grid, self._timeout)
        down = self._model.downlink
        tally = RoundMetrics(self._replies.sent, down.count() if down is not None else (0, 0), self._policy.is_secret)
        for reply in came:
            try:
                with refusing(reply.metadata.src_node_id):
                    tally.opened.append(self._replies.open(reply, self._weight_key))
            except Refused as refused:
                tally.drop(refused)
        tally.drop_odd_metrics()
        for node in self._replies.silent():
            tally.drop(Refused("missing", node, "no reply came in time"))
        self._replies.close_round()
        return tally

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages: evaluation is not covered by the guarantee."""
        self._evaluating = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        self._grid = grid
        if self._model.downlink is not None:
            for message in self._evaluating:
                self._model.downlink.put_into(message)
        return self._evaluating

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the wrapped strategy makes of the evaluation replies; those that would end the run are dropped."""
        if self._model.downlink is not None and self._grid is not None:
            replies = self._model.downlink.evaluated(replies, self._evaluating, self._grid, self._timeout)
        metrics = self.strategy.aggregate_evaluate(server_round, consistent_metrics(replies, self._weight_key))
        if self._so_far is not None and metrics is not None:
            self._so_far.evaluate_metrics_clientapp[server_round] = metrics
        return metrics

    @property
    def _weight_key(self) -> str:
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))


class _Ended(Exception):
    """The budget is spent: no further round is begun."""


def _kept(evaluate: Evaluate | None, result: Result) -> Evaluate | None:
    """The ServerApp's own evaluation, whose metrics stay in the result also where the budget cuts it short."""
    if evaluate is None:
        return None

    def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = evaluate(server_round, arrays)
        if metrics is not None:
            result.evaluate_metrics_serverapp[server_round] = metrics
        return metrics

    return evaluated


def _quietly(_level: int, text: str, *given: object) -> None:
    """Nothing; what names a node is logged at DEBUG: nobody may learn who was asked."""
    log(DEBUG, text, *given)
