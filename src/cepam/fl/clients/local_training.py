"""Local training of all clients and seeds: from broadcast weights to updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.fl.clients import sampling
from cepam.fl.clients.local_dp_sgd import LocalDpSgd, Site
from cepam.fl.clients.personalization import ClientState
from cepam.fl.clients.sampling import Randomness
from cepam.fl.clients.sending import ClientPlan
from cepam.fl.config.settings import Settings
from cepam.fl.data.partition import Parts
from cepam.fl.models.interface import Doubles
from cepam.fl.models.model import Network
from cepam.fl.models.network import TorchNetwork, shared_out
from cepam.fl.optim import RateSchedule

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Rows = list[tuple[int, int]]


Measure = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float64]]


class Assignment(Protocol):
    """What one seed's clients do in a round: which plan, which records, and how examples are measured."""

    @property
    def plans(self) -> Sequence[ClientPlan]:
        """What each client adds, clips, weighs and sends."""

    def drawn(self, number: int, clients: Sequence[int]) -> sampling.Drawn:
        """The records that these clients use in this round."""

    def measure(self, number: int) -> Measure | None:
        """What takes the place of the squared norms of examples' inputs in this round's clip; None: nothing does."""


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """What clients do with the weights they are sent. A row is a pair (seed's place, client), rows of a seed together.

    Weights and updates are arrays, or tensors where the network takes tensors; `put` moves an array to them. Where
    layers stay on clients, `client_state` has them, and weights and updates are of the others. Records that are marked
    `removed` keep their places in every draw and contribute nothing.
    """

    settings: Settings
    network: Network
    parts: tuple[Parts, ...]
    draws: tuple[Randomness, ...]
    aggregators: tuple[Assignment, ...]
    local: RateSchedule
    put: Callable[[Floats], Any]
    client_state: ClientState | None
    removed: npt.NDArray[np.bool_] | None

    def updates(self, weights: Any, round: int, rows: Rows, bounds: Floats) -> tuple[Any, Any]:
        """The update of each row, not yet clipped as a whole, and its mean training loss.

        Kinds: `gradient` (Paper: Algorithm 1), `difference` (broadcast weights less local ones, after tau steps),
        `examples` (the sum of gradients, each clipped to its row's bound, over the public expected batch),
        `dp-sgd` (a difference after local steps each of which was clipped and noised).
        """
        if not rows:  # a cohort may be empty
            return weights[:0], weights[:0, 0]
        if self.settings.training.update == "examples":
            return self._examples(weights, round, rows, bounds)
        if self.settings.training.update == "dp-sgd":
            return self._private_steps(weights, round, rows)
        index, count = self._steps(round, rows)
        if self.settings.training.update == "difference":
            own = self.client_state
            start = weights[[s for s, _ in rows]] if own is None else own.models(weights, rows)
            local, losses = self._trained(start, round, rows, index, count)
            return start - local if own is None else own.moved(rows, start, local), losses
        local, _ = self._trained(weights[[s for s, _ in rows]], round, rows, index[:, :-1], count)
        seeds, many = self._seeds(round, rows)[:, -1], count[:, -1]
        sums, losses = self.network.summed_gradients(local, np.arange(len(rows)), index[:, -1], many, seeds=seeds)
        over = self.put(np.maximum(many, 1).astype(np.float32))
        return sums / over[:, None], losses / over

    def _steps(self, round: int, rows: Rows) -> tuple[Index, Index]:
        """Training records [row, step, place], and how many places of each row and step count."""
        records, _ = self._drawn(round, rows)
        width = np.array([one.shape[1] for one in records], dtype=np.int64)
        index = np.zeros((len(rows), self.settings.training.local_steps, int(width.max())), dtype=np.int64)
        count = np.repeat(width[:, None], self.settings.training.local_steps, axis=1)
        for row, one in enumerate(records):
            index[row, :, : one.shape[1]] = one
        if self.removed is not None:
            for at in np.ndindex(count.shape):
                kept = self._kept(index[at][: count[at]])
                index[at][: len(kept)], count[at] = kept, len(kept)
        return index, count

    def _kept(self, records: Index) -> Index:
        """Those of the records that were not removed."""
        return records if self.removed is None else records[~self.removed[records]]

    def _drawn(self, round: int, rows: Rows) -> tuple[list[Index], Floats]:
        """Each row's training records of this round, and how many were expected."""
        records: list[Index] = []
        expected: list[Floats] = []
        for s, group in groupby(rows, key=itemgetter(0)):
            clients = [k for _, k in group]
            drawn = self.aggregators[s].drawn(round, clients)
            records += [self.parts[s][k][places] for k, places in zip(clients, drawn.places)]
            expected.append(drawn.expected)
        return records, np.concatenate(expected)

    def _trained(self, local: Any, round: int, rows: Rows, index: Index, count: Index) -> tuple[Any, Any]:
        """The weights of each row after the local steps [row, step] of `index`, and the mean loss on the way.

        Momentum starts from zero in every round: what survives a round is in the guarantee's account or not at all.
        """
        own, steps = np.arange(len(rows)), index.shape[1]
        over = self.put(np.maximum(count, 1).astype(np.float32))
        seeds = self._seeds(round, rows)
        velocity: Any = 0.0
        total: Any = 0.0
        for step in range(steps):
            many = count[:, step]
            sums, losses = self.network.summed_gradients(local, own, index[:, step], many, seeds=seeds[:, step])
            slope = sums / over[:, step, None]
            if self.settings.training.local_momentum:
                slope = velocity = self.settings.training.local_momentum * velocity + slope
            local = local - float(self.local.at(round * self.settings.training.local_steps + step)) * slope
            total = total + losses / (over[:, step] * steps)
        return local, total

    def _examples(self, weights: Any, round: int, rows: Rows, bounds: Floats) -> tuple[Any, Any]:
        picked, expected = self._drawn(round, rows)
        index, count = sampling.padded([self._kept(one) for one in picked])
        of = np.array([s for s, _ in rows], dtype=np.int64)
        seeds, measures = self._seeds(round, rows)[:, 0], [aggregator.measure(round) for aggregator in self.aggregators]
        if isinstance(self.network, TorchNetwork) and any(measures):
            squares = _squares(self.network, [measures[s] for s, _ in rows], index, count)
            sums, losses = self.network.summed_gradients(weights, of, index, count, bounds, seeds, squares)
        else:
            sums, losses = self.network.summed_gradients(weights, of, index, count, bounds, seeds)
        return sums / self.put(expected[:, None]), losses / self.put(np.maximum(count, 1).astype(np.float32))

    def _private_steps(self, weights: Any, round: int, rows: Rows) -> tuple[Any, Any]:
        sites = []
        for s, k in rows:
            plan = self.aggregators[s].plans[k].steps
            assert plan is not None
            sites.append(Site(plan, k, self.draws[s], self.parts[s][k], self._kept))
        made, losses = LocalDpSgd(self.settings, self.network, self.local).updates(
            weights[[s for s, _ in rows]], round, sites
        )
        return self.put(made), self.put(losses)

    def _seeds(self, round: int, rows: Rows) -> Index:
        """Seeds [row, step] for what the module draws; each example's draws say nothing about the other examples."""
        if not self.network.draws:
            return np.zeros((len(rows), self.settings.training.local_steps), dtype=np.int64)
        return np.stack([sampling.masks(self.draws[s], round, k, self.settings.training.local_steps) for s, k in rows])


def _squares(network: TorchNetwork, measures: list[Measure | None], index: Index, count: Index) -> Doubles:
    """What each row's clip takes for the squared norms of its examples' inputs."""
    made = np.zeros(index.shape)

    def work(row: int) -> None:
        measure, records = measures[row], index[row, : count[row]]
        assert measure is not None
        made[row, : count[row]] = measure(network.inputs(records))

    shared_out(work, range(len(index)), "cpu")
    return made
