"""Who made charged rounds of secure aggregation fail, as far as public data tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from logging import WARNING, getLogger

from cepam.secure_aggregation.server import SecAggRound

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


class Faults:
    """Remembers over the rounds of a run who disputes shares with whom, and whose seeds did not open.

    A dispute is a pair of nodes: the receiver says that what the sender sealed for it does not open. Two honest nodes
    never dispute, so an honest node has at most as many disputes as there are nodes at fault. Who has more than the
    quorum can spare (K - t of K nodes, one at least) is at fault, as sender or as accuser, and is left out for good.
    So is a sender whose seed does not follow from the shares of all K nodes, while there are no more such senders than
    liars whom an honest sender's seed stands (`SecAggRound.most_wrong`).

    Where that tells nothing, those who may have been at fault sit out: nobody the first time, then 1, 2, 4, … rounds.

    Guarantee: while at most K - t nodes misbehave (one, where no share can be spared; half as many, where over 500 ways
    to choose t of K nodes exist), no honest node is left out for good (docs/proofs/secure-aggregation.md;
    tests/attacks/test_secure_aggregation_shares.py).
    """

    def __init__(self) -> None:
        self.named: set[int] = set()
        self._disputes: set[frozenset[int]] = set()
        self._times: Counter[int] = Counter()
        self._back: dict[int, int] = {}
        self._round = 0
        self._most = 1

    def begin_round(self) -> None:
        """Count a round, after which whoever sat out long enough is back."""
        self._round += 1

    @property
    def left_out(self) -> set[int]:
        """The nodes that are not asked in this round."""
        return self.named | {node for node, back in self._back.items() if self._round < back}

    def note(self, protocol: SecAggRound, is_open: bool) -> None:
        """Take notice of a round whose shares were asked for.

        Args:
            protocol: the round, with all shares that came.
            is_open: whether its sum was opened.
        """
        spare = len(protocol.cohort) - protocol.settings.threshold
        self._most = max(self._most, spare)
        self._disputes |= {frozenset(pair) for pair in protocol.disputes if not self.named & set(pair)}
        while disputed := self._most_disputed():
            self._name(disputed, "disputes its sealed shares with more nodes than can be at fault")
        if is_open:
            return
        unopened = protocol.unopened() - self.named
        # Everybody sent shares, and more of a sender's are wrong than nodes can be at fault: so it is one of these.
        is_all = protocol.survivors == protocol.cohort and not protocol.silent
        if is_all and len(unopened) <= protocol.most_wrong:
            self._name(unopened, "committed to a seed that does not follow from its shares")
        self._sit_out(self._suspects(protocol, unopened) - self.named)

    def _most_disputed(self) -> set[int]:
        """The nodes with the most disputes, if these are more than any round could spare."""
        counts = Counter(node for pair in self._disputes for node in pair)
        most = max(counts.values(), default=0)
        return {node for node, count in counts.items() if count == most} if most > self._most else set()

    def _suspects(self, protocol: SecAggRound, unopened: frozenset[int]) -> set[int]:
        """Whoever may have kept the sum closed: the silent, and where enough answered senders and their accusers."""
        if len(protocol.survivors) - len(protocol.silent) < protocol.settings.threshold:
            return set(protocol.silent)
        accusers = {receiver for sender, receiver in protocol.disputes if sender in unopened}
        return set(protocol.silent) | unopened | accusers if not self.named & protocol.unopened() else set()

    def _name(self, nodes: Iterable[int], reason: str) -> None:
        for node in sorted(nodes):
            self.named.add(node)
            log(WARNING, "cepam: node %d is left out of this run: it %s", node, reason)
        self._disputes = {pair for pair in self._disputes if not pair & self.named}

    def _sit_out(self, nodes: Iterable[int]) -> None:
        for node in sorted(nodes):
            self._times[node] += 1
            rounds = 2 ** (self._times[node] - 2) if self._times[node] > 1 else 0
            self._back[node] = self._round + 1 + rounds
            if rounds:
                log(WARNING, "cepam: node %d sits out %d rounds: its shares may have kept sums closed", node, rounds)
