"""The uplink of a server that learns one noisy sum a round, and nothing of its parts: `trust sum` (docs/trust.md)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.clip import L2
from cepam.fl.engine.clients import draws_of
from cepam.fl.engine.releases import after_round, empty_ledger
from cepam.fl.engine.server_uplink import ServerUplink
from cepam.fl.engine.sketching import RoundSketch
from cepam.fl.engine.sum_exchange import SumExchange, SumTraffic
from cepam.fl.engine.trust import SumGraph
from cepam.fl.engine.uplink import Collected, Line, Measure, SeedRow
from cepam.noise.laws import Gaussian
from cepam.secure import Reach, SumSettings, run_epsilons, views
from cepam.secure.observers import LIES

Floats = npt.NDArray[Any]


class SumUplink(ServerUplink):
    """Masked vectors, repaired and opened as one sum; a charge for the shares of noise that are in it.

    Every client counts alike: nobody sees one vector, so nobody can weigh it. `answered` is the book of a server that
    lies about drop-outs: every round that was answered, opened or not.
    """

    def __init__(self, row: SeedRow) -> None:
        if row.codecs is not None:
            raise ValueError("trust sum brings its own mechanism: codecs of your own go with trust server")
        super().__init__(row)
        self.graph, self.answered = SumGraph.of(row.settings), empty_ledger(row.settings)
        law, clip = self.plans[0].law, self.plans[0].clip
        assert isinstance(law, Gaussian)
        assert isinstance(clip, L2)
        self.coordinates = self._coordinates()
        self.exchange = self._exchange(law, clip)

    def _coordinates(self) -> int:
        """How many numbers a client sends: the weights', or the sketch's."""
        size, head, examples = self.settings.sketch, self.vectors.head, self.settings.update == "examples"
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
        if self.settings.sketch is None:
            return None
        head = self.vectors.head if self.settings.update == "examples" else None
        return RoundSketch.of(self.exchange.offer(number), self.vectors.size, head)

    def measure(self, number: int) -> Measure | None:
        made = self._sketch(number)
        return None if made is None or made.head is None else made.squares

    def _exchange(self, law: Gaussian, clip: L2) -> SumExchange:
        chosen, graph, examples = self.settings, self.graph, self.settings.update == "examples"
        batch = min(draws_of(chosen, plan.batch) for plan in self.plans) if examples else 0.0
        chance = max(plan.batch / plan.records for plan in self.plans) if examples else 1.0
        shape = SumSettings(
            self.row.run_id, 1, 0, self.coordinates, 1, 1, law.scale, clip.bound, graph.quorum, graph.colluders, batch,
            chance, graph.degree, graph.threshold,
        )  # fmt: skip
        return SumExchange(
            self.row.draws, shape, chosen.clients, chosen.rounds, Reach(law, graph.asked, clip.bound), chosen.bits,
            chosen.reach, chosen.dropout, max(plan.records for plan in self.plans),
        )  # fmt: skip

    def collect(self, number: int, clients: list[int], raw: Any) -> Collected:
        rows, sketch = dict(zip(clients, self.vectors.arrays.fetch(raw))), self._sketch(number)
        updates = {k: self._sound(row if sketch is None else sketch.apply(row)) for k, row in rows.items()}
        offer = self.exchange.offer(number)
        traffic = self.exchange.run_round(offer, number, updates, self.row.check())
        self.answered = after_round(self.answered, self.release, clients)
        self.ledger = after_round(self.ledger, self.release, traffic.survivors)
        heard = traffic.survivors if traffic.total is not None else ()
        total = np.zeros(self.vectors.size) if traffic.total is None else traffic.total
        if sketch is not None and traffic.total is not None:
            total = sketch.restore(total)
        clean = updates if sketch is None else rows
        line = self._told(traffic, updates, offer) | self._signal(total, [clean[k] for k in heard])
        aggregate = self.vectors.arrays.put((total / max(1, len(heard))).astype(np.float32))
        return Collected(aggregate, heard, clients, 8 * traffic.up, line, down_bits=8 * traffic.down)

    def _sound(self, row: Floats) -> Floats:
        """What the node will send, sketch or update: clipped where whole updates are, zeros for what is no number."""
        clip = self.plans[0].clip
        if self.settings.update != "examples" and clip is not None:
            return clip.apply_or_zero(row)
        return row if np.isfinite(row).all() else np.zeros_like(row)

    def _told(self, traffic: SumTraffic, updates: dict[int, Floats], offer: SumSettings) -> Line:
        """What can be said about the round; wraps look at raw data: simulation only."""
        line: Line = {"replies": 0, "bits": 8 * traffic.up, "bits_per_coordinate": None}
        if traffic.vectors:
            line["bits_per_coordinate"] = 8 * traffic.up / (traffic.vectors * self.vectors.size)
        line |= {"trips": traffic.trips, "vector_bits": offer.bits}
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

    def views(self) -> dict[str, float]:
        """epsilon so far of whoever sees the models, and of the server: curious, with colluders, lying."""
        chosen, graph = self.settings, self.graph
        found = self.ledger.observers(chosen.delta)
        known = views(graph.asked, graph.quorum, graph.colluders)
        covered = tuple(view for view in known if not (graph.degree and view.observer.startswith(LIES)))
        found |= run_epsilons(self.ledger, self.answered, chosen.delta, covered, graph.asked)
        return found | {view.observer: math.inf for view in known if view not in covered}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"answered": self.answered.state_dict(), **self.exchange.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.answered = empty_ledger(self.settings).load_state_dict(state["answered"])
        self.exchange.load_state_dict(state)
