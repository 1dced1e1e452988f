"""Sums that a server learns and their parts that it does not: masked, noisy, a few bits a coordinate.

- the mechanism: `SumCodec`, `fit` (bits and gain for a reach), `Reach` (the public rule), `Sketch`
- the nodes' end: `SumNode`, `Terms`, `FileJournal`, `MemoryJournal`
- the server's end: `SumRound`, `SumSettings`, `Roster`, `RosterEntry`, `sparse_graph`
- the messages that the drivers of both ends touch: `HelloRequest`, `HelloReply`, `RefusalReply`
- what each observer learns: `views`, `epsilons`, `run_epsilons`, `release_to`, `ledger_of`, `View`
- what went wrong: `SumRefused`

Nothing here sends anything: every method takes bytes and gives bytes. docs/trust.md has the claims, their proofs and
the tests beside them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cepam.secure.aggregator import SumRound
from cepam.secure.journal import FileJournal, MemoryJournal
from cepam.secure.mechanism import SumCodec
from cepam.secure.messages import HelloReply, HelloRequest, RefusalReply
from cepam.secure.node import SumNode
from cepam.secure.reach import Reach, fit
from cepam.secure.refusal import SumRefused
from cepam.secure.roster import Roster, RosterEntry
from cepam.secure.settings import SumSettings
from cepam.secure.sketch import Sketch
from cepam.secure.terms import AnsweredRounds, RoundCharge, Terms

if TYPE_CHECKING:
    from cepam.secure.graph import sparse_graph
    from cepam.secure.observers import View, epsilons, ledger_of, release_to, run_epsilons, views

__all__ = [
    "AnsweredRounds",
    "FileJournal",
    "HelloReply",
    "HelloRequest",
    "MemoryJournal",
    "Reach",
    "RefusalReply",
    "Roster",
    "RosterEntry",
    "RoundCharge",
    "Sketch",
    "SumCodec",
    "SumNode",
    "SumRefused",
    "SumRound",
    "SumSettings",
    "Terms",
    "View",
    "epsilons",
    "fit",
    "ledger_of",
    "release_to",
    "run_epsilons",
    "sparse_graph",
    "views",
]

# A node may start a process for every message: it must not load the accountant, nor SciPy.
_LATER = {"sparse_graph": "graph"} | dict.fromkeys(
    ("View", "epsilons", "ledger_of", "release_to", "run_epsilons", "views"), "observers"
)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"cepam.secure.{_LATER[name]}"), name)
