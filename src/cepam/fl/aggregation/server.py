"""The server's half of a round: open every message, drop what does not open, take the weighted mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.fl.arrays import ArrayBackend
from cepam.fl.clients.plan import ClientPlan
from cepam.fl.clients.sending import ClientMessage

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
