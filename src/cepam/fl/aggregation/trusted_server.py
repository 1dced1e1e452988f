"""Aggregation by a trusted server, which opens every client's message and compensates for dropouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from cepam._internal.prefetch import start_ahead
from cepam.fl.aggregation.accounting import (
    after_round,
    empty_accountant,
    foresee,
    mechanism_of,
    noise_of_average,
    share_of,
    spent,
    warnings_of,
)
from cepam.fl.aggregation.aggregator import (
    AggregatorContext,
    Floats,
    Index,
    Line,
    RoundResult,
    coder_notices,
    with_layered,
)
from cepam.fl.aggregation.calibration import plan_clients
from cepam.fl.aggregation.server import Received, aggregate, compensated, receive
from cepam.fl.aggregation.warnings import check_target, notices
from cepam.fl.clients import sampling
from cepam.fl.clients.local_training import Measure
from cepam.fl.clients.plan import ClientPlan
from cepam.fl.clients.sampling import Drawn
from cepam.fl.clients.sending import Posted, Senders
from cepam.keys import KEY_BYTES, Address, Key
from cepam.privacy import Mechanism
from cepam.privacy.cohorts.dropouts import stand_in
from cepam.privacy.composition.account import affordable

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
    def notices(self) -> list[str]:
        return [*notices(self.settings, self.mechanism, self.plans, self.vectors.size), *coder_notices(self.row)]

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
