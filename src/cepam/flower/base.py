"""What `Private` and `SecureAggregation` share: rounds under an accountant and a budget, and how a run ends."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable
from logging import getLogger
from typing import Any, ClassVar, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, PrivacySpent
from flwr.serverapp.strategy import Result, Strategy

from cepam.distributions.laws import Gaussian
from cepam.errors import BudgetSpent
from cepam.flower.accountant import METHOD
from cepam.flower.averaging import check_strategy
from cepam.flower.budget import budget_of
from cepam.flower.downlink import distribution_for
from cepam.flower.dropouts import Aggregate, Aggregator
from cepam.flower.noise import NodeNoise, PerNode
from cepam.flower.round_metrics import RoundMetrics
from cepam.flower.round_model import RoundModel
from cepam.flower.run_failure import RunFailure
from cepam.protocol.accounting import Accounting, Target
from cepam.protocol.options import Gradient, QuantizedBroadcast
from cepam.protocol.settings import UplinkSettings

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

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
