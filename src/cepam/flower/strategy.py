"""The server's half with a trusted server: any Flower strategy, fed with private, small updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from logging import DEBUG, INFO, getLogger
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cepam.clip import Clip
from cepam.distributions.laws import Law
from cepam.flower.base import (
    Aggregator,
    DownlinkKind,
    PerNode,
    PrivateStrategy,
    UpdateKind,
    aggregator_for,
    check_strategy,
    publishes_average,
)
from cepam.flower.correlated_noise import CorrelatedAggregator, check_correlated_noise
from cepam.flower.replies import Known, Replies, RoundMetrics, consistent_metrics
from cepam.flower.sampling import AdaptiveClip, Fixed, Poisson, SamplingAggregator, check_sampling
from cepam.protocol.accounting import Accounting, Target, noise_of
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
from cepam.protocol.server import Refused, ServerEnd, refusing
from cepam.protocol.settings import Authentication, Compression, Dropouts

if TYPE_CHECKING:
    from cepam.privacy import Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


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
        aggregator: Aggregator
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
            aggregator = aggregator_for(handling, accounting, publishes_average(strategy, accounting), law)
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
        """The wrapped strategy's messages, each with an offer for its client."""
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
        """What the wrapped strategy makes of the good replies, with the counts and epsilon among the metrics."""
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


def _quietly(_level: int, text: str, *given: object) -> None:
    """Log what names a node at DEBUG: nobody may learn who was sampled."""
    log(DEBUG, text, *given)
