"""What `Private` and `SecureAggregation` share: rounds under an accountant and a budget, noise, dropouts, and how a run
ends.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, PrivacySpent
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Result, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore.utils import get_flwr_home

from cepam.clip import L2
from cepam.distributions.laws import Gaussian, Law
from cepam.errors import BudgetSpent
from cepam.flower.accountant import METHOD
from cepam.flower.client_mod import numpy_of, record_of, same_or_new
from cepam.flower.downlink import Distribution, distribution_for
from cepam.flower.replies import Opened, RoundMetrics, RunFailure
from cepam.privacy.cohorts.dropouts import UPWARD
from cepam.privacy.composition.accountant import affordable
from cepam.protocol.accounting import Accounting, Reply, Target, settings_for
from cepam.protocol.downlink import noise_of_average
from cepam.protocol.saved_account import RunAccount
from cepam.protocol.server import Shares
from cepam.protocol.settings import Dropouts, Gradient, NodeSettings, QuantizedBroadcast, UplinkSettings
from cepam.protocol.vectors import (
    BATCH_NORM,
    Arrays,
    Layout,
    count,
    digest,
    from_vector,
    has_batch_statistics,
    kept_positive,
)

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism

# Which strategies of Flower can be wrapped, and which publish nothing but a function of the weighted average.
#
# To add a strategy whose published model depends on replies through their weighted average alone, name it in
# `AVERAGING`. A subclass of one of them is not covered by its parent's name: it may publish more.


# Strategies of Flower whose published model depends on the replies through their weighted average alone.
AVERAGING = (FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi)


def publishes_average(strategy: Strategy, account: Accounting) -> bool:
    """Whether the noise of all replies may be counted together: only where nothing but their average is published."""
    if account.released == "auto":
        return type(strategy) in AVERAGING
    return account.released == "average"


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


log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


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
        """Whether the budget has room for this round; if not, training ends here."""
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


Aggregate = tuple[ArrayRecord | None, MetricRecord | None]


class Aggregator:
    """The base of all aggregators: average the replies that came and charge their noise (dropout handling `charge`).

    `average` says that nothing but the average of the replies is published, so that the noise of all counts. A round
    with fewer than `least_replies` is not published and costs nothing. `is_secret` says that nobody may learn who was
    sampled, nor how many; `is_open` that a round is published even if nobody was; `clip` is the next one, if it moves.
    `step` is the server's step along the averaged update; None hands on the vectors themselves.
    """

    is_secret = False

    def __init__(self, account: Accounting, average: bool, least_replies: int) -> None:
        self.account, self.average, self.least_replies = account, average, least_replies
        self.is_open = False
        self.clip: float | None = None
        self._sampled: list[Reply] = []
        self._model: Arrays = {}
        self._step: float | None = 1.0

    def planned(self, settings: UplinkSettings, nodes: int, coordinates: int) -> Mechanism:
        """A round as it is meant: so many nodes that all reply."""
        return self._mechanism([(node, settings) for node in range(nodes)], coordinates)

    def noise(self, sampled: Sequence[UplinkSettings]) -> float:
        """The standard deviation per coordinate of what is published where these are sampled."""
        return noise_of_average(sampled)

    def choose(self, messages: list[Message], settings: UplinkSettings, taken: Mapping[int, int]) -> list[Message]:
        """The messages that are sent, of those of the strategy; `taken` says how often nodes were sampled."""
        return messages

    def foreseen(self, sampled: list[Reply], coordinates: int) -> Mechanism | None:
        """What the round costs at least if these are sampled, where that is known before; None where it is not.

        Fewer replies bring less noise and cost more, where all have one setting and every round is charged as its worst
        client paid it. With nodes that pay for their own rounds alone, one that stays away may make a round affordable.
        """
        alike = len({settings for _, settings in sampled}) == 1
        return self._mechanism(sampled, coordinates) if alike and not self.account.stable_nodes else None

    def close(self) -> None:
        """End the round."""
        self.is_open = False

    @property
    def counted(self) -> list[int]:
        """The nodes whose rounds are counted."""
        return []

    def figures(self, spending: Budget) -> dict[str, float]:
        """What else goes among a round's metrics."""
        return {}

    def begin(self, sampled: list[Reply], models: list[Arrays], step: float | None) -> None:
        """Begin a round with these nodes and models, which goes so far along what comes back.

        Settings that cannot be accounted for together are refused, before anything leaves.
        """
        self._sampled, self._model, self._step = sampled, models[0], step
        self._mechanism(sampled, count(models[0]))

    def resume(self, accountant: Accountant, run: str, clip: float | None) -> None:
        """Take up the rounds of this run that are on the account already, and the clip that followed from them."""

    def mechanism(self, opened: Sequence[Opened]) -> Mechanism | None:
        """The round as the accountant sees it, or None where it is not to be published."""
        return self._mechanism(self._charged(opened), count(self._model)) if self._enough(opened) else None

    def _enough(self, opened: Sequence[Opened]) -> bool:
        if len(opened) < self.least_replies:
            log(
                WARNING,
                "cepam: %d good replies, %d needed: nothing is published this round, nothing is charged",
                len(opened),
                self.least_replies,
            )
        return len(opened) >= self.least_replies

    def aggregate(self, strategy: Strategy, server_round: int, tally: RoundMetrics) -> Aggregate:
        """What the wrapped strategy makes of the round."""
        made: Aggregate = strategy.aggregate_train(server_round, [one.dense(self._step) for one in tally.opened])
        return made

    def _charged(self, opened: Sequence[Opened]) -> list[Reply]:
        """Whose noise is in the round."""
        return [(one.node, one.settings) for one in opened]

    def _mechanism(self, replies: list[Reply], coordinates: int) -> Mechanism:
        return self.account.mechanism(replies, self.average, coordinates)

    def __str__(self) -> str:
        noise = "all replies" if self.average else "each reply by itself (more than the average may be published)"
        return f"noise counted: {noise}"


class CompensatingAggregator(Aggregator):
    """Dropout handling `compensate`: the noise is that of all sampled nodes; the server adds what is missing.

    The sum is divided by the weights of all sampled nodes, never by those that replied; the wrapped strategy is handed
    one reply, the compensated average, and does with it what it does with an average.
    Guarantee: the law of the noise and epsilon do not depend on who replied (tests/flower/test_dropouts.py).
    """

    def begin(self, sampled: list[Reply], models: list[Arrays], step: float | None) -> None:
        super().begin(sampled, models, step)
        check_one_model(models)
        self._settings = sampled[0][1]

    def foreseen(self, sampled: list[Reply], coordinates: int) -> Mechanism | None:
        """What the round costs, whoever replies."""
        return self._mechanism(sampled, coordinates) if sampled else None

    @property
    def shares(self) -> Shares:
        """What nodes and server bring, and the divisor."""
        return Shares.of(settings for _, settings in self._sampled)

    def mean(self, tally: RoundMetrics) -> npt.NDArray[np.float64]:
        """The compensated average of what came."""
        came = [(one.settings, one.vector) for one in tally.opened]
        return self.shares.mean(came, count(self._model) + self._settings.beside)

    def aggregate(self, strategy: Strategy, server_round: int, tally: RoundMetrics) -> Aggregate:
        moved = from_vector(self.mean(tally), self._model, self._step)
        return one_reply(strategy, server_round, tally, record_of(moved))

    def _charged(self, opened: Sequence[Opened]) -> list[Reply]:
        return self._sampled

    def __str__(self) -> str:
        return "noise counted: that of all sampled nodes, whoever replies: the server adds what is missing"


def check_one_model(models: list[Arrays]) -> None:
    """Refuse messages with different models, whose updates cannot be added up."""
    if len(models) > 1:
        raise ValueError(f"dropout compensation needs one model for all nodes, got {len(models)} models")


def one_reply(strategy: Strategy, server_round: int, tally: RoundMetrics, average: ArrayRecord) -> Aggregate:
    """What the strategy makes of one reply that holds the average, with the metrics of all replies."""
    weight_key = getattr(strategy, "weighted_by_key", "num-examples")
    aggregate = getattr(strategy, "train_metrics_aggr_fn", aggregate_metricrecords)
    metrics = aggregate([one.message.content for one in tally.opened], weight_key) if tally.opened else MetricRecord()
    content = RecordDict(
        {
            getattr(strategy, "arrayrecord_key", "arrays"): average,
            "cepam-metrics": MetricRecord({**metrics, weight_key: 1.0}),
        }
    )
    arrays, _ = strategy.aggregate_train(server_round, [Message(content, 0, MessageType.TRAIN)])
    return arrays, metrics


def aggregator_for(dropouts: Dropouts, account: Accounting, average: bool, law: Law) -> Aggregator:
    """The aggregator of this dropout handling; `auto` compensates where that is possible."""
    fits = average and isinstance(law, Gaussian)
    if dropouts.handling == "compensate" and not fits:
        raise ValueError(
            "dropout handling 'compensate' needs Gaussian noise and a strategy that publishes nothing but the average "
            "(set Accounting(released='average') if your strategy publishes the average only)"
        )
    kind = CompensatingAggregator if fits and dropouts.handling != "charge" else Aggregator
    return kind(account, average, dropouts.least_replies)


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
    def told(self) -> UplinkSettings:
        """The settings of all nodes; the scale of their noise holds once it is found."""
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

    def find(self, sampled: int, aggregator: Aggregator, coordinates: int) -> None:
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
        aggregator: Aggregator,
        update: UpdateKind,
        downlink: DownlinkKind,
        nodes: PerNode | None = None,
    ) -> None:
        check_strategy(strategy)
        self.strategy = strategy
        self.accounting: Accounting = aggregator.account
        self._aggregator = aggregator
        self._noise = NodeNoise(settings, target, nodes)
        self._spending = budget_of(self.accounting, target)
        self._step = step_of(update)
        self._model = RoundModel(distribution_for(downlink, self._step is not None), self._step is not None)
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
        settings = self._noise.told
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
