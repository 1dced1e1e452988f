"""Fixed slices in turn, and noise that later rounds cancel: what goes with them and what cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_streams(settings: Settings) -> None:
    """Nothing, or a refusal of what would break a stream's order or its account."""
    s = settings
    if s.noise_shape == "matrix" and s.sampling not in ("cyclic", "poisson"):
        raise ValueError(f"noise_shape matrix needs sampling cyclic (or poisson), got {s.sampling}")
    for name, value in (("carry", s.carry), ("matrix", s.matrix)):
        if value is not None and s.noise_shape != "matrix":
            raise ValueError(f"{name} goes with noise_shape matrix, got {s.noise_shape}")
    if s.carry is not None and s.matrix is not None:
        raise ValueError("give either carry or matrix, not both")
    if s.carry is not None and not 0.0 <= s.carry < 1.0:
        raise ValueError(f"carry must lie in [0, 1), got {s.carry!r}")
    if not s.streams:
        return
    kind = "sampling cyclic" if s.sampling == "cyclic" else "noise_shape matrix"
    for refused, why in _refusals(s):
        if refused:
            raise ValueError(f"{kind} {why}")


def _refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    """What does not go with streams, and why, with what to do instead."""
    yield s.trust != "server", f"needs a server that undoes each stream: trust must be server, got {s.trust}"
    yield s.update == "dp-sgd", "is of what clients send: update dp-sgd adds its noise to local steps"
    schemes = [s.scheme, *(each.scheme for each in s.client if each.scheme is not None)]
    yield (
        any("laplace" in scheme for scheme in schemes),
        "is accounted for with Gaussian noise: choose a gaussian scheme",
    )
    yield s.share < 1.0, f"asks every client in every round: share must be 1, got {s.share!r}"
    yield bool(s.byzantine), "goes without byzantine clients: nothing cancels the noise that garbage hides"
    yield s.clip_norm != "l2", f"needs clip_norm l2, got {s.clip_norm}"
    yield (
        s.sampling == "poisson" and s.dropout > 0.0 and s.on_silence != "wait",
        "with sampling poisson is accounted for where every message comes: choose --policy wait, or sampling cyclic, "
        f"whose absences can be charged; got dropout {s.dropout:g}",
    )
