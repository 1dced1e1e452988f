"""Rounds with correlated noise: what the replies are aggregated to, and what the run so far is charged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from flwr.serverapp.strategy import Strategy

from cepam.flower.client_mod import record_of
from cepam.flower.replies import Aggregate, Opened, ReplyAggregator, RoundMetrics, one_reply, publishes_average
from cepam.protocol.account import Accounting, Reply
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig, ServerCorrelatedNoise
from cepam.protocol.models import Arrays, count, from_vector
from cepam.protocol.settings import UplinkSettings

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Arrival, Client, Mechanism


class CorrelatedAggregator(ReplyAggregator):
    """The sum of the replies, their noise decorrelated, over the weights of all sampled nodes; the run is one event.

    Divided by those that replied, noise would no longer cancel. Absences are charged as they were.
    Guarantee: epsilon is that of what was published, also after a restart (tests/flower/test_correlated_noise.py).
    """

    def __init__(
        self,
        account: Accounting,
        least_replies: int,
        config: CorrelatedNoiseConfig,
        correlated_noise: ServerCorrelatedNoise,
    ) -> None:
        super().__init__(account, True, least_replies)
        self.config, self.correlated_noise = config, correlated_noise
        self._run: str | None = None
        self._earlier: dict[int, Client] = {}

    def resume(self, accountant: Accountant, run: str, clip: float | None) -> None:
        """Charge what was published of this run before the server was started anew with the rest."""
        from cepam.privacy import MatrixMechanism

        if self._run is not None:
            return
        self._run = f"flower {run}"
        for mechanism in accountant.mechanisms:
            if isinstance(mechanism, MatrixMechanism) and mechanism.run == self._run and mechanism.nodes is not None:
                assert mechanism.observed_participation is not None
                self.correlated_noise.restore(
                    dict(zip(mechanism.nodes, mechanism.observed_participation.arrivals)), mechanism.rounds
                )
                self._earlier = dict(zip(mechanism.nodes, mechanism.clients))

    def planned(self, settings: UplinkSettings, nodes: int, coordinates: int) -> Mechanism:
        return self._correlated([(node, settings) for node in range(nodes)], coordinates, None, 1)

    def begin(self, sampled: list[Reply], models: list[Arrays], step: float | None) -> None:
        if len(models) > 1 or len({settings for _, settings in sampled}) > 1:
            raise ValueError("correlated noise needs one model and one setting for all nodes")
        self._sampled, self._model, self._step = sampled, models[0], step
        self.correlated_noise.begin()

    def aggregate(self, strategy: Strategy, server_round: int, tally: RoundMetrics) -> Aggregate:
        from cepam.privacy.cohorts.dropouts import server_noise
        from cepam.privacy.numerics.smoothing import smoothing

        noises = [settings.weight * settings.law.scale for _, settings in self._sampled]
        total = server_noise(smoothing(noises), count(self._model))
        for one in tally.opened:
            total += one.settings.weight * np.asarray(one.vector, dtype=np.float64)
        mean = total / sum(settings.weight for _, settings in self._sampled)
        self.correlated_noise.commit([one.node for one in tally.opened])
        return one_reply(strategy, server_round, tally, record_of(from_vector(mean, self._model, self._step)))

    def mechanism(self, opened: Sequence[Opened]) -> Mechanism | None:
        if not self._enough(opened):
            return None
        came = self.correlated_noise.with_round([one.node for one in opened])
        settings = self._sampled[0][1]
        return self._correlated(
            [(node, settings) for node in came],
            count(self._model),
            list(came.values()),
            self.correlated_noise.rounds + 1,
        )

    def _correlated(
        self, replies: list[Reply], coordinates: int, came: list[list[Arrival]] | None, rounds: int
    ) -> Mechanism:
        from cepam.privacy import MatrixMechanism, ObservedParticipation

        account, known = self.account, self._earlier
        clients = [
            known.get(node) or self.config.client(s.law, s.records, s.weight, s.clip, s.lattice, s.codec.searches)
            for node, s in replies
        ]
        return MatrixMechanism(
            tuple(clients),
            replies[0][1].clip,
            rounds=rounds,
            colluders=min(account.colluders, len(clients) - 1),
            adjacency=account.adjacency,
            coordinates=coordinates,
            nodes=tuple(node for node, _ in replies),
            unit=account.unit,
            link=self.config.link,
            clipped=self.config.clipped,
            observed_participation=None if came is None else ObservedParticipation(rounds, tuple(map(tuple, came))),
            run=self._run or "",
        )

    def __str__(self) -> str:
        return (
            f"correlated noise: {self.config.slices} slices in turn, decay {self.config.decay:g}; charged as published"
        )


def check_correlated_noise(
    strategy: Strategy, account: Accounting, config: CorrelatedNoiseConfig, others: Mapping[str, object]
) -> None:
    """Refuse what does not go with correlated noise; `others` are options that exclude it, None where not given."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"{name} does not go with correlated_noise: its replies are added up and charged as they came"
            )
    if not publishes_average(strategy, account):
        raise ValueError(
            "correlated_noise cancels in averages: the strategy must publish nothing else "
            "(set Accounting(released='average') if your strategy publishes the average only)"
        )
    if not account.stable_nodes:
        raise ValueError(
            "correlated_noise follows each node from round to round: Accounting(stable_nodes=True), with node "
            "authentication on"
        )
    if account.record_sampling is not None:
        raise ValueError("correlated_noise claims no secret sampling: leave Accounting(record_sampling=…) out")
    if account.clipped != config.clipped:
        raise ValueError(
            f"Accounting has clipped={account.clipped!r}, correlated_noise {config.clipped!r}: clipped='example' goes "
            "with CorrelatedNoiseConfig(divisor=…), the public number over which clipped gradients are summed"
        )
