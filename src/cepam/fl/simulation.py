"""The simulation: rounds for all clients and several seeds, every update through real bytes.

There is no shortcut that adds noise: each row is encoded to a message, and the server sees only the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import UpdateCodec
from cepam.fl.aggregation.accounting import budgets, of_target
from cepam.fl.aggregation.cohorts import AdaptiveClipAggregator, CohortAggregator
from cepam.fl.aggregation.correlated import CorrelatedNoiseAggregator
from cepam.fl.aggregation.downlink import Downlink, GridDownlink, coarse, downlink_of
from cepam.fl.aggregation.local import LocalDpAggregator
from cepam.fl.aggregation.trusted_server import (
    Aggregator,
    AggregatorContext,
    ClientUpdates,
    Line,
    RoundResult,
    TrustedServerAggregator,
)
from cepam.fl.arrays import ArrayBackend, backend_of
from cepam.fl.clients.local_training import LocalTraining
from cepam.fl.clients.personalization import LayerSplit, own_models
from cepam.fl.clients.sampling import RunSecret
from cepam.fl.clients.sending import ClientMessage, usual_codec
from cepam.fl.config.settings import Settings, clients_per_round
from cepam.fl.data.dataset import Dataset
from cepam.fl.data.partition import Parts, given, partition
from cepam.fl.models.model import Model, Scores, build, resolved
from cepam.fl.models.network import TorchNetwork
from cepam.fl.optim import Memory, optimizer, schedule

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
OBSERVED = 12
"""Rounds of a run at which epsilon is computed for every observer, at most; and at its end."""


@dataclass
class State:
    """All that a run carries from one round to the next, one row a seed; vectors are of the run's arrays.

    `weights` are public: clients compute at them, and the run answers for them. `exact` stays with the optimizer.
    """

    weights: Any
    exact: Any
    memory: Memory
    average: Any
    best: Any
    best_score: npt.NDArray[np.float64]
    bits: npt.NDArray[np.int64]
    downlinks: list[Downlink]
    round: int = 0


@dataclass(frozen=True)
class Sent:
    """The traffic of one seed's round, for whoever wants to keep or count it; `down` holds quantized broadcasts."""

    seed: int
    round: int
    envelopes: tuple[ClientMessage, ...]
    down: Mapping[int, bytes]


def quiet(sent: Sent) -> None:
    """Ignore a message: for runs that keep none.

    Args:
        sent: The traffic of one seed's round.
    """


def aggregator_for(row: AggregatorContext) -> Aggregator:
    """Return the aggregator that the settings of one seed's run choose.

    Args:
        row: One seed's run: settings, clients, keys and draws.

    Returns:
        The aggregator.
    """
    if row.settings.privacy.unit == "client":
        return CohortAggregator(row) if row.settings.privacy.clip_quantile is None else AdaptiveClipAggregator(row)
    if row.settings.privacy.trust == "secure-aggregation":
        # Needs `cryptography`: runs without secure aggregation do without.
        from cepam.fl.aggregation.secure import SecureAggregator

        return SecureAggregator(row)
    if row.settings.training.update == "dp-sgd":
        return LocalDpAggregator(row)
    return CorrelatedNoiseAggregator(row) if row.settings.sliced else TrustedServerAggregator(row)


@dataclass
class Simulation:
    """A federated run in one process, round by round; `train` runs one to its end and keeps it in a folder.

    Best weights and accuracies look at test or validation data: for simulation only.

    Args:
        settings: What to run.
        data: The records.
        model: What is trained; by default what the settings name.
        codecs: From a client's number to its codec, in the place of the settings' scheme.
        watch: Hears of every message.
        backend: Where vectors live; by default as `run.device` says.
        secret: What keys and draws come from. By default fresh from the operating system, or the seed with
            `run.simulate`.
        aggregator: Makes a seed's aggregator; by default the one that the settings ask for.

    Raises:
        ValueError: The settings do not fit the data, or no noise meets the target epsilon.
    """

    settings: Settings
    data: Dataset
    model: Model | None = None
    codecs: Callable[[int], UpdateCodec] | None = None
    watch: Callable[[Sent], None] = quiet
    backend: ArrayBackend | None = None
    secret: RunSecret | None = None
    aggregator: Callable[[AggregatorContext], Aggregator] = aggregator_for
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.settings = chosen = self.settings.fitted(self.data.clients)
        if self.model is None and len(self.data.shape) == 2:
            self.data = replace(self.data, shape=(1, *self.data.shape))
        self.vector = self.model or build(chosen.model.name, self.data, chosen.model.activation)
        self.layer_split = LayerSplit.of(self.vector, chosen.model.personal_layers)
        self.size = len(self.layer_split.sent)
        kept = [self.data.holding_out(chosen.data.validation_records, seed) for seed in chosen.run_seeds]
        self.validation = [held_out for _, held_out in kept]
        parts = tuple(self._parts(records, seed) for (records, _), seed in zip(kept, chosen.run_seeds))
        many = clients_per_round(chosen.clients.count, chosen.clients.sampling_rate)
        device = resolved(
            chosen.run.device, self.size * many * len(chosen.run_seeds) // max(chosen.training.local_steps, 1)
        )
        self.secret = held = self.secret or RunSecret.of(chosen)
        self.rows = tuple(held.row(seed) for seed in chosen.run_seeds)
        self.arrays = self.backend or backend_of(device, self._prefetch)
        if device == "cuda" and chosen.privacy.trust == "server":
            usual = usual_codec(chosen, self.size) if self.codecs is None else self.codecs(0)
            self.arrays.expect(usual, many, self.size)
        self.network = self.vector.on(self.data, device)
        self.aggregators = tuple(self._aggregator(s, held.nonce, part) for s, part in enumerate(parts))
        kind = chosen.training.schedule if chosen.training.local_schedule == "same" else chosen.training.local_schedule
        local = self._schedule(kind, chosen.training.local_learning_rate or chosen.training.server_learning_rate)
        self.own = own_models(self.vector, chosen, self.data, parts, self.validation, self.arrays)
        held_by = None if self.own is None else self.own.client_state
        self.work = LocalTraining(
            chosen, self.network, parts, self.rows, self.aggregators, local, self.arrays.put, held_by, self.data.removed
        )  # fmt: skip
        self.rates = self._schedule(chosen.training.schedule, chosen.training.server_learning_rate)
        self.optimizer = optimizer(chosen.training.server_optimizer, chosen.training.server_momentum)
        self.state = self._start(held.nonce)
        self.aggregators[0].foresee()

    @property
    def warnings(self) -> list[str]:
        """What must be said before the first round, in one sentence each."""
        first = self.aggregators[0]
        met = of_target(self.settings, first.mechanism)
        rate = [self.settings.followed_rate] if self.settings.followed_rate else []
        return [*rate, *first.warnings, *met, *(() if self.own is None else self.own.warnings)]

    @property
    def privacy_warnings(self) -> list[str]:
        """What must be said beside the figures of the whole run, in one line each; of its model once it is over."""
        said = self.aggregators[0].privacy_warnings
        if not self.done:
            return said
        fetch = self.arrays.fetch
        return [*said, *coarse(self.settings, self._starts(), fetch(self.state.exact), fetch(self.state.weights))]

    def _prefetch(self) -> None:
        """Draw the next round's randomness while waiting for a GPU."""
        for draws in self.rows:
            draws.prefetch()

    def _parts(self, records: Index, seed: int) -> Parts:
        chosen, labels = self.settings, self.data.train_labels[records]
        if self.data.owners is not None:
            return given(self.data.owners[records], self.data.clients).within(records)
        made = partition(
            chosen.data.partition,
            labels,
            chosen.clients.count,
            seed,
            chosen.data.concentration,
            chosen.data.shards_per_client,
        )
        return made.within(records)

    def _aggregator(self, s: int, nonce: bytes, parts: Parts) -> Aggregator:
        shapes = self.layer_split.tensors
        cuts = list(np.cumsum(shapes)) if self.settings.privacy.clip_scope == "tensor" else None
        head = self.network.head if isinstance(self.network, TorchNetwork) else None
        vectors = ClientUpdates(self.size, len(shapes), cuts, self.arrays, head)
        return self.aggregator(AggregatorContext(
            self.settings, self.rows[s], nonce, parts.held, vectors, self.data.clients, self.codecs,
            lambda: self.state.downlinks[s].check(self.arrays.fetch(self.state.weights[s : s + 1])[0]),
        ))  # fmt: skip

    def _schedule(self, kind: str, rate: float) -> Any:
        s = self.settings
        return schedule(
            kind,
            rate,
            s.training.rounds * s.training.local_steps,
            s.training.local_steps,
            s.training.convexity,
            s.training.smoothness,
        )

    def _starts(self) -> Floats:
        """The initial weights, one row per seed."""
        return np.stack([self.vector.initial(seed)[self.layer_split.sent] for seed in self.settings.run_seeds])

    def _start(self, nonce: bytes) -> State:
        weights = self._starts()
        count, put = len(weights), self.arrays.put
        memory = {name: put(value) for name, value in self.optimizer.start(weights).items()}
        rows = zip(self.aggregators, weights, self.settings.run_seeds)
        first = self._server_rate(0)
        tensors = tuple(zip(self.layer_split.tensors, self.layer_split.rows))
        downlinks = [
            downlink_of(self.settings, up.noise, first, start, nonce, seed, tensors) for up, start, seed in rows
        ]
        return State(
            put(weights), put(weights), memory, put(weights), put(weights), np.full(count, -np.inf),
            np.zeros(count, dtype=np.int64), downlinks,
        )  # fmt: skip

    @property
    def done(self) -> bool:
        """Whether all rounds have been run."""
        return self.state.round >= self.settings.training.rounds

    @property
    def reported(self) -> Any:
        """The weights that the run answers for: the running average where the settings ask for one, else the last."""
        return self.state.average if self.settings.training.weight_averaging else self.state.weights

    def step(self) -> list[Line]:
        """Run one round.

        Returns:
            Its metrics, one dictionary per seed.
        """
        number = self.state.round
        rows = [(s, int(k)) for s, aggregator in enumerate(self.aggregators) for k in aggregator.sampled(number)]
        cohorts = [[k for t, k in rows if t == s] for s in range(len(self.aggregators))]
        bounds = np.concatenate(
            [aggregator.bounds(number, clients) for aggregator, clients in zip(self.aggregators, cohorts)]
        )
        raw, losses = self.work.updates(self.state.weights, number, rows, bounds)
        lines, aggregates, ends = [], [], np.cumsum([len(clients) for clients in cohorts])
        for s, seed in enumerate(self.settings.run_seeds):
            mine = slice(ends[s] - len(cohorts[s]), ends[s])
            collected, line = self._exchange(s, number, cohorts[s], raw[mine])
            aggregates.append(collected.aggregate)
            loss = _mean(self.arrays.fetch(losses[mine]))
            lines.append({"round": number + 1, "seed": seed, "train_loss": loss, **line})
        self._move(self.arrays.stack(aggregates))
        self._judge(lines)
        self._observe(lines)
        return lines

    def _move(self, aggregates: Any) -> None:
        """One server step from the aggregates, what is made public of it, and the running average of that."""
        state = self.state
        rate = self._server_rate(state.round)
        state.exact, state.memory = self.optimizer.step(state.exact, aggregates, rate, state.memory)
        state.weights = self._published(rate, aggregates)
        past = min(self.settings.training.weight_averaging, (state.round + 1) / (state.round + 10))
        state.average = past * state.average + (1.0 - past) * state.weights
        state.round += 1

    def _server_rate(self, number: int) -> float:
        return float(self.rates.at((number + 1) * self.settings.training.local_steps - 1))

    def _published(self, rate: float, aggregates: Any) -> Any:
        """The weights that clients will compute at: the exact ones, or points of the downlink's grid."""
        if self.settings.compression.downlink == "float32":
            return self.state.exact
        fetched = self.arrays.fetch(self.state.exact)
        self._check_finite(fetched, self.state.round + 1)
        rows = zip(self.state.downlinks, fetched, self.arrays.fetch(aggregates))
        made = [each.publish(exact, rate, moved) for each, exact, moved in rows if isinstance(each, GridDownlink)]
        return self.arrays.put(np.stack(made))

    def _exchange(self, s: int, number: int, clients: list[int], raw: Any) -> tuple[RoundResult, Line]:
        """One seed's messages, down and up, and what can be said about them.

        Whoever is waited for is sent the weights again with every attempt.
        """
        downlink = self.state.downlinks[s]
        down = downlink.messages(clients)
        came = self.aggregators[s].collect(number, clients, raw)
        self.watch(Sent(self.settings.run_seeds[s], number, came.envelopes, down))
        self.state.bits[s] += came.bits
        downlink_bits = downlink.bits(came.tried, down) + came.down_bits
        downlink.reached(came.heard)
        line: Line = {
            **came.line,
            "bits_total": int(self.state.bits[s]),
            "downlink_bits": downlink_bits,
            "bits_per_coordinate_down": downlink_bits / (len(clients) * self.size) if clients else 0.0,
            "bits_round_trip": came.bits + downlink_bits,
        }
        return came, line

    def _judge(self, lines: list[Line]) -> None:
        """Adds scores, epsilon so far and warnings to the lines of an evaluated round."""
        chosen, state = self.settings, self.state
        if state.round % chosen.run.evaluate_every and not self.done:
            return
        weights = self.reported
        self._check_finite(weights, state.round)
        own = self.own
        scores = self.network.evaluate(weights) if own is None else own.test(self.network, weights)
        judged = "accuracy" if self.vector.objective.classifies else "loss"
        for s, line in enumerate(lines):
            line |= {name: _finite(float(each[s])) for name, each in (scores.metrics | {"loss": scores.loss}).items()}
            chooses = self._merit(scores, s)
            if chosen.data.validation_records:
                row, index = weights[s : s + 1], self.validation[s]
                held = self.network.evaluate(row, index) if own is None else own.validation(self.network, weights, s)
                chooses = self._merit(held, 0)
                line[f"validation_{judged}"] = _finite(chooses if judged == "accuracy" else -chooses)
            if chooses > state.best_score[s]:
                state.best_score[s], state.best[s] = chooses, weights[s]
            line |= {"epsilon": self._spent(s), "delta": chosen.privacy.delta, "simulated": chosen.run.simulate}
            if self.done:
                line["warnings"] = self.privacy_warnings

    def _observe(self, lines: list[Line]) -> None:
        """Adds epsilon so far by observer to the lines of at most `OBSERVED` rounds of a run.

        Where rounds differ in who replied, a figure takes longer, and there are a third as many.
        """
        alike = all(up.accountant.alike for up in self.aggregators)
        apart = -(-self.settings.training.rounds // OBSERVED) * (1 if alike else 3)
        if self.state.round % apart and not self.done:
            return
        if seen := self.views(rough=not self.done):
            for line in lines:
                line["epsilon_against"] = seen

    def _merit(self, scores: Scores, row: int) -> float:
        """What the best weights are chosen by: accuracy, or with a loss of the user's own a low loss."""
        return float(scores.accuracy[row] if self.vector.objective.classifies else -scores.loss[row])

    def _check_finite(self, weights: Any, round: int) -> None:
        if not bool((abs(weights) < np.inf).all()):
            raise ValueError(
                f"the weights are no longer finite after round {round}: lower "
                f"training.server_learning_rate, {self.settings.training.server_learning_rate:g}"
            )

    def _spent(self, s: int) -> float | None:
        """epsilon so far: a bound while the run is under way; at its end the figure that a target was held against."""
        so_far = self.aggregators[s].spent() if self.done else self.aggregators[s].running()
        return None if so_far is None else _finite(so_far)

    def views(self, rough: bool = False) -> dict[str, float | None]:
        """epsilon so far by observer; the worst of the seeds. None where no finite bound is available.

        `rough` gives a bound in less time.

        Args:
            rough: Whether a bound will do that takes less time.

        Returns:
            epsilon by observer; empty where nothing is claimed.
        """
        each = [aggregator.views(rough) for aggregator in self.aggregators]
        observers = dict.fromkeys(who for views in each for who in views)
        return {who: _finite(max(views.get(who, np.inf) for views in each)) for who in observers}

    def budgets(self) -> list[Line]:
        """Each client's name, records, noise, target and what its records have spent against an outsider.

        The first seed's. Where nobody has a name or a target of its own there is nothing to tell apart: an empty list.

        Returns:
            A dictionary per client.
        """
        first = self.aggregators[0]
        return budgets(self.settings, self.data.clients, first.plans, first.mechanism, first.accountant)


def _mean(losses: Floats) -> float | None:
    """The mean of the losses that are numbers: a record that is none contributes nothing, here too."""
    sound = losses[np.isfinite(losses)]
    return float(sound.mean()) if len(sound) else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
