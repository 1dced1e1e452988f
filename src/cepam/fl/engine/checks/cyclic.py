"""Fixed slices in turn, and noise that later rounds cancel: what goes with them and what cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_cyclic(settings: Settings) -> None:
    """Nothing, or a refusal of what would break a stream's order or its account."""
    if settings.noise_shape == "matrix" and settings.sampling != "cyclic":
        raise ValueError(f"noise_shape matrix needs sampling cyclic, got {settings.sampling}")
    if settings.carry is not None and settings.noise_shape != "matrix":
        raise ValueError(f"carry goes with noise_shape matrix, got {settings.noise_shape}")
    if settings.carry is not None and not 0.0 <= settings.carry < 1.0:
        raise ValueError(f"carry must lie in [0, 1), got {settings.carry!r}")
    if settings.sampling != "cyclic":
        return
    if settings.trust != "server":
        raise ValueError(
            f"sampling cyclic needs a server that undoes each stream: trust must be server, got {settings.trust}"
        )
    if settings.update == "dp-sgd":
        raise ValueError("update dp-sgd draws its own batches: sampling must be poisson, got cyclic")
    schemes = [settings.scheme, *(each.scheme for each in settings.client if each.scheme is not None)]
    if any("laplace" in scheme for scheme in schemes):
        raise ValueError("sampling cyclic is accounted for with Gaussian noise: choose a gaussian scheme")
    if settings.share < 1.0:
        raise ValueError(f"sampling cyclic asks every client in every round: share must be 1, got {settings.share!r}")
    if settings.byzantine:
        raise ValueError("sampling cyclic goes without byzantine clients: nothing cancels the noise that garbage hides")
    if settings.clip_norm != "l2":
        raise ValueError(f"sampling cyclic needs clip_norm l2, got {settings.clip_norm}")
