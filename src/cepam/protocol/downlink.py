"""The downlink over the protocol: one broadcast from what each node is known to hold.

Batch statistics, integers and arrays of other types travel beside the broadcast, as they are. The mark of a broadcast
sees to it that a node computes at the server's public weights or not at all; the server's notes of who holds what only
save bytes, so a node that claims another version than it holds harms itself.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping

import numpy as np

from cepam.distributions.laws import Gaussian
from cepam.downlink import Broadcast
from cepam.errors import CepamError
from cepam.protocol.broadcast_message import BroadcastMessage, ModelLayout
from cepam.protocol.settings import UplinkSettings
from cepam.protocol.vectors import Arrays

GRID_BYTES = 8


def noise_of_average(settings: Iterable[UplinkSettings]) -> float:
    """The standard deviation per coordinate of the noise in the weighted average of such replies."""
    used = list(settings)
    spread = [s.weight * s.law.scale * (1.0 if isinstance(s.law, Gaussian) else math.sqrt(2.0)) for s in used]
    return math.sqrt(sum(noise**2 for noise in spread)) / sum(s.weight for s in used)


class Downlink:
    """The server's half: one model on one grid, and what each node is known to hold of it.

    The exact arrays stay with the server: the next ones are made from them, so that nothing adds up
    (docs/downlink.md). What clients compute at, and what the server answers for, are the public ones.
    Guarantee: a node ends with the bits of `public`, whatever it missed (tests/protocol/test_downlink.py).
    """

    def __init__(self, arrays: Arrays, step: float, history: int = 64) -> None:
        self._layout = ModelLayout.of(arrays)
        self._grid = secrets.token_bytes(GRID_BYTES)
        self._broadcast = Broadcast(self._grid, history=history)
        self._checks: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        self.publish(arrays, step)

    def publish(self, exact: Arrays, step: float) -> None:
        """Set `public` to the grid point nearest to these arrays."""
        self._broadcast.publish(self._layout.vector(exact), step)
        self._checks[self._broadcast.version] = self._broadcast.check
        self.exact = dict(exact)
        self.public = self._layout.arrays(self._broadcast.weights, exact)

    def fits(self, arrays: Arrays) -> bool:
        """Whether these arrays could be the next ones: the same names and shapes."""
        return self._layout.fit(arrays)

    def knows(self, arrays: Arrays) -> bool:
        """Whether these arrays are the public ones, or the exact ones behind them."""
        return any(_same(arrays, known) for known in (self.public, self.exact))

    @property
    def coordinates(self) -> int:
        """How many coordinates lie on the grid."""
        return self._layout.size

    def message_for(self, node: int) -> BroadcastMessage:
        """What brings this node to the public arrays; the same object of bytes for all that hold the same."""
        version = self._held.get(node)
        layout = self._layout.to_text() if version is None else ""
        return BroadcastMessage(self._grid, layout, self._broadcast.message_from(version))

    @property
    def beside(self) -> list[str]:
        """The names of the arrays that travel beside the broadcast."""
        return self._layout.beside

    def forget(self, node: int) -> None:
        """Treat the node as holding no model."""
        self._held.pop(node, None)

    def hear(self, node: int, report: Mapping[str, object]) -> None:
        """Note what the node reports to hold; CepamError if it did not compute at the public arrays."""
        version, check = report.get("version"), report.get("check")
        self.forget(node)
        if isinstance(version, int) and version in self._checks and self._checks[version] == check:
            self._held[node] = version
        if self._held.get(node) != self._broadcast.version:
            raise CepamError(f"it computed at version {version!r}, not at {self._broadcast.version} as published")


def _same(arrays: Arrays, known: Arrays) -> bool:
    return list(arrays) == list(known) and all(
        arrays[name].dtype == known[name].dtype and np.array_equal(arrays[name], known[name]) for name in known
    )
