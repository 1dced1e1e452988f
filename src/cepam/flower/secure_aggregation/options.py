"""Options of secure aggregation: quorum, bits, and how long the server waits for shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

LEAST_NODES = 3


@dataclass(frozen=True)
class SecAggOptions:
    """The checked options of `SecureAggregation` that concern the protocol alone; its docstring says what they are."""

    quorum: float | int = 0.8
    bits: int | Literal["auto"] = "auto"
    unmask_timeout: float = 60.0
    sketch: int | None = None

    def __post_init__(self) -> None:
        counted = type(self.quorum) is int and self.quorum >= LEAST_NODES
        if not (counted or (type(self.quorum) is float and 0.5 < self.quorum <= 1.0)):
            raise ValueError(
                f"quorum must be a share above 0.5 up to 1.0, or a number of at least 3, got {self.quorum!r}"
            )
        if self.bits != "auto" and not (type(self.bits) is int and 1 <= self.bits <= 32):
            raise ValueError(f"bits must be 'auto' or an integer from 1 to 32, got {self.bits!r}")
        if not 0.0 < self.unmask_timeout < math.inf:
            raise ValueError(f"unmask_timeout must be positive and finite, got {self.unmask_timeout!r}")
        if self.sketch is not None and not (type(self.sketch) is int and self.sketch >= 1):
            raise ValueError(f"sketch must be a positive integer or None, got {self.sketch!r}")

    def quorum_of(self, nodes: int, colluders: int) -> int:
        """t for so many nodes; ValueError where no sum of them hides its parts."""
        quorum = self.quorum if isinstance(self.quorum, int) else math.ceil(self.quorum * nodes - 1e-9)
        if nodes < LEAST_NODES or not quorum <= nodes or not 2 * quorum > nodes + colluders:
            raise ValueError(
                f"a sum of {nodes} nodes with quorum {quorum} and {colluders} colluders does not hide single updates: "
                f"at least {LEAST_NODES} nodes, and twice the quorum above nodes and colluders together"
            )
        return quorum

    def numbers_of(self, coordinates: int) -> int:
        """How many numbers a node sends for a model of so many coordinates; ValueError where a sketch saves none."""
        if self.sketch is not None and self.sketch >= coordinates:
            raise ValueError(f"sketch must be below the model's {coordinates} coordinates, got {self.sketch}")
        return coordinates if self.sketch is None else self.sketch
