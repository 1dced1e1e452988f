"""Secure aggregation: the server learns one noisy sum per round, a few bits per coordinate, and not its parts.

- the mechanism: `MaskedSumCodec`, `fit` (bits and gain for a quantization range), `QuantizationRange` (the public
  rule), `Sketch`
- the nodes' end: `SecAggClient`, with the policy and the account of `cepam.policy`
- the server's end: `SecAggRound`, `SecAggSettings`, `Roster`, `RosterEntry`, `sparse_graph`
- the messages that the drivers of both ends touch: `HelloRequest`, `HelloReply`, `RefusalReply`
- what each observer learns: `views`, `epsilons`, `run_epsilons`, `mechanism_for`, `View`
- what went wrong: `SecAggRefused`

Nothing here sends anything: every method takes bytes and gives bytes. docs/proofs/secure-aggregation.md has the
claims, their proofs and the tests beside them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cepam.secure_aggregation.client import SecAggClient
from cepam.secure_aggregation.mechanism import MaskedSumCodec
from cepam.secure_aggregation.messages import HelloReply, HelloRequest, RefusalReply
from cepam.secure_aggregation.roster import Roster, RosterEntry, SecAggRefused
from cepam.secure_aggregation.server import SecAggRound
from cepam.secure_aggregation.settings import QuantizationRange, SecAggSettings, fit
from cepam.secure_aggregation.sketch import Sketch

if TYPE_CHECKING:
    from cepam.secure_aggregation.mechanism import View, epsilons, mechanism_for, run_epsilons, sparse_graph, views

__all__ = [
    "HelloReply",
    "HelloRequest",
    "MaskedSumCodec",
    "QuantizationRange",
    "RefusalReply",
    "Roster",
    "RosterEntry",
    "SecAggClient",
    "SecAggRefused",
    "SecAggRound",
    "SecAggSettings",
    "Sketch",
    "View",
    "epsilons",
    "fit",
    "mechanism_for",
    "run_epsilons",
    "sparse_graph",
    "views",
]

# A node may start a process for every message: it must not load the accountant, nor SciPy.
_LATER = ("View", "epsilons", "mechanism_for", "run_epsilons", "sparse_graph", "views")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("cepam.secure_aggregation.mechanism"), name)
