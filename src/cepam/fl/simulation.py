"""The simulator: rounds of Algorithm 1 for all clients and several seeds, every update through bytes.

There is no shortcut that adds noise: each row is encoded to a message, and the server sees only the message.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.fl import draws
from cepam.fl.bill import Bill, colluding, release_of, warnings_of
from cepam.fl.client import Work, clipped
from cepam.fl.data import Dataset
from cepam.fl.fleet import Channel, Member, fleet
from cepam.fl.model import Model, build
from cepam.fl.optimiser import Memory, optimiser
from cepam.fl.partition import partition
from cepam.fl.schedule import schedule
from cepam.fl.server import Envelope, Received, aggregate, receive
from cepam.fl.settings import Settings
from cepam.stream import Address, Key, SimulationOnly

Floats = npt.NDArray[np.float32]
Line = dict[str, Any]
Posted = tuple[Envelope, Floats | None]
MOST_ATTEMPTS = 100


@dataclass
class State:
    """All that a run carries from one round to the next, one row a seed."""

    weights: Floats
    memory: Memory
    average: Floats
    best: Floats
    best_score: npt.NDArray[np.float64]
    bits: npt.NDArray[np.int64]
    bills: list[Bill]
    round: int = 0


@dataclass(frozen=True)
class Sent:
    """The traffic of one seed's round, for whoever wants to keep or count it."""

    seed: int
    round: int
    envelopes: tuple[Envelope, ...]


def quiet(sent: Sent) -> None:
    """Nothing: for runs that keep no messages."""


@dataclass
class Simulation:
    """A federated run in one process.

    `channels` replaces the settings' scheme with objects of your own: one function from client number to channel.
    `watch` sees all traffic. Best weights and accuracies look at test or validation data: simulation only.
    """

    settings: Settings
    data: Dataset
    model: Model | None = None
    channels: Callable[[int], Channel] | None = None
    watch: Callable[[Sent], None] = quiet
    state: State = field(init=False)

    def __post_init__(self) -> None:
        chosen = self.settings
        self.vector = self.model or build(chosen.model, self.data, chosen.activation)
        self.size = self.vector.size
        shapes = [p.numel() for p in self.vector.module.parameters()]
        self.cuts = list(np.cumsum(shapes)) if chosen.clip_scope == "tensor" else None
        self.tensors = len(shapes)
        kept = [self.data.holding_out(chosen.validation, seed) for seed in chosen.run_seeds]
        self.validation = [held_out for _, held_out in kept]
        parts = tuple(self._parts(records, seed) for (records, _), seed in zip(kept, chosen.run_seeds))
        self.fleets = [self._fleet(part) for part in parts]
        self.releases = [None if self.channels else release_of(chosen, each, self.size) for each in self.fleets]
        self.network = self.vector.on(self.data, chosen.device)
        self.work = Work(chosen, self.network, parts, self._schedule(chosen.local_rate or chosen.rate))
        self.rates = self._schedule(chosen.rate)
        self.optimiser = optimiser(chosen.server, chosen.momentum)
        self.keys = [_keys(seed, chosen.clients) for seed in chosen.run_seeds]
        self.run_id = hashlib.sha256(repr(chosen).encode()).digest()[:16]
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self.cautions = warnings_of(chosen, self.releases[0], self.tensors)
        self.state = self._start()

    def _parts(self, records: npt.NDArray[np.int64], seed: int) -> tuple[npt.NDArray[np.int64], ...]:
        chosen, labels = self.settings, self.data.train_labels[records]
        made = partition(chosen.partition, labels, chosen.clients, seed, chosen.alpha, chosen.labels_each)
        return tuple(records[part] for part in made)

    def _fleet(self, parts: Sequence[npt.NDArray[np.int64]]) -> tuple[Member, ...]:
        held = np.array([len(part) for part in parts])
        made = fleet(self.settings, held, self.size, self.tensors)
        if self.channels is None:
            return made
        return tuple(Member(m.records, m.weight, m.batch, m.clip, m.law, self.channels(k)) for k, m in enumerate(made))

    def _schedule(self, rate: float) -> Any:
        s = self.settings
        return schedule(s.schedule, rate, s.rounds * s.tau, s.tau, s.convexity, s.smoothness)

    def _start(self) -> State:
        weights = np.stack([self.vector.initial(seed) for seed in self.settings.run_seeds])
        count = len(weights)
        return State(
            weights, self.optimiser.start(weights), weights.copy(), weights.copy(), np.full(count, -1.0),
            np.zeros(count, dtype=np.int64), [Bill() for _ in range(count)],
        )  # fmt: skip

    @property
    def done(self) -> bool:
        """Whether all rounds have been run."""
        return self.state.round >= self.settings.rounds

    @property
    def reported(self) -> Floats:
        """The weights that the run answers for: the running average where the settings ask for one, else the last."""
        return self.state.average if self.settings.average else self.state.weights

    def step(self) -> list[Line]:
        """Runs one round and gives its line of metrics for every seed."""
        number, chosen = self.state.round, self.settings
        asked = [draws.cohort(seed, number, chosen.clients, chosen.share) for seed in chosen.run_seeds]
        rows = [(s, int(k)) for s, cohort in enumerate(asked) for k in cohort]
        bounds = np.array([getattr(self.fleets[s][k].clip, "bound", np.inf) for s, k in rows], dtype=np.float32)
        raw, losses = self.work.updates(self.state.weights, number, rows, bounds)
        lines, aggregates = [], np.zeros_like(self.state.weights)
        for s, seed in enumerate(chosen.run_seeds):
            mine = {k: row for row, (t, k) in enumerate(rows) if t == s}
            updates = {k: raw[row] for k, row in mine.items()}
            received, line = self._exchange(s, number, updates)
            aggregates[s] = aggregate(self.fleets[s], received, self.size)
            everyone = frozenset(range(chosen.clients))
            self.state.bills[s] = self.state.bills[s].add(everyone - received.vectors.keys())
            loss = float(np.mean([losses[row] for row in mine.values()]))
            lines.append({"round": number + 1, "seed": seed, "train_loss": _finite(loss), **line})
        self._move(aggregates)
        self._judge(lines)
        return lines

    def _move(self, aggregates: Floats) -> None:
        """One server step from the aggregates, and the running average of the weights after it."""
        state = self.state
        rate = self.rates.at((state.round + 1) * self.settings.tau - 1)
        state.weights, state.memory = self.optimiser.step(state.weights, aggregates, rate, state.memory)
        past = np.float32(min(self.settings.average, (state.round + 1) / (state.round + 10)))
        state.average = past * state.average + (np.float32(1) - past) * state.weights
        state.round += 1

    def _exchange(self, s: int, number: int, updates: dict[int, Floats]) -> tuple[Received, Line]:
        """One seed's messages: sent, lost or garbled, received; and what can be said about them."""
        sent, waits = self._send(s, number, updates)
        envelopes = [envelope for envelope, _ in sent]
        self.watch(Sent(self.settings.run_seeds[s], number, tuple(envelopes)))
        received = receive(self.fleets[s], envelopes, self.size, self.pool.map)
        self.state.bits[s] += received.bits
        signal = noise = 0.0
        for envelope, update in sent:
            if envelope.client in received.vectors and update is not None:
                error = received.vectors[envelope.client].astype(np.float64) - update
                signal += float(np.square(update, dtype=np.float64).sum())
                noise += float(np.square(error).sum())
        carried = sum(1 for envelope in envelopes if envelope.message is not None) * self.size
        line: Line = {
            "replies": len(received.vectors),
            "snr_db": 10.0 * float(np.log10(signal / noise)) if signal > 0 and noise > 0 else None,
            "bits": received.bits,
            "bits_per_coordinate": received.bits / carried if carried else None,
            "bits_total": int(self.state.bits[s]),
        }
        if received.dropped:
            line["dropped"] = {str(k): reason for k, reason in sorted(received.dropped.items())}
        if waits:
            line["waits"] = waits
        return received, line

    def _send(self, s: int, number: int, updates: dict[int, Floats]) -> tuple[list[Posted], int]:
        """Every asked client's envelope with the clipped update it holds, and how often the server had to wait.

        Policy `wait`: whoever is silent is asked again until the reply comes; `charge`: the round goes on without.
        """
        chosen, seed = self.settings, self.settings.run_seeds[s]
        attempt, pending = 0, sorted(updates)
        sent: list[Posted] = []
        while True:
            silent = draws.silent(seed, number, attempt, chosen.clients, chosen.dropout)
            late = [k for k in pending if chosen.dropout and silent[k]]
            ready = [k for k in pending if k not in late]
            sent += self.pool.map(partial(self._envelope, s, number, attempt), ready, [updates[k] for k in ready])
            if not late or chosen.policy == "charge" or attempt == MOST_ATTEMPTS:
                lost = [(Envelope(k, self._address(s, number, k, attempt), None), None) for k in late]
                return sorted([*sent, *lost], key=lambda pair: pair[0].client), attempt
            attempt, pending = attempt + 1, late

    def _address(self, s: int, number: int, client: int, attempt: int) -> Address:
        return Address(self.keys[s][client], round=number, client=client, run=self.run_id, attempt=attempt)

    def _envelope(self, s: int, number: int, attempt: int, k: int, raw: Floats) -> Posted:
        at, member = self._address(s, number, k, attempt), self.fleets[s][k]
        whole = member.clip if self.settings.update != "examples" else None
        try:
            update = clipped(raw, whole, self.cuts)
            message = member.channel.encode(update, at)
        except ValueError as problem:
            return Envelope(k, at, None, f"the client could not encode: {problem}"), None
        if k in self.settings.garblers:
            message = draws.generator(self.settings.run_seeds[s], number, draws.NOISE, k).bytes(len(message))
        return Envelope(k, at, message), update

    def _judge(self, lines: list[Line]) -> None:
        """Adds scores, epsilon so far and warnings to the lines of an evaluated round."""
        chosen, state = self.settings, self.state
        if state.round % chosen.evaluate_every and not self.done:
            return
        weights = self.reported
        scores = self.network.evaluate(weights)
        for s, line in enumerate(lines):
            line["accuracy"], line["loss"] = float(scores.accuracy[s]), _finite(float(scores.loss[s]))
            chooses = scores.accuracy[s]
            if chosen.validation:
                held = self.network.evaluate(weights[s : s + 1], self.validation[s])
                line["validation_accuracy"] = chooses = float(held.accuracy[0])
            if chooses > state.best_score[s]:
                state.best_score[s], state.best[s] = chooses, weights[s]
            spent = state.bills[s].epsilon(self.releases[s], chosen.delta, chosen.rounds)
            line["epsilon"], line["delta"] = spent, chosen.delta
            if self.done:
                line["warnings"] = self.cautions

    def views(self) -> dict[str, float]:
        """epsilon so far against an outsider, one curious client and all clients but one; the worst of the seeds."""
        worst: dict[str, float] = {}
        for release, bill in zip(self.releases, self.state.bills):
            if release is not None:
                for who, value in colluding(release, bill, self.settings.delta).items():
                    worst[who] = max(value, worst.get(who, 0.0))
        return worst


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _keys(seed: int, clients: int) -> list[Key]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationOnly)
        return [Key.from_seed(seed, client=k) for k in range(clients)]
