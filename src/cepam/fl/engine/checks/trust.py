"""Sums that a server learns: what goes with `trust sum`, and what is refused, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def _refusals(settings: Settings) -> Iterator[tuple[bool, str]]:
    """What does not go with sums, and why, with what to do instead."""
    s = settings
    yield s.scheme != "cepam-gaussian", f"needs scheme cepam-gaussian: sums of other noise have no account; {s.scheme}"
    yield s.update == "dp-sgd", "adds its noise to the update, dp-sgd to local steps: there a server may see updates"
    yield s.clip_norm != "l2", f"needs clip_norm l2, the norm that a node bounds; got {s.clip_norm}"
    yield s.clip_scope != "vector", "needs clip_scope vector: a node bounds the whole update"
    yield s.lattice != "Z1", f"draws its noise in one dimension: lattice must be Z1, got {s.lattice}"
    yield s.coder != "adaptive", f"sends vectors of constant length, no entropy code: leave coder as it is; {s.coder}"
    yield s.bucket is not None, "sends vectors of constant length: bucket hides nothing more"
    yield (
        s.on_silence != "charge",
        (
            f"goes on with whoever is left and charges that: policy must be charge, got {s.policy}"
            " (topping up needs a server that may see noise, waiting one that may ask twice)"
        ),
    )
    yield bool(s.byzantine), "cannot look at one client's vector: byzantine clients would ruin every sum unseen"
    yield bool(s.client), "has clients of one law, one clip and one weight: leave client out"
    yield s.keep_messages, "keeps no messages: masked parts are of no use to anybody"
    from cepam.fl.engine import sampling  # which reads settings
    from cepam.fl.engine.trust import COMPLETE

    asked = sampling.asked(s.clients, s.share)
    yield asked < 3, f"needs three clients in every round at least, got {asked}"
    yield (
        asked > COMPLETE and s.share < 1.0,
        (f"asks everybody where a round has more than {COMPLETE} clients: a sparse graph belongs to its roster"),
    )


def check_trust(settings: Settings) -> None:
    """Nothing; raises a ValueError that says what does not go with `trust sum`, and why."""
    s = settings
    if s.trust != "sum":
        given = {"bits": s.bits, "reach": s.reach, "sketch": s.sketch, "colluders": s.colluders or None}
        if names := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"{', '.join(names)}: only trust sum takes this, and trust is {s.trust}")
        return
    for refused, why in _refusals(s):
        if refused:
            raise ValueError(f"trust sum {why}")
    if not 0.0 < s.quorum <= 1.0:
        raise ValueError(f"quorum must lie in (0, 1], a share of the clients asked, got {s.quorum!r}")
    if s.bits is not None and not 1 <= s.bits <= 32:
        raise ValueError(f"bits must be an integer from 1 to 32, got {s.bits!r}")
    from cepam.fl.engine.trust import SumGraph

    graph = SumGraph.of(s)
    if graph.honest < 1 or s.colluders < 0:
        raise ValueError(
            f"quorum {graph.quorum} of {graph.asked} with {s.colluders} colluders hides nobody if the server lies: "
            "twice the quorum must exceed clients and colluders together"
        )
