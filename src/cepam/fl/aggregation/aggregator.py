"""The interface of an aggregator: all that lies between the clients' updates and the server's step.

The simulator keeps model, local work, optimizer, downlink and evaluation. An aggregator says who is sampled, which
records they use, what becomes of their updates, what that has cost against whom, and what must be said about it. Where
to add one: docs/architecture.md, "Recipes".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.codec.vectors import UpdateCodec
from cepam.fl.arrays import ArrayBackend
from cepam.fl.clients.local_training import Measure
from cepam.fl.clients.plan import ClientPlan
from cepam.fl.clients.randomness import Randomness
from cepam.fl.clients.sampling import Drawn
from cepam.fl.clients.sending import ClientMessage
from cepam.fl.config.settings import Settings
from cepam.fl.models.interface import LinearHead
from cepam.privacy import Accountant, Mechanism

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Line = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ClientUpdates:
    """The updates of a run: their size, how many tensors they are of, and where they live.

    `cuts` are the tensors' ends where each is clipped by itself. `head` is there where the model is one linear layer.
    """

    size: int
    tensors: int
    cuts: list[int] | None
    arrays: ArrayBackend
    head: LinearHead | None = None


@dataclass(frozen=True, eq=False)
class AggregatorContext:
    """What one seed's uplink is made of: the settings, its randomness, who holds how many records, and the vectors.

    `run_id` sets the run's addresses apart. `names` are the clients', where they have any. `codecs` replaces the scheme
    of the settings: nothing is then known to be private. `check` gives 32 bytes that name the weights which clients
    hold in this round. `without_search`: the coder auto of the settings was replaced by layered.
    """

    settings: Settings
    draws: Randomness
    run_id: bytes
    held: Index
    vectors: ClientUpdates
    names: Sequence[str] = ()
    codecs: Callable[[int], UpdateCodec] | None = None
    check: Callable[[], bytes] = lambda: bytes(32)
    without_search: bool = False

    def name(self, client: int) -> str:
        """What a client is called where it is spoken of."""
        return self.names[client] if self.names else str(client)


def with_layered(row: AggregatorContext) -> AggregatorContext:
    """The same row, whose clients never take the search coder."""
    return replace(row, settings=row.settings.updated({"compression.coder": "layered"}), without_search=True)


def coder_notices(row: AggregatorContext) -> list[str]:
    """What must be said where the coder is not the one of the settings."""
    said = "compression.coder is layered here: under the search coder so many coordinates have no finite epsilon"
    return [said] if row.without_search else []


@dataclass(frozen=True)
class RoundResult:
    """What a round brought: the aggregate of the run's arrays, who was heard, the traffic, and what can be said of it.

    `heard` are the clients whose update is in the aggregate. `tried` names a client once for each time that it was sent
    the weights. `bits` came over the wire; `down_bits` went to clients besides the weights.
    """

    aggregate: Any
    heard: Collection[int]
    tried: Sequence[int]
    bits: int
    line: Line
    envelopes: tuple[ClientMessage, ...] = field(default=())
    down_bits: int = 0


class Aggregator(Protocol):
    """One seed's way up.

    Everything is found by round, from the row's randomness: a resumed run that loads `state_dict` goes on to the same
    bits. `accountant` is written before `collect` returns, so that nothing is published that was not charged.
    """

    @property
    def plans(self) -> Sequence[ClientPlan]:
        """What each client adds, clips, weighs and sends."""

    @property
    def mechanism(self) -> Mechanism | None:
        """One round as the accountant sees it where everyone replies; None where nothing is claimed."""

    @property
    def accountant(self) -> Accountant:
        """What was released so far."""

    @property
    def noise(self) -> float | None:
        """The deviation a coordinate of an aggregate's noise as far as it lasts, public; None where there is none."""

    @property
    def privacy_warnings(self) -> list[str]:
        """What must be said beside the figures of the whole run, in one line each."""

    @property
    def notices(self) -> list[str]:
        """What must be said before the first round, in one sentence each."""

    def sampled(self, number: int) -> Index:
        """The clients that this round asks."""

    def drawn(self, number: int, clients: Sequence[int]) -> Drawn:
        """The records that these clients use in this round."""

    def bounds(self, number: int, clients: Sequence[int]) -> Floats:
        """Each client's bound on one example's gradient (update examples)."""

    def measure(self, number: int) -> Measure | None:
        """What takes the place of the squared norms of examples' inputs in this round's clip; None: nothing does."""

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        """What becomes of these clients' updates, which are not yet clipped as a whole: sent, received, charged."""

    def running(self) -> float | None:
        """epsilon so far, a bound while the run is under way; None where there is no figure."""

    def spent(self) -> float | None:
        """epsilon of the whole run: the figure that a target was held against; None where nothing is claimed."""

    def views(self, rough: bool = False) -> dict[str, float]:
        """epsilon so far by observer; empty where nothing is claimed. `rough`: a bound that takes less time."""

    def foresee(self) -> None:
        """Compute what the run will ask of the accountant while the cores wait for one another."""

    def state_dict(self) -> dict[str, Any]:
        """Numbers, texts, bytes and arrays from which a resumed run goes on to the same bits."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; raises ValueError where it is of other settings."""
