"""NVIDIA FLARE: a filter for the server and one for the clients make training results private and small.

    server = cepam.flare.ServerFilter(clip=cepam.L2(1.0), noise=cepam.Gaussian(0.2))
    client = cepam.flare.ClientFilter()

Put `ServerFilter` in the server's task-data and task-result filters and `ClientFilter` in the clients', for the
training task. The server's offers settings and a fresh public key with each task, and opens the sealed update of each
result. It also listens to the workflow: it charges the results that were used, and ends the job at its budget. Options
are those of `cepam.flower`.

The protocol is that of `cepam.flower` (docs/flower.md): X25519, HKDF, a key chain, one position for each message. FLARE
itself authenticates sites by certificate.
"""

from cepam.flare.filters import ClientFilter, ServerFilter
from cepam.flare.weights import PAYLOAD
from cepam.protocol.account import Accounting, Target
from cepam.protocol.settings import Compression, Dropouts

__all__ = ["PAYLOAD", "Accounting", "ClientFilter", "Compression", "Dropouts", "ServerFilter", "Target"]
