"""Aggregation with correlated noise (DP-FTRL): later noise cancels part of the earlier; no secret sampling.

Design, proofs, what an absence costs, and secret draws on top: docs/proofs/matrix-mechanism.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.fl.aggregation.accounting import empty_accountant, spent
from cepam.fl.aggregation.trusted_server import (
    AggregatorContext,
    Received,
    TrustedServerAggregator,
    aggregate,
    compensated,
)
from cepam.fl.clients import sampling
from cepam.fl.clients.sampling import Drawn, drawn_slices, lasting, link_of, most_examples
from cepam.fl.clients.sending import Posted, Senders
from cepam.privacy import (
    Accountant,
    Arrival,
    CorrelatedNoiseSender,
    MatrixMechanism,
    ObservedParticipation,
    fingerprint,
)
from cepam.privacy.cohorts.dropouts import server_noise
from cepam.privacy.numerics.smoothing import smoothing

Arrivals = list[list[Arrival]]


@dataclass(frozen=True, eq=False)
class CorrelatedNoiseSenders(Senders):
    """Clients that send what their stream makes of their clipped update; one that stays away keeps its position."""

    streams: tuple[CorrelatedNoiseSender, ...] = ()

    def _posted(self, round: int, attempt: int, clients: list[int], raw: Any) -> list[Posted]:
        rows = self.arrays.fetch(raw)
        made = [self.streams[k].next(self._clipped(k, row)) for k, row in zip(clients, rows)]
        return self._encoded(round, attempt, clients, self.arrays.put(np.stack(made)), [None] * len(clients))

    def _clipped(self, client: int, update: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The client's own update within its clip, never what the stream makes of it; zeros where it is not finite."""
        clip = self.plans[client].clip
        if clip is not None and self.settings.training.update != "examples":
            return clip.apply_or_zero(update, self.cuts)
        return update if np.isfinite(update).all() else np.zeros_like(update)


class CorrelatedNoiseAggregator(TrustedServerAggregator):
    """Fixed slices in turn, streams of shaped updates, and a server that undoes the shaping and divides by constants.

    A client that is away computes nothing and goes on with its next slice when it is back; what its absence costs is
    charged as it was. Weights are those of all clients: the absent count as zero, or noise would no longer cancel.
    The state holds raw updates: a checkpoint encrypts it.
    Guarantee: killed and resumed, the same bits; a stream's state cannot be read from what a run leaves behind
    (tests/fl/aggregation/test_correlated.py).
    """

    def __init__(self, row: AggregatorContext) -> None:
        link = link_of(row.settings)
        assert link is not None
        if (fewest := int(row.held.min())) < link.slices:
            raise ValueError(
                f"slices in turn need clients with at least training.slices = {link.slices} records, got one with "
                f"{fewest}: lower training.slices"
            )
        self.link = link
        self.streams = tuple(link.sender(row.vectors.size) for _ in row.held)
        self.receivers = tuple(link.receiver(row.vectors.size) for _ in row.held)
        self.arrivals: Arrivals = [[] for _ in row.held]
        self.rounds = 0
        super().__init__(row)
        _check_reach(self)

    def _senders(self) -> Senders:
        row, arrays, cuts = self.row, self.vectors.arrays, self.vectors.cuts
        return CorrelatedNoiseSenders(row.settings, row.draws, row.run_id, self.plans, arrays, cuts, self.streams)

    def _check_target(self) -> None:
        """Raise ValueError where the absences of this run would break a target epsilon."""
        target = _target(self.settings.privacy.epsilon, *(each.epsilon for each in self.settings.clients.overrides))
        if self.away is None or target is None or not isinstance(self.mechanism, MatrixMechanism):
            return
        found = spent(self._booked(self.settings.training.rounds, self.away), self.settings)
        if found > target:
            raise ValueError(
                f"clients.dropout_rate {self.settings.clients.dropout_rate:g} with dropout_handling charge would end "
                f"at epsilon {found:.4g}, above the target {target:g}: choose clients.dropout_handling wait, a lower "
                "privacy.epsilon, or state privacy.noise_scale"
            )

    @cached_property
    def away(self) -> ObservedParticipation | None:
        """Who will be there in the whole run, by the run's own draws; None where everyone is."""
        chosen = self.settings
        if chosen.clients.dropout_rate == 0.0 or chosen.dropout_handling == "wait":
            return None
        silent = [
            sampling.silent(self.row.draws, t, 0, chosen.clients.count, chosen.clients.dropout_rate)
            for t in range(chosen.training.rounds)
        ]
        return ObservedParticipation.observed(~np.stack(silent, axis=1))

    @property
    def may_miss(self) -> bool:
        """Whether messages may be missing: the server then adds smoothing noise (docs/proofs/matrix-mechanism.md)."""
        return self.settings.dropout_handling != "wait" and bool(
            self.settings.clients.dropout_rate or self.settings.clients.byzantine
        )

    @cached_property
    def noise(self) -> float | None:
        """Between what a round adds and what later rounds leave of it, in geometric mean: for the quantized downlink.

        A step that follows the first hides what lasts; one that follows the second spells out noise that is taken away.
        """
        whole = super().noise
        return None if whole is None else whole * lasting(self.link)

    @property
    def warnings(self) -> list[str]:
        said, mechanism = super().warnings, self.mechanism
        if self.link.bands != 1:
            drawn_by = (
                "draws are secret, within"
                if self.settings.training.record_sampling == "poisson"
                else "no draw is secret:"
            )
            decay, bands = self.link.decay, self.link.bands
            shape = (
                f"each message's noise cancels {decay:.4f} of the one before it"
                if decay
                else f"each message's noise cancels some of the {(bands or 1) - 1} before it"
            )
            said.append(f"{drawn_by} {self.link.slices} fixed slices in turn, {shape}")
        if self.away is not None and mechanism is not None:
            cost = spent(self._booked(self.settings.training.rounds, self.away), self.settings)
            said.append(
                f"clients.dropout_rate {self.settings.clients.dropout_rate:g} with dropout_handling charge: epsilon "
                f"{cost:.4g} with these absences"
            )
        return said

    def drawn(self, number: int, clients: Sequence[int]) -> Drawn:
        positions = [self.streams[k].position for k in clients]
        return drawn_slices(self.settings, self.row.draws, number, self.row.held, clients, positions)

    def _charge(self, number: int, clients: list[int], received: Received) -> None:
        for k in received.vectors:
            self.arrivals[k].append(Arrival(number, self.streams[k].position - 1))
        self.rounds = number + 1
        complete = all(len(came) == self.rounds for came in self.arrivals)
        if not complete and (self.settings.training.record_sampling == "poisson" or not self.may_miss):
            missing = ", ".join(f"{self.row.name(k)} ({why})" for k, why in sorted(received.dropped.items()))
            raise ValueError(
                f"round {number}: no message of client {missing}; correlated noise with secret draws, or in a run that "
                "foresees no absence, is accounted for where every message comes: nothing of this round is published"
            )
        came = None if complete else ObservedParticipation(self.rounds, tuple(map(tuple, self.arrivals)))
        self.accountant = self._booked(self.rounds, came)

    def _aggregate(self, number: int, clients: list[int], received: Received) -> Any:
        """The sum of the updates with their noise, over the weights of all: whoever is away counts as zero."""
        arrays, taken = self.vectors.arrays, Received()
        for k, vector in received.vectors.items():
            position = self.streams[k].position - 1
            taken.vectors[k] = arrays.put(self.receivers[k].take(arrays.fetch(vector), position))
        if not self.may_miss:
            return aggregate(arrays, self.plans, taken, self.vectors.size)
        weights, smooth = {k: plan.weight for k, plan in enumerate(self.plans)}, np.zeros(self.vectors.size)
        if noises := [plan.weight * plan.law.scale for plan in self.plans if plan.law is not None]:
            smooth = server_noise(smoothing(noises), self.vectors.size, self._server_address(number))
        return compensated(arrays, taken, weights, sum(weights.values()), [(1.0, smooth)])

    def _booked(self, rounds: int, came: ObservedParticipation | None) -> Accountant:
        empty = empty_accountant(self.settings)
        if not isinstance(self.mechanism, MatrixMechanism) or not rounds:
            return empty
        return empty.add(replace(self.mechanism, rounds=rounds, observed_participation=came))

    def state_dict(self) -> dict[str, Any]:
        came = [[k, one.round, one.position] for k, theirs in enumerate(self.arrivals) for one in theirs]
        arrived = np.array(came, dtype=np.int64).reshape(-1, 3)
        state: dict[str, Any] = {"rounds": self.rounds, "arrivals": arrived, "link": fingerprint(self.link)}
        for name, end in self._ends():
            for what, value in end.state_dict().items():
                state[f"{name} {what}"] = value
        return state | {"accountant": self.accountant.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("link") != fingerprint(self.link):
            raise ValueError(
                "the checkpoint's noise was correlated by another matrix: restore privacy.decay or privacy.matrix"
            )
        self.rounds = int(state["rounds"])
        self.arrivals = [[] for _ in self.plans]
        for k, *when in state["arrivals"].tolist():
            self.arrivals[k].append(Arrival(*when))
        for name, end in self._ends():
            own = {key.removeprefix(f"{name} "): value for key, value in state.items() if key.startswith(f"{name} ")}
            end.load_state_dict(own)
        self.accountant = empty_accountant(self.settings).load_state_dict(state["accountant"])

    def _ends(self) -> list[tuple[str, Any]]:
        """Every stream's two ends by name."""
        sent = [(f"sender {k}", each) for k, each in enumerate(self.streams)]
        return sent + [(f"receiver {k}", each) for k, each in enumerate(self.receivers)]


def _target(*stated: float | None) -> float | None:
    """The strictest target epsilon, if anyone has one."""
    return min((each for each in stated if each is not None), default=None)


def _check_reach(aggregator: CorrelatedNoiseAggregator) -> None:
    """Raise ValueError where a message could be too long for its codec: that it was would be seen."""
    for k, plan in enumerate(aggregator.plans):
        if plan.clip is None or not isinstance(plan.codec, Codec):
            continue
        bound = plan.clip.bound * aggregator.link.gain * most_examples(aggregator.settings, plan.records, plan.batch)
        reach = plan.codec.plan.reach
        if bound > reach:
            raise ValueError(
                f"client {aggregator.row.name(k)}: with this noise a message can be as large as {bound:.3g}, beyond "
                f"the codec's quantization range {reach:.3g}: lower privacy.decay or privacy.clipping_norm"
            )
