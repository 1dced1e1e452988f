"""Dropout handling: compensate for missing replies or charge for them (`protocol/dropouts.py` has the noise)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING, getLogger
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from cepam.distributions.laws import Gaussian, Law
from cepam.flower.arrays import record_of
from cepam.flower.budget import Budget
from cepam.flower.replies import Opened
from cepam.flower.round_metrics import RoundMetrics
from cepam.protocol.accounting import Accounting, Reply
from cepam.protocol.downlink import noise_of_average
from cepam.protocol.dropouts import Shares
from cepam.protocol.options import Dropouts
from cepam.protocol.settings import UplinkSettings
from cepam.protocol.vectors import Arrays, count, from_vector

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

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
