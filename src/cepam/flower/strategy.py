"""The server's half: strategies around others, whose every published model is charged before it is published.

`PrivateStrategy` is what `Private` and `SecureAggregation` share: rounds under an accountant and a budget, noise,
dropouts, and how a run ends. `Private` feeds any strategy of Flower with private, small updates where the server is
trusted.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import DEBUG, INFO, WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, PrivacySpent
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore.utils import get_flwr_home

from cepam.clip import L2, Clip
from cepam.distributions.laws import Gaussian, Law
from cepam.errors import BudgetSpent
from cepam.flower.accountant import METHOD
from cepam.flower.client_mod import numpy_of, same_or_new
from cepam.flower.correlated_noise import CorrelatedAggregator, check_correlated_noise
from cepam.flower.downlink import Distribution, distribution_for
from cepam.flower.replies import (
    Aggregate,
    Known,
    Replies,
    ReplyAggregator,
    RoundMetrics,
    RunFailure,
    consistent_metrics,
    publishes_average,
    reply_aggregator_for,
)
from cepam.flower.sampling import AdaptiveClip, Fixed, Poisson, SamplingAggregator, check_sampling
from cepam.privacy.cohorts.dropouts import UPWARD
from cepam.privacy.composition.accountant import affordable
from cepam.protocol.account import Accounting, RunAccount, Target, noise_of, settings_for
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
from cepam.protocol.models import (
    BATCH_NORM,
    Arrays,
    Layout,
    count,
    digest,
    has_batch_statistics,
    kept_positive,
)
from cepam.protocol.server import Refused, ServerEnd, refusing
from cepam.protocol.settings import (
    Authentication,
    Compression,
    Dropouts,
    Gradient,
    NodeSettings,
    QuantizedBroadcast,
    UplinkSettings,
)

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


def check_strategy(strategy: object) -> None:
    """Refuse what cannot be wrapped, with the way out for strategies of Flower's older interface."""
    if isinstance(strategy, Strategy):
        return
    kind = type(strategy)
    if kind.__module__.startswith("flwr.server."):
        raise ValueError(
            f"strategy is {kind.__name__} of Flower's legacy interface (flwr.server, NumPyClient): take "
            f"flwr.serverapp.strategy.{kind.__name__}, and @app.train() in the ClientApp (docs/flower.md)"
        )
    raise ValueError(f"strategy must be a flwr.serverapp.strategy.Strategy, got {kind.__name__}")


class Budget:
    """The account of a run under its budget (None: none); once it would be exceeded, `exhausted` stays true."""

    def __init__(self, account: RunAccount, budget: float | None) -> None:
        self._account = account
        self.limit = budget
        self.exhausted = False

    @property
    def epsilon(self) -> float:
        """epsilon of everything published so far."""
        return self._account.epsilon(limit=math.inf if self.limit is None else self.limit)

    @property
    def participations(self) -> Mapping[int, int]:
        """How often each node was sampled, where that is limited."""
        return self._account.participations

    def observers(self) -> dict[str, float]:
        """epsilon of everything published so far, for each kind of observer."""
        return self._account.observers()

    @property
    def sees_participation(self) -> float:
        """epsilon of everything published so far against an adversary who sees participation."""
        return self._account.sees_uploads()

    def resume(self, run: str, model: str) -> bool:
        """Whether the account of this run, found again on disk, leaves anything to spend."""
        self._account.resume(run, model)
        spent = self.epsilon
        if self.limit is not None and spent >= self.limit:
            self.exhausted = True
            log(WARNING, "cepam: the budget is spent: epsilon %.4g of %.4g; nothing is trained", spent, self.limit)
        return not self.exhausted

    def allows(self, mechanism: Mechanism) -> bool:
        """Whether the budget covers this round; if not, training ends here."""
        after = self._account.epsilon(mechanism, self.limit) if self.limit is not None else 0.0
        if self.limit is not None and after > self.limit:
            self.exhausted = True
            log(
                WARNING,
                "cepam: the budget is spent: a round more would bring epsilon to %.4g, above %.4g; training ends with "
                "the model that was published last",
                after,
                self.limit,
            )
        return not self.exhausted

    def charge(
        self, mechanism: Mechanism, model: str | None, sampled: Iterable[int] = (), clip: float | None = None
    ) -> None:
        """Charge the round, on disk, so that `model` may be published; the rounds of `sampled` nodes are counted.

        `clip` is the next round's, where it follows the norms.
        """
        self._account.charge(mechanism, model, sampled, clip)
        for warning in self._account.privacy_warnings(mechanism):
            log(WARNING, "cepam: %s", warning)

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
        """Note a model, so that a run that starts from it will find this account."""
        self._account.note_model(model)


def budget_of(accounting: Accounting, target: Target | None) -> Budget:
    """The budget and account of a run; with a budget, an account that is lost ends the run."""
    limit = target.epsilon if accounting.budget is None and target is not None else accounting.budget
    where = Path(accounting.folder) if accounting.folder is not None else get_flwr_home() / "cepam"
    return Budget(RunAccount(where, accounting, strict=limit is not None, log=log), limit)


PerNode = Mapping[int, NodeSettings] | Callable[[int], NodeSettings | None]


class NodeNoise:
    """The settings of each node: `settings`, with what `nodes` says of it; with a `target` the scale is found once."""

    def __init__(self, settings: UplinkSettings, target: Target | None, nodes: PerNode | None = None) -> None:
        if target is not None and nodes is not None:
            raise ValueError("epsilon finds one noise for all nodes: nodes must not be given with it")
        self._settings, self._target = settings, target
        self._first: UplinkSettings | None = None
        self._rounds = 1
        self._found = False
        self._own = nodes.get if isinstance(nodes, Mapping) else nodes

    @property
    def settings(self) -> UplinkSettings:
        """The settings of all nodes; ValueError while the noise for `epsilon` is not found."""
        if self._target is not None:
            raise ValueError("the noise is found when the first round is configured")
        return self._settings

    @property
    def provisional(self) -> UplinkSettings:
        """The settings of all nodes, whose noise scale is final only once it is found."""
        return self._settings

    def of(self, node: int) -> UplinkSettings:
        """The settings of this node."""
        differs = self._own(node) if self._own else None
        return self.settings if differs is None else differs.over(self.settings)

    def plan(self, rounds: int) -> None:
        """Plan for so many rounds; a target may say others."""
        self._rounds = rounds
        if self._target is not None and self._target.rounds is None:
            self._target = replace(self._target, rounds=rounds)

    def find(self, sampled: int, aggregator: ReplyAggregator, coordinates: int) -> None:
        """Calibrate the noise to the target, if there is one, once; take coder layered where search has no figure."""
        if self._target is None:
            if not self._found:
                run = aggregator.planned(self._settings, sampled, coordinates).over(self._rounds)
                self._settings = settings_for(self._settings, affordable(run, aggregator.account.delta))
            self._found = True
            return
        self._found, nodes = True, self._target.nodes or sampled
        target, self._target = replace(self._target, nodes=nodes), None
        one = aggregator.planned(self._settings, nodes, coordinates)
        self._settings = target.meet(self._settings, one, aggregator.account.delta)
        log(INFO, "cepam: %s", target.describe(aggregator.planned(self._settings, nodes, coordinates)))

    def follow(self, bound: float | None) -> None:
        """Take `bound`, if any, as the clip from now on, noise and bit in proportion, the noise never in less."""
        if bound is None:
            return
        first = self._first = self._first or self.settings
        by = bound / first.clip.bound
        law = Gaussian(first.law.scale * by * UPWARD)
        self._settings = replace(first, clip=L2(bound), law=law, bit=first.bit * by)

    def summarise(self) -> None:
        """Log what nodes are sent."""
        asks = self._settings
        law = asks.law if self._target is None else f"noise for epsilon {self._target.epsilon:g}"
        log(INFO, "\t├──> cepam: %s, %s, lattice %s", law, asks.clip, asks.lattice)
        log(INFO, "\t│\t├── ClientApps reply with: %s", asks.update)


class RoundModel:
    """The arrays that a round starts from (`reference`) and those that it publishes, with the types they had first.

    `downlink` sends them quantized; `whole` says that aggregates are models (else noisy gradients).
    """

    def __init__(self, downlink: Distribution | None, whole: bool) -> None:
        self.downlink = downlink
        self.reference: Arrays = {}
        self._whole = whole
        self._layout: Layout | None = None

    @property
    def coordinates(self) -> int:
        """How many coordinates travel."""
        return count(self.reference)

    def sent(self, arrays: ArrayRecord) -> tuple[ArrayRecord, str]:
        """The arrays that the wrapped strategy sends, now the reference, and the digest of what was published."""
        given = numpy_of(arrays)
        restored = self._as_first_sent(given)
        self.reference = restored if self.downlink is None else self.downlink.exact(restored)
        return same_or_new(arrays, given, self.reference), digest(restored)

    def digest_of(self, arrays: ArrayRecord) -> str:
        """The digest by which the account knows these arrays, if they were published."""
        return digest(self._as_first_sent(numpy_of(arrays)))

    def published(self, arrays: ArrayRecord | None, next_round: int, noise: float) -> tuple[ArrayRecord | None, str]:
        """The aggregate as all will see it, and its digest; None, and the reference's, where there is none.

        `noise` is what a round's noise moves the model by, per coordinate.
        """
        given = self.reference if arrays is None else numpy_of(arrays)
        made: Arrays = self._as_first_sent(given)
        if self._whole:
            made = kept_positive(made, self.reference)
        if self.downlink is not None:
            made = self.downlink.publish(made, next_round, noise)
        return None if arrays is None else same_or_new(arrays, given, made), digest(made)

    def _as_first_sent(self, arrays: Arrays) -> Arrays:
        """The arrays with the types that they had first: an average makes floats of counters."""
        if self._layout is None:
            self._layout = Layout.of(arrays)
            if has_batch_statistics(arrays):
                log(WARNING, "cepam: %s", BATCH_NORM)
        return self._layout.restored(arrays)


Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
TIMEOUT = 3600.0  # Flower's own, for the replies of a round

UpdateKind = Literal["parameters"] | Gradient
DownlinkKind = Literal["float32", "quantized"] | QuantizedBroadcast


def step_of(update: UpdateKind) -> float | None:
    """How far the model goes along a decoded update; None: the update itself is handed on."""
    if isinstance(update, Gradient):
        return None if update.learning_rate is None else -update.learning_rate
    if update != "parameters":
        raise ValueError(f"update must be 'parameters' or cepam.flower.Gradient(…), got {update!r}")
    return 1.0


class PrivateStrategy(Strategy):  # type: ignore[misc]
    """A strategy around another: every published model is charged, on disk, before it is published."""

    _counts: ClassVar[tuple[str, ...]] = ("cepam-sampled", "cepam-replies")

    def __init__(
        self,
        strategy: Strategy,
        settings: UplinkSettings,
        target: Target | None,
        aggregator: ReplyAggregator,
        update: UpdateKind,
        downlink: DownlinkKind,
        nodes: PerNode | None = None,
    ) -> None:
        check_strategy(strategy)
        self.strategy = strategy
        self.accounting: Accounting = aggregator.account
        self._aggregator = aggregator
        self._noise = NodeNoise(settings, target, nodes)
        self._step = step_of(update)
        self._model = RoundModel(distribution_for(downlink, self._step is not None), self._step is not None)
        self._spending = budget_of(self.accounting, target)
        self._moved = 0.0
        self._grid: Grid | None = None
        self._timeout = TIMEOUT
        self._server_round = 0
        self._so_far: Result | None = None
        self._failure = RunFailure(aggregator.is_secret)

    @property
    def settings(self) -> UplinkSettings:
        """What nodes are sent; ValueError while the noise for `epsilon` is not found."""
        return self._noise.settings

    @property
    def epsilon(self) -> float:
        """Epsilon of everything published so far, at the accounting's delta."""
        return self._spending.epsilon

    @property
    def epsilons(self) -> dict[str, float]:
        """Epsilon of everything published so far for each adversary: an outsider, curious clients, and others."""
        return self._spending.observers()

    @property
    def budget(self) -> float | None:
        """The largest epsilon that may be published; None: no limit."""
        return self._spending.limit

    @property
    def budget_spent(self) -> bool:
        """Whether the budget has ended the training: a script that starts runs can ask this, and exit with a code."""
        return self._spending.exhausted

    def privacy_spent(self) -> PrivacySpent:
        """What was spent so far as Flower's own `PrivacySpent`, whose figures are for whole clients.

        Returns:
            Epsilon and delta of everything on the account, and how many rounds are on it.

        Raises:
            ValueError: The run protects records, adds other noise than Gaussian, or correlates its noise:
                `PrivacySpent` would be read as a figure for clients under independent Gaussian noise. `epsilon` and
                `epsilons` have the figures of such runs.
        """
        settings = self._noise.provisional
        if self.accounting.unit != "client":
            raise ValueError(f"privacy_spent is for unit 'client', got unit {self.accounting.unit!r}: read epsilon")
        if not isinstance(settings.law, Gaussian):
            raise ValueError(f"privacy_spent is for Gaussian noise, got {settings.law!r}: read epsilon")
        if settings.correlated_noise is not None:
            raise ValueError("privacy_spent is for independent noise, got correlated_noise: read epsilon")
        return PrivacySpent(self.epsilon, self.accounting.delta, self._spending.accountant.rounds, METHOD)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *given: Any, **named: Any) -> Result:
        """Run the rounds, as Flower's `start` does; its timeout holds for second messages too.

        A round without a usable reply logs a warning and publishes nothing. The run ends at once where every node of
        its first round refuses, as with a ClientApp without `Uplink`.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: The model that the training starts from.
            given: Flower's other arguments by position, such as `num_rounds`.
            named: Flower's other arguments by name.

        Returns:
            Flower's result. Where the budget ends the training early it holds the rounds so far and the model that was
            published last; the last round's metrics then have `cepam-budget-spent`, and `budget_spent` is true.

        Raises:
            cepam.errors.NoUsableReplies: Nodes were sampled, and no reply could be used: nothing was trained. The text
                names the commonest reasons.
            cepam.errors.BudgetSpent: Nothing was published in this run, and the initial arrays were not either, so
                there is no model to return.
        """
        bound = inspect.signature(Strategy.start).bind(self, grid, initial_arrays, *given, **named)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        self._timeout = arguments["timeout"]
        self._noise.plan(arguments["num_rounds"])
        result = self._so_far = Result()
        self._failure = RunFailure(self._aggregator.is_secret)
        arguments["evaluate_fn"] = _kept(arguments["evaluate_fn"], result)
        try:
            result = super().start(**arguments)
        except _Ended:
            pass
        finally:
            self._so_far = None
        if self.budget_spent and not result.arrays:
            result.arrays = self._published_before(initial_arrays)
        elif not self.budget_spent:
            self._failure.check(result.train_metrics_clientapp)
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
        counts = {} if self._aggregator.is_secret else dict.fromkeys(self._counts, 0)
        spent = {"cepam-epsilon": self.epsilon, "cepam-delta": self.accounting.delta}
        self._keep(server_round, None, MetricRecord({**counts, **spent}))
        raise _Ended

    def _keep(self, server_round: int, arrays: ArrayRecord | None, report: MetricRecord) -> Aggregate:
        """What a round has come to, kept for a result that is cut short."""
        if self.budget_spent:
            report["cepam-budget-spent"] = 1
        if self._so_far is not None:
            self._so_far.train_metrics_clientapp[server_round] = report
            self._so_far.arrays = self._so_far.arrays if arrays is None else arrays
        return arrays, report

    def _finish(
        self, server_round: int, tally: RoundMetrics, sampled: int, arrays: ArrayRecord | None, report: MetricRecord
    ) -> Aggregate:
        """End the round: what it has come to is kept; a run whose nodes all refuse ends here."""
        for refused in tally.refused:
            self._failure.note(refused)
        self._failure.end_round(server_round, sampled, arrays is not None and bool(tally.opened))
        kept = self._keep(server_round, arrays, report)
        if self._failure.hopeless and self._so_far is not None and not self.budget_spent:
            self._failure.check(self._so_far.train_metrics_clientapp)
        return kept

    def _messages(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The wrapped strategy's messages, once the noise is found; none where the budget is spent."""
        if self._spending.exhausted:
            return self._end(server_round)
        sent, known_by = self._model.sent(arrays)
        messages = list(self.strategy.configure_train(server_round, sent, config, grid))
        if not messages:
            return []
        run = str(messages[0].metadata.run_id)
        if not self._spending.resume(run, known_by):
            return self._end(server_round)
        self._aggregator.resume(self._spending.accountant, run, self._spending.clip)
        self._noise.find(len(messages), self._aggregator, self._model.coordinates)
        self._noise.follow(self._aggregator.clip)
        self._grid, self._server_round = grid, server_round
        chosen = self._aggregator.choose(messages, self._noise.settings, self._spending.participations)
        sampled = [(m.metadata.dst_node_id, self._noise.of(m.metadata.dst_node_id)) for m in chosen]
        foreseen = self._aggregator.foreseen(sampled, self._model.coordinates)
        if foreseen is not None and not self._spending.allows(foreseen):
            self._aggregator.close()
            return self._end(server_round)
        return chosen

    def _publish_model(self, sampled: list[UplinkSettings]) -> None:
        """Publish the model of this round where it is quantized; note how far the noise of such nodes moves it."""
        self._moved = self._aggregator.noise(sampled) * (1.0 if self._step is None else abs(self._step))
        if self._model.downlink is not None:
            self._model.downlink.publish_if_new(self._model.reference, self._server_round, self._moved)

    @abstractmethod
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]: ...

    @abstractmethod
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate: ...

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


class Private(PrivateStrategy):
    """Any Flower strategy, fed with updates that carry exactly the given noise and travel in few bits.

    Every client's update is clipped, gets noise by the codec, and travels sealed; the wrapped strategy sees ordinary
    dense arrays. A reply that is missing, broken, forged or replayed costs itself only. Integer arrays do not travel;
    variances of batch normalisation stay positive. The server holds the keys and is trusted; `SecureAggregation` is for
    servers that are not. Metrics and evaluation are not covered by epsilon.

    Example:
        ```python
        strategy = Private(FedAvg(), clip=cepam.L2(1.0), epsilon=2.0)
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=10)
        ```

    Args:
        strategy: The strategy that averages, of `flwr.serverapp.strategy`.
        clip: The bound on each update before noise, `cepam.L2` or `cepam.L1`, in units of the weights; or
            `AdaptiveClip(cepam.L2(…))`, which follows the norms and goes with `sampling`.
        noise: The law of each client's noise, such as `cepam.Gaussian(0.2)`, in units of the weights.
        epsilon: The target that Gaussian noise is calibrated to, over the rounds of `start` and the nodes of the first
            round; `Target` says otherwise. Exactly one of `noise` and `epsilon` is given.
        accounting: Delta, unit, budget, and how epsilon is counted.
        sampling: `Poisson(sampling_rate)` or `Fixed(size)`: the wrapper samples the nodes of each round in secret, and
            epsilon is for whole clients. Neither log nor metrics say who was sampled or how many. Default: the
            strategy's own choice of nodes, which amplifies nothing.
        dropouts: What becomes of missing replies.
        compression: Lattice, coder and padding.
        downlink: `"float32"` (default), or `"quantized"`: models travel as a quantized broadcast, and the arrays that
            come back are the public ones that nodes hold (docs/downlink.md). `QuantizedBroadcast(step)` sets the step.
        authentication: Whether key agreements must be signed, and the server's own key.
        correlated_noise: Noise of later rounds cancels that of earlier ones, without secret sampling (docs/flower.md).
        update: `"parameters"` (default): ClientApps reply with trained parameters, and the difference is sent.
            `Gradient(learning_rate)`: they reply with gradients.
        nodes: What differs for single nodes: a mapping from node ids to `NodeSettings`, or a function of the node id.

    Raises:
        ValueError: For options that do not go together, with the reason.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        clip: Clip | AdaptiveClip,
        noise: Law | None = None,
        epsilon: float | Target | None = None,
        accounting: Accounting = Accounting(),
        sampling: Poisson | Fixed | None = None,
        dropouts: Dropouts = Dropouts(),
        compression: Compression = Compression(),
        downlink: DownlinkKind = "float32",
        authentication: Authentication = Authentication(),
        correlated_noise: CorrelatedNoiseConfig | None = None,
        update: UpdateKind = "parameters",
        nodes: PerNode | None = None,
    ) -> None:
        check_strategy(strategy)
        adaptive, bound = (clip, clip.initial) if isinstance(clip, AdaptiveClip) else (None, clip)
        law, target = noise_of(noise, epsilon, bound)
        if sampling is not None:
            accounting = replace(accounting, unit="client")
        settings = compression.settings(
            law,
            bound,
            "parameters" if update == "parameters" else "gradient",
            records=accounting.records,
            unit=accounting.unit,
            bit=0.0 if adaptive is None else adaptive.bit * bound.bound,
            correlated_noise=correlated_noise,
        )
        is_secret = sampling is not None
        end = ServerEnd(authentication.required, authentication.read_server_key(), _quietly if is_secret else log)
        aggregator: ReplyAggregator
        if correlated_noise is not None:
            others: dict[str, object] = {"sampling": sampling, "AdaptiveClip": adaptive, "nodes": nodes}
            others["dropouts"] = None if dropouts.handling == "auto" else dropouts
            check_correlated_noise(strategy, accounting, correlated_noise, others)
            aggregator = CorrelatedAggregator(
                accounting, dropouts.least_replies, correlated_noise, end.correlated_noise
            )
        elif sampling is not None:
            check_sampling(strategy, settings, accounting, dropouts, nodes is not None)
            aggregator = SamplingAggregator(accounting, sampling, adaptive)
        elif adaptive is not None:
            raise ValueError("AdaptiveClip goes with sampling: cepam.flower.Poisson(1.0) samples everybody")
        else:
            # Nodes with settings of their own may send what cannot be added up.
            auto = dropouts.handling == "auto" and nodes is not None
            handling = replace(dropouts, handling="charge") if auto else dropouts
            aggregator = reply_aggregator_for(handling, accounting, publishes_average(strategy, accounting), law)
        super().__init__(strategy, settings, target, aggregator, update, downlink, nodes)
        self._replies = Replies(end, self._model.downlink, DEBUG if is_secret else INFO)
        self._evaluating: list[Message] = []

    def summary(self) -> None:
        """Log what the wrapper does, then what the wrapped strategy says of itself."""
        self._noise.summarise()
        log(INFO, "\t│\t├── for one %s; %s; delta %g", self.accounting.unit, self._aggregator, self.accounting.delta)
        rate = getattr(self.strategy, "eta", getattr(self.strategy, "server_learning_rate", 1.0))
        log(
            INFO, "\t│\t├── server step: %s, rate %g, as given: no epsilon moves it", type(self.strategy).__name__, rate
        )
        log(INFO, "\t│\t└── the server holds the keys and is trusted; metrics and evaluation are not covered")
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, each with an offer for its client.

        Args:
            server_round: Number of the round.
            arrays: The model of the round.
            config: What the strategy tells the nodes.
            grid: Flower's connection to the nodes.

        Returns:
            The messages to the sampled nodes.
        """
        self._replies.close_round()
        self._aggregator.close()
        messages = self._messages(server_round, arrays, config, grid)
        if messages or self._aggregator.is_open:
            self._offer(messages, grid)
        return messages

    def _offer(self, messages: list[Message], grid: Grid) -> None:
        """Put an offer for its node into each message."""
        identities = {node.node_id: bytes(node.public_key) for node in grid.get_nodes()}
        known = Known()
        sampled = [(m.metadata.dst_node_id, self._noise.of(m.metadata.dst_node_id)) for m in messages]
        self._publish_model([settings for _, settings in sampled] or [self._noise.settings])
        for message, (node, settings) in zip(messages, sampled):
            self._replies.offer(message, settings, self._server_round, identities.get(node, b""), known)
        self._aggregator.begin(sampled, known.models or [self._model.reference], self._step)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of the good replies.

        Args:
            server_round: Number of the round.
            replies: The nodes' sealed updates.

        Returns:
            The new model, or None where nothing is published; the counts and epsilon among the metrics.
        """
        tally = self._collect(replies)
        arrays, metrics = None, None
        mechanism = self._aggregator.mechanism(tally.opened)
        if mechanism is not None and self._spending.allows(mechanism):
            arrays, metrics = self._aggregator.aggregate(self.strategy, server_round, tally)
            arrays = self._charged(arrays, mechanism)
        report = tally.report(server_round, metrics, self.epsilon, self.accounting.delta)
        for name, figure in self._aggregator.figures(self._spending).items():
            report[name] = figure
        return self._finish(server_round, tally, tally.sampled, arrays, report)

    def _charged(self, arrays: ArrayRecord | None, mechanism: Mechanism) -> ArrayRecord | None:
        """What may be published of a round, once the round is on the account and on disk."""
        published, model = self._model.published(arrays, self._server_round + 1, self._moved)
        self._spending.charge(mechanism, model, self._aggregator.counted, self._aggregator.clip)
        self._noise.follow(self._aggregator.clip)
        return published

    def _collect(self, replies: Iterable[Message]) -> RoundMetrics:
        """The round's replies, opened or dropped with a reason; the round's keys are forgotten."""
        came = self._replies.with_second(list(replies), self._grid, self._timeout)
        down = self._model.downlink
        tally = RoundMetrics(
            self._replies.sent, down.count() if down is not None else (0, 0), self._aggregator.is_secret
        )
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
        """The wrapped strategy's messages: evaluation is not covered by the guarantee.

        Args:
            server_round: Number of the round.
            arrays: The model of the round.
            config: What the strategy tells the nodes.
            grid: Flower's connection to the nodes.

        Returns:
            The messages, with the quantized model where the downlink is quantized.
        """
        self._evaluating = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        self._grid = grid
        if self._model.downlink is not None:
            for message in self._evaluating:
                self._model.downlink.put_into(message)
        return self._evaluating

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the wrapped strategy makes of the evaluation replies; those that would end the run are dropped.

        Args:
            server_round: Number of the round.
            replies: The nodes' metrics.

        Returns:
            The strategy's metrics, or None.
        """
        if self._model.downlink is not None and self._grid is not None:
            replies = self._model.downlink.evaluated(replies, self._evaluating, self._grid, self._timeout)
        metrics = self.strategy.aggregate_evaluate(server_round, consistent_metrics(replies, self._weight_key))
        if self._so_far is not None and metrics is not None:
            self._so_far.evaluate_metrics_clientapp[server_round] = metrics
        return metrics


def _quietly(_level: int, text: str, *given: object) -> None:
    """Log what names a node at DEBUG: nobody may learn who was sampled."""
    log(DEBUG, text, *given)
