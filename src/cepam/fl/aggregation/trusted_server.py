"""Aggregation: the interface of an aggregator, and the trusted server's, which opens every message and compensates
for dropouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam._internal.prefetch import start_ahead
from cepam.codec.codec import UpdateCodec
from cepam.fl.aggregation.accounting import (
    after_round,
    check_target,
    empty_accountant,
    foresee,
    mechanism_of,
    noise_of_average,
    plan_clients,
    run_warnings,
    share_of,
    spent,
    warnings_of,
)
from cepam.fl.arrays import ArrayBackend
from cepam.fl.clients import sampling
from cepam.fl.clients.local_training import Measure
from cepam.fl.clients.sampling import Drawn, Randomness
from cepam.fl.clients.sending import ClientMessage, ClientPlan, Posted, Senders
from cepam.fl.config.settings import Settings
from cepam.fl.models.interface import LinearHead
from cepam.keys import KEY_BYTES, Address, Key
from cepam.privacy import Accountant, Mechanism
from cepam.privacy.cohorts.dropouts import stand_in
from cepam.privacy.composition.accountant import affordable

# The interface of an aggregator: all that lies between the clients' updates and the server's step.
#
# The simulator keeps model, local work, optimizer, downlink and evaluation. An aggregator says who is sampled, which
# records they use, what becomes of their updates, what that has cost against whom, and what must be said about it.
# Where to add one: docs/architecture.md, "Recipes".


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


def coder_warnings(row: AggregatorContext) -> list[str]:
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
    """The uplink of one seed's run: messages, their aggregate, and its charge.

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
        """The deviation per coordinate of an aggregate's noise as far as it lasts, public; None where there is none."""

    @property
    def privacy_warnings(self) -> list[str]:
        """What must be said beside the figures of the whole run, in one line each."""

    @property
    def warnings(self) -> list[str]:
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


Weighted = tuple[float, npt.NDArray[np.float64]]


@dataclass
class Received:
    """What one seed's server holds after a round; vectors are of the run's arrays."""

    vectors: dict[int, Any] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    bits: int = 0


def receive(
    arrays: ArrayBackend, plans: Sequence[ClientPlan], envelopes: Sequence[ClientMessage], size: int
) -> Received:
    """The decoded vectors, the clients dropped with the reason, and the bits that came over the wire.

    A message that does not open, or opens to something that is no update, drops its client; the round goes on.
    """
    got = Received(dropped={each.client: each.excuse for each in envelopes if each.message is None})
    came = [each for each in envelopes if each.message is not None]
    messages = [each.message or b"" for each in came]
    vectors = arrays.decode([plans[each.client].codec for each in came], messages, [each.at for each in came], size)
    for each, vector in zip(came, vectors):
        (got.dropped if isinstance(vector, str) else got.vectors)[each.client] = vector
    got.bits = 8 * sum(map(len, messages))
    return got


def compensated(
    arrays: ArrayBackend, received: Received, weights: Mapping[int, float], over: float, own: Sequence[Weighted]
) -> Any:
    """The weighted sum of the decoded vectors and the server's own noise, over a public number: never the replies."""
    replied = sorted(received.vectors)
    vectors = [*(received.vectors[k] for k in replied), *(arrays.put(noise.astype(np.float32)) for _, noise in own)]
    return arrays.mean(vectors, [*(weights[k] for k in replied), *(weight for weight, _ in own)], over)


def aggregate(arrays: ArrayBackend, plans: Sequence[ClientPlan], received: Received, size: int) -> Any:
    """The weighted mean of the decoded vectors, with public weights over those who replied; zeros if nobody did.

    Paper: Algorithm 1, sum of p_k X_k. Departs: with missing replies the weights are scaled to sum to one; who replied
    is public, so this costs no privacy.
    """
    replied = sorted(received.vectors)
    if not replied:
        return arrays.put(np.zeros(size, dtype=np.float32))
    return arrays.mean([received.vectors[k] for k in replied], [plans[k].weight for k in replied])


MOST_LOOKED_AT = 10_000
"""Of more clients than that only the first are asked which arrays serve their codecs."""


class TrustedServerAggregator:
    """Messages over the wire, opened one by one; the public weighted mean; a charge for whoever replied.

    Paper: Algorithm 1. Missing replies: by `clients.dropout_handling` the server adds their noise, or what was really
    added is charged, or they are waited for.
    """

    def __init__(self, row: AggregatorContext) -> None:
        row, plans, self.mechanism = _planned(row)
        self.row, self.settings, self.vectors = row, row.settings, row.vectors
        self.plans: Sequence[ClientPlan] = plans
        self.senders = self._senders()
        self.accountant = empty_accountant(row.settings)
        self._check_target()

    def _senders(self) -> Senders:
        row = self.row
        return Senders(row.settings, row.draws, row.run_id, self.plans, row.vectors.arrays, row.vectors.cuts)

    def _check_target(self) -> None:
        """Raise ValueError where missing replies would break a target epsilon."""
        check_target(self.settings, self.mechanism)

    @cached_property
    def noise(self) -> float | None:
        return noise_of_average(self.settings, self.plans)

    @cached_property
    def privacy_warnings(self) -> list[str]:
        on_arrays = self.vectors.arrays.privacy_warnings([plan.codec for plan in self.plans[:MOST_LOOKED_AT]])
        return [*warnings_of(self.settings, self.mechanism, self.vectors.tensors), *on_arrays]

    @property
    def warnings(self) -> list[str]:
        return [*run_warnings(self.settings, self.mechanism, self.plans, self.vectors.size), *coder_warnings(self.row)]

    def sampled(self, number: int) -> Index:
        return sampling.cohort(self.row.draws, number, self.settings.clients.count, self.settings.clients.sampling_rate)

    def drawn(self, number: int, clients: Sequence[int]) -> Drawn:
        return sampling.drawn(self.settings, self.row.draws, number, self.row.held, clients)

    def bounds(self, number: int, clients: Sequence[int]) -> Floats:
        return np.array([getattr(self.plans[k].clip, "bound", np.inf) for k in clients], dtype=np.float32)

    def measure(self, number: int) -> Measure | None:
        return None

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        sent, waits = self.senders.send(number, clients, raw)
        envelopes = tuple(envelope for envelope, _ in sent)
        received = receive(self.vectors.arrays, self.plans, envelopes, self.vectors.size)
        self._charge(number, clients, received)
        tried = [each.client for each in envelopes for _ in range(each.at.attempt + 1)]
        line = self._line(sent, received) | ({"waits": waits} if waits else {})
        summed = self._aggregate(number, clients, received)
        return RoundResult(summed, received.vectors.keys(), tried, received.bits, line, envelopes)

    def _charge(self, number: int, clients: list[int], received: Received) -> None:
        """Charge the round."""
        counted = clients if self.compensates else received.vectors.keys()
        self.accountant = after_round(self.accountant, self.mechanism, counted)

    @property
    def compensates(self) -> bool:
        """Whether the server brings the noise of whoever is missing, so that nothing depends on who replied."""
        return self.settings.dropout_handling == "compensate" and self.row.codecs is None

    def _aggregate(self, number: int, clients: list[int], received: Received) -> Any:
        """The public weighted mean: of whoever replied, or of all who were sampled, the server's noise for the missing.

        Guarantee: with `compensate` its noise is that of a round in which everybody replies
        (tests/fl/aggregation/test_dropouts.py).
        """
        missing = [k for k in clients if k not in received.vectors]
        if not self.compensates or not missing:
            return aggregate(self.vectors.arrays, self.plans, received, self.vectors.size)
        weights = {k: self.plans[k].weight for k in clients}
        own = stand_in(
            Counter(share_of(self.plans[k]) for k in missing), self.vectors.size, self._server_address(number)
        )
        return compensated(self.vectors.arrays, received, weights, sum(weights.values()), own)

    def _server_address(self, number: int) -> Address:
        """Where the server's own noise of this round lives: under a key that no client holds."""
        key = Key(self.row.draws.random_bytes(number, sampling.COMPENSATION, 0, KEY_BYTES))
        return Address(key, round=number, client=0, run=self.row.run_id)

    def _line(self, sent: list[Posted], received: Received) -> Line:
        """What can be said about a round's messages; the signal looks at raw data: simulation only."""
        decoded = received.vectors
        heard = {each.client: update for each, update in sent if update is not None and each.client in decoded}
        signal, noise = self.vectors.arrays.powers(list(heard.values()), [decoded[k] for k in heard])
        carried = sum(1 for envelope, _ in sent if envelope.message is not None) * self.vectors.size
        line: Line = {
            "replies": len(decoded),
            "snr_db": 10.0 * float(np.log10(signal / noise)) if signal > 0 and noise > 0 else None,
            "bits": received.bits,
            "bits_per_coordinate": received.bits / carried if carried else None,
        }
        if received.dropped:
            line["dropped"] = {self.row.name(k): reason for k, reason in sorted(received.dropped.items())}
        return line

    def running(self) -> float | None:
        return (
            None
            if self.mechanism is None
            else self.accountant.running(self.settings.privacy.delta, self.settings.training.rounds)
        )

    def spent(self) -> float | None:
        return None if self.mechanism is None else spent(self.accountant, self.settings)

    def views(self, rough: bool = False) -> dict[str, float]:
        return {} if self.mechanism is None else self.accountant.observers(self.settings.privacy.delta, rough)

    def foresee(self) -> None:
        chosen, mechanism = self.settings, self.mechanism
        if (
            mechanism is not None
            and chosen.clients.sampling_rate == 1.0
            and (chosen.clients.dropout_rate == 0.0 or chosen.dropout_handling != "charge")
        ):
            start_ahead(foresee, chosen, mechanism)

    def state_dict(self) -> dict[str, Any]:
        return {"accountant": self.accountant.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.accountant = empty_accountant(self.settings).load_state_dict(state["accountant"])


Planned = tuple[AggregatorContext, tuple[ClientPlan, ...], Mechanism | None]


def _planned(row: AggregatorContext) -> Planned:
    """The clients and the round as the accountant sees it; of the layered quantizer alone where the search coder's
    arithmetic leaves no finite epsilon."""
    refused = None
    try:
        found = _tried(row)
        mechanism = found[2]
        run = None if mechanism is None else mechanism.over(row.settings.training.rounds)
        if run is None or affordable(run, row.settings.privacy.delta) is run:
            return found
    except ValueError as error:
        if row.settings.compression.coder != "auto" or row.codecs:
            raise
        refused = error
    try:
        return _tried(with_layered(row))
    except ValueError:
        if refused is not None:
            raise refused from None
        raise


def _tried(row: AggregatorContext) -> Planned:
    plans = _plans(row)
    return row, plans, None if row.codecs else mechanism_of(row.settings, plans, row.vectors.size)


def _plans(row: AggregatorContext) -> tuple[ClientPlan, ...]:
    made = plan_clients(row.settings, row.held, row.vectors.size, row.vectors.tensors)
    return made if row.codecs is None else tuple(replace(m, codec=row.codecs(k)) for k, m in enumerate(made))
