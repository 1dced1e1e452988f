"""The simulator: rounds of Algorithm 1 for all clients and several seeds, every update through bytes.

There is no shortcut that adds noise: each row is encoded to a message, and the server sees only the message.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.fl.data.dataset import Dataset
from cepam.fl.data.partition import partition
from cepam.fl.engine import sampling
from cepam.fl.engine.arrays import Place, place_of
from cepam.fl.engine.clients import Channel, Member, fleet
from cepam.fl.engine.ledger import Bill, colluding, foresee, release_of, warnings_of
from cepam.fl.engine.local_work import Work
from cepam.fl.engine.optimiser import Memory, optimiser
from cepam.fl.engine.schedule import schedule
from cepam.fl.engine.server import Envelope, Received, aggregate, receive
from cepam.fl.engine.settings import Settings
from cepam.fl.models.model import Model, build, resolved
from cepam.keys import Address, Key, SimulationOnly

Floats = npt.NDArray[np.float32]
Line = dict[str, Any]
Posted = tuple[Envelope, Any]
MOST_ATTEMPTS = 100


@dataclass
class State:
    """All that a run carries from one round to the next, one row a seed; vectors are of the run's place."""

    weights: Any
    memory: Memory
    average: Any
    best: Any
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
    `watch` sees all traffic. `place` is where vectors live, by default as the settings' device says.
    Best weights and accuracies look at test or validation data: simulation only.
    """

    settings: Settings
    data: Dataset
    model: Model | None = None
    channels: Callable[[int], Channel] | None = None
    watch: Callable[[Sent], None] = quiet
    place: Place | None = None
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
        device = resolved(chosen.device, self.size * chosen.clients * len(chosen.run_seeds) // max(chosen.tau, 1))
        self.network = self.vector.on(self.data, device)
        self.home = self.place or place_of(device)
        self.work = Work(chosen, self.network, parts, self._schedule(chosen.local_rate or chosen.rate), self.home.put)
        self.rates = self._schedule(chosen.rate)
        self.optimiser = optimiser(chosen.server, chosen.momentum)
        self.keys = [_keys(seed, chosen.clients) for seed in chosen.run_seeds]
        self.run_id = hashlib.sha256(repr(chosen).encode()).digest()[:16]
        channels = [member.channel for each in self.fleets for member in each]
        self.cautions = [*warnings_of(chosen, self.releases[0], self.tensors), *self.home.cautions(channels)]
        self.state = self._start()
        self._foresee()

    def _foresee(self) -> None:
        """Nothing; a thread computes the epsilons that the run will report while the cores wait for one another."""
        chosen, release = self.settings, self.releases[0]
        if release is not None and chosen.share == 1.0 and (chosen.dropout == 0.0 or chosen.policy == "wait"):
            Thread(target=foresee, args=(release, chosen.delta, chosen.rounds), daemon=True).start()

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
        count, put = len(weights), self.home.put
        memory = {name: put(value) for name, value in self.optimiser.start(weights).items()}
        return State(
            put(weights), memory, put(weights), put(weights), np.full(count, -1.0), np.zeros(count, dtype=np.int64),
            [Bill() for _ in range(count)],
        )  # fmt: skip

    @property
    def done(self) -> bool:
        """Whether all rounds have been run."""
        return self.state.round >= self.settings.rounds

    @property
    def reported(self) -> Any:
        """The weights that the run answers for: the running average where the settings ask for one, else the last."""
        return self.state.average if self.settings.average else self.state.weights

    def step(self) -> list[Line]:
        """Runs one round and gives its line of metrics for every seed."""
        number, chosen = self.state.round, self.settings
        asked = [sampling.cohort(seed, number, chosen.clients, chosen.share) for seed in chosen.run_seeds]
        rows = [(s, int(k)) for s, cohort in enumerate(asked) for k in cohort]
        bounds = np.array([getattr(self.fleets[s][k].clip, "bound", np.inf) for s, k in rows], dtype=np.float32)
        raw, losses = self.work.updates(self.state.weights, number, rows, bounds)
        lines, aggregates = [], []
        for s, seed in enumerate(chosen.run_seeds):
            mine = [row for row, (t, _) in enumerate(rows) if t == s]
            received, line = self._exchange(s, number, [rows[row][1] for row in mine], raw[mine])
            aggregates.append(aggregate(self.home, self.fleets[s], received, self.size))
            everyone = frozenset(range(chosen.clients))
            self.state.bills[s] = self.state.bills[s].add(everyone - received.vectors.keys())
            loss = float(losses[mine].mean())
            lines.append({"round": number + 1, "seed": seed, "train_loss": _finite(loss), **line})
        self._move(self.home.stack(aggregates))
        self._judge(lines)
        return lines

    def _move(self, aggregates: Any) -> None:
        """One server step from the aggregates, and the running average of the weights after it."""
        state = self.state
        rate = float(self.rates.at((state.round + 1) * self.settings.tau - 1))
        state.weights, state.memory = self.optimiser.step(state.weights, aggregates, rate, state.memory)
        past = min(self.settings.average, (state.round + 1) / (state.round + 10))
        state.average = past * state.average + (1.0 - past) * state.weights
        state.round += 1

    def _exchange(self, s: int, number: int, clients: list[int], raw: Any) -> tuple[Received, Line]:
        """One seed's messages: sent, lost or garbled, received; and what can be said about them."""
        sent, waits = self._send(s, number, clients, raw)
        envelopes = [envelope for envelope, _ in sent]
        self.watch(Sent(self.settings.run_seeds[s], number, tuple(envelopes)))
        received = receive(self.home, self.fleets[s], envelopes, self.size)
        self.state.bits[s] += received.bits
        heard = {each.client: update for each, update in sent if update is not None and each.client in received.vectors}
        signal, noise = self.home.powers(list(heard.values()), [received.vectors[k] for k in heard])
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

    def _send(self, s: int, number: int, clients: list[int], raw: Any) -> tuple[list[Posted], int]:
        """Every asked client's envelope with the clipped update it holds, and how often the server had to wait.

        Policy `wait`: whoever is silent is asked again until the reply comes; `charge`: the round goes on without.
        """
        chosen, seed = self.settings, self.settings.run_seeds[s]
        attempt, pending = 0, list(range(len(clients)))
        sent: list[Posted] = []
        while True:
            silent = sampling.silent(seed, number, attempt, chosen.clients, chosen.dropout)
            late = [i for i in pending if chosen.dropout and silent[clients[i]]]
            ready = [i for i in pending if i not in late]
            if ready:
                sent += self._posted(s, number, attempt, [clients[i] for i in ready], raw[ready])
            if not late or chosen.policy == "charge" or attempt == MOST_ATTEMPTS:
                missing = [clients[i] for i in late]
                lost = [(Envelope(k, self._address(s, number, k, attempt), None), None) for k in missing]
                return sorted([*sent, *lost], key=lambda pair: pair[0].client), attempt
            attempt, pending = attempt + 1, late

    def _address(self, s: int, number: int, client: int, attempt: int) -> Address:
        return Address(self.keys[s][client], round=number, client=client, run=self.run_id, attempt=attempt)

    def _posted(self, s: int, number: int, attempt: int, clients: list[int], raw: Any) -> list[Posted]:
        """The envelopes of these clients with the clipped updates in them; garblers send as many bytes of garbage."""
        members, seed = [self.fleets[s][k] for k in clients], self.settings.run_seeds[s]
        ats = [self._address(s, number, k, attempt) for k in clients]
        clips = [member.clip if self.settings.update != "examples" else None for member in members]
        made = self.home.encode(raw, clips, self.cuts, [member.channel for member in members], ats)
        posted: list[Posted] = []
        for k, at, (update, message) in zip(clients, ats, made):
            if isinstance(message, str):
                posted.append((Envelope(k, at, None, message), None))
                continue
            if k in self.settings.garblers:
                message = sampling.generator(seed, number, sampling.NOISE, k).bytes(len(message))
            posted.append((Envelope(k, at, message), update))
        return posted

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
