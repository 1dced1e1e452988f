"""Layers that stay on the client: what still has an account when a client has a state of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_personal(settings: Settings) -> None:
    """Nothing, or a refusal of layers that stay beside what counts on clients who keep nothing."""
    if settings.personal is None:
        return
    for refused, why in _refusals(settings):
        if refused:
            raise ValueError(f"personal {why}")


def _refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    private = s.noisy or any("gaussian" in (each.scheme or "") or "laplace" in (each.scheme or "") for each in s.client)
    yield (
        s.update in ("examples", "dp-sgd"),
        f"layers remember every record they saw, so one record moves all later gradients of its client, and no clip of "
        f"single examples bounds that: update must be difference, clipped as a whole, got {s.update}",
    )
    yield s.update != "difference", f"layers move by local steps: update must be difference, got {s.update}"
    yield (
        private and s.unit == "record" and s.sampling != "all",
        f"layers remember every record they saw, so a record matters in rounds that do not draw it: with unit record "
        f"sampling must be all (no draw is claimed), or protect whole clients with unit client; got {s.sampling}",
    )
    yield (
        s.unit == "client" and s.cohort == "fixed" and s.share < 1.0,
        "layers tell who took part, and of a fixed cohort the others' tell whether one client did: cohort must be "
        "poisson, or share 1",
    )
    yield s.trust != "server", f"layers go with trust server, got trust {s.trust}"
    yield s.average != 0.0, f"layers belong to the weights that clients hold: average must be 0, got {s.average!r}"
