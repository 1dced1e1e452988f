"""NVIDIA FLARE: a filter for the server and one for the clients make training results private and small.

Put `ServerFilter` in the server's task-data and task-result filters and `ClientFilter` in the clients', for the
training task. Each looks at FLARE's filter direction: the server's offers settings and a fresh public key on the way
out and opens the sealed update on the way in; the client's takes the offer off on the way in and seals on the way out.
The server's also listens to the workflow: it charges the results that were used, and ends the job at its budget.

The exchange is that of `cepam.flower` (docs/flower.md): X25519, HKDF, a key chain, one position for each message. FLARE
itself authenticates sites by certificate.
"""

from cepam.flare.filters import ClientFilter, ServerFilter
from cepam.flare.weights import PAYLOAD

__all__ = ["PAYLOAD", "ClientFilter", "ServerFilter"]
