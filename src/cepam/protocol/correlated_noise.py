"""Correlated noise over the protocol, in an order that the client itself keeps.

The server offers a configuration (decay, slices, how many messages) and says which noise state of the client it holds.
The client alone says which slice of its records is next: it counts its own messages, takes no other configuration in a
run, no round twice or backwards, and no message beyond the last. What it has spent never depends on a server's claims.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import LARGEST_SCALE

if TYPE_CHECKING:
    from cepam.clip import ClippedUnit
    from cepam.privacy import Arrival, Client, CorrelatedNoise, CorrelatedNoiseReceiver, CorrelatedNoiseSender
    from cepam.protocol.agreement import Answer

NAME_BYTES = 8
MOST_COUNT = 1 << 31
Vector = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class CorrelatedNoiseConfig:
    """Correlated noise (the matrix mechanism, DP-FTRL): the noise of later rounds cancels that of earlier ones.

    Args:
        decay: How much of a message's noise the next one takes away, in [0, 1). `privacy.best_decay` finds the best.
        slices: Into how many fixed slices a client's records are split; each message uses the next slice.
        max_participations: The most messages that a client sends in the run.
        divisor: Where each example is clipped by itself, the public number that the sum of a slice's gradients is
            divided by, such as an expected slice: a record then moves an update by clip/divisor. Default 0: whole
            updates are clipped.

    Raises:
        ValueError: For a value outside its range.
    """

    decay: float
    slices: int
    max_participations: int
    divisor: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.divisor, bool) or not 0.0 <= self.divisor <= LARGEST_SCALE:
            raise ValueError(f"divisor must be a positive number, or 0 for whole updates, got {self.divisor!r}")
        if isinstance(self.decay, bool) or not 0.0 <= self.decay < 1.0:
            raise ValueError(f"decay must lie in [0, 1), got {self.decay!r}")
        for name, value in (("slices", self.slices), ("max_participations", self.max_participations)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_COUNT:
                raise ValueError(f"{name} must be an integer from 1 to {MOST_COUNT}, got {value!r:.40}")

    @property
    def clipped(self) -> ClippedUnit:
        """What is clipped: each example, or the whole update."""
        return "example" if self.divisor else "update"

    def client(
        self, law: Any, records: int, weight: float = 1.0, clip: Any = None, lattice: Any = None, searched: bool = True
    ) -> Client:
        """A client with such noise, for the accountant.

        Args:
            law: The law of its noise.
            records: Records that it holds; at least one per slice is counted.
            weight: Its weight in the server's sum.
            clip: Its own clip; by default that of the mechanism.
            lattice: The lattice of its codec; by default the line.
            searched: Whether the search coder may code its messages.

        Returns:
            The client.
        """
        from cepam.privacy import Client

        return Client(law, max(records, self.slices), weight, self.divisor or None, clip, lattice, searched)

    @property
    def gain(self) -> float:
        """How many times the clip a message can reach."""
        return 1.0 / (1.0 - self.decay)

    @property
    def link(self) -> CorrelatedNoise:
        """The correlation of the messages' noise."""
        from cepam.privacy.matrix.correlated_noise import CorrelatedNoise

        return CorrelatedNoise(self.decay, self.slices)


class CorrelatedNoiseRefused(ValueError):
    """A server that breaks the order or the settings of correlated noise; `code` is `order` or `policy`."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class _Kept:
    """What a client kept of its noise in a run, as `ClientCorrelatedNoise.to_fields` wrote it."""

    run: str
    said: str
    name: bytes
    round: int
    start: int
    position: int
    size: int
    charged: str
    memory: bytes = field(repr=False)

    @classmethod
    def of(cls, kept: Mapping[str, object]) -> _Kept:
        """The state in these fields; `CorrelatedNoiseRefused` for anything else."""
        for each, kind in _KINDS.items():
            value = kept.get(each)
            if type(value) is not kind or (isinstance(value, int) and value < 0):
                raise _damaged(f"{each!r} is missing, or not what was written")
        return cls(**{name: kept[name] for name in _KINDS})  # type: ignore[arg-type]

    def sender(self, link: CorrelatedNoise) -> CorrelatedNoiseSender:
        """The sender that goes on; `CorrelatedNoiseRefused` where the memory is not that of such noise."""
        sender = link.sender(self.size, self.position)
        try:
            memory = np.frombuffer(self.memory, dtype="<f8").reshape(-1, self.size)
            sender.load_state_dict({"start": self.start, "position": self.position, "memory": memory})
        except ValueError as odd:
            raise _damaged(str(odd)) from odd
        return sender


_KINDS: dict[str, type] = {
    "run": str, "said": str, "name": bytes, "round": int, "start": int, "position": int, "size": int, "charged": str,
    "memory": bytes,
}  # fmt: skip


def _damaged(reason: str) -> CorrelatedNoiseRefused:
    return CorrelatedNoiseRefused("order", f"what this node kept of its correlated noise is damaged: {reason}")


@dataclass
class ClientCorrelatedNoise:
    """A client's end: where it stands, under which config, and what it carries. Private to the client.

    `charged` names the client's own account that has paid for all messages of this run and size; empty: none has. What
    was begun without an account, or under another one, is charged with the first message under this one.

    Guarantee: a server that asks again, backwards, too often or on other terms gets nothing, and the position is left
    (tests/flower/test_correlated_noise.py).
    """

    config: CorrelatedNoiseConfig
    said: str
    name: bytes
    server_round: int
    sender: CorrelatedNoiseSender = field(repr=False)
    charged: str = ""

    @classmethod
    def follow(cls, offer: Any, size: int, kept: Mapping[str, object] | None) -> ClientCorrelatedNoise:
        """The noise that answers this offer, gone on with or begun anew.

        Begun anew where the server does not hold the kept one: nothing is carried on, the position is. A client that
        kept nothing takes the server's word for its position.

        Raises:
            CorrelatedNoiseRefused: The offer breaks the order or the terms, or what was kept is damaged.
        """
        config, said = offer.settings.correlated_noise, offer.settings.to_json()
        mine = None if kept is None else _Kept.of(kept)
        mine = mine if mine is not None and mine.run == str(offer.run) else None
        position = mine.position if mine is not None else offer.place
        if mine is not None:
            if mine.said != said:
                raise CorrelatedNoiseRefused("policy", "the server changed the settings of this run's correlated noise")
            if offer.server_round <= mine.round:
                raise CorrelatedNoiseRefused("order", f"round {offer.server_round} was answered before, or a later one")
        if position >= config.max_participations:
            raise CorrelatedNoiseRefused("order", f"all {config.max_participations} messages of this run were sent")
        same = mine is not None and mine.size == size
        charged = mine.charged if mine is not None and same else ""
        goes_on = mine is not None and same and offer.noise_id == mine.name
        sender = mine.sender(config.link) if mine is not None and goes_on else config.link.sender(size, position)
        name = offer.noise_id if goes_on else secrets.token_bytes(NAME_BYTES)
        return cls(config, said, name, offer.server_round, sender, charged)

    def to_fields(self, run: int) -> dict[str, int | str | bytes]:
        """What the client keeps until its next message."""
        state = self.sender.state_dict()
        return {
            "run": str(run),
            "said": self.said,
            "name": self.name,
            "round": self.server_round,
            "start": state["start"],
            "position": state["position"],
            "size": self.sender.size,
            "charged": self.charged,
            "memory": np.ascontiguousarray(state["memory"], dtype="<f8").tobytes(),
        }


@dataclass
class _Held:
    """The server's end of one client's noise, and how often that client has begun anew."""

    name: bytes
    number: int
    receiver: CorrelatedNoiseReceiver = field(repr=False)


class ServerCorrelatedNoise:
    """The server's ends: what it decoded last of each client, and which messages are in what was published.

    A message counts once its round is published (`commit`); one that is opened and not used is as good as lost.
    """

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._came: dict[int, tuple[_Held, int]] = {}
        self.arrivals: dict[int, list[Arrival]] = {}
        self.rounds = 0

    def offered(self, node: int) -> tuple[bytes, int]:
        """The name of the noise held of this client (empty: none), and the position after the last that came."""
        held, came = self._held.get(node), self.arrivals.get(node)
        return (held.name if held else b""), (came[-1].position + 1 if came else 0)

    def begin(self) -> None:
        """Forget what came and was not used."""
        self._came.clear()

    def take(self, node: int, config: CorrelatedNoiseConfig, answer: Answer, vector: Vector) -> Vector:
        """The update with its noise, from a decoded message; ValueError where it is out of order."""
        if node in self._came:
            raise ValueError("a second message of this round came")
        least = self.offered(node)[1]
        if not least <= answer.place < config.max_participations or len(answer.noise_id) != NAME_BYTES:
            raise ValueError(
                f"position {answer.place} of messages whose next is {least} of {config.max_participations}"
            )
        held = self._held.get(node)
        if held is not None and held.name == answer.noise_id:
            after = _Held(held.name, held.number, copy.copy(held.receiver))
        else:
            number = self.arrivals[node][-1].stream + 1 if self.arrivals.get(node) else 0
            after = _Held(answer.noise_id, number, config.link.receiver(len(vector), answer.place))
        made = after.receiver.take(vector, answer.place)
        self._came[node] = after, answer.place
        return made

    def with_round(self, nodes: Collection[int]) -> dict[int, list[Arrival]]:
        """The arrivals of all clients, this round's of these clients among them."""
        from cepam.privacy.matrix.participation import Arrival

        made = {node: list(came) for node, came in self.arrivals.items()}
        for node in nodes:
            after, place = self._came[node]
            made.setdefault(node, []).append(Arrival(self.rounds, place, after.number))
        return made

    def commit(self, nodes: Collection[int]) -> None:
        """Count these clients' messages as published with this round."""
        self.arrivals = self.with_round(nodes)
        for node in nodes:
            self._held[node] = self._came[node][0]
        self._came.clear()
        self.rounds += 1

    def restore(self, arrivals: Mapping[int, Collection[Arrival]], rounds: int) -> None:
        """Count the rounds that a server published before it was restarted, with the noise of its clients lost."""
        self.arrivals, self.rounds = {node: list(came) for node, came in arrivals.items()}, rounds
