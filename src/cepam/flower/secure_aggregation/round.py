"""One round of secure aggregation over Flower: masked vectors, repair, and the shares that open the sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from logging import WARNING, getLogger

from flwr.app import Message
from flwr.serverapp import Grid

from cepam.flower.secure_aggregation.membership import Membership
from cepam.flower.secure_aggregation.transport import Transport
from cepam.kernels.format.plan import Floats
from cepam.protocol.server import Refused
from cepam.secure_aggregation.refusal import SecAggRefused
from cepam.secure_aggregation.server import SecAggRound

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


@dataclass
class RoundDriver:
    """A round under way: the server's end of the sum, the messages that ask for it, and what came of them."""

    protocol: SecAggRound
    messages: dict[int, Message]
    transport: Transport
    members: Membership
    bytes_of: dict[int, int] = field(default_factory=dict)
    opened: Floats | None = None

    def take(self, reply: Message, before: Callable[[Message], None], drop: Callable[[Refused], None]) -> None:
        """Take the masked vector in this reply, or drop the reply."""

        def counted(node: int, said: bytes) -> None:
            before(reply)
            self.protocol.take(node, said)
            self.members.note_answer(node)
            self.bytes_of[node] = len(said)

        self.transport.give(reply, counted, drop)

    def repair(self, grid: Grid, drop: Callable[[Refused], None]) -> bool:
        """Whether enough nodes are left, once what the missing ones left behind is known."""
        try:
            while asks := self.protocol.repairs():
                self.transport.exchange(grid, asks, self._counting(self.protocol.take_repair), drop)
        except SecAggRefused as lost:
            log(WARNING, "cepam: nothing is opened this round, nothing is charged: %s", lost)
            return False
        return True

    def unmask(self, grid: Grid, drop: Callable[[Refused], None]) -> bool:
        """Whether the sum is open. From the first request on the round counts as released."""
        self.transport.exchange(
            grid, self.protocol.unmasks(), self._counting(self.protocol.take_unmask), drop, done=self._is_open
        )
        if not self._is_open():
            log(WARNING, "cepam: too few good shares came: the sum stays closed, and the round is charged")
        self.members.faults.note(self.protocol, self.opened is not None)
        return self.opened is not None

    def _is_open(self) -> bool:
        if self.opened is None:
            try:
                self.opened = self.protocol.open()
            except SecAggRefused:
                return False
        return True

    def _counting(self, take: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
        def counted(node: int, said: bytes) -> None:
            take(node, said)
            self.bytes_of[node] = self.bytes_of.get(node, 0) + len(said)

        return counted
