"""Secure aggregation's numbers: clients per round, quorum, colluders, and the graph of shared masks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cepam.fl.config.settings import Settings

COMPLETE = 100
"""Up to so many clients everybody shares masks with everybody."""
CORRUPT = 0.1
"""The share of colluding clients that a sparse graph stands at least."""


@dataclass(frozen=True)
class SecAggGraph:
    """How many clients a round has, how many must be in every sum, and who shares masks with whom (degree 0: all)."""

    clients: int
    quorum: int
    colluders: int
    degree: int = 0
    threshold: int = 0

    @classmethod
    def of(cls, settings: Settings) -> SecAggGraph:
        """The graph of a run's rounds."""
        clients = settings.clients_per_round
        quorum = min(clients, max(math.ceil(settings.privacy.quorum * clients - 1e-9), 1))
        if clients <= COMPLETE:
            return cls(clients, quorum, settings.privacy.colluders)
        corrupt = max(CORRUPT, settings.privacy.colluders / clients)
        from cepam.secure_aggregation import (
            sparse_graph,  # whose room needs `cryptography`: a run without sums does without
        )

        degree, threshold = sparse_graph(clients, corrupt, 1.0 - quorum / clients)
        return cls(clients, quorum, settings.privacy.colluders, degree, threshold)

    @property
    def honest(self) -> int:
        """The honest clients in every sum that a server can open: one that lies on the complete graph, else a true one.

        Guarantee: docs/proofs/secure-aggregation.md, Theorem 3.
        """
        return self.quorum - self.colluders if self.degree else 2 * self.quorum - self.clients - self.colluders


def surely_in(settings: Settings) -> int:
    """How many clients' noise is in every round that is published: what a target epsilon can count on."""
    if settings.privacy.trust == "secure-aggregation" and settings.clients.dropout_rate:
        return SecAggGraph.of(settings).quorum
    return settings.clients_per_round
