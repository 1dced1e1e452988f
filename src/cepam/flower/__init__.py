"""Flower: one argument in the ClientApp and one line in the ServerApp make replies private and small.

    app = ClientApp(mods=[cepam.flower.Uplink()])                                        # client
    strategy = cepam.flower.Private(FedAvg(), law=Gaussian(0.2), clip=L2(1.0))           # server

docs/flower.md has the trust model, the faults that were tried, and the measurements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepam.exchange.account import Account
    from cepam.exchange.streams import StreamTerms
    from cepam.exchange.uplink_settings import UplinkSettings
    from cepam.flower.accountant import Accountant
    from cepam.flower.cohort import AdaptiveClip, Fixed, Poisson
    from cepam.flower.private import Private
    from cepam.flower.sum_trust import Sum
    from cepam.flower.uplink import Uplink

__all__ = [
    "Account",
    "Accountant",
    "AdaptiveClip",
    "Fixed",
    "Poisson",
    "Private",
    "StreamTerms",
    "Sum",
    "Uplink",
    "UplinkSettings",
]

# Every message starts a process on the client: it must not load the server's half.
_ROOMS = {
    "Account": "cepam.exchange.account",
    "Accountant": "cepam.flower.accountant",
    "AdaptiveClip": "cepam.flower.cohort",
    "Fixed": "cepam.flower.cohort",
    "Poisson": "cepam.flower.cohort",
    "Private": "cepam.flower.private",
    "Sum": "cepam.flower.sum_trust",
    "Uplink": "cepam.flower.uplink",
    "StreamTerms": "cepam.exchange.streams",
    "UplinkSettings": "cepam.exchange.uplink_settings",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ROOMS[name]), name)
