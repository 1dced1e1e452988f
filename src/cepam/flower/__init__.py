"""Flower: one argument in the ClientApp and one line in the ServerApp make replies private and small.

    app = ClientApp(mods=[cepam.flower.Uplink()])                                  # client
    strategy = cepam.flower.Private(FedAvg(), clip=cepam.L2(1.0), epsilon=2.0)     # server

`SecureAggregation` takes the place of `Private` where the server must not see single updates. docs/flower.md has the
trust model, the faults that were tried, and the measurements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepam.flower.accountant import PldAccountant
    from cepam.flower.client_mod import Uplink
    from cepam.flower.sampling import AdaptiveClip, Fixed, Poisson
    from cepam.flower.secure_aggregation.strategy import SecureAggregation
    from cepam.flower.strategy import Private
    from cepam.policy import ClientPolicy
    from cepam.protocol.account import Accounting, Target
    from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
    from cepam.protocol.settings import (
        Authentication,
        Compression,
        Dropouts,
        Gradient,
        NodeSettings,
        QuantizedBroadcast,
    )

__all__ = [
    "Accounting",
    "AdaptiveClip",
    "Authentication",
    "ClientPolicy",
    "Compression",
    "CorrelatedNoiseConfig",
    "Dropouts",
    "Fixed",
    "Gradient",
    "NodeSettings",
    "PldAccountant",
    "Poisson",
    "Private",
    "QuantizedBroadcast",
    "SecureAggregation",
    "Target",
    "Uplink",
]

# Every message starts a process on the client: it must not load the server's half.
_MODULES = {
    "Accounting": "cepam.protocol.account",
    "AdaptiveClip": "cepam.flower.sampling",
    "Authentication": "cepam.protocol.settings",
    "ClientPolicy": "cepam.policy",
    "Compression": "cepam.protocol.settings",
    "CorrelatedNoiseConfig": "cepam.protocol.correlated_noise",
    "Dropouts": "cepam.protocol.settings",
    "Fixed": "cepam.flower.sampling",
    "Gradient": "cepam.protocol.settings",
    "NodeSettings": "cepam.protocol.settings",
    "PldAccountant": "cepam.flower.accountant",
    "Poisson": "cepam.flower.sampling",
    "Private": "cepam.flower.strategy",
    "QuantizedBroadcast": "cepam.protocol.settings",
    "SecureAggregation": "cepam.flower.secure_aggregation.strategy",
    "Target": "cepam.protocol.account",
    "Uplink": "cepam.flower.client_mod",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
