"""Personalized layers: which weights are sent, what each client keeps, and how its own model is evaluated.

A client trains all layers, sends what the shared ones moved by, and keeps the others to itself from round to round
(Arivazhagan et al. 2019). Which guarantees survive such a state: docs/proofs/cohorts-and-dropouts.md, "Layers that
stay on the client".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from cepam.fl.arrays import ArrayBackend
from cepam.fl.config.settings import Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.data.partition import Parts
from cepam.fl.models.interface import Floats, Index, Network, Scores
from cepam.fl.models.model import Model

LAST = "last"
MOST_JUDGED = 300
RECORDS_JUDGED = 100
"""So many clients at most, and so many records each, stand for all when clients' own models are judged."""


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """Which places of a model's vector are sent and which stay on the client, in order; `tensors` are the sent ones.

    `rows` has the rows of every sent tensor as a matrix (outputs by inputs), 0 where it is none.
    """

    sent: Index
    kept: Index
    tensors: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, personal: str | None) -> LayerSplit:
        """The split of a model whose `personal` layers stay: names, separated by commas, or `last`."""
        stays = _staying(model.module, personal)
        weights = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        sizes = [(name, p.numel()) for name, p in weights]
        flags = [name.rpartition(".")[0] in stays for name, _ in sizes]
        if personal is not None and not any(flags):
            raise ValueError(
                f"model.personal_layers {personal!r} keeps no weight: its layers share theirs with layers that are sent"
            )
        places = np.repeat(flags, [many for _, many in sizes])
        tensors = tuple(many for (_, many), stay in zip(sizes, flags) if not stay)
        rows = tuple(len(p) if p.ndim > 1 else 0 for (_, p), stay in zip(weights, flags) if not stay)
        return cls(np.flatnonzero(~places), np.flatnonzero(places), tensors, rows)

    def joined(self, sent: Floats, kept: Floats) -> Floats:
        """Whole vectors, one a row, from rows of both parts."""
        made = np.empty((len(sent), len(self.sent) + len(self.kept)), dtype=np.float32)
        made[:, self.sent], made[:, self.kept] = sent, kept
        return made


def _staying(module: nn.Module, personal: str | None) -> set[str]:
    """The layers that stay, by name; a ValueError that lists the names where there are none or none is left."""
    if personal is None:
        return set()
    layers = [name for name, each in module.named_modules() if any(p.requires_grad for p in each.parameters(False))]
    if len(layers) < 2:
        raise ValueError(f"personal needs a model with more than one layer, got {personal!r} for a model with one")
    found: set[str] = set()
    for name in (each.strip() for each in personal.split(",")):
        mine = layers[-1:] if name == LAST else [each for each in layers if each == name or each.startswith(f"{name}.")]
        if not mine:
            raise ValueError(f"personal must name layers of {', '.join(layers)}, or {LAST}; got {name!r}")
        found.update(mine)
    if len(found) == len(layers):
        raise ValueError(f"personal must leave a layer that is sent, got all of {', '.join(layers)}")
    return found


class PersonalLayers:
    """What the clients of one seed's row hold to themselves; whoever never took part holds the start.

    Guarantee: as long as the clients that ever took part; a resumed run goes on to the same bits
    (tests/fl/clients/test_personal.py).
    """

    def __init__(self, split: LayerSplit, start: Floats) -> None:
        self.split, self.start = split, start[split.kept]
        self.held: dict[int, Floats] = {}

    def models(self, sent: Floats, clients: Sequence[int]) -> Floats:
        """Each client's own model: the weights that all were sent, and its own layers."""
        kept = np.stack([self.held.get(k, self.start) for k in clients])
        return self.split.joined(np.broadcast_to(sent, (len(clients), len(sent))), kept)

    def keep(self, clients: Sequence[int], models: Floats) -> None:
        """Let each client keep its layers of this model, or those it had where some are not finite."""
        for k, own in zip(clients, models[:, self.split.kept]):
            if np.isfinite(own).all():
                self.held[k] = own.copy()

    def state_dict(self) -> dict[str, Any]:
        """Arrays from which the run goes on to the same bits."""
        clients = np.array(sorted(self.held), dtype=np.int64)
        layers = np.stack([self.held[int(k)] for k in clients]) if len(clients) else self.start[None, :][:0]
        return {"clients": clients, "layers": layers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what every client held."""
        self.held = {int(k): own.copy() for k, own in zip(state["clients"], state["layers"])}


@dataclass(frozen=True, eq=False)
class ClientState:
    """The layers that the clients of all seeds keep, and the run's arrays. A row is a pair (seed's place, client)."""

    layers: tuple[PersonalLayers, ...]
    arrays: ArrayBackend

    def models(self, weights: Any, rows: Sequence[tuple[int, int]]) -> Any:
        """Each row's own model at the weights of its seed."""
        sent = self.arrays.fetch(weights)
        made = [own.models(sent[s], clients) for s, own, clients in self._by_seed(rows)]
        return self.arrays.put(np.concatenate(made))

    def moved(self, rows: Sequence[tuple[int, int]], start: Any, local: Any) -> Any:
        """What the sent layers of each row moved by, downhill positive; the others are kept."""
        here, at = self.arrays.fetch(local), 0
        for _, own, clients in self._by_seed(rows):
            own.keep(clients, here[at : at + len(clients)])
            at += len(clients)
        return self.arrays.put(self.arrays.fetch(start - local)[:, self.layers[0].split.sent])

    def _by_seed(self, rows: Sequence[tuple[int, int]]) -> list[tuple[int, PersonalLayers, list[int]]]:
        clients = {s: [k for t, k in rows if t == s] for s in dict.fromkeys(s for s, _ in rows)}
        return [(s, self.layers[s], each) for s, each in clients.items()]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Records on which the clients of one seed's row are judged: drawn with each client's own distribution of labels.

    `test` says whether the records are test records, or training records that were held out.
    """

    clients: tuple[int, ...]
    records: tuple[Index, ...]
    test: bool

    @classmethod
    def of(cls, data: Dataset, parts: Parts, seed: int, held_out: Index | None = None) -> Evaluation:
        """The first `MOST_JUDGED` clients, with `RECORDS_JUDGED` records each, found by the seed alone."""
        pool = np.arange(len(data.test_labels)) if held_out is None else held_out
        labels = data.test_labels if held_out is None else data.train_labels[held_out]
        by_label = [pool[labels == each] for each in range(data.classes)]
        clients = tuple(range(min(len(parts), MOST_JUDGED)))
        draw = np.random.Generator(np.random.PCG64([seed, 0x4A5544]))
        records = []
        for k in clients:
            shares = np.bincount(data.train_labels[parts[k]], minlength=data.classes) * [len(p) > 0 for p in by_label]
            if not shares.sum():
                raise ValueError(f"no record to judge client {k} by: none has a label that it holds")
            drawn = draw.choice(data.classes, RECORDS_JUDGED, p=shares / shares.sum())
            records.append(np.array([draw.choice(by_label[label]) for label in drawn], dtype=np.int64))
        return cls(clients, tuple(records), held_out is None)

    def scores(self, network: Network, models: Any) -> Scores:
        """The means over clients of how each client's model does on its own records, as one row."""
        each = [network.evaluate(models[k : k + 1], own, self.test) for k, own in enumerate(self.records)]
        loss = np.array([np.mean([one.loss[0] for one in each])])
        return Scores(loss, {name: np.array([np.mean([one.metrics[name][0] for one in each])])
                             for name in each[0].metrics})  # fmt: skip


@dataclass(frozen=True, eq=False)
class OwnModels:
    """How clients' own models do, in the place of one model for all: of every seed, on test and held-out records."""

    data: Dataset
    parts: tuple[Parts, ...]
    seeds: tuple[int, ...]
    held_out: Sequence[Index]
    client_state: ClientState

    @cached_property
    def on_test(self) -> list[Evaluation]:
        return [Evaluation.of(self.data, part, seed) for part, seed in zip(self.parts, self.seeds)]

    @cached_property
    def on_held_out(self) -> list[Evaluation]:
        rows = zip(self.parts, self.seeds, self.held_out)
        return [Evaluation.of(self.data, part, seed, held) for part, seed, held in rows]

    def test(self, network: Network, weights: Any) -> Scores:
        """The scores of each seed's clients on test records."""
        made = [self._scores(network, weights, s, one) for s, one in enumerate(self.on_test)]
        metrics = {name: np.concatenate([one.metrics[name] for one in made]) for name in made[0].metrics}
        return Scores(np.concatenate([one.loss for one in made]), metrics)

    def validation(self, network: Network, weights: Any, s: int) -> Scores:
        """The scores of one seed's clients on held-out training records."""
        return self._scores(network, weights, s, self.on_held_out[s])

    def _scores(self, network: Network, weights: Any, s: int, on: Evaluation) -> Scores:
        return on.scores(network, self.client_state.models(weights, [(s, k) for k in on.clients]))

    @property
    def warnings(self) -> list[str]:
        """What must be said before the first round, in one sentence each."""
        split, many = self.client_state.layers[0].split, min(len(self.parts[0]), MOST_JUDGED)
        return [
            f"{len(split.kept):,} of {len(split.kept) + len(split.sent):,} weights stay on each client, "
            f"neither sent nor charged; accuracy is the mean of {many} clients' own models on records with their own "
            "labels; the run's folder holds what clients keep, which no epsilon covers"
        ]


def own_models(
    model: Model, settings: Settings, data: Dataset, parts: tuple[Parts, ...], held_out: Sequence[Index],
    arrays: ArrayBackend,
) -> OwnModels | None:  # fmt: skip
    """The clients' own models, where the settings keep layers on the client; else None."""
    if settings.model.personal_layers is None:
        return None
    if not data.classes:
        raise ValueError(f"personal judges clients by their labels, and data set {data.name!r} has values: no classes")
    split = LayerSplit.of(model, settings.model.personal_layers)
    layers = tuple(PersonalLayers(split, model.initial(seed)) for seed in settings.run_seeds)
    return OwnModels(data, parts, settings.run_seeds, held_out, ClientState(layers, arrays))
