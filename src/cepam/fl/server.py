"""The server half of a round: open every message, drop what does not open, take the public weighted mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.errors import CepamError
from cepam.fl.fleet import Member
from cepam.stream import Address

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Envelope:
    """A message on its way: who sent it, where its randomness lives, and the bytes (None: none came)."""

    client: int
    at: Address
    message: bytes | None
    excuse: str = "no reply"


@dataclass
class Received:
    """What one seed's server holds after a round."""

    vectors: dict[int, Floats] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    bits: int = 0


def _opened(member: Member, envelope: Envelope) -> Floats | str:
    """The decoded vector, or why there is none."""
    if envelope.message is None:
        return envelope.excuse
    try:
        return np.asarray(member.channel.decode(envelope.message, envelope.at), dtype=np.float32)
    except CepamError as problem:
        return f"{type(problem).__name__}: {problem}"


def receive(
    fleet: Sequence[Member], envelopes: Sequence[Envelope], size: int, side_by_side: Callable[..., Any] = map
) -> Received:
    """The decoded vectors, the clients dropped with the reason, and the bits that came over the wire.

    A message that does not open, or opens to something that is no update, drops its client; the round goes on.
    `side_by_side` may be the `map` of a pool of threads.
    """
    got = Received()
    members = [fleet[each.client] for each in envelopes]
    for each, vector in zip(envelopes, side_by_side(_opened, members, envelopes)):
        got.bits += 8 * len(each.message or b"")
        if isinstance(vector, str):
            got.dropped[each.client] = vector
            continue
        if vector.shape != (size,) or not np.isfinite(vector).all():
            got.dropped[each.client] = f"a vector of shape {vector.shape} where {size} finite weights were due"
            continue
        got.vectors[each.client] = vector
    return got


def aggregate(fleet: Sequence[Member], received: Received, size: int) -> Floats:
    """The weighted mean of the decoded vectors, with public weights over those who replied.

    Paper: Algorithm 1, sum of p_k X_k. Departs: with missing replies the weights are scaled to sum to one; who replied
    is public, so this costs no privacy.
    """
    total = np.zeros(size, dtype=np.float64)
    weight = 0.0
    for client in sorted(received.vectors):
        total += fleet[client].weight * received.vectors[client].astype(np.float64)
        weight += fleet[client].weight
    return (total / weight if weight else total).astype(np.float32)
