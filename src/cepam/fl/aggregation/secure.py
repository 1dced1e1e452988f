"""Secure aggregation in a simulation: the server learns one noisy sum per round, optionally of sketches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.clip import L2
from cepam.distributions.laws import Gaussian
from cepam.fl.aggregation.accounting import after_round, empty_accountant
from cepam.fl.aggregation.aggregator import AggregatorContext, Line, RoundResult
from cepam.fl.aggregation.secure_protocol import ProtocolTraffic, SimulatedProtocol
from cepam.fl.aggregation.trusted_server import TrustedServerAggregator
from cepam.fl.clients.local_training import Measure
from cepam.fl.clients.plan import draws_of
from cepam.fl.config.secure_graph import SecAggGraph
from cepam.fl.models.interface import LinearHead
from cepam.secure_aggregation import QuantizationRange, SecAggSettings, Sketch, run_epsilons, views
from cepam.secure_aggregation.observers import LIES

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundSketch:
    """One round's map of updates; of a linear head row by row, so that examples can be clipped after it."""

    sketch: Sketch
    head: LinearHead | None = None

    @classmethod
    def of(cls, offer: SecAggSettings, coordinates: int, head: LinearHead | None) -> RoundSketch:
        """The map of this round, fixed by what every node was sent."""
        return cls(Sketch.of(offer, coordinates, 1 if head is None else head.rows), head)

    def apply(self, update: npt.NDArray[np.floating]) -> Doubles:
        """The numbers that are sent instead of the update, not yet clipped."""
        return self.sketch.apply(update if self.head is None else self.head.by_rows(update))

    def restore(self, total: Doubles) -> Doubles:
        """The estimate of the sum of updates: unbiased where nothing was clipped."""
        found = self.sketch.restore(total)
        return found if self.head is None else self.head.as_given(found)

    def squares(self, inputs: npt.NDArray[np.float32]) -> Doubles:
        """What stands for the squared norms of examples' inputs in the clip: those of their maps, bias left out.

        An example's gradient is its residuals times (inputs, 1): its sketch has norm |residuals| |map of (inputs, 1)|.
        """
        assert self.head is not None
        one = np.ones((len(inputs), int(self.head.bias)), dtype=np.float32)
        return self.sketch.squares(np.concatenate([inputs, one], axis=1)) - float(self.head.bias)


Floats = npt.NDArray[Any]


class SecureAggregator(TrustedServerAggregator):
    """Masked vectors, repaired and opened as one sum; a charge for the shares of noise that are in it.

    Every client counts alike: nobody sees one vector, so nobody can weigh it. `answered` is the book of a server that
    lies about drop-outs: every round that was answered, opened or not.
    """

    def __init__(self, row: AggregatorContext) -> None:
        if row.codecs is not None:
            raise ValueError(
                "privacy.trust secure-aggregation has its own mechanism: your own codecs need privacy.trust server"
            )
        super().__init__(row)
        self.graph, self.answered = SecAggGraph.of(row.settings), empty_accountant(row.settings)
        law, clip = self.plans[0].law, self.plans[0].clip
        assert isinstance(law, Gaussian)
        assert isinstance(clip, L2)
        self.coordinates = self._coordinates()
        self.exchange = self._exchange(law, clip)

    def _coordinates(self) -> int:
        """How many numbers a client sends: the weights', or the sketch's."""
        size, head, examples = (
            self.settings.compression.sketch,
            self.vectors.head,
            self.settings.training.update == "examples",
        )
        if size is None:
            return self.vectors.size
        if examples and head is None:
            raise ValueError(
                "sketch with update examples needs a model that trains one linear layer: elsewhere the norm of an "
                "example's sketch is not cheap to find, and clipping before the map bounds nothing"
            )
        rows = head.rows if examples and head is not None else 1
        if size < 1 or size % rows or size >= self.vectors.size:
            raise ValueError(f"sketch must be a multiple of {rows} below the {self.vectors.size} weights, got {size}")
        return size

    def _sketch(self, number: int) -> RoundSketch | None:
        if self.settings.compression.sketch is None:
            return None
        head = self.vectors.head if self.settings.training.update == "examples" else None
        return RoundSketch.of(self.exchange.offer(number), self.vectors.size, head)

    def measure(self, number: int) -> Measure | None:
        made = self._sketch(number)
        return None if made is None or made.head is None else made.squares

    def _exchange(self, law: Gaussian, clip: L2) -> SimulatedProtocol:
        chosen, graph, examples = self.settings, self.graph, self.settings.training.update == "examples"
        batch = min(draws_of(chosen, plan.batch) for plan in self.plans) if examples else 0.0
        record_sampling_rate = max(plan.batch / plan.records for plan in self.plans) if examples else 1.0
        shape = SecAggSettings(
            self.row.run_id, 1, 0, self.coordinates, 1, 1, law.scale, clip.bound, graph.quorum, graph.colluders, batch,
            record_sampling_rate, graph.degree, graph.threshold,
        )  # fmt: skip
        return SimulatedProtocol(
            self.row.draws, shape, chosen.clients.count, chosen.training.rounds,
            QuantizationRange(law, graph.clients, clip.bound), chosen.compression.masked_bits,
            chosen.compression.quantization_range, chosen.clients.dropout_rate,
            max(plan.records for plan in self.plans),
        )  # fmt: skip

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        rows, sketch = dict(zip(clients, self.vectors.arrays.fetch(raw))), self._sketch(number)
        updates = {k: self._sound(row if sketch is None else sketch.apply(row)) for k, row in rows.items()}
        offer = self.exchange.offer(number)
        traffic = self.exchange.run_round(offer, number, updates, self.row.check())
        self.answered = after_round(self.answered, self.mechanism, clients)
        self.accountant = after_round(self.accountant, self.mechanism, traffic.survivors)
        heard = traffic.survivors if traffic.total is not None else ()
        total = np.zeros(self.vectors.size) if traffic.total is None else traffic.total
        if sketch is not None and traffic.total is not None:
            total = sketch.restore(total)
        clean = updates if sketch is None else rows
        line = self._traffic_metrics(traffic, updates, offer) | self._signal(total, [clean[k] for k in heard])
        aggregate = self.vectors.arrays.put((total / max(1, len(heard))).astype(np.float32))
        return RoundResult(aggregate, heard, clients, 8 * traffic.up, line, down_bits=8 * traffic.down)

    def _sound(self, row: Floats) -> Floats:
        """What the node will send, sketch or update: clipped where whole updates are, zeros for what is no number."""
        clip = self.plans[0].clip
        if self.settings.training.update != "examples" and clip is not None:
            return clip.apply_or_zero(row)
        return row if np.isfinite(row).all() else np.zeros_like(row)

    def _traffic_metrics(self, traffic: ProtocolTraffic, updates: dict[int, Floats], offer: SecAggSettings) -> Line:
        """What can be said about the round; wraps look at raw data: simulation only."""
        line: Line = {"replies": 0, "bits": 8 * traffic.up, "bits_per_coordinate": None}
        if traffic.vectors:
            line["bits_per_coordinate"] = 8 * traffic.up / (traffic.vectors * self.vectors.size)
        line |= {"round_trips": traffic.round_trips, "vector_bits": offer.bits}
        missing = sorted(set(updates) - set(traffic.survivors))
        if missing:
            line["dropped"] = {self.row.name(k): traffic.lost or "no reply" for k in missing}
        if traffic.lost is not None:
            line["lost"] = traffic.lost
        if traffic.total is not None:
            error = traffic.total - np.sum([updates[k] for k in traffic.survivors], axis=0, dtype=np.float64)
            line |= {"replies": len(traffic.survivors), "wraps": int((abs(error) > offer.codec.span / 2).sum())}
        return line

    def _signal(self, total: Floats, sent: list[Floats]) -> Line:
        """The sum's signal over its noise, what a sketch costs included; looks at raw data: simulation only."""
        clean = np.sum(sent, axis=0, dtype=np.float64) if sent else np.zeros(1)
        signal, noise = float(np.square(clean).sum()), float(np.square(total - clean).sum())
        return {"snr_db": 10.0 * math.log10(signal / noise) if 0.0 < signal < math.inf and noise > 0 else None}

    def views(self, rough: bool = False) -> dict[str, float]:
        """epsilon so far of whoever sees the models, and of the server: curious, with colluders, lying."""
        chosen, graph = self.settings, self.graph
        found = self.accountant.observers(chosen.privacy.delta, rough)
        known = views(graph.clients, graph.quorum, graph.colluders)
        covered = tuple(view for view in known if not (graph.degree and view.observer.startswith(LIES)))
        found |= run_epsilons(self.accountant, self.answered, chosen.privacy.delta, covered, graph.clients, rough)
        return found | {view.observer: math.inf for view in known if view not in covered}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"answered": self.answered.state_dict(), **self.exchange.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.answered = empty_accountant(self.settings).load_state_dict(state["answered"])
        self.exchange.load_state_dict(state)
