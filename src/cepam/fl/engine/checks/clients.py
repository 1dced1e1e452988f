"""What some clients do differently, and which are byzantine: only of clients that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.fl.engine.settings import Settings


def check_clients(settings: Settings) -> None:
    """Nothing, or a refusal of a client number that nobody has."""
    beyond = [k for each in settings.client for k in each.clients if isinstance(k, int) and k >= settings.clients]
    if beyond or any(not 0 <= k < settings.clients for k in settings.byzantine):
        raise ValueError(f"client numbers must lie in [0, {settings.clients}), got {beyond or settings.byzantine}")
