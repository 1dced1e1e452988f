"""Flower: one argument in the ClientApp and one line in the ServerApp make replies private and small.

    app = ClientApp(mods=[cepam.flower.Uplink()])                                        # client
    strategy = cepam.flower.Private(FedAvg(), law=Gaussian(0.2), clip=L2(1.0))           # server

docs/flower.md has the trust model, the faults that were tried, and the measurements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepam.flower.accountant import PldAccountant
    from cepam.flower.client_mod import Uplink
    from cepam.flower.cohort import AdaptiveClip, Fixed, Poisson
    from cepam.flower.secure_aggregation.options import Sum
    from cepam.flower.strategy import Private
    from cepam.protocol.accounting import Accounting
    from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
    from cepam.protocol.settings import UplinkSettings

__all__ = [
    "Accounting",
    "AdaptiveClip",
    "CorrelatedNoiseConfig",
    "Fixed",
    "PldAccountant",
    "Poisson",
    "Private",
    "Sum",
    "Uplink",
    "UplinkSettings",
]

# Every message starts a process on the client: it must not load the server's half.
_MODULES = {
    "Accounting": "cepam.protocol.accounting",
    "PldAccountant": "cepam.flower.accountant",
    "AdaptiveClip": "cepam.flower.cohort",
    "Fixed": "cepam.flower.cohort",
    "Poisson": "cepam.flower.cohort",
    "Private": "cepam.flower.strategy",
    "Sum": "cepam.flower.secure_aggregation.options",
    "Uplink": "cepam.flower.client_mod",
    "CorrelatedNoiseConfig": "cepam.protocol.correlated_noise",
    "UplinkSettings": "cepam.protocol.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
